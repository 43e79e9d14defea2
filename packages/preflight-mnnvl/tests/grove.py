"""A Grove of the tests' own on a real API server: it makes PodCliques, PodCliqueScalingGroups and
PodGangs of a set, and writes its templates over them again at every turn, but for PodCliques of
scaling groups: these it makes anew when their template is another. Beside it NVIDIA's controller,
as far as claim templates go. Nothing of what is tested is used.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

import anyio
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound
from preflight_testing.grove import (
    HASH,
    Labels,
    MadeClique,
    gang,
    made,
    podclique,
    reapplied,
    scaling_groups,
)

Json = dict[str, Any]


class Grove:
    """One namespace. ``labels``: Grove's own set, or the requirement's. ``admit``: what stands for
    the admission of a PodClique where no webhook is registered.

    ``refused``: what the API server said to writes that it refused, which are tried again at the
    next turn.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        labels: Labels = "grove",
        admit: Callable[[str, Json, Json | None, Json], Awaitable[Json]] | None = None,
    ) -> None:
        self.client, self.namespace, self.labels, self._admit = client, namespace, labels, admit
        self.refused: list[str] = []

    def path(self, plural: str, name: str = "") -> str:
        group = "scheduler.grove.io" if plural == "podgangs" else "grove.io"
        return f"/apis/{group}/v1alpha1/namespaces/{self.namespace}/{plural}" + (
            f"/{name}" if name else ""
        )

    async def all(self, plural: str) -> dict[str, Json]:
        return {
            one["metadata"]["name"]: one
            async for page, _ in self.client.pages(self.path(plural), dict)
            for one in page
        }

    async def apply(self, found: Json) -> Json:
        """A user's set. Raises KubeError where it is refused."""
        body = copy.deepcopy(found)
        body["metadata"].pop("uid", None)
        body["metadata"]["namespace"] = self.namespace
        path = self.path("podcliquesets", body["metadata"]["name"])
        applied = f"{path}?fieldManager=kubectl&force=true"
        await self.client._write(
            "patch", "PATCH", applied, body, kind="application/apply-patch+yaml"
        )
        return await self.client.get(path, dict)

    async def scale(self, name: str, replicas: int) -> None:
        await self.client.merge_patch(
            self.path("podcliquesets", name), {"spec": {"replicas": replicas}}
        )

    async def scale_group(self, name: str, replicas: int) -> None:
        await self.client.merge_patch(
            self.path("podcliquescalinggroups", name), {"spec": {"replicas": replicas}}
        )

    # --- what a set makes

    def made(self, set_: Json, groups: dict[str, Json]) -> list[MadeClique]:
        return made(set_, groups)

    def body(self, set_: Json, one: MadeClique, groups: Mapping[str, Json] = {}) -> Json:
        return podclique(set_, one, self.namespace, self.labels, groups)

    # --- its turns

    async def turn(self, *, gangs: Literal["first", "between", "last", "none"] = "between") -> int:
        """One reconciliation of every set; how many PodCliques have another version afterwards.
        ``gangs``: between is Grove's own order, by which PodCliques of scaling groups come after
        their PodGang.
        """
        sets = await self.all("podcliquesets")
        if gangs == "between":
            changed = await self.cliques(sets, grouped=False)
            await self.groups(sets)
            await self.gangs(sets)
            return changed + await self.cliques(sets, grouped=True)
        if gangs == "first":
            await self.gangs(sets)
        await self.groups(sets)
        changed = await self.cliques(sets)
        if gangs == "last":
            await self.gangs(sets)
        return changed

    async def end(self) -> None:
        """Let PodCliques and scaling groups go that are being deleted, until cancelled."""
        while True:
            for plural in ("podcliquescalinggroups", "podcliques"):
                with suppress(KubeError):
                    for name, one in (await self.all(plural)).items():
                        if one["metadata"].get("deletionTimestamp"):
                            path = self.path(plural, name)
                            await self.client.merge_patch(path, {"metadata": {"finalizers": None}})
            await anyio.sleep(0.2)

    async def groups(self, sets: dict[str, Json]) -> None:
        there = await self.all("podcliquescalinggroups")
        wanted = {
            one["metadata"]["name"]: one for set_ in sets.values() for one in scaling_groups(set_)
        }
        for name in wanted.keys() - there.keys():
            await self.client.create(self.path("podcliquescalinggroups"), wanted[name])
        await self._gone("podcliquescalinggroups", there.keys() - wanted.keys())

    async def cliques(
        self, sets: dict[str, Json], writers: int = 8, grouped: bool | None = None
    ) -> int:
        there, groups = await self.all("podcliques"), await self.all("podcliquescalinggroups")
        made = [(set_, one) for set_ in sets.values() for one in self.made(set_, groups)]
        wanted, owners = {one.name for _, one in made}, {*sets, *groups}
        for name in there.keys() - wanted:
            (owner,) = there[name]["metadata"]["ownerReferences"]
            if owner["name"] in owners and grouped in {None, owner["name"] in groups}:
                await self._gone("podcliques", {name})  # others are the garbage collector's
        left = [one for one in reversed(made) if grouped in {None, bool(one[1].group)}]
        changed = 0

        async def write() -> None:
            nonlocal changed
            while left:
                set_, one = left.pop()
                old, body = there.get(one.name), self.body(set_, one, groups)
                if old is None or not one.group:
                    changed += await self._put(set_, body, old)
                elif old["metadata"]["labels"].get(HASH) != body["metadata"]["labels"].get(HASH):
                    await self._gone("podcliques", {one.name})

        async with anyio.create_task_group() as group:
            for _ in range(writers):
                group.start_soon(write)
        return changed

    async def _put(self, set_: Json, body: Json, old: Json | None) -> bool:
        """Create it, or write the template over it: spec but for the replicas, labels and
        annotations.
        """
        try:
            if old is None:
                if self._admit is not None:
                    body = await self._admit("CREATE", body, None, set_)
                await self.client.create(self.path("podcliques"), body)
                return True
            new = reapplied(old, body)
            if self._admit is not None:
                new = await self._admit("UPDATE", new, old, set_)
            said = await self.client.replace(self.path("podcliques", body["metadata"]["name"]), new)
            return _version(said) != str(old["metadata"]["resourceVersion"])
        except (Conflict, NotFound):
            return False
        except KubeError as error:
            self.refused.append(str(error))
            return False

    async def gangs(self, sets: dict[str, Json]) -> None:
        there, groups = await self.all("podgangs"), await self.all("podcliquescalinggroups")
        wanted: dict[str, tuple[Json, list[MadeClique]]] = {}
        for set_ in sets.values():
            for one in self.made(set_, groups):
                wanted.setdefault(one.gang, (set_, []))[1].append(one)
        await self._gone("podgangs", there.keys() - wanted.keys())
        for name, (set_, members) in wanted.items():
            await self.gang(name, set_, members, there.get(name))

    async def gang(
        self, name: str, set_: Json, members: Sequence[MadeClique] = (), there: Json | None = None
    ) -> None:
        """Make a PodGang, or write it over the one that is ``there``."""
        body = gang(name, set_, members, there)
        if there is None:
            await self.client.create(self.path("podgangs"), body)
            return
        meta = body["metadata"]
        gone = dict.fromkeys(there["metadata"].get("annotations") or {})
        meta["annotations"] = gone | meta["annotations"]
        with suppress(NotFound):
            await self.client.merge_patch(self.path("podgangs", name), body)

    async def _gone(self, plural: str, names: set[str]) -> None:
        for name in names:
            try:
                await self.client.delete(self.path(plural, name))
            except NotFound:
                continue


