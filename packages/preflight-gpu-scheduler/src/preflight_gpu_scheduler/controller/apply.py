"""Runs the protocol's steps against an API server, by the kit's writes: each request is sent once,
and what leaves open whether it was done is ``Lost``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import anyio
from preflight_kube.api.jsonpatch import add, test
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
    """``state`` takes note of each request that was answered; ``metrics`` count the writes."""

    def __init__(
        self, client: Client, config: Config, state: GpuSnapshot, metrics: WriteMetrics
    ) -> None:
        self._client, self._config, self._state, self._metrics = client, config, state, metrics
        self._leases = names.leases(config.lock_namespace)

    async def run(self, steps: Steps[T], budget: float) -> T:
        """Perform ``steps``, and return what came of them. After ``budget`` seconds nothing more
        is sent, and what is under way counts as Lost. Raises :class:`~.errors.Fenced`.
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
            case writes.Lost():
                return protocol.Lost()
            case writes.Refused(error=NotFound()) if isinstance(request, protocol.CreateLease):
                return protocol.Refused(
                    f"namespace {self._config.lock_namespace} of the GPUs' locks is not there; "
                    "create it again, with its Roles, as `helm upgrade` does"
                )
            case writes.Missing() | writes.Refused(error=NotFound()):
                return protocol.Missing()
            case writes.Refused(stale=True) if not isinstance(request, protocol.CreateLease):
                return protocol.Conflict()
            case writes.Refused(error=error):
                return protocol.Refused(_message(error))

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
            case protocol.AdoptLease(lease=Lease(metadata=lease)):
                renewed = [
                    test("/metadata/uid", lease.uid),
                    test("/metadata/resourceVersion", lease.resource_version),
                    add("/spec/renewTime", _now()),
                ]
                return Patch(f"{self._leases}/{lease.name}", renewed)
            case protocol.DeleteLease(lease=Lease(metadata=lease)):
                path, version = f"{self._leases}/{lease.name}", lease.resource_version
                return Delete(path=path, uid=lease.uid, resource_version=version)
            case protocol.BindPod(pod=pod):
                about = {"name": pod.name, "namespace": pod.namespace}
                metadata = about | _versioned(pod, request.annotations)
                target = {"apiVersion": "v1", "kind": "Node", "name": request.node}
                kind = {"apiVersion": "v1", "kind": "Binding"}
                binding = {**kind, "metadata": metadata, "target": target}
                return Create(f"{pod_path(pod.key)}/binding", binding)
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
    version = pod.metadata.resource_version
    return {"uid": pod.uid, "resourceVersion": version, "annotations": annotations}


def _stored(request: protocol.Request, stored: writes.Stored) -> protocol.Answer:
    try:
        match request:
            case protocol.CreateLease():
                return protocol.Stored(stored.object(Lease))
            case protocol.AdoptLease(lease=before):
                lease = stored.object(Lease)
                # A patch that changes nothing stores nothing.
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
