"""What localisation is asked and what it answers: endpoints, probes, results, rounds, verdicts.
Plain data.

An *endpoint* is one node of the gang (all its pods together) and is named here by its position in
``State.endpoints``; so are the members of probes and everything a :class:`Verdict` lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from math import isfinite
from typing import NamedTuple

from ..ports import UNKNOWN, Local

__all__ = [
    "HAIRPINS",
    "MAX_ROUNDS",
    "PAIR_ROUNDS",
    "Endpoint",
    "Fact",
    "FactKind",
    "Gang",
    "Grade",
    "Kind",
    "Layout",
    "Measured",
    "Phase",
    "Played",
    "Probe",
    "Result",
    "Role",
    "Round",
    "Score",
    "State",
    "Status",
    "Suspect",
    "Verdict",
    "Zone",
]

MAX_ROUNDS = 8
"""Rounds a gang may spend, its own all-reduce (R1) included. A round is all its probes at once."""
HAIRPINS = 2
"""Of these, so many have each suspect to itself over its own NICs, beside known-good controls."""
PAIR_ROUNDS = MAX_ROUNDS - HAIRPINS
"""And those of the gang, its pairs and its halves; one more where a hairpin came first."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One node of the gang.

    ``kind``: what makes two endpoints comparable, e.g. ``H100-SXM/8/8x400`` (GPU model, GPUs used,
    NIC count and rate). ``domain``: its topology label (leaf, rack, NVLink domain), None when
    unknown. ``intra``: whether the bandwidth inside the node reached its floor, None when not
    measured. ``pair_floor``: GB/s of bus bandwidth that two nodes of this kind must reach, None
    where no table knows them. ``nic``: what its NICs *can* do (number, highest rate), whatever they
    do now, empty where that is not known: nodes whose NICs differ are not compared. ``nvlink``: the
    NVLink domain that it shares with other endpoints; what two of one such domain exchange passes
    no NIC. ``local``: what it knows of its own devices, so far; it changes no round.
    """

    name: str
    kind: str = ""
    domain: str | None = None
    intra: bool | None = None
    pair_floor: float | None = None
    nic: str = ""
    nvlink: str | None = None
    local: Local = UNKNOWN


class Zone(StrEnum):
    """What the gate said about the gang's own all-reduce, or that it gave no bandwidth at all."""

    PASSED = "passed"
    BETWEEN = "between"
    BELOW = "below"
    UNKNOWN = "unknown"  # no row for this hardware
    WRONG = "wrong"
    HANG = "hang"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Gang:
    """The gang's all-reduce: its zone, its bus bandwidth in GB/s where it has one, and whose part
    of its sum was wrong, -1 if not known.
    """

    zone: Zone
    gbps: float = 0.0
    corrupted: int = -1


class Layout(StrEnum):
    """How the fabric is cabled, and so what is between two adapters of one node.

    ``LEAF``: all adapters of a node are behind one leaf, which its domain is known to name, and a
    hairpin passes nothing beyond it.
    ``RAIL``: each is behind a leaf of its own, and a hairpin passes the spine: it says as much of
    the path as of the node. Where that is not known, it is taken for the latter.
    """

    UNKNOWN = ""
    LEAF = "leaf"
    RAIL = "rail"


class FactKind(StrEnum):
    """What is known of an endpoint without any probe."""

    LOST = "lost"  # never connected, or its parent process is gone
    DEVICE = "device"  # ECC, NVLink, GPU lost, a child in D state
    MEMBER = "member"  # its process died, stalled, or could not work: no device evidence


class Fact(NamedTuple):
    """A fact about one endpoint, in words fit for the verdict's sentence."""

    member: int
    kind: FactKind
    cause: str


class Status(StrEnum):
    """What became of a probe."""

    OK = "ok"
    WRONG = "wrong"
    HANG = "hang"
    ERROR = "error"
    VOID = "void"  # one side had a local cause: it says nothing about the other
    UNJUDGED = "unjudged"  # it never got as far as measuring, on both sides


class Result(NamedTuple):
    """How one probe ended.

    ``gbps``: bus bandwidth of an ``ok`` probe, the median of its trials, each as slow as its
    slowest rank. ``member``, ``cause``, ``fact``: the culprit of a ``void`` one, and what kind of
    local cause it had. ``rails`` and ``directions`` (first member to second, and back; GB/s) where
    the probe asked for ``detail``. ``latency``: seconds of the fastest of some 8-byte all-reduces
    of the pair, 0 where not measured.
    """

    status: Status
    gbps: float = 0.0
    member: int = -1
    cause: str = ""
    fact: FactKind = FactKind.MEMBER
    rails: tuple[float, ...] = ()
    directions: tuple[float, float] | None = None
    latency: float = 0.0


class Role(StrEnum):
    """Why a probe is made."""

    GANG = "gang"
    MATCH = "match"
    ACCUSED = "accused"  # a suspect, or an endpoint not yet judged, with a known-good one
    SUSPECTS = "suspects"  # two suspects with each other
    EDGE = "edge"  # a bad edge between two known-good endpoints, once more
    CONTROL = "control"  # two known-good endpoints, for the round's own sake
    HALF = "half"
    HAIRPIN = "hairpin"  # one endpoint to itself, through its own NICs


class Probe(NamedTuple):
    """A ring all-reduce over all GPUs of its members, which are ascending positions.

    A hairpin has one member: its GPUs reduce among themselves over its NICs, with peer access and
    shared memory off.

    ``detail``: measure each rail (GPU i with GPU i) and each direction (two one-way broadcasts) as
    well.
    """

    members: tuple[int, ...]
    role: Role
    detail: bool = False


