"""The cluster around the controller, played by the test: admission, scheduler and kubelets; and
what is seen of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from gangs import injected, status
from gangs import stamp as stamped
from preflight_kube.client.client import Client
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_proto import names
from preflight_proto.roster import ContractError, Roster, decode_roster
from preflight_proto.stamp import configmap_name
from preflight_testing.waiting import until

GANG = "job-1"

Json = dict[str, Any]


_BEGAN = datetime.now(UTC) - timedelta(minutes=10)


def clock(second: int) -> str:
    """A time since the tests' beginning, ten minutes ago: a run that ended is still news."""
    return f"{_BEGAN + timedelta(seconds=second):%Y-%m-%dT%H:%M:%SZ}"


def container(check: str, state: str, **more: Any) -> Json:
    """An init container's status, of a run that ended just now."""
    return status(check, state, began=clock(5), at=clock(60), **{"runs": "one", **more})


class Cluster:
    """One namespace. Everything that is written to it is seen in order: ``rosters`` by pod uid,
    ``events``, ``config_maps``.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self.client, self.namespace = client, namespace
        self.pods: dict[str, Json] = {}
        self.config_maps: dict[str, Json] = {}
        self.events: list[Json] = []
        self.rosters: dict[str, list[Roster]] = {}
        self.records: list[Json] = []  # every version of every ConfigMap of a gang

    # --- what the test does

    async def admit(
        self,
        name: str,
        *,
        gang: str = GANG,
        size: int | None = 2,
        node: str = "node-a",
        source: str = "labels",
        takes_part: bool = True,
        stamp: str | None = None,
        about: str | None = None,
        spec: Json | None = None,
        **metadata: Any,
    ) -> str:
        """Create a pod as the webhook leaves it, bound to ``node`` at once; its uid. ``stamp``: in
        place of a true one."""
        it = stamped(
            gang,
            size=size,
            takes_part=takes_part,
            namespace=self.namespace,
            source=source,
            object=about,
        )
        body = injected(name, it, self.namespace, node=node)
        if stamp is not None:
            body["metadata"]["annotations"][names.GANG_ANNOTATION] = stamp
        body["metadata"] |= metadata
        volumes = [{"name": names.GANG_VOLUME, "emptyDir": {}}] if takes_part else []
        body["spec"] |= {"restartPolicy": "OnFailure", "terminationGracePeriodSeconds": 5}
        body["spec"] |= {"volumes": volumes, **(spec or {})}
        await self.client.create(self._path("pods"), body)
        await until(lambda: name in self.pods, f"{name} is seen")
        return str(self.pods[name]["metadata"]["uid"])

    async def report(
        self, name: str, *containers: Json, phase: str = "Pending", **status: Any
    ) -> None:
        """Write the pod's status as its kubelet or the scheduler does."""
        body: Json = {"phase": phase, **status}
        if containers:
            body["initContainerStatuses"] = list(containers)
        await self.client.merge_patch(f"{self._path('pods', name)}/status", {"status": body})

    async def address(self, name: str, ip: str, *containers: Json) -> None:
        """Give the pod its address; without ``containers`` its first check runs."""
        running = containers or (
            container("dcgm-diag", "running"),
            container("nccl-allreduce", "waiting"),
        )
        await self.report(name, *running, podIP=ip, podIPs=[{"ip": ip}])

    async def test(self, name: str, *, restarts: int = 0) -> None:
        """Its gang check runs, for the ``restarts``-th time again."""
        running = container("nccl-allreduce", "running", restarts=restarts)
        if restarts:
            ended = container("nccl-allreduce", "ended", restarts=restarts - 1, code=1)["state"]
            running["lastState"] = ended
        await self.report(name, container("dcgm-diag", "ended"), running)

    async def delete(self, name: str, *, grace: int = 0) -> None:
        await self.client.delete(self._path("pods", name), grace=grace)
        if not grace:
            await until(lambda: name not in self.pods, f"{name} is gone")

    async def pair(
        self, *, ips: tuple[str, str] = ("10.0.0.1", "10.0.0.2"), **fields: Any
    ) -> tuple[str, str]:
        """Two members, addressed; their uids."""
        uids = [await self.admit(f"pod-{i}", **fields) for i in range(2)]
        for i, ip in enumerate(ips):
            await self.address(f"pod-{i}", ip)
        return uids[0], uids[1]

    async def config_map(self, gang: str = GANG, source: str = "labels") -> Json:
        """The gang's ConfigMap as it is in the cluster."""
        return await self.client.get(
            self._path("configmaps", configmap_name(self.namespace, gang, source)), dict
        )

    # --- what is seen

    def published(self, name: str) -> Roster | None:
        """The last thing the pod of that name was told."""
        pod = self.pods.get(name)
        said = self.rosters.get(pod["metadata"]["uid"]) if pod else None
        return said[-1] if said else None

    async def answered(
        self, answer: str, *pods: str, seconds: float = 120, **fields: Any
    ) -> list[Roster]:
        """Wait until each of ``pods`` has been told ``answer`` with these ``fields``; what they
        were told.
        """

        def so() -> bool:
            every = [self.published(name) for name in pods]
            return all(
                r is not None
                and r.answer == answer
                and all(getattr(r, k) == v for k, v in fields.items())
                for r in every
            )

        await until(
            so,
            f"{pods} have {answer} {fields}; they have {[self.published(n) for n in pods]}",
            seconds,
        )
        return [r for r in map(self.published, pods) if r is not None]

    def versions(self) -> dict[str, str]:
        """The resourceVersion of every object here."""
        shown = {f"pod {k}": v for k, v in self.pods.items()} | {
            f"cm {k}": v for k, v in self.config_maps.items()
        }
        return {key: item["metadata"]["resourceVersion"] for key, item in shown.items()}

    def _path(self, plural: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    # --- how it is seen

    def mirror(self, plural: str) -> Reflector[Json]:
        """See one resource; every version of every object, except while the API server is away."""

        def on_change(change: Change[Json]) -> None:
            self._see(plural, change)

        return Reflector(self.client, self._path(plural), dict, on_change=on_change, key=_uid)

    def _see(self, plural: str, change: Change[Json]) -> None:
        item, about = change.object, change.object["metadata"]
        if plural == "events":
            if change.kind == "added":
                self.events.append(item)
            return
        kept = self.pods if plural == "pods" else self.config_maps
        if change.kind == "deleted":
            if _uid(kept.get(about["name"], item)) == change.key:
                kept.pop(about["name"], None)
            return
        kept[about["name"]] = item
        if plural == "configmaps":
            self.records.append(item)
        elif text := about.get("annotations", {}).get(names.ROSTER_ANNOTATION):
            said = self.rosters.setdefault(change.key, [])
            with suppress(ContractError):  # somebody else's
                roster = decode_roster(text)
                if not said or said[-1] != roster:
                    said.append(roster)


def _uid(item: Any) -> str:
    return str(item["metadata"]["uid"] if isinstance(item, dict) else item.metadata.uid)


async def opt_in(client: Client, namespace: str, value: str | None) -> None:
    """Label a namespace; None: take the label away."""
    body = {"metadata": {"labels": {names.NAMESPACE_LABEL: value}}}
    await client.merge_patch(f"/api/v1/namespaces/{namespace}", body)


@asynccontextmanager
async def played(client: Client, namespace: str) -> AsyncIterator[Cluster]:
    """A cluster that is seen from now on."""
    cluster = Cluster(client, namespace)
    async with anyio.create_task_group() as group:
        for plural in ("pods", "configmaps", "events"):
            mirror = cluster.mirror(plural)
            group.start_soon(mirror.run)
            await mirror.synced.wait()
        yield cluster
        group.cancel_scope.cancel()
