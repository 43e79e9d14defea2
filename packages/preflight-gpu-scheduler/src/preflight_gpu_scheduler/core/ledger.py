"""The holders of GPUs: by a lease, (lease, what is seen of its holder) → what may be done with it;
and whatever leases say, pods that are bound, Bindings under way, and pods that vanished while
nobody saw their containers end. Pure: it is told what mirrors show.

Every word on a lease but RESERVED and OVER is final, so an old view that says so may be acted upon.
What is *not* final, the absence of a pod, counts only when the API server was asked just now: a
mirror that is behind may show a pod's predecessor of the same name, or nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Any

import msgspec

from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.types import Lease, Pod


class LeaseState(Enum):
    """The state of a lease; who may do what with it is said beside each."""

    HELD = "held"
    """Its pod is bound to this node with this GPU and has not ended; it does not end with time."""
    RESERVED = "reserved"
    """Its pod is unbound, its number current, its time not over."""
    OVER = "over"
    """As RESERVED, and its time is over: the controller takes it back, behind the fence."""
    VOID = "void"
    """A reservation that was taken back: busy until the controller has deleted it."""
    FREE = "free"
    """Its pod will never run with this GPU (again): whoever wants it deletes it."""
    UNSURE = "unsure"
    """Free if the pod is really not there: read it from the API server, and judge again."""
    LINGERING = "lingering"
    """Its pod vanished, and nobody has seen its containers end (:meth:`Ledger.lingers`): busy."""
    FOREIGN = "foreign"
    """Not made by this system: busy, and nobody's to delete. One that was, and that somebody has
    changed so that it names no holder, is FREE when its time is over.
    """


class Holder(msgspec.Struct, frozen=True):
    """The pod of the holder's name, or None. ``live``: read from the API server after the lease
    was. ``lingers``: whether the holder of a lease, who vanished, may still run.
    """

    pod: Pod | None
    live: bool = False
    lingers: Callable[[Lease], bool] = lambda _: False


def judge(lease: Lease, holder: Holder, *, over: bool = False) -> LeaseState:
    """``over``: whether this observer has seen the lease unchanged for longer than it lasts."""
    gpu, pod = lease.gpu, holder.pod
    if not lease.ours or gpu is None:
        return LeaseState.FREE if over and lease.locks else LeaseState.FOREIGN
    if pod is None or pod.uid != lease.holder:
        if holder.lingers(lease):
            return LeaseState.LINGERING
        return LeaseState.FREE if holder.live else LeaseState.UNSURE
    if pod.bound and not pod.ended:
        return LeaseState.HELD if _has(pod, *gpu) else LeaseState.FREE
    if pod.ended or pod.deleting:  # nothing binds it any more
        return LeaseState.FREE
    if lease.number < pod.number:
        return LeaseState.VOID
    return LeaseState.OVER if over else LeaseState.RESERVED


def _has(pod: Pod, node: str, gpu: int) -> bool:
    """A lease beside the GPUs that the Binding names is left over from another attempt; where no
    Binding of ours is seen it is kept."""
    allocated = pod.allocated
    ours = allocated is None or allocated.node != node or gpu in allocated.ids
    return ours and pod.spec.node_name == node


def reason(lease: Lease, holder: Holder) -> str:
    """Why a lease that was FREE, UNSURE or VOID was collected, as the metric has it."""
    pod = holder.pod
    if pod is None or pod.uid != lease.holder:
        return "gone"
    if pod.ended:
        return "ended"
    if pod.bound:
        return "elsewhere"
    return "deleted" if pod.deleting else "void"


def is_own(lease: Lease, pod: Pod) -> bool:
    """Tell whether ``pod``, in this version, may go on with the lease: no earlier number's."""
    return lease.ours and lease.holder == pod.uid and lease.number == pod.number


