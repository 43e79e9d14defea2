"""What the parents say to each other, and how often. Plain data; :mod:`.channel` carries it,
authenticated.

``round`` numbers the launches and rounds of probes of one gang from 1: a result of an earlier one
is not taken for one of the present.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ..ports import PortErrors, PortFault
from .frames import MAX_MESSAGE

NAMED, SOME = 16, 4
"""Members that one sentence names, and one that tells more of them."""
REASON: Final = 8 * 1024
DETAIL: Final = 1024
"""Characters of a reason, and of each further text, where the whole does not fit."""
INTERVAL: Final = 1.0
"""Seconds between two heartbeats in a gang of up to :data:`MEMBERS_PER_SECOND`."""
MEMBERS_PER_SECOND: Final = 300
"""Members that a leader hears, and speaks to, in one second: beyond that each speaks less often,
and the leader's work stays the same.
"""
INTERVALS: Final = 5
"""Of silence, after which the other side is lost."""
STAGES: Final = ("waiting", "launched", "connected", "ready", "measuring", "done")
"""How far a member's slowest worker is. ``connected``: it has the rendezvous; ``ready``: the
communicator works."""


@dataclass(frozen=True)
class HeartbeatPace:
    """How often the parents speak to each other, and when silence means that one is lost: both
    sides know it from the gang's size. ``interval``: seconds between two heartbeats.
    """

    interval: float = INTERVAL

    @classmethod
    def of(cls, members: int) -> HeartbeatPace:
        """The pace for so many ``members``."""
        return cls(max(INTERVAL, members / MEMBERS_PER_SECOND))

    @property
    def lost_after(self) -> float:
        """Seconds without any frame after which the other side is lost; also what a handshake may
        take.
        """
        return INTERVALS * self.interval


class RankStage(msgspec.Struct, frozen=True):
    """``name`` is one of STAGES; ``iteration`` counts within measuring; ``silent``: a worker gives
    no sign of life.
    """

    name: str = "waiting"
    iteration: int = 0
    silent: bool = False

    @property
    def how_far(self) -> tuple[int, int]:
        """Later stages are larger; a name that is none of STAGES is the first."""
        return (STAGES.index(self.name) if self.name in STAGES else 0), self.iteration


class Failure(msgspec.Struct, frozen=True):
    """Why something did not work. ``kind``: environment, device, peer, class (the kit's ``nccl``),
    or

    ``died`` (a worker ended without a word), ``launch`` (torchrun or the rendezvous) and ``local``
    (found before any launch).
    """

    kind: str
    code: str
    text: str


class Standing(msgspec.Struct, frozen=True):
    """What a member has done of a run whose leader it has lost, for the successor: its last order,
    and what came of that.
    """

    leader: str
    """In words."""
    round: int
    probing: bool = False
    trouble: Failure | None = None


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Member → leader, first: who I am, what I bring, and why I cannot take part (``trouble``)."""

    rank: int
    pod: str
    node: str
    backend: str
    workers: int
    """One for each GPU."""
    model: str = ""
    fabric: str = ""
    unusual: tuple[str, ...] = ()
    """NCCL variables of the workload that may bend a measurement."""
    topology: dict[str, str] = {}
    """Labels of the node that may name the switch it is behind."""
    topology_file: str = ""
    """The topology file that NCCL gets here and whose it is, in words; empty for none."""
    variables: str = ""
    topology_content: str = ""
    """Digests of the workload's variables and of the topology file: members with different ones are
    not compared.
    """
    nic: str = ""
    """What the node's network adapters can do, in words: unlike nodes are not compared."""
    imex: bool = False
    """Whether this pod may reach GPUs of other nodes by NVLink."""
    nvlink: str = ""
    """The NVLink domain that NVML says its GPUs are in, where this pod may use it."""
    adapters: tuple[str, ...] = ()
    """What is wrong with its adapters: ports that are down, or slower than siblings."""
    ports: tuple[PortFault, ...] = ()
    """The same, and ports behind a PCIe link that could do more: evidence where other nodes of its
    kind are not so.
    """
    listed: tuple[str, ...] = ()
    """The ports of its adapters' model that the kernel lists, whether this pod has them or not."""
    rdma: bool = False
    """Whether TCP would be a fallback here: the pod may use adapters that do better, and its
    workload has not chosen TCP.
    """
    trouble: Failure | None = None
    standing: Standing | None = None
    """Where the run had begun already, under another leader."""

    @property
    def who(self) -> str:
        """This member in a sentence."""
        return f"rank {self.rank} ({self.pod} on {self.node})"


class LaunchOrder(msgspec.Struct, frozen=True, tag="start"):
    """Leader → member: launch this. ``size`` in bytes, ``timeout`` in seconds from now;
    ``allowed``: for everything from the first launch to the report, 0 for what each member knows.

    ``without_topology_file``: every member leaves NCCL_TOPO_FILE unset, in this launch and in the
    probes that follow it.
    """

    round: int
    master_port: int
    backend: str
    size: int
    iterations: int
    warmup: int
    world: int
    timeout: float
    without_topology_file: bool = False
    allowed: float = 0.0
    leader: str = ""
    """Who leads: its pod and node, in words."""
    within: float = 0.0
    """Seconds from now until the leader gives it up, 0 for never: as many iterations as fit."""


class StoreOrder(msgspec.Struct, frozen=True, tag="open"):
    """Leader → a probe's first member: have a worker hold a store for it. ``fresh``: new workers,
    once for each round.

    ``hairpin``: workers that speak to each other over the node's own NICs, so many of them. Where
    workers are to be new, the probe's other members get it too, so that all make theirs at the same
    time; without ``store`` they hold none.
    """

    round: int
    fresh: bool = False
    hairpin: int = 0
    store: bool = True
    within: float = 0.0
    """Seconds until the round's communicators must work: killed workers have most of them to go."""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """Member → leader: the store's port, on the member's address, or, where none was asked for,
    that the workers are there.

    ``trouble`` when they are not.
    """

    round: int
    port: int = 0
    address: str = ""
    trouble: Failure | None = None


class ProbeOrder(msgspec.Struct, frozen=True, tag="probe"):
    """Leader → member: an all-reduce with a few others. The answer is a :class:`RankReport`.

    ``base``: the rank of this member's first worker among ``world``; ``index`` numbers the round's
    probes; ``init`` and ``timeout`` are seconds for the communicator to come up, and for
    everything.
    """

    round: int
    index: int
    base: int
    world: int
    host: str
    port: int
    backend: str
    size: int
    iterations: int
    warmup: int
    init: float
    timeout: float
    fresh: bool = False
    detail: bool = False
    """Measure rails and directions as well, once the all-reduce is done."""
    hairpin: int = 0
    """The node to itself, over its own NICs: this member's workers in it."""
    within: float = 0.0
    """As of :class:`LaunchOrder`."""


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Both ways, every second: I am here, and this is how far my workers are."""

    round: int = 0
    stage: RankStage = RankStage()


class Detail(msgspec.Struct, frozen=True):
    """Seconds that parts of a probe's path took, between each worker and the one of the same number
    on the other node.

    ``rails``: an all-reduce of each such pair, all at once; none where a node has one worker.
    ``there`` and ``back``: a broadcast from the probe's first node to the second and the other way,
    the slowest worker's.
    """

    rails: tuple[float, ...]
    there: float
    back: float


class Residuals(msgspec.Struct, frozen=True):
    """Workers that hold one and the same wrong sum: their ranks, their GPUs' UUIDs, and some of its
    wrong elements.

    ``samples``: (iteration, element, what was there less what had to be); 0 for what is not an
    exact number. Spread over all wrong elements, and at most as many as ``worker.measure.SAMPLES``.
    """

    ranks: tuple[int, ...]
    gpus: tuple[str, ...]
    samples: tuple[tuple[int, int, float], ...]


class RankReport(msgspec.Struct, frozen=True, tag="result"):
    """Member → leader: what the workers of one round did.

    ``times``: seconds of each timed iteration, the slowest local worker's. ``wrong``: elements that
    were not what they had to be, over all verified iterations, and ``where``: the first of them.
    ``trouble`` when there is no result.
    """

    round: int
    times: tuple[float, ...] = ()
    verified: int = 0
    wrong: int = 0
    where: str = ""
    trouble: Failure | None = None
    latency: float = 0.0
    """Seconds of the fastest small all-reduce, the slowest worker's; 0: not measured."""
    detail: Detail | None = None
    """Where a probe asked for it, and it came in time."""
    networks: tuple[str, ...] = ()
    """NCCL's own word for what it took between nodes (``IB``, ``Socket`` …): several where its
    ranks differ; none where it has not said.
    """
    residuals: tuple[Residuals, ...] = ()
    """Of the gang's own sum, where it was wrong."""
    errors: tuple[PortErrors, ...] = ()
    """Error counters of the node's ports that grew in this round."""
    watched: float = 0.0
    """Seconds between the two readings of these counters; 0 where there are none to read."""
    silence: float = 0.0
    """Seconds before this round in which nothing of the gang ran here and all that passed the
    node's adapters was counted; 0 where it cannot be.
    """
    foreign: float | None = None
    """GB/s that somebody else moved through them meanwhile; None where that is not known."""
    load: float | None = None
    """The share of the node's processor time that others took meanwhile."""
    devices: tuple[PortFault, ...] = ()
    """What its GPUs say after this round: ``throttle``, why their clocks are slowed down, and
    ``replay``, PCIe transfers that were repeated since the round before.
    """


class Leaving(msgspec.Struct, frozen=True, tag="leaving"):
    """Member → leader: something beyond the gang's run ends it for me, and so for all."""

    code: str
    reason: str


class VerdictMessage(msgspec.Struct, frozen=True, tag="verdict"):
    """Leader → member: the outcome of all. ``measured`` and ``expected`` in GB/s."""

    outcome: str
    code: str
    reason: str
    measured: float | None = None
    expected: float | None = None
    metadata: dict[str, str] = {}
    blamed: dict[int, str] = {}
    """Of members on nodes at fault, by rank: the code of the fatal event they raise."""
    named: dict[int, str] = {}
    """Of members on nodes only named, by rank: what is known, and what would settle it."""
    evidence: dict[int, str] = {}
    """Of members on nodes at fault, by rank: the kinds of evidence, and the witness."""


class Held(msgspec.Struct, frozen=True, tag="held"):
    """The verdict that all are about to get. Leader → those who may follow it, before anybody
    else hears it; and member → successor.
    """

    verdict: VerdictMessage


class Retained(msgspec.Struct, frozen=True, tag="kept"):
    """Member → leader: I hold it."""


class Deposed(msgspec.Struct, frozen=True, tag="deposed"):
    """Leader → members: another one leads by now; ask there."""

    reason: str


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """Member → leader: I have the verdict."""


Order = LaunchOrder | StoreOrder | ProbeOrder
"""What a leader has a member do."""
Message = (
    Hello
    | Order
    | Alive
    | Opened
    | RankReport
    | Leaving
    | VerdictMessage
    | Held
    | Retained
    | Deposed
    | Ack
)

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message as JSON, its kind under ``type``."""
    return _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    """Raises :class:`ValueError` for anything that is not a message."""
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from None
    return message


def few(names: Sequence[str], separator: str = ", ") -> str:
    """The first names, and how many there are besides."""
    if len(names) <= NAMED:
        return separator.join(names)
    return f"{separator.join(names[:NAMED])} and {len(names) - NAMED} more"


def among(names: Sequence[str], members: int) -> str:
    """Some of so many members in a sentence: the first names, or that it is everybody."""
    if len(names) == members:
        return "every member"
    more = f" and {len(names) - SOME} more" if len(names) > SOME else ""
    return ", ".join(names[:SOME]) + more


def fitting(verdict: VerdictMessage, rank: int) -> VerdictMessage:
    """The verdict as this member gets it: all of it, or, where that is too much for one message,
    without what concerns others alone.
    """
    if len(encode(verdict)) <= MAX_MESSAGE:
        return verdict
    return msgspec.structs.replace(
        verdict,
        reason=_cut(verdict.reason, REASON),
        metadata={name: _cut(text, DETAIL) for name, text in verdict.metadata.items()},
        named={
            member: _cut(text, DETAIL) for member, text in verdict.named.items() if member == rank
        },
        evidence={
            member: _cut(text, DETAIL)
            for member, text in verdict.evidence.items()
            if member == rank
        },
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
