"""Runs the protocol's steps against an API server: each request is sent once, and what leaves open
whether it was done is ``Lost``.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import anyio
import msgspec
from preflight_kube.api.jsonpatch import add, pointer, test
from preflight_kube.client.client import (
    Client,
    Conflict,
    Fenced,
    Invalid,
    KubeError,
    NotFound,
    PreconditionFailed,
)
from preflight_kube.client.decoding import decoded

from preflight_gpu_scheduler.api import allocation, names
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core import protocol
from preflight_gpu_scheduler.core.protocol import (
    AdoptLease,
    Answer,
    BindPod,
    CreateLease,
    DeleteLease,
    Exists,
    Lost,
    Missing,
    RaiseReclaimed,
    ReadLease,
    ReadPod,
    Refused,
    Request,
    ReservePod,
    Steps,
    Stored,
)
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot
from preflight_gpu_scheduler.metrics import WriteMetrics

__all__ = ["Executor", "pod_path"]

T = TypeVar("T")
_LEASE: Final = msgspec.json.Decoder(Lease)
_POD: Final = msgspec.json.Decoder(Pod)
_MOST_WHY: Final = 300
_OPS: Final = {CreateLease: "create", AdoptLease: "update", DeleteLease: "delete", BindPod: "bind"}


class Executor:
    """``state`` takes note of each request that was answered, so that what is written is known
    here before a mirror shows it; ``metrics`` count the writes.
    """

    def __init__(
        self, client: Client, config: Config, state: GpuSnapshot, metrics: WriteMetrics
    ) -> None:
        self._client, self._state, self._metrics = client, state, metrics
        self._duration, self._lock_namespace = config.reservation_seconds, config.lock_namespace
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{self._lock_namespace}/leases"

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

    async def _answers(self, batch: tuple[Request, ...], end: float) -> tuple[Answer, ...]:
        answers: list[Answer] = [Lost()] * len(batch)
        fenced: list[Fenced] = []

        async def one(n: int, request: Request) -> None:
            try:
                answers[n] = await self._answer(request)
            except Fenced as error:
                fenced.append(error)
            else:
                self._note(request, answers[n])

        left = end - anyio.current_time()
        if left > 0:
            with anyio.move_on_after(left):
                if len(batch) == 1:
                    await one(0, batch[0])
                else:
                    async with anyio.create_task_group() as group:
                        for n, request in enumerate(batch):
                            group.start_soon(one, n, request)
        if fenced:
            raise fenced[0]
        return tuple(answers)

    def _note(self, request: Request, answer: Answer) -> None:
        self._state.told(request, answer)
        if (op := _OPS.get(type(request))) is not None:
            self._metrics.writes.labels(op, type(answer).__name__.lower()).inc()

    async def _answer(self, request: Request) -> Answer:
        try:
            return await self._send(request)
        except Fenced:
            raise
        except NotFound:
            if isinstance(request, CreateLease):
                return Refused(
                    f"namespace {self._lock_namespace} of the GPUs' locks is not there; create it "
                    "again, with its Roles, as `helm upgrade` does"
                )
            return Missing()
        except Conflict as error:
            if isinstance(request, CreateLease):
                return Exists() if error.reason == "AlreadyExists" else Refused(_why(error))
            return protocol.Conflict()
        except PreconditionFailed:
            return protocol.Conflict()
        except Invalid as error:
            return Refused(_why(error))
        except KubeError as error:
            certain = 400 <= error.status < 500
            # A request that the server turned away at its door was not looked at; a timeout (408)
            # may have been done.
            return Refused(_why(error)) if certain and error.status != 408 else Lost()

    async def _send(self, request: Request) -> Answer:
        client = self._client
        match request:
            case CreateLease():
                return Stored(
                    decoded(
                        _LEASE,
                        await client.create(self._leases, self._lease(request)),
                        self._leases,
                    )
                )
            case ReadLease():
                return Stored(await client.get(f"{self._leases}/{request.name}", Lease))
            case AdoptLease():
                return await self._adopt(request)
            case DeleteLease():
                about = request.lease.metadata
                await client.delete(
                    f"{self._leases}/{about.name}",
                    uid=about.uid,
                    resource_version=about.resource_version,
                )
                return Stored()
            case ReadPod():
                return Stored(await client.get(pod_path(request.key), Pod))
            case BindPod():
                path = f"{pod_path(request.pod.key)}/binding"
                await client.create(path, _binding(request), tells=False)
                return Stored()
            case RaiseReclaimed():
                fence = {names.RECLAIMED_ANNOTATION: str(request.number)}
                return await self._annotate(request.pod, fence)
            case ReservePod():
                reserved = {names.RESERVED_ANNOTATION: allocation.written(request.reserved)}
                gates = [{"$patch": "delete", "name": names.GATE}]
                return await self._annotate(request.pod, reserved, spec={"schedulingGates": gates})

    async def _adopt(self, request: AdoptLease) -> Answer:
        about = request.lease.metadata
        operations = [
            test(pointer("metadata", "uid"), about.uid),
            test(pointer("metadata", "resourceVersion"), about.resource_version),
            add(pointer("spec", "renewTime"), _now()),
        ]
        path = f"{self._leases}/{about.name}"
        found = decoded(_LEASE, await self._client.json_patch(path, operations), path)
        # A patch that changes nothing stores nothing, and whoever created the Lease could still
        # give it back.
        return (
            protocol.Conflict()
            if found.metadata.resource_version == about.resource_version
            else Stored(found)
        )

    async def _annotate(self, pod: Pod, annotations: dict[str, str], **more: Any) -> Answer:
        """In exactly this version of the pod; a strategic patch, as that takes a gate away by its
        name.
        """
        about = {"uid": pod.metadata.uid, "resourceVersion": pod.metadata.resource_version}
        patch = {"metadata": {**about, "annotations": annotations}, **more}
        path = pod_path(pod.key)
        return Stored(decoded(_POD, await self._client.strategic_patch(path, patch), path))

    def _lease(self, request: CreateLease) -> dict[str, Any]:
        now = _now()
        said = {
            names.POD_ANNOTATION: "/".join(request.pod),
            names.NODE_ANNOTATION: request.node,
            names.ID_ANNOTATION: str(request.gpu),
            **({names.UUID_ANNOTATION: request.uuid} if request.uuid else {}),
        }
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": request.name,
                "labels": {names.MANAGED_LABEL: "true", names.POD_UID_LABEL: request.holder},
                "annotations": said,
            },
            "spec": {
                "holderIdentity": request.holder,
                "leaseDurationSeconds": self._duration,
                "leaseTransitions": request.number,
                "acquireTime": now,
                "renewTime": now,
            },
        }


def _binding(request: BindPod) -> dict[str, Any]:
    """uid and resourceVersion are the API server's preconditions; the annotations go into the pod
    in the same update.
    """
    about = request.pod.metadata
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": about.name,
            "namespace": about.namespace,
            "uid": about.uid,
            "resourceVersion": about.resource_version,
            "annotations": request.annotations,
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": request.node},
    }


def pod_path(pod: tuple[str, str]) -> str:
    """Where the API server has a pod of this (namespace, name)."""
    return "/api/v1/namespaces/{}/pods/{}".format(*pod)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _why(error: KubeError) -> str:
    return f"{error}"[:_MOST_WHY]