class FirstSeen:
    """Since when each key has had its value, by one observer's own clock: nobody compares clocks of
    two machines."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Any, float]] = {}

    def note(self, key: str, value: Any, now: float) -> float:
        """Seconds for which ``key`` has had ``value``; 0 when that is new."""
        known = self._since.get(key)
        if known is None or known[0] != value:
            self._since[key] = (value, now)
            return 0.0
        return max(0.0, now - known[1])

    def forget(self, key: str) -> None:
        """The next :meth:`note` of ``key`` is the first again."""
        self._since.pop(key, None)


class Use(msgspec.Struct, frozen=True):
    """``number``: that of the pod's reservation when it got these GPUs."""

    pod: Pod
    ids: tuple[int, ...]
    uuids: tuple[str, ...]
    number: int


class _Gone(msgspec.Struct, frozen=True):
    """A pod that has ended or vanished ``since``. ``observed``: what its node's status said then.
    ``ended``: whether its containers are known to have; ``begun``: whether a kubelet knew it, None
    where nobody saw whether it had a node.
    """

    since: float
    observed: str | None
    ended: bool = False
    begun: bool | None = True

    def uses(self, uid: str, gpu: int, uuid: str, status: Inventory) -> bool:
        """Tell whether its containers may still use the GPU, by what its node says now."""
        known = any(device.uuid for device in status.devices) and bool(uuid)
        for device in status.devices:
            if device.uuid == uuid if known else device.id == gpu:
                used = bool(device.processes) or uid in device.in_use_by
                silent = status.observed_time == self.observed or device.processes is None
                return used or (bool(self.begun) and silent)
        return bool(self.begun)


