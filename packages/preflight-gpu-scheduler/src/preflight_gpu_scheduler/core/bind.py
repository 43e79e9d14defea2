"""From a pod and the node that the scheduler chose to a bound pod: the extender's main flow, as
steps of the protocol.

A Binding is one write: node, the GPUs' annotations, and as preconditions the pod's uid and version.
What an attempt created it gives back only when it *knows* that no Binding was stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from preflight_gpu_scheduler.api import allocation, messages, names
from preflight_gpu_scheduler.api.allocation import Reserved
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core import protocol
from preflight_gpu_scheduler.core.gpu_selection import Chosen
from preflight_gpu_scheduler.core.ledger import is_own
from preflight_gpu_scheduler.core.protocol import Look, Lost, Steps, give_back, only, read_pod, take

Choose = Callable[[frozenset[int], tuple[int, ...]], Chosen]
"""(ids found busy just now, ids whose leases the pod has) → the choice."""
_CHOICES: Final = 4  # the first, and three more
_VERSIONS: Final = 2
_AT_ONCE: Final = 64
GONE: Final = "pod is gone"
UNDER_WAY: Final = "pod is being bound already"
NOT_COMMITTED: Final = "gang is not bound yet: its first member comes first"


class BindJob(msgspec.Struct, frozen=True, kw_only=True):
    """``pod``: the version that is known; ``own``: leases of its that a mirror shows on the node,
    by id; ``uuids`` by id. ``gang``: whether its claim names one: then a plan says which GPUs."""

    pod: Pod
    node: str
    own: Mapping[int, Lease]
    uuids: Mapping[int, str]
    gang: bool = False

    def locks(self, gpu: int, lease: Lease) -> bool:
        """Tell whether the lease is for what ``gpu`` is now: a node may number its GPUs anew."""
        return not lease.uuid or self.uuids.get(gpu, "") in {"", lease.uuid}


class BindOutcome(msgspec.Struct, frozen=True):
    """``error``: empty where the pod is bound with ``ids``; else one sentence for the scheduler.
    ``sent``: whether a Binding is stored, or may be yet.
    """

    ids: tuple[int, ...] = ()
    error: str = ""
    sent: bool = False


def bind(job: BindJob, choose: Choose, look: Look) -> Steps[BindOutcome]:
    """Lock GPUs of ``job.node`` for the pod as ``choose`` has them, and write its Binding."""
    pod = job.pod
    if pod.bound:
        return _already(pod, job.node, None)
    if pod.ended or pod.deleting:
        return BindOutcome(error=GONE)
    if pod.reserved is not None:
        return (yield from _reserved(job, pod.reserved, look))
    if job.gang:
        return BindOutcome(error=messages.GANG_NOT_RESERVED)
    own = {
        gpu: lease for gpu, lease in job.own.items() if is_own(lease, pod) and job.locks(gpu, lease)
    }
    created: dict[str, Lease] = {}
    busy: frozenset[int] = frozenset()
    held: set[int] = set()  # whose leases this attempt has written: they need no second write
    for _ in range(_CHOICES):
        chosen = choose(busy, tuple(sorted((own.keys() | held) - busy)))
        if not chosen.ids:
            yield from give_back(created.values())
            return BindOutcome(error=chosen.why)
        needs = protocol.locks(pod, job.node, (n for n in chosen.ids if n not in held), job.uuids)
        taken = yield from take(needs, look, _AT_ONCE)
        created |= taken.created
        held |= {need.gpu for need in needs if need.name in taken.created.keys() | taken.adopted}
        if taken.broken:
            yield from give_back(created.values())
            return BindOutcome(error=taken.broken)
        if not taken.busy:
            return (yield from _written(job, chosen.ids, created))
        busy |= {need.gpu for need in taken.busy}
    yield from give_back(created.values())
    return BindOutcome(error="other pods took the GPUs meanwhile")


def _reserved(job: BindJob, reserved: Reserved, look: Look) -> Steps[BindOutcome]:
    """A gang's member: its plan has acquired the leases, and takes them back behind the fence only,
    so they need no further write. Nobody is bound before the first member (see :mod:`.gangs`).
    """
    pod = job.pod
    if reserved.node != job.node:
        return BindOutcome(error=messages.ELSEWHERE)
    for gpu in reserved.ids:
        lease = job.own.get(gpu)
        if lease is None or not is_own(lease, pod):
            answer = yield from only(protocol.ReadLease(name=names.lease_name(job.node, gpu)))
            held = answer.object if isinstance(answer, protocol.Stored) else None
            if not isinstance(held, Lease) or not is_own(held, pod):
                return BindOutcome(error=messages.GANG_NOT_RESERVED)
            lease = held
        if not job.locks(gpu, lease):
            return BindOutcome(error=messages.STATUS_CHANGED)
    first_key = pod.namespace, reserved.first
    if reserved.first_uid != pod.uid and not committed(look(first_key).pod, reserved):
        first = yield from read_pod(first_key)
        if not committed(first, reserved):
            return BindOutcome(error=NOT_COMMITTED)
    return (yield from _written(job, reserved.ids, {}))


def committed(first: Pod | Lost | None, reserved: Reserved) -> bool:
    """Tell whether this is the first member of the plan, and bound."""
    return isinstance(first, Pod) and first.uid == reserved.first_uid and first.bound


def _written(
    job: BindJob, ids: tuple[int, ...], created: Mapping[str, Lease]
) -> Steps[BindOutcome]:
    """The Binding; after a 409 once more, if the new version is unbound and of the same number."""
    pod, uid = job.pod, job.pod.uid
    annotations = allocation.binding_annotations(job.node, ids, job.uuids)
    error = "the pod keeps changing"
    for _ in range(_VERSIONS):
        answer = yield from only(protocol.BindPod(pod=pod, node=job.node, annotations=annotations))
        if isinstance(answer, protocol.Stored):
            return BindOutcome(ids=ids, sent=True)
        if isinstance(answer, Lost):
            unknown = "the API server did not say whether the pod is bound; its GPUs stay reserved"
            return BindOutcome(error=unknown, sent=True)
        if not isinstance(answer, protocol.Conflict):
            why = getattr(answer, "why", "") or "refused"
            refused = f"the API server refused the Binding: {why}"
            error = GONE if isinstance(answer, protocol.Missing) else refused
            break
        now = yield from read_pod(pod.key)
        if isinstance(now, Lost):
            error = "the API server does not answer about the pod"
            break
        if now is None or now.uid != uid or now.ended or (now.deleting and not now.bound):
            error = GONE
            break
        if now.bound:  # what it has no use for is collected, where its Binding says what it has
            if now.placed is None:
                yield from give_back(created.values())
            return _already(now, job.node, ids)
        if now.number != pod.number:
            error = "its reservation was taken back"
            break
        pod = now
    yield from give_back(created.values())
    return BindOutcome(error=error)


def _already(pod: Pod, node: str, ids: tuple[int, ...] | None) -> BindOutcome:
    has = pod.allocated
    if pod.spec.node_name == node and has and has.node == node and ids in {None, has.ids}:
        return BindOutcome(ids=has.ids, sent=True)
    return BindOutcome(error="pod is bound already", sent=True)
