"""What the parents say to each other. Plain data; :mod:`.channel` carries it, authenticated.

``round`` numbers the launches and rounds of probes of one gang from 1: a result of an earlier one is not taken for one of the
present.
"""

from __future__ import annotations

from typing import Final

import msgspec

__all__ = [
    "STAGES",
    "Ack",
    "Alive",
    "Detail",
    "Hello",
    "Leaving",
    "Message",
    "Open",
    "Opened",
    "Order",
    "Probe",
    "Result",
    "Stage",
    "Start",
    "Trouble",
    "VerdictMessage",
    "decode",
    "encode",
]

STAGES: Final = ("waiting", "launched", "connected", "ready", "measuring", "done")
"""How far a member's slowest worker is. ``connected``: it has the rendezvous; ``ready``: the communicator works."""


class Stage(msgspec.Struct, frozen=True):
    """``name`` is one of STAGES; ``iteration`` counts within measuring; ``silent``: a worker gives no sign of life."""

    name: str = "waiting"
    iteration: int = 0
    silent: bool = False


class Trouble(msgspec.Struct, frozen=True):
    """Why something did not work. ``kind``: environment, device, peer, class (the kit's ``nccl``), or

    ``died`` (a worker ended without a word), ``launch`` (torchrun or the rendezvous) and ``local`` (found before any launch).
    """

    kind: str
    code: str
    text: str


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Member → leader, first: who I am and what I bring. With ``trouble`` the member cannot take part."""

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
    """The topology file that NCCL gets here and whose it is, in words; empty where NCCL finds out for itself."""
    trouble: Trouble | None = None

    @property
    def who(self) -> str:
        """This member in a sentence."""
        return f"rank {self.rank} ({self.pod} on {self.node})"


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Leader → member: launch this. ``size`` in bytes, ``timeout`` in seconds from now.

    ``without_topology_file``: every member leaves NCCL_TOPO_FILE unset, in this launch and in the probes that follow it.
    """

    round: int
    master_port: int
    backend: str
    size: int
    iterations: int
    warmup: int
    world: int
    timeout: float
    op: str = "sum"
    without_topology_file: bool = False


class Open(msgspec.Struct, frozen=True, tag="open"):
    """Leader → a probe's first member: have a worker hold a store for it. ``fresh``: new workers, once for each round."""

    round: int
    fresh: bool = False


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """Member → leader: the store's port, on the member's address; ``trouble`` when there is none."""

    round: int
    port: int = 0
    address: str = ""
    trouble: Trouble | None = None


class Probe(msgspec.Struct, frozen=True, tag="probe"):
    """Leader → member: an all-reduce with a few others. The answer is a :class:`Result`.

    ``base``: the rank of this member's first worker among ``world``; ``index`` numbers the round's probes; ``init`` and
    ``timeout`` are seconds for the communicator to come up, and for everything.
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
    op: str = "sum"
    detail: bool = False
    """Measure rails and directions as well, once the all-reduce is done."""


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """Both ways, every second: I am here, and this is how far my workers are."""

    round: int = 0
    stage: Stage = Stage()


class Detail(msgspec.Struct, frozen=True):
    """Seconds that parts of a probe's path took, between each worker and the one of the same number on the other node.

    ``rails``: an all-reduce of each such pair, all at once; none where a node has one worker. ``there`` and ``back``: a broadcast
    from the probe's first node to the second and the other way, the slowest worker's.
    """

    rails: tuple[float, ...]
    there: float
    back: float


class Result(msgspec.Struct, frozen=True, tag="result"):
    """Member → leader: what the workers of one round did.

    ``times``: seconds of each timed iteration, the slowest local worker's. ``wrong``: elements that were not what they
    had to be, over all verified iterations, and ``where``: the first of them. ``trouble`` when there is no result.
    """

    round: int
    times: tuple[float, ...] = ()
    verified: int = 0
    wrong: int = 0
    where: str = ""
    trouble: Trouble | None = None
    detail: Detail | None = None
    """Where a probe asked for it, and it came in time."""


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
    """Of the members on nodes at fault, by rank: the code of the fatal event that they alone raise."""


class Ack(msgspec.Struct, frozen=True, tag="ack"):
    """Member → leader: I have the verdict."""


Order = Start | Open | Probe
"""What a leader has a member do."""
Message = Hello | Order | Alive | Opened | Result | Leaving | VerdictMessage | Ack

_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(Message)


def encode(message: Message) -> bytes:
    return _ENCODER.encode(message)


def decode(data: bytes) -> Message:
    """Raises :class:`ValueError` for anything that is no message."""
    try:
        message: Message = _DECODER.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ValueError(str(error)) from None
    return message