class Phase(StrEnum):
    """What a round is for."""

    GANG = "gang"
    MATCH = "match"
    CONFIRM = "confirm"
    SILENCE = "silence"  # who is not slow to itself, while suspects that are take no part
    HALVES = "halves"
    HAIRPIN = "hairpin"


class Round(NamedTuple):
    """Probes to run at the same time: no endpoint is in two of them. ``number`` counts from 1, the
    gang's own.

    ``wait``: seconds to let pass before it starts, so that it sees another moment than the rounds
    before.
    """

    number: int
    phase: Phase
    probes: tuple[Probe, ...]
    wait: float = 0.0


class Played(NamedTuple):
    """A round after the gang's own, with one result for each of its probes, in their order.

    ``at``: when it was over, in seconds on any clock that all rounds share.
    """

    round: Round
    results: tuple[Result, ...]
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """Everything :func:`.next` may look at. ``seed`` chooses the partners; every member must use
    the same one. ``layout``: what a hairpin passes.
    """

    endpoints: tuple[Endpoint, ...]
    seed: int
    gang: Gang | None = None
    rounds: tuple[Played, ...] = ()
    facts: tuple[Fact, ...] = ()
    layout: Layout = Layout.UNKNOWN

    def after_gang(self, zone: Zone, gbps: float = 0.0, corrupted: int = -1) -> State:
        """The state once the gang's own all-reduce (round 1) has been judged."""
        return replace(self, gang=Gang(zone, gbps, corrupted))

    def after(self, done: Round, results: Sequence[Result], at: float = 0.0) -> State:
        """The state once ``done`` has been run, which was over ``at`` so many seconds (see
        :class:`Played`).

        Raises ValueError unless each probe has one result.
        """
        if len(results) != len(done.probes):
            raise ValueError(
                f"round {done.number} has {len(done.probes)} probes and got {len(results)} results"
            )
        return replace(self, rounds=(*self.rounds, Played(done, tuple(results), at)))


class Grade(IntEnum):
    """What one measured edge says: ``GRAY`` neither clears nor accuses."""

    NONE = 0
    BAD = 1
    GRAY = 2
    GOOD = 3


class Measured(NamedTuple):
    """One edge of the matrix: who, in which round, what was found, against which reference (GB/s, 0
    where none).

    ``dropped``: its round was void (its controls were slow), so it counts for nothing.
    """

    round: int
    a: int
    b: int
    role: Role
    status: Status
    gbps: float
    reference: float
    grade: Grade
    dropped: bool = False
    at: float = 0.0

    def other(self, end: int) -> int:
        """The end that is not this one."""
        return self.b if self.a == end else self.a


class Kind(StrEnum):
    """The rows of the decision table, first match first, and the two ends that blame nothing."""

    PASSED = "passed"
    LOST = "lost"
    DEVICE = "device"
    MEMBER = "member"
    PAIR = "pair"
    SYSTEMIC = "systemic"
    FABRIC = "fabric"
    DOMAIN = "domain"
    CORRELATED = "correlated"
    BUSY = "busy"
    NODE = "node"
    SUSPECT = "suspect"
    INTERMITTENT = "intermittent"
    LINK = "link"
    TRANSIENT = "transient"
    DATA_UNLOCALISED = "data-unlocalised"
    UNEXPLAINED = "unexplained"


class Score(NamedTuple):
    """How much likelier the measurements are if they have a lasting cause at this endpoint or its
    link than under two other explanations; not whose cause it is, which witnesses say.

    ``noise``: every bad measurement is chance, each independent of the others. ``spell``: somebody
    else kept the endpoint busy for less than 45 s. ``path``, ``local``: what its pairs, and its
    hairpins and devices, multiply against chance, each at most 1,000. ``kinds``: the kinds of
    evidence that reach that: ``path``, ``local``, ``data``. ``ports``: what its own devices say,
    where other nodes' do not; ``itself``: in how many rounds it was bad to itself, and ``fine`` it
    was good.
    """

    noise: float
    spell: float
    path: float
    local: float
    kinds: tuple[str, ...] = ()
    ports: str = ""
    itself: int = 0
    fine: int = 0

    def figures(self) -> dict[str, object]:
        """The model's numbers, for machines: three digits each, None where there is no bound."""
        factors = zip(("noise", "spell", "path", "local"), self[:4], strict=True)
        rounded = {name: float(f"{f:.3g}") if isfinite(f) else None for name, f in factors}
        return {**rounded, "kinds": self.kinds}


@dataclass(frozen=True, slots=True)
class Suspect:
    """Why an endpoint is named: its symptom, its share of normal (0 where nothing was measured),
    its bad edges. ``witness``: what shows that the cause is its own, empty where nothing does;
    ``settle``: what would decide about one that is only named.
    """

    member: int
    symptom: Status
    share: float
    evidence: tuple[Measured, ...]
    note: str = ""
    score: Score | None = None
    witness: str = ""
    settle: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of localisation.

    ``fails``: whether the gang fails; ``inconclusive``: it could not be judged at all. ``blamed``:
    whose fault two independent kinds of evidence show, and ``fatal_for`` who reports it as fatal
    (never anybody else). ``named``: everyone the reader should look at, the blamed included.
    ``links``: pairs that are slow although both ends are good. ``undecided``: what this run could
    not decide, in words. ``matrix``: every edge measured, for the log.
    """

    kind: Kind
    reason: str
    fails: bool
    inconclusive: bool = False
    blamed: tuple[int, ...] = ()
    named: tuple[int, ...] = ()
    fatal_for: tuple[int, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    links: tuple[tuple[int, int], ...] = ()
    domains: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    rounds: int = 1
    matrix: tuple[Measured, ...] = ()
