"""A small cluster in memory for one wrapper, with a clock of its own, in which answers are lost and
controllers die.

It knows the data that a decision is made from and nothing of how decisions are made. Its Job
controller makes the pods, its garbage collector removes what has no owner, a kubelet runs and ends
pods as the test says.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from preflight_appwrapper.api.names import LABEL
from preflight_appwrapper.api.types import (
    AppWrapper,
    OwnerReference,
    Pod,
    lenient,
    wrapper_from,
    written,
)
from preflight_appwrapper.core.component_status import verdict
from preflight_appwrapper.core.decode import ComponentObject
from preflight_appwrapper.core.plan import (
    Confirm,
    CreateComponent,
    DeleteObject,
    Finalizer,
    List,
    WrapperAction,
    WrapperPlan,
)
from preflight_appwrapper.core.snapshot import (
    Attempt,
    LeaderState,
    Mirrored,
    WrapperSnapshot,
    observe,
)
from preflight_kube.api.kinds import kind_of

START = datetime(2026, 1, 1, tzinfo=UTC)
Key = tuple[str, str, str]


class DiedError(Exception):
    """The controller's process ends here."""


class BrokenError(AssertionError):
    """An invariant does not hold at some version of the world."""


class World:
    def __init__(
        self, wrapper: dict[str, Any], *, build: Callable[[AppWrapper, int, str], dict[str, Any]]
    ) -> None:
        self.now = START
        self.version = 1
        self.uids = 0
        self.wrapper: dict[str, Any] | None = copy.deepcopy(wrapper)
        self.wrapper["metadata"].setdefault("uid", "wrapper-uid")
        self.wrapper["metadata"].setdefault("namespace", "ns")
        self.objects: dict[Key, dict[str, Any]] = {}
        self.pods: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, frozenset[str]] = {}
        self.held: set[str] = set()  # uids of pods that nobody but force removes
        self.refuse: dict[str, Attempt] = {}  # by component name: what creating it gives
        self.memory = LeaderState(uid="wrapper-uid")
        self.views = count(1)
        self.build = build
        self.events: list[str] = []
        self.phases: list[str] = []
        self.created: list[tuple[str, str]] = []
        self.deleted: list[str] = []
        self.writes = 0
        self.requests = 0
        self.faults: Callable[[int], str] = lambda _: (
            ""
        )  # by number of the request: "", "lost", "answer lost"
        self.makes_pods = True
        self.skewed = False
        self.skew = timedelta(0)  # of the leader's clock, which the status has its times from

    # --- what the controller sees

    def uid(self) -> str:
        self.uids += 1
        return f"uid-{self.uids}"

    def read(self) -> AppWrapper:
        assert self.wrapper is not None
        metadata = {**self.wrapper["metadata"], "resourceVersion": str(self.version)}
        return wrapper_from({**self.wrapper, "metadata": metadata})

    def seen(self) -> WrapperSnapshot:
        """A view that is never behind, with what this leader knows better."""
        wrapper, passed = self.read(), next(self.views)
        named = {known.name for known in wrapper.status.component_status}
        ours = self.objects_of_ours()
        cached = Mirrored(
            complete=True,
            things={
                (kind_of(api, kind), name): self._thing((api, kind, name), passed)
                for api, kind, name in self.objects
                if name in named or name in ours
            },
            pods={one["metadata"]["uid"]: lenient(Pod, one) for one in self.pods.values()},
            nodes=self.nodes,
            version=lambda _: passed,
        )
        suffix, clock = f"{self.uids:05d}", self.monotonic
        return observe(wrapper, cached, self.memory, suffix=suffix, now=self.clock, clock=clock)

    def _thing(self, key: Key, version: int) -> ComponentObject:
        api, kind, name = key
        raw = self.objects[key]
        metadata = raw["metadata"]
        owners = (it for it in metadata.get("ownerReferences", []) if it.get("controller"))
        owner = next(owners, None)
        return ComponentObject(
            kind=kind_of(api, kind),
            namespace="ns",
            name=name,
            uid=metadata["uid"],
            version=version,
            going="deletionTimestamp" in metadata,
            finalizers=tuple(metadata.get("finalizers", ())),
            owner=lenient(OwnerReference, owner) if owner else None,
            label="w",
            verdict=verdict(raw),
        )

    @property
    def clock(self) -> datetime:
        """What the leader takes for now."""
        return self.now + self.skew

    @property
    def monotonic(self) -> float:
        return (self.now - START).total_seconds()

    # --- what the controller does; each may be lost, or its answer

    def request(self) -> str:
        self.requests += 1
        return self.faults(self.requests)

    def do(self, made: WrapperPlan, before: AppWrapper) -> None:
        """Write and act as the shell does. Raises :class:`DiedError` where a fault is played."""
        if made.status != before.status:
            fault = self.request()
            if fault != "lost":
                self._write(made)
            if fault:
                raise DiedError
        for action in made.actions:
            fault = self.request()
            if fault != "lost":
                self._act(action)
            if fault:
                raise DiedError
        for one in filter(self.memory.record, made.say):
            self.events.append(f"{one.reason}: {one.message}")

    def restart(self, skew: float = 0) -> None:
        """Another leads, whose clock is ``skew`` seconds ahead."""
        self.skewed = self.skewed or bool(skew)
        self.memory, self.skew = LeaderState(uid="wrapper-uid"), timedelta(seconds=skew)

    def _write(self, made: WrapperPlan) -> None:
        assert self.wrapper is not None
        self.wrapper["status"] = written(made.status)
        self.version += 1
        self.writes += 1
        if made.row in {"resume", "retry"}:
            self.memory.begin()
        if not self.phases or self.phases[-1] != made.status.phase:
            self.phases.append(made.status.phase)
        self.check()

    def _act(self, action: WrapperAction) -> None:
        assert self.wrapper is not None
        memory = self.memory
        memory.attempts[action] = self.clock
        metadata = self.wrapper["metadata"]
        if not isinstance(action, List):
            memory.empty.clear()
        if isinstance(action, Finalizer) and action.wanted:
            metadata.setdefault("finalizers", []).append("workload.codeflare.dev/finalizer")
            self.version += 1
        elif isinstance(action, Finalizer):
            if self.objects_of_ours() or self.pods:
                raise BrokenError("the finalizer goes while something is left")
            self.wrapper = None
        elif isinstance(action, CreateComponent):
            self._create(action)
        elif isinstance(action, Confirm):
            known = self.read().status.component_status[action.index]
            self._look((known.api_version, known.kind, known.name))
        elif isinstance(action, DeleteObject):
            self._delete(action)
        elif isinstance(action, List):
            found = self.objects_of_ours() or list(self.pods)
            if found:
                memory.empty.clear()
            else:
                memory.empty.append(self.monotonic)
        self.check()

    def _look(self, key: Key) -> None:
        thing = self._thing(key, next(self.views)) if key in self.objects else None
        self.memory.saw((kind_of(*key[:2]), key[2]), thing)

    def _create(self, action: CreateComponent) -> None:
        memory, wrapper = self.memory, self.read()
        if (one := self.refuse.get(action.name)) is not None:
            memory.tried(action.index, one.error, self.clock, fatal=one.fatal, unclear=one.unclear)
            return
        memory.creates.pop(action.index, None)
        made = self.build(wrapper, action.index, action.name)
        key = (made["apiVersion"], made["kind"], action.name)
        if key not in self.objects:
            made["metadata"]["uid"] = self.uid()
            self.objects[key] = made
            self.created.append((action.name, made["metadata"]["uid"]))
            self.spawn(made)
        self._look(key)  # where the name was taken, whose it is

    def _delete(self, action: DeleteObject) -> None:
        if (action.kind, action.force) == ("Pod", True) and action.name in self.pods:
            self._delete_pod(action)
            return
        key = (action.api_version, action.kind, action.name)
        found = self.objects.get(key)
        if found is None or found["metadata"]["uid"] != action.uid:
            return
        if not any(
            it.get("uid") == "wrapper-uid" for it in found["metadata"].get("ownerReferences", [])
        ):
            raise BrokenError(f"{action.name} belongs to somebody else and was deleted")
        self.deleted.append(action.name)
        if found["metadata"].get("finalizers"):
            found["metadata"]["deletionTimestamp"] = self.now.isoformat()
            return
        del self.objects[key]
        self.collect()

    def _delete_pod(self, action: DeleteObject) -> None:
        found = self.pods.get(action.name)
        if found is not None and found["metadata"]["uid"] == action.uid:
            if found["metadata"].get("finalizers"):
                found["metadata"]["deletionTimestamp"] = self.now.isoformat()
            else:
                del self.pods[action.name]

    # --- the cluster's own life

    def spawn(self, made: dict[str, Any]) -> None:
        if not self.makes_pods or made["kind"] not in {"Job", "Pod"}:
            return
        uid = made["metadata"]["uid"]
        count = made["spec"].get("parallelism", 1) if made["kind"] == "Job" else 1
        for _ in range(count):
            self.pod(uid)

    def pod(self, owner: str, phase: str = "Pending", *, node: str = "node-a") -> str:
        assert self.wrapper is not None
        uid = self.uid()
        name = f"pod-{uid}"
        self.pods[name] = {
            "metadata": {
                "name": name,
                "uid": uid,
                "labels": {LABEL: self.wrapper["metadata"]["name"]},
                "ownerReferences": [
                    {"kind": "Job", "name": "train", "uid": owner, "controller": True}
                ],
            },
            "spec": {
                "nodeName": node,
                "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
            },
            "status": {"phase": phase},
        }
        return name

    def collect(self) -> None:
        """The garbage collector: pods whose owner is gone go, unless nobody is
        there to end them.
        """
        alive = {one["metadata"]["uid"] for one in self.objects.values()}
        for name, one in list(self.pods.items()):
            if one["metadata"]["ownerReferences"][0]["uid"] in alive:
                continue
            if one["metadata"]["uid"] in self.held or one["metadata"].get("finalizers"):
                one["metadata"]["deletionTimestamp"] = self.now.isoformat()
            else:
                del self.pods[name]

    def run(self, phase: str = "Running") -> None:
        for one in self.pods.values():
            one["status"]["phase"] = phase

    def objects_of_ours(self) -> list[str]:
        return [
            name
            for (_, _, name), one in self.objects.items()
            if any(
                it.get("uid") == "wrapper-uid" for it in one["metadata"].get("ownerReferences", [])
            )
        ]

    def condition(self, type_: str) -> dict[str, Any]:
        if self.wrapper is None:
            return {}
        found = [
            it for it in self.wrapper.get("status", {}).get("conditions", []) if it["type"] == type_
        ]
        return found[0] if found else {}

    def check(self) -> None:
        """What holds at every version."""
        if self.wrapper is None:
            return
        left = self.objects_of_ours() or list(self.pods)
        if left and self.condition("ResourcesDeployed").get("status") != "True":
            raise BrokenError(f"{left} exist although ResourcesDeployed is not True")
        generations = set(self.objects_of_ours())
        if len(generations) > len(self.wrapper["spec"]["components"]):
            raise BrokenError(f"{generations} exist twice")

    def sleep(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
