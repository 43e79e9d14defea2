"""Plays a wrapper in :mod:`world`: look, write, act, until nothing happens any more or time is
over.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.core.components import build
from preflight_appwrapper.core.plan import WrapperPlan
from preflight_appwrapper.core.reconcile import reconcile
from world import DiedError, World

PREFIX = "workload.codeflare.dev.appwrapper/"


def job(
    name: str = "train", *, parallelism: int = 2, completions: int | None = None, **more: Any
) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "parallelism": parallelism,
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": 8}}}
                ],
            }
        },
        **more,
    }
    if completions is not None:
        spec["completions"] = completions
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def service(name: str = "train") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "selector": {"app": name}},
    }


def bare_pod(prefix: str = "probe-") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": prefix},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    }


def wrapper(
    *templates: dict[str, Any], suspend: bool = False, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {
            "name": "w",
            "namespace": "ns",
            "uid": "wrapper-uid",
            "annotations": {PREFIX + key: value for key, value in (annotations or {}).items()},
        },
        "spec": {
            "suspend": suspend,
            "components": [{"template": one} for one in templates or (job(),)],
        },
    }


class Player:
    def __init__(self, raw: dict[str, Any], rules: WrapperRules | None = None) -> None:
        self.rules = rules or WrapperRules()
        self.world = World(raw, build=self._build)
        self.rows: list[str] = []
        self.looks = 0
        self.last: WrapperPlan | None = None

    def _build(self, of: AppWrapper, index: int, name: str) -> dict[str, Any]:
        return build(of, index, name, self.rules)

    def look(self) -> WrapperPlan:
        """One look; a controller that dies in it is followed by another."""
        self.looks += 1
        before = self.world.read()
        made = reconcile(before, self.world.seen(), self.rules, self.world.clock)
        self.last = made
        try:
            self.world.do(made, before)
        except DiedError:
            self.world.restart(self.world.skew.total_seconds())
        if made.row and (not self.rows or self.rows[-1] != made.row):
            self.rows.append(made.row)
        return made

    def settle(self, most: int = 60) -> WrapperPlan:
        """Looks until a look changes nothing: everything that needs no time."""
        for _ in range(most):
            if self.world.wrapper is None:
                break
            before = (self.world.version, self.world.requests)
            made = self.look()
            if (self.world.version, self.world.requests) == before:
                return made
        assert self.last is not None
        assert self.world.wrapper is None, f"does not settle: {self.rows} {self.last}"
        return self.last

    def until(self, phase: str, *, most: float = 100_000) -> WrapperPlan:
        """Lets time pass by what is said to come next, until the wrapper is in this phase, and is
        settled.
        """
        end = self.world.now + timedelta(seconds=most)
        made = self.settle()
        while self.phase != phase:
            assert made.next is not None, f"nothing comes next in {self.phase}"
            assert made.next.at is not None, (
                f"waits for {made.next.waits} in {self.phase}: {made.next.why}"
            )
            assert made.next.at <= end, f"{phase} does not come; {made.next}"
            self.world.now = max(self.world.now, made.next.at)
            made = self.settle()
        return made

    def wait(self, seconds: float) -> WrapperPlan:
        """So long, with every look that is said to come in between."""
        end = self.world.now + timedelta(seconds=seconds)
        made = self.settle()
        while (
            self.world.wrapper is not None
            and made.next is not None
            and made.next.at is not None
            and made.next.at <= end
        ):
            if made.next.at <= self.world.now:
                self.world.now += timedelta(milliseconds=100)
            self.world.now = max(self.world.now, made.next.at)
            made = self.settle()
        self.world.now = end
        return self.settle() if self.world.wrapper is not None else made

    @property
    def phase(self) -> str:
        return (
            ""
            if self.world.wrapper is None
            else str(self.world.wrapper.get("status", {}).get("phase", ""))
        )

    @property
    def count(self) -> int:
        assert self.world.wrapper is not None
        return int(self.world.wrapper["status"].get("resettingCount", 0))

    def suspend(self, value: bool) -> None:
        assert self.world.wrapper is not None
        self.world.wrapper["spec"]["suspend"] = value
        self.world.version += 1

    def delete(self) -> None:
        world = self.world
        assert world.wrapper is not None
        if not world.wrapper["metadata"].get("finalizers"):
            world.wrapper = None
            return
        world.wrapper["metadata"]["deletionTimestamp"] = world.now.isoformat()
        world.version += 1

    def object(self, name: str = "train", kind: str = "Job") -> dict[str, Any]:
        return next(one for (_, k, n), one in self.world.objects.items() if (k, n) == (kind, name))

    def complete(self, name: str = "train") -> None:
        """The Job ends well: its pods succeed, and then it says so."""
        made = self.object(name)
        self.world.run("Succeeded")
        made["status"] = {
            "conditions": [{"type": "Complete", "status": "True"}],
            "succeeded": len(self.world.pods),
        }


def playing(*templates: dict[str, Any], **annotations: str) -> Player:
    """Plays a wrapper of a Job, or of these, with these annotations."""
    return Player(wrapper(*templates, annotations=annotations))
