"""What kube-scheduler asks an extender and what it is answered: filter, prioritize and preempt as
functions of a view, what they see of a node, and the words on the wire (Go's names as they are).
``NodeNames: null`` in an answer means none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, TypeVar

import msgspec

from preflight_gpu_scheduler.api import messages
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.gpu_node_status import CONFLICT_DEVICE_PLUGIN, Device, Inventory
from preflight_gpu_scheduler.api.types import Lease, Node, Pod
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core import gpu_selection
from preflight_gpu_scheduler.core.gpu_selection import Chosen, Topology, choose
from preflight_gpu_scheduler.core.ledger import is_own

T = TypeVar("T")
BEST: Final = 32
"""Nodes that the scheduler scores for a pod about which it has no wishes of its own."""


class _Go(msgspec.Struct, rename="pascal", frozen=True, kw_only=True):
    pass


class ExtenderArgs(_Go, frozen=True, kw_only=True):
    """As k8s.io/kube-scheduler/extender/v1 has it, with ``nodeCacheCapable: true``."""

    pod: Pod
    node_names: tuple[str, ...] | None = None


class FilterResult(_Go, frozen=True):
    """As ``ExtenderFilterResult``: why not, by the name of each node that does not pass."""

    node_names: tuple[str, ...] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class Priority(_Go, frozen=True):
    """As ``HostPriority``: 0 to 10."""

    host: str
    score: int


class ExtenderBindingArgs(_Go, frozen=True, kw_only=True):
    """As the type of that name."""

    pod_name: str
    pod_namespace: str
    pod_uid: str = msgspec.field(name="PodUID")
    node: str


class BindingResult(_Go, frozen=True):
    """As ``ExtenderBindingResult``; an empty error is a pod that is bound."""

    error: str = ""


class MetaPod(_Go, frozen=True, kw_only=True):
    """As the type of that name."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(_Go, frozen=True, kw_only=True):
    """As the type of that name: whom the scheduler would evict from one node."""

    pods: tuple[MetaPod, ...] | None = None
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class ExtenderPreemptionArgs(_Go, frozen=True, kw_only=True):
    """As the type of that name, with ``nodeCacheCapable: true``."""

    pod: Pod
    victims: dict[str, MetaVictims] | None = msgspec.field(
        name="NodeNameToMetaVictims", default=None
    )


class PreemptionResult(_Go, frozen=True, kw_only=True):
    """As ``ExtenderPreemptionResult``: the nodes that stay, with the same victims."""

    victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default={})


_NAMES_ONLY: Final = "set nodeCacheCapable: true for this extender"


