"""A Grove of the tests' own on a real API server: it makes PodCliques, PodCliqueScalingGroups and PodGangs of a set, and writes its templates over them
again at every turn. Beside it NVIDIA's controller, as far as claim templates go.

Written from what Grove's operator is known to do; nothing of what is tested is used.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Awaitable, Callable
from typing import Any, Literal, NamedTuple

import anyio
from preflight_kube.client import Client, Conflict, KubeError, NotFound

__all__ = ["Driver", "Grove", "Made"]

Json = dict[str, Any]
Labels = Literal["grove", "requirement"]


class Made(NamedTuple):
    """A PodClique that a set makes."""

    name: str
    template: Json
    replica: int
    group: str
    member: int
    gang: str
    base: str


class Grove:
    """One namespace. ``labels``: Grove's own set, or the requirement's. ``admit``: what stands for the admission of a PodClique where no webhook is registered.

    ``refused``: what the API server said to writes that it refused, which are tried again at the next turn.
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
        return f"/apis/{group}/v1alpha1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def all(self, plural: str) -> dict[str, Json]:
        return {
            one["metadata"]["name"]: one async for page, _ in self.client.pages(self.path(plural), dict) for one in page
        }

    async def apply(self, found: Json) -> Json:
        """A user's set. Raises KubeError where it is refused."""
        body = copy.deepcopy(found)
        body["metadata"].pop("uid", None)
        body["metadata"]["namespace"] = self.namespace
        path = self.path("podcliquesets", body["metadata"]["name"])
        await self.client.apply(path, body, manager="kubectl", force=True)
        return await self.client.get(path, dict)

    async def scale(self, name: str, replicas: int) -> None:
        await self.client.merge_patch(self.path("podcliquesets", name), {"spec": {"replicas": replicas}})

    async def scale_group(self, name: str, replicas: int) -> None:
        await self.client.merge_patch(self.path("podcliquescalinggroups", name), {"spec": {"replicas": replicas}})

    # --- what a set makes

    def made(self, set_: Json, groups: dict[str, Json]) -> list[Made]:
        pcs, template, found = set_["metadata"]["name"], set_["spec"]["template"], []
        by_name = {one["name"]: one for one in template["cliques"]}
        entries = template.get("podCliqueScalingGroups") or []
        grouped = {clique for entry in entries for clique in entry["cliqueNames"]}
        for r in range(set_["spec"].get("replicas", 1)):
            base = f"{pcs}-{r}"
            for name, clique in by_name.items():
                if name not in grouped:
                    found.append(Made(f"{base}-{name}", clique, r, "", 0, base, ""))
            for entry in entries:
                full, least = f"{base}-{entry['name']}", entry.get("minAvailable", 1)
                now = groups.get(full, {}).get("spec", {}).get("replicas", entry.get("replicas", 1))
                for i in range(now):
                    gang = base if i < least else f"{full}-{i - least}"
                    found += [
                        Made(f"{full}-{i}-{name}", by_name[name], r, entry["name"], i, gang, "" if i < least else base)
                        for name in entry["cliqueNames"]
                    ]
        return found

    def body(self, set_: Json, one: Made) -> Json:
        pcs = set_["metadata"]["name"]
        labels = {"grove.io/podgang": one.gang}
        if self.labels == "grove":
            labels |= {
                "app.kubernetes.io/managed-by": "grove-operator",
                "app.kubernetes.io/part-of": pcs,
                "grove.io/podcliqueset-replica-index": str(one.replica),
            }
            if one.base:
                labels["grove.io/base-podgang"] = one.base
            if one.group:
                labels["grove.io/podcliquescalinggroup"] = f"{pcs}-{one.replica}-{one.group}"
                labels["grove.io/podcliquescalinggroup-replica-index"] = str(one.member)
        else:
            labels |= {"grove.io/pcs-name": pcs, "grove.io/pcs-replica-index": str(one.replica)}
            if one.group:
                labels |= {"grove.io/pcsg-name": one.group, "grove.io/pcsg-replica-index": str(one.member)}
        meta: Json = {
            "name": one.name,
            "namespace": self.namespace,
            "labels": {**one.template.get("labels", {}), **labels},
            "ownerReferences": [_owner(set_, "PodCliqueSet")],
        }
        if "annotations" in one.template:
            meta["annotations"] = dict(one.template["annotations"])
        spec = copy.deepcopy(one.template["spec"])
        return {"apiVersion": "grove.io/v1alpha1", "kind": "PodClique", "metadata": meta, "spec": spec}

    # --- its turns

    async def turn(self, *, gangs: Literal["first", "last", "none"] = "last") -> int:
        """One reconciliation of every set; how many PodCliques have another version afterwards."""
        sets = await self.all("podcliquesets")
        if gangs == "first":
            await self.gangs(sets)
        await self.groups(sets)
        changed = await self.cliques(sets)
        if gangs == "last":
            await self.gangs(sets)
        return changed

    async def groups(self, sets: dict[str, Json]) -> None:
        there, wanted = await self.all("podcliquescalinggroups"), set()
        for set_ in sets.values():
            for r in range(set_["spec"].get("replicas", 1)):
                for entry in set_["spec"]["template"].get("podCliqueScalingGroups") or []:
                    name = f"{set_['metadata']['name']}-{r}-{entry['name']}"
                    wanted.add(name)
                    if name not in there:
                        spec = {key: entry[key] for key in ("replicas", "minAvailable", "cliqueNames") if key in entry}
                        body = {
                            "apiVersion": "grove.io/v1alpha1",
                            "kind": "PodCliqueScalingGroup",
                            "metadata": {"name": name, "ownerReferences": [_owner(set_, "PodCliqueSet")]},
                            "spec": spec,
                        }
                        await self.client.create(self.path("podcliquescalinggroups"), body)
        await self._gone("podcliquescalinggroups", there.keys() - wanted)

    async def cliques(self, sets: dict[str, Json], writers: int = 8) -> int:
        there, groups = await self.all("podcliques"), await self.all("podcliquescalinggroups")
        made = [(set_, one) for set_ in sets.values() for one in self.made(set_, groups)]
        await self._gone("podcliques", there.keys() - {one.name for _, one in made})
        left, changed = list(reversed(made)), 0

        async def write() -> None:
            nonlocal changed
            while left:
                set_, one = left.pop()
                changed += await self._put(set_, one, there.get(one.name))

        async with anyio.create_task_group() as group:
            for _ in range(writers):
                group.start_soon(write)
        return changed

    async def _put(self, set_: Json, one: Made, old: Json | None) -> bool:
        """Create it, or write the template over it: spec but for the replicas, labels and annotations."""
        body = self.body(set_, one)
        try:
            if old is None:
                if self._admit is not None:
                    body = await self._admit("CREATE", body, None, set_)
                await self.client.create(self.path("podcliques"), body)
                return True
            new = {**copy.deepcopy(old), "spec": {**body["spec"], "replicas": old["spec"].get("replicas")}}
            new["metadata"]["labels"] = {**old["metadata"].get("labels", {}), **body["metadata"]["labels"]}
            if "annotations" in body["metadata"]:
                new["metadata"]["annotations"] = body["metadata"]["annotations"]
            else:
                new["metadata"].pop("annotations", None)
            if self._admit is not None:
                new = await self._admit("UPDATE", new, old, set_)
            said = await self.client.replace(self.path("podcliques", one.name), new)
            return _version(said) != str(old["metadata"]["resourceVersion"])
        except (Conflict, NotFound):
            return False
        except KubeError as error:
            self.refused.append(str(error))
            return False

    async def gangs(self, sets: dict[str, Json]) -> None:
        there, groups = await self.all("podgangs"), await self.all("podcliquescalinggroups")
        wanted: dict[str, Json] = {}
        for set_ in sets.values():
            for one in self.made(set_, groups):
                wanted.setdefault(one.gang, set_)
        await self._gone("podgangs", there.keys() - wanted.keys())
        for gang in wanted.keys() - there.keys():
            await self.gang(gang, wanted[gang])

    async def gang(self, name: str, set_: Json) -> None:
        labels = {
            "app.kubernetes.io/managed-by": "grove-operator",
            "app.kubernetes.io/part-of": set_["metadata"]["name"],
            "app.kubernetes.io/component": "podgang",
        }
        owner = _owner(set_, "PodCliqueSet")
        body = {
            "apiVersion": "scheduler.grove.io/v1alpha1",
            "kind": "PodGang",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "spec": {"podgroups": []},
        }
        await self.client.create(self.path("podgangs"), body)

    async def _gone(self, plural: str, names: set[str]) -> None:
        for name in names:
            try:
                await self.client.delete(self.path(plural, name))
            except NotFound:
                continue


class Driver:
    """NVIDIA's controller, as far as it concerns claims: a finalizer, a claim template for each ComputeDomain, and its end."""

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
                    path, {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": [self.FINALIZER]}}
                )
                await self.client.create(templates, template(name, meta["uid"]))
        except KubeError:
            return

    async def _end(self, path: str, meta: Json, templates: str, name: str) -> None:
        try:
            there = await self.client.get(f"{templates}/{name}", dict)
            if there["metadata"].get("labels", {}).get("resource.nvidia.com/computeDomain") == meta["uid"]:
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


def _owner(set_: Json, kind: str) -> Json:
    return {
        "apiVersion": "grove.io/v1alpha1",
        "kind": kind,
        "name": set_["metadata"]["name"],
        "uid": set_["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _version(said: bytes) -> str:
    return str(json.loads(said)["metadata"]["resourceVersion"])
