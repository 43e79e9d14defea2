"""Runs the protocol's steps against an API server, by the kit's writes: each request is sent once,
and what leaves open whether it was done is ``Lost``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import anyio
from preflight_kube.api.jsonpatch import add, pointer, test
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_kube.runtime import writes
from preflight_kube.runtime.writes import Create, Delete, Patch, Write

from preflight_gpu_scheduler.api import allocation, names
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core import protocol
from preflight_gpu_scheduler.core.protocol import Steps
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot
from preflight_gpu_scheduler.metrics import WriteMetrics

T = TypeVar("T")
_MAX_MESSAGE: Final = 300
_OPS: Final = {
    protocol.CreateLease: "create",
    protocol.AdoptLease: "update",
    protocol.DeleteLease: "delete",
    protocol.BindPod: "bind",
}


class Executor:
    """``state`` takes note of each request that was answered, so that what is written is known
    here before a mirror shows it; ``metrics`` count the writes.
    """

    def __init__(
        self, client: Client, config: Config, state: GpuSnapshot, metrics: WriteMetrics
    ) -> None:
        self._client, self._config, self._state, self._metrics = client, config, state, metrics
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{config.lock_namespace}/leases"

    async def run(self, steps: Steps[T], budget: float) -> T:
        """Perform ``steps``, and return what came of them. After ``budget`` seconds nothing more
        is sent, and what is under way counts as Lost.

        Raises Fenced where the client may not write any more: then whatever was begun is left as
        it is.
        """
        end = anyio.current_time() + budget
        try:
            batch = next(steps)
            while True:
                batch = steps.send(await self._answers(batch, end))
        except StopIteration as finished:
            result: T = finished.value
            return result
        finally:
            steps.close()

    async def _answers(
        self, batch: tuple[protocol.Request, ...], end: float
    ) -> tuple[protocol.Answer, ...]:
        answers: list[protocol.Answer] = [protocol.Lost()] * len(batch)

        async def answer(n: int, request: protocol.Request) -> None:
            answers[n] = await self._answer(request)
            self._state.record(request, answers[n])
            if (op := _OPS.get(type(request))) is not None:
                self._metrics.writes.labels(op, type(answers[n]).__name__.lower()).inc()

        if (left := end - anyio.current_time()) > 0:
            with anyio.move_on_after(left):
                await writes.gather(answer(n, request) for n, request in enumerate(batch))
        return tuple(answers)

    async def _answer(self, request: protocol.Request) -> protocol.Answer:
        match request:
            case protocol.ReadLease():
                return await self._read(f"{self._leases}/{request.name}", Lease)
            case protocol.ReadPod():
                return await self._read(pod_path(request.key), Pod)
        match await writes.apply(self._client, self._write(request)):
            case writes.Stored() as stored:
                return _stored(request, stored)
            case writes.Exists():
                return protocol.Exists()
            case writes.Missing():
                return protocol.Missing()
            case writes.Lost():
                return protocol.Lost()
            case writes.Refused(error=error, stale=stale):
                if isinstance(request, protocol.CreateLease):
                    absent = (
                        f"namespace {self._config.lock_namespace} of the GPUs' locks is not there; "
                        "create it again, with its Roles, as `helm upgrade` does"
                    )
                    why = absent if isinstance(error, NotFound) else _message(error)
                    return protocol.Refused(why)
                if isinstance(error, NotFound):
                    return protocol.Missing()
                return protocol.Conflict() if stale else protocol.Refused(_message(error))

    async def _read(self, path: str, type_: type[Lease | Pod]) -> protocol.Answer:
        try:
            return protocol.Stored(await self._client.get(path, type_))
        except NotFound:
            return protocol.Missing()
        except KubeError as error:
            certain = 400 <= error.status < 500 and error.status != 408
            return protocol.Refused(_message(error)) if certain else protocol.Lost()

    def _write(self, request: protocol.Request) -> Write:
        match request:
            case protocol.CreateLease():
                return Create(self._leases, self._lease(request))
            case protocol.AdoptLease(lease=Lease(metadata=about)):
                renewed = [
                    test(pointer("metadata", "uid"), about.uid),
                    test(pointer("metadata", "resourceVersion"), about.resource_version),
                    add(pointer("spec", "renewTime"), _now()),
                ]
                return Patch(f"{self._leases}/{about.name}", renewed)
            case protocol.DeleteLease(lease=Lease(metadata=about)):
                path, version = f"{self._leases}/{about.name}", about.resource_version
                return Delete(path=path, uid=about.uid, resource_version=version)
            case protocol.BindPod(pod=pod):
                binding = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {
                        "name": pod.name,
                        "namespace": pod.namespace,
                        **_versioned(pod, request.annotations),
                    },
                    "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
                }
                return Create(f"{pod_path(pod.key)}/binding", binding, tells=False)
            case protocol.RaiseReclaimed(pod=pod):
                annotations = {names.RECLAIMED_ANNOTATION: str(request.number)}
                return Patch(pod_path(pod.key), pod_patch(pod, annotations), "strategic")
            case protocol.ReservePod(pod=pod):
                annotations = {names.RESERVED_ANNOTATION: allocation.written(request.reserved)}
                patch = pod_patch(pod, annotations, ungate=True)
                return Patch(pod_path(pod.key), patch, "strategic")
        raise AssertionError(f"{request} is no write")

    def _lease(self, request: protocol.CreateLease) -> dict[str, Any]:
        now, holder = _now(), request.pod.uid
        annotations = {
            names.POD_ANNOTATION: "/".join(request.pod.key),
            names.NODE_ANNOTATION: request.node,
            names.ID_ANNOTATION: str(request.gpu),
            **({names.UUID_ANNOTATION: request.uuid} if request.uuid else {}),
        }
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": request.name,
                "labels": {names.MANAGED_LABEL: "true", names.POD_UID_LABEL: holder},
                "annotations": annotations,
            },
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": self._config.reservation_seconds,
                "leaseTransitions": request.pod.number,
                "acquireTime": now,
                "renewTime": now,
            },
        }


def pod_patch(pod: Pod, annotations: dict[str, str], *, ungate: bool = False) -> dict[str, Any]:
    """A strategic patch, refused on another version of the pod. ``ungate``: take our gate away."""
    gates = {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}
    return {"metadata": _versioned(pod, annotations), **({"spec": gates} if ungate else {})}


def _versioned(pod: Pod, annotations: dict[str, str]) -> dict[str, Any]:
    """Metadata of a write on exactly this version: a Binding's annotations go into the pod, too."""
    about = pod.metadata
    version = {"uid": about.uid, "resourceVersion": about.resource_version}
    return {**version, "annotations": annotations}


def _stored(request: protocol.Request, stored: writes.Stored) -> protocol.Answer:
    try:
        match request:
            case protocol.CreateLease():
                return protocol.Stored(stored.object(Lease))
            case protocol.AdoptLease(lease=before):
                lease = stored.object(Lease)
                # A patch that changes nothing stores nothing, and whoever created the Lease could
                # still give it back.
                same = lease.metadata.resource_version == before.metadata.resource_version
                return protocol.Conflict() if same else protocol.Stored(lease)
            case protocol.RaiseReclaimed() | protocol.ReservePod():
                return protocol.Stored(stored.object(Pod))
    except KubeError:
        return protocol.Lost()
    return protocol.Stored()


def pod_path(pod: tuple[str, str]) -> str:
    """Where the API server has a pod of this (namespace, name)."""
    return "/api/v1/namespaces/{}/pods/{}".format(*pod)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _message(error: KubeError) -> str:
    return f"{error}"[:_MAX_MESSAGE]
