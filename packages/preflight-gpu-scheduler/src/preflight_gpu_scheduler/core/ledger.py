"""Who has which GPUs of a node whatever its leases say: pods that are bound, Bindings under way,
and pods that vanished while nobody saw their containers end. Pure: it is told what mirrors show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.types import Lease, Pod

__all__ = ["Ledger", "Use"]


class Use(msgspec.Struct, frozen=True):
    """``number``: that of the pod's reservation when it got these GPUs."""

    pod: Pod
    ids: tuple[int, ...]
    uuids: tuple[str, ...]
    number: int


class _Gone(msgspec.Struct, frozen=True):
    """A pod that has ended or vanished ``since``. ``observed``: what its node's status said then.
    ``ended``: whether its containers are known to have; ``begun``: whether a kubelet knew it.
    """

    since: float
    observed: str | None
    ended: bool = False
    begun: bool = True

    def uses(self, uid: str, gpu: int, uuid: str, inventory: Inventory | None) -> bool:
        """Tell whether its containers may still use the GPU, by what its node says now."""
        devices = inventory.devices if inventory is not None else ()
        known = any(each.uuid for each in devices) and bool(uuid)
        same = (each for each in devices if (each.uuid == uuid if known else each.id == gpu))
        device = next(same, None)
        if device is not None and (device.processes or uid in device.in_use_by):
            return True
        observed = inventory.observed if inventory is not None else None
        reported = observed != self.observed and device is not None and device.processes is not None
        return self.begun and not reported


class Ledger:
    """``touch``: called with the name of each node of which something has changed."""

    def __init__(self, touch: Callable[[str], None]) -> None:
        self._touch = touch
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

    def hold(self, node: str, pod: Pod, ids: Iterable[int], known: Mapping[int, str]) -> None:
        """Nobody else here chooses these; what the pod held there before is let go. ``known``:
        UUIDs by id.
        """
        held = tuple(ids)
        use = Use(pod, held, tuple(known.get(gpu, "") for gpu in held), pod.number)
        self._put(node, "held", pod.metadata.uid, use if held else None)

    def let_go(self, node: str, pod: Pod, *, sent: bool) -> None:
        """Others may choose what the pod held; where its Binding was ``sent`` and no mirror shows
        more of it, not before one does.
        """
        uid = pod.metadata.uid
        held = self._uses.get(node, {}).get(("held", uid))
        if sent and held is not None and uid not in self._gone:
            self._put(node, "sent", uid, held)
            self._places.setdefault(uid, set()).add(node)
        self._put(node, "held", uid, None)

    def note(
        self, pod: Pod, now: float, observed: Callable[[str], str | None], *, deleted: bool
    ) -> None:
        """Take note of what a mirror shows of a pod. ``observed``: what a node's status says of its
        time.
        """
        uid, places = pod.metadata.uid, set[str]()
        over, placed = deleted or pod.ended, pod.placed
        last = self._places.pop(uid, ())
        if over:
            begun = pod.status.start_time is not None
            last_report = observed(pod.spec.node_name)
            self._gone[uid] = _Gone(now, last_report, ended=pod.stopped, begun=begun)
        else:
            self._gone.pop(uid, None)
        for node in last:
            shown = self._uses.get(node, {}).get(("shown", uid))
            self._put(node, "shown", uid, None)
            if shown is not None and shown.pod.bound and (deleted or pod.ended or not pod.bound):
                if not over:  # no Binding is ever undone: an older state was restored
                    self._gone[f"?{uid}"] = _Gone(now, observed(node))
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

    def others(self, node: str, uid: str, known: Mapping[int, str]) -> frozenset[int]:
        """The GPUs of all pods but ``uid``, by the ids of now: ``known`` has their UUIDs."""
        uses = [use for (_, who), use in self._uses.get(node, {}).items() if who != uid]
        uuids = {uuid for use in uses for uuid in use.uuids if uuid}
        renumbered = (gpu for gpu, uuid in known.items() if uuid in uuids)
        return frozenset((*(gpu for use in uses for gpu in use.ids), *renumbered))

    def ended(self, uid: str) -> bool:
        """Tell whether the pod's containers are known to have ended."""
        return uid in self._gone and self._gone[uid].ended

    def lingers(
        self, lease: Lease, inventory: Inventory | None, now: float, patience: float
    ) -> bool:
        """Tell whether containers of the lease's holder, which is not there, may still run: until
        its node's agent has reported the GPU since, without user or process, or ``patience`` is
        over.
        """
        if lease.gpu is None:
            return False
        if lease.holder not in self._gone:  # it went before anything was seen of it, or comes yet
            observed = inventory.observed if inventory is not None else None
            self._gone.setdefault(f"?{lease.holder}", _Gone(now, observed))
        gone = self._went(lease.holder, now, patience)
        if gone is None or not gone.uses(lease.holder, lease.gpu[1], lease.uuid, inventory):
            return False
        self._touch(lease.gpu[0])  # it ends with time, too
        return True

    def settle(self, node: str, inventory: Inventory | None, now: float, patience: float) -> None:
        """Those that vanished from ``node`` have their GPUs no longer, where that is known now."""
        for (kind, uid), use in list(self._uses.get(node, {}).items()):
            if kind != "gone":
                continue
            uuids = use.uuids if len(use.uuids) == len(use.ids) else ("",) * len(use.ids)
            gone, gpus = self._went(uid, now, patience), zip(use.ids, uuids, strict=True)
            if gone is not None and any(gone.uses(uid, gpu, uuid, inventory) for gpu, uuid in gpus):
                self._touch(node)
            else:
                self._put(node, "gone", uid, None)

    def _went(self, uid: str, now: float, patience: float) -> _Gone | None:
        gone = self._gone.get(uid) or self._gone.get(f"?{uid}")
        over = gone is None or gone.ended or now - gone.since > patience
        return None if over else gone

    def forget(self, before: float, kept: Callable[[str], bool]) -> None:
        """Those that have gone before that time, but for those ``kept``: their leases are there."""
        for uid, gone in list(self._gone.items()):
            if gone.since < before and not kept(uid.removeprefix("?")):
                del self._gone[uid]