class Ledger:
    """``statuses``: what the status of a node says. ``patience``: seconds after which who vanished
    has nothing more. ``touch``: called with the name of each node of which something has changed.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        statuses: Callable[[str], Inventory | None],
        patience: float,
        touch: Callable[[str], None],
    ) -> None:
        self._now, self._statuses, self._patience, self._touch = clock, statuses, patience, touch
        # By node, then by how it is known and the pod's uid. "shown": mirrors say so; "held": its
        # bind is under way; "sent": its Binding may be stored, which no mirror shows yet; "gone":
        # it was shown, and nobody has seen its containers end.
        self._uses: dict[str, dict[tuple[str, str], Use]] = {}
        self._places: dict[str, set[str]] = {}  # nodes of those shown or sent, by uid
        self._gone: dict[str, _Gone] = {}

    def _put(self, node: str, kind: str, uid: str, use: Use | None) -> None:
        uses = self._uses.setdefault(node, {})
        if use is not None:
            uses[kind, uid] = use
        elif uses.pop((kind, uid), None) is None:
            return
        self._touch(node)

    def _status(self, node: str) -> Inventory:
        return self._statuses(node) or Inventory(node=node)

    def hold(self, node: str, ids: Iterable[int], pod: Pod) -> None:
        """Nobody else here chooses these; what the pod held there before is let go."""
        held, known = tuple(ids), self._status(node).uuids
        use = Use(pod, held, tuple(known.get(gpu, "") for gpu in held), pod.number)
        self._put(node, "held", pod.uid, use if held else None)

    def let_go(self, node: str, pod: Pod, *, sent: bool) -> None:
        """Others may choose what the pod held; where its Binding was ``sent``, once it is shown."""
        uid = pod.uid
        held = self._uses.get(node, {}).get(("held", uid))
        if sent and held is not None and uid not in self._gone:
            self._put(node, "sent", uid, held)
            self._places.setdefault(uid, set()).add(node)
        self._put(node, "held", uid, None)

    def note(self, pod: Pod, *, deleted: bool, final: bool = True) -> None:
        """Take note of what a mirror shows of a pod. ``final``: False of one that is not there any
        more, and may have been another one when it went.
        """
        uid, places, now = pod.uid, set[str](), self._now()
        over, placed = deleted or pod.ended, pod.placed
        last = self._places.pop(uid, ())
        if over:
            begun = pod.status.start_time is not None if final else pod.bound or None
            observed = self._status(pod.spec.node_name).observed_time
            self._gone[uid] = _Gone(now, observed, ended=pod.stopped, begun=begun)
        else:
            self._gone.pop(uid, None)
        for node in last:
            shown = self._uses.get(node, {}).get(("shown", uid))
            self._put(node, "shown", uid, None)
            if shown is not None and shown.pod.bound and (over or not pod.bound):
                if not over:  # no Binding is ever undone: an older state was restored
                    self._gone[f"?{uid}"] = _Gone(now, self._status(node).observed_time)
                self._put(node, "gone", uid, shown)
            sent = self._uses.get(node, {}).get(("sent", uid))
            # A Binding is stored in the number that it was made for only, and only once.
            if sent is not None and not (over or pod.bound or pod.number > sent.number):
                places.add(node)
            else:
                self._put(node, "sent", uid, None)
        if pod.claim and placed is not None and not over:
            self._put(placed.node, "shown", uid, Use(pod, placed.ids, pod.uuids, pod.number))
            places.add(placed.node)
        if places:
            self._places[uid] = places

    def shown(self, node: str) -> Iterator[Use]:
        """The GPUs of pods that mirrors show to be bound to ``node``, or to be planned there."""
        return (use for (kind, _), use in self._uses.get(node, {}).items() if kind == "shown")

    def others(self, node: str, uid: str = "") -> frozenset[int]:
        """The GPUs that pods but ``uid`` have, whatever leases say, by the ids of now."""
        self._settle(node)
        uses = [use for (_, who), use in self._uses.get(node, {}).items() if who != uid]
        uuids = {uuid for use in uses for uuid in use.uuids if uuid}
        renumbered = (gpu for gpu, uuid in self._status(node).uuids.items() if uuid in uuids)
        return frozenset((*(gpu for use in uses for gpu in use.ids), *renumbered))

    def ended(self, uid: str) -> bool:
        """Tell whether the pod's containers are known to have ended."""
        return uid in self._gone and self._gone[uid].ended

    def lingers(self, lease: Lease) -> bool:
        """Tell whether containers of the lease's holder, which is not there, may still run: until
        its node's agent has reported the GPU since, without user or process, or for a while.
        """
        if lease.gpu is None:
            return False
        (node, gpu), uid = lease.gpu, lease.holder
        status = self._status(node)
        if self._unseen(uid):  # it went before anything was seen of it, or comes yet
            known, went = self._gone.get(f"?{uid}"), self._gone.get(uid)
            if known is None or (went is not None and known.since < went.since):
                self._gone[f"?{uid}"] = _Gone(self._now(), status.observed_time)
        gone = self._went(uid)
        if gone is None or not gone.uses(uid, gpu, lease.uuid, status):
            return False
        self._touch(node)  # it ends with time, too
        return True

    def _settle(self, node: str) -> None:
        """Strike out those that vanished from ``node`` and whose GPUs are known to be free."""
        status = self._status(node)
        for (kind, uid), use in list(self._uses.get(node, {}).items()):
            if kind != "gone":
                continue
            uuids = use.uuids if len(use.uuids) == len(use.ids) else ("",) * len(use.ids)
            gone, gpus = self._went(uid), zip(use.ids, uuids, strict=True)
            if gone is not None and any(gone.uses(uid, gpu, uuid, status) for gpu, uuid in gpus):
                self._touch(node)
            else:
                self._put(node, "gone", uid, None)

    def _unseen(self, uid: str) -> bool:
        return uid not in self._gone or self._gone[uid].begun is None

    def _went(self, uid: str) -> _Gone | None:
        gone = self._gone.get(f"?{uid}" if self._unseen(uid) else uid)
        over = gone is None or gone.ended or self._now() - gone.since > self._patience
        return None if over else gone

    def forget(self, kept: Callable[[str], bool]) -> None:
        """Those that have gone for long, but for those ``kept``: their leases are there."""
        for uid, gone in list(self._gone.items()):
            late = self._now() - gone.since > self._patience
            if late and not kept(uid.removeprefix("?")):
                del self._gone[uid]