class Driver:
    """NVIDIA's controller, as far as it concerns claims: a finalizer, a claim template for each
    ComputeDomain, and its end.
    """

    FINALIZER = "resource.nvidia.com/computeDomain"

    def __init__(self, client: Client, version: str = "v1beta1") -> None:
        self.client, self.version = client, version

    async def run(self, pause: float = 0.1) -> None:
        while True:
            await self.turn()
            await anyio.sleep(pause)

    async def turn(self) -> None:
        path = f"/apis/resource.nvidia.com/{self.version}/computedomains"
        try:
            every = [one async for page, _ in self.client.pages(path, dict) for one in page]
        except KubeError:
            return
        await asyncio.gather(*(self._one(one) for one in every))

    async def _one(self, found: Json) -> None:
        meta = found["metadata"]
        space, channel = f"namespaces/{meta['namespace']}", found["spec"].get("channel")
        path = f"/apis/resource.nvidia.com/{self.version}/{space}/computedomains/{meta['name']}"
        templates = f"/apis/resource.k8s.io/v1/{space}/resourceclaimtemplates"
        if channel is None:
            return
        name = channel["resourceClaimTemplate"]["name"]
        try:
            if meta.get("deletionTimestamp"):
                await self._end(path, meta, templates, name)
                return
            if self.FINALIZER not in meta.get("finalizers", ()):
                await self.client.merge_patch(
                    path,
                    {
                        "metadata": {
                            "resourceVersion": meta["resourceVersion"],
                            "finalizers": [self.FINALIZER],
                        }
                    },
                )
                await self.client.create(templates, template(name, meta["uid"]))
        except KubeError:
            return

    async def _end(self, path: str, meta: Json, templates: str, name: str) -> None:
        try:
            there = await self.client.get(f"{templates}/{name}", dict)
            if (
                there["metadata"].get("labels", {}).get("resource.nvidia.com/computeDomain")
                == meta["uid"]
            ):
                await self.client.delete(f"{templates}/{name}")
        except NotFound:
            pass
        await self.client.merge_patch(path, {"metadata": {"finalizers": None}})


def template(name: str, uid: str) -> Json:
    """The claim template that the driver makes for the ComputeDomain of this uid."""
    config = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomainChannelConfig",
        "domainID": uid,
        "allocationMode": "Single",
    }
    opaque = {"driver": "compute-domain.nvidia.com", "parameters": config}
    exactly = {"deviceClassName": "compute-domain-default-channel.nvidia.com"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": name,
            "labels": {
                "resource.nvidia.com/computeDomain": uid,
                "resource.nvidia.com/computeDomainTarget": "Workload",
            },
        },
        "spec": {
            "spec": {
                "devices": {
                    "requests": [{"name": "channel", "exactly": exactly}],
                    "config": [{"requests": ["channel"], "opaque": opaque}],
                }
            }
        },
    }


def _version(said: bytes) -> str:
    return str(json.loads(said)["metadata"]["resourceVersion"])