def read_call(body: bytes, type_: type[T], size: int = 0) -> T | str:
    """The arguments of a call, or one sentence about what is wrong with them. ``size``: bytes that
    it had; of a large one ``body`` is the beginning.
    """
    if size > len(body):
        hint = "" if type_ is ExtenderBindingArgs else f"; {_NAMES_ONLY}"
        return f"the call has {size} bytes, more than are read of one{hint}"
    try:
        args = msgspec.json.decode(body, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return f"the call is not an {type_.__name__}: {' '.join(str(error).split()):.200}"
    if isinstance(args, ExtenderArgs) and args.node_names is None:
        return f"the call has no NodeNames; {_NAMES_ONLY}"
    if isinstance(args, ExtenderBindingArgs) and not all(msgspec.structs.astuple(args)):
        return "the call names no pod, no uid or no node"
    return args


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """One node as a pod without leases finds it. ``free``: mask over ``slots``. ``well``: these as
    they are when no GPU is sick, where some is. ``blocked``: why no pod gets a GPU here, whatever
    is free."""

    slots: Topology = ()
    well: Topology = ()
    free: int = 0
    labels: Mapping[str, str] = {}
    blocked: str = ""

    def other(self, wanted: Mapping[str, str]) -> list[str]:
        """The keys of the labels that are ``wanted`` and that it does not have."""
        return [key for key, value in wanted.items() if self.labels.get(key) != value]


def own_ids(leases: Iterable[Lease], pod: Pod) -> Mapping[str, tuple[int, ...]]:
    """Ids by node of the leases with which ``pod``, in this version, may go on."""
    own: dict[str, list[int]] = {}
    for lease in leases:
        if (gpu := lease.gpu) is not None and is_own(lease, pod):
            own.setdefault(gpu[0], []).append(gpu[1])
    return {node: tuple(sorted(ids)) for node, ids in own.items()}


def known(inventory: Inventory | None, node: str, config: Config) -> Inventory | None:
    """The GPUs to believe of ``node``, of which ``inventory`` is known."""
    if inventory is None and config.missing_node_status == "assume16":
        return Inventory(node=node, devices=tuple(Device(id=gpu) for gpu in range(16)))
    return inventory


def user_of(device: Device, ended: Callable[[str], bool]) -> str:
    """The user of a GPU by what the agent sees, whatever leases say; empty for nobody. ``ended``:
    whether the pod of a uid is known to have, though the status may not say so yet.
    """
    if users := [uid for uid in device.in_use_by if not ended(uid)]:
        return f"pod {users[0]}"
    return "a process of no claim" if device.processes and not device.in_use_by else ""


def view(
    node: Node | None,
    inventory: Inventory | None,
    busy: Collection[int],
    config: Config,
    *,
    ended: Callable[[str], bool] = lambda _: False,
    unlocked: bool = False,
    stale: bool = False,
) -> NodeView:
    """``busy``: ids that somebody has. ``ended``: as for :func:`user_of`. ``unlocked``: whether the
    lease of a GPU of a bound pod is missing. ``stale``: the status has not changed for too long;
    one that says no time at all, as written by hand, is never stale.
    """
    if node is None:
        return NodeView(blocked=messages.NODE_UNKNOWN)
    if inventory is None:
        return NodeView(blocked=messages.NO_STATUS)
    why = ""
    if inventory.problems:
        why = messages.STATUS_NOT_VALID
    elif stale and inventory.observed_time is not None:
        why = messages.STATUS_STALE
    elif inventory.reason:
        why = messages.GPUS_UNKNOWN
    elif inventory.conflicts and config.device_plugin == "refuse":
        why = messages.PLUGIN if CONFLICT_DEVICE_PLUGIN in inventory.conflicts else messages.DRIVER
    elif unlocked:
        why = messages.UNLOCKED
    slots = gpu_selection.topology(inventory.devices)
    taken = {device.id for device in inventory.devices if user_of(device, ended)}.union(busy)
    free = gpu_selection.mask_of(slots, (slot.id for slot in slots if slot.id not in taken))
    sick = any(device.health != "Healthy" for device in inventory.devices)
    healed = (msgspec.structs.replace(device, health="Healthy") for device in inventory.devices)
    well = gpu_selection.topology(healed) if sick else ()
    labels = node.metadata.labels or {}
    return NodeView(slots=slots, free=free, well=well, labels=labels, blocked=why)


_Kind = tuple[str, int, int, int, tuple[int, ...], int]
_UNKNOWN: Final = NodeView(blocked=messages.NODE_UNKNOWN)
_NO_LEASES: Final[tuple[int, tuple[int, ...]]] = (0, ())


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """``claim``: None where it is not known; ``own``: mask of the GPUs whose current leases the pod
    has, and their ids, by node. ``refused``: why no node does, empty where one may."""

    pod: Pod
    claim: Claim | None
    own: Mapping[str, tuple[int, tuple[int, ...]]] = {}
    refused: str = ""

    @property
    def starts(self) -> bool:
        """Tell whether it is asked for a gang's member that has no GPUs yet."""
        claim, pod = self.claim, self.pod
        if claim is None or claim.gang is None or self.refused:
            return False
        full = any(len(ids) >= claim.want.count for _, ids in self.own.values())
        return pod.open and pod.start is not None and not full


def choices(
    question: Question,
    names: Iterable[str],
    nodes: Mapping[str, NodeView],
    kept: Mapping[str, int] | None = None,
) -> Iterator[tuple[Chosen, list[str]]]:
    """The GPUs that the pod would get, its own leases counted as free, or why not; and those of
    ``names`` where it is so: nodes of one kind together.
    """
    claim, own = question.claim, question.own
    if claim is None or question.refused:
        yield Chosen(why=question.refused), list(names)
        return
    want, wanted = claim.want, claim.spec.selector.match_labels
    kinds = defaultdict[_Kind, list[str]](list)
    for name in names:
        node = nodes.get(name, _UNKNOWN)
        mask, ids = own.get(name, _NO_LEASES) if own else _NO_LEASES
        why = refusal(node, wanted) if wanted else node.blocked
        others = kept.get(name, 0) if kept else 0
        # Nodes of one kind share their topology.
        kinds[why, id(node.slots), node.free, mask, ids, others].append(name)
    for (why, _, free, mask, ids, others), alike in kinds.items():
        slots = nodes.get(alike[0], _UNKNOWN).slots
        chosen = Chosen(why=why) if why else choose(slots, free | mask, want, ids)
        left = free.bit_count() - want.count
        if others and left < others and chosen.why not in messages.UNRESOLVABLE:
            chosen = Chosen(why=messages.KEPT)
        yield chosen, alike


def filter_nodes(
    question: Question,
    names: Sequence[str],
    nodes: Mapping[str, NodeView],
    kept: Mapping[str, int] | None = None,
    most: int | None = None,
) -> FilterResult:
    """Which of ``names`` can give the pod its GPUs; of more than ``most`` the best: where they fit
    together best, and of these the fullest. ``kept``: how many free GPUs of a node are another's.
    """
    claim, reserved = question.claim, question.pod.reserved
    if claim is None or question.refused:
        return answered((), dict.fromkeys(names, question.refused))
    count = claim.want.count
    if reserved is not None:
        return alone(names, reserved.node)
    if claim.gang is not None and question.pod.start is None:
        return answered((), dict.fromkeys(names, messages.GANG_NOT_RESERVED))
    if full := [node for node, (_, ids) in question.own.items() if len(ids) >= count]:
        return alone(names, min(full))
    begun = choices(question, sorted(question.own.keys() & set(names)), nodes)
    if where := [name for chosen, alike in begun if not chosen.why for name in alike]:
        return alone(names, min(where))
    passed: list[tuple[int, int, list[str]]] = []
    failed: dict[str, str] = {}
    for chosen, alike in choices(question, names, nodes, kept):
        if chosen.why:
            failed |= dict.fromkeys(alike, chosen.why)
        else:
            passed.append((-chosen.score, nodes[alike[0]].free.bit_count(), alike))
    if most is None or len(names) - len(failed) <= most:
        return answered((name for name in names if name not in failed), failed)
    ranked = (name for *_, alike in sorted(passed) for name in alike)
    return answered(islice(ranked, most), failed)


def alone(names: Sequence[str], node: str) -> FilterResult:
    """``node`` passes, and no other."""
    others = {name: messages.ELSEWHERE for name in names if name != node}
    return answered((name for name in names if name == node), others)


def refusal(node: NodeView, wanted: Mapping[str, str]) -> str:
    """Why no pod with a claim of these labels gets a GPU there; empty where one may."""
    return node.blocked or (messages.LABELS_DIFFER if node.other(wanted) else "")


def answered(passed: Iterable[str], failed: Mapping[str, str]) -> FilterResult:
    """Put what evicting pods cannot change where preemption does not look."""
    final = {name: why for name, why in failed.items() if why in messages.UNRESOLVABLE}
    rest = {name: why for name, why in failed.items() if name not in final}
    return FilterResult(tuple(passed), rest, final)


def prioritize(
    question: Question, names: Sequence[str], nodes: Mapping[str, NodeView]
) -> tuple[Priority, ...]:
    """0–10 for each of ``names``: how well the GPUs that the pod would get there fit together. Who
    has GPUs passes one node only, and then nobody asks.
    """
    return tuple(
        Priority(name, chosen.score)
        for chosen, alike in choices(question, names, nodes)
        for name in alike
    )
