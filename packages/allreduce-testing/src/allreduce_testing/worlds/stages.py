"""A simulated fabric of stages, whose truth is known: each measurement passes the stages that it
really would, and is as slow as the slowest of them.

=============  ==================================================================================
stage          what passes it
=============  ==================================================================================
``device``     whatever its GPUs send or receive: a node that throttles
``adapter``    whatever leaves its GPUs, and what a loop inside the adapter carries
``host``       the same, of all endpoints (virtual machines) that share the host's adapters
``link``       pairs and hairpins: the node's cables
``port``       the same: the switch ports at their other ends
``card``       the same, of all nodes on one line card of the leaf
``leaf``       the same, of all nodes behind the leaf
``uplink``     pairs of different leaves, and in a rail-optimised fabric every hairpin
``spine``      the same
``path``       one pair of nodes
``itself``     one node's hairpin
=============  ==================================================================================

In a rail-optimised fabric a leaf stands for the rail leaves of one unit: adapter i of a node and
adapter i + 1 meet by the spine only. A stage that many use at once and that cannot carry them
divides what it has.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final, Protocol

from check_nccl_allreduce.localise import (
    Endpoint,
    Layout,
    Local,
    PortErrors,
    PortFault,
    Probe,
    Result,
    Role,
    Round,
    State,
    Status,
    Zone,
)

Stage = tuple[str, int]
Spans = tuple[tuple[float, float], ...]
ALWAYS: Final[Spans] = ((-math.inf, math.inf),)
NORMAL: Final = 380.0
"""GB/s of bus bandwidth that two healthy nodes reach."""
FLOOR: Final = 0.8
"""Of what a healthy gang reaches, its floor."""
WIRE: Final = 400.0
"""GB/s of a node's adapters."""
BACKGROUND: Final = 0.5
"""GB/s that pass them at any time, at most, whatever runs."""
LEAST_SILENCE: Final = 1.0
"""Seconds without work of ours whose traffic is looked at, at least."""
RATIOS: Final = (1 / 2, 1 / 4, 2 / 5, 1 / 5)
"""Of link rates: a node that is slow by one of them may be of another kind."""
ALIKE: Final = 0.13
"""By the natural logarithm, so near to such a rate."""
SEEN_FROM: Final = 4
"""Rounds into the test in which a fault may begin, at most, for eight rounds to see it."""
LABELS: Final = ("true", "true", "shuffled", "one", "coarse", "own", "stale", "half", "absent")
"""What a gang's labels may be, each as often as it is here: true; those of other nodes; one for
all; one for two leaves, as a rack's is; one for each; a few of nodes that have moved; of half of
the nodes; none.
"""


class WorldFault(Protocol):
    """One thing that is wrong in a world."""

    def strike(self, fabric: StagedFabric) -> None:
        """Slow the stages that it slows, and say who is sick."""


@dataclass(frozen=True, slots=True)
class StagedWorld:
    """What gangs are drawn from; ranges are drawn for each gang. Spreads are standard deviations of
    natural logarithms.

    ``nodes``: log-uniform. ``leaves``: nodes of the gang behind each leaf. ``rail``: whether the
    fabric is rail-optimised, None: either. ``labels``: one of them. ``hairpins``: what a hairpin
    passes: ``switch``, ``adapter`` (it loops inside), or ``none`` (there is none).
    ``counted``: whether nodes can read their counters, ``configured``: whether the fabric's layout
    is told where labels are true, None: either. ``latency``: seconds of eight
    bytes between neighbours, and of each hop more. ``seconds`` of a round; ``budget``: of them all.
    ``unjudged``: the share of hairpins that do not come up in time. ``tail``: degrees of freedom of
    Student's t in place of the normal noise, 0 for none; ``drift``: what the whole fabric loses
    from round to round.
    """

    name: str
    faults: tuple[WorldFault, ...] = ()
    gangs: int = 3000
    nodes: tuple[int, int] = (3, 72)
    leaves: tuple[int, int] = (2, 16)
    rail: bool | None = None
    labels: tuple[str, ...] = LABELS
    hairpins: str = "switch"
    counted: bool | None = None
    configured: bool | None = None
    noise: tuple[float, float] = (0.01, 0.03)
    spread: float = 0.015
    dips: float = 0.005
    tail: int = 0
    drift: float = 0.0
    latency: tuple[float, float] = (14e-6, 70e-6)
    hop: tuple[float, float] = (0.3e-6, 1e-6)
    restless: float = 0.02  # of latencies
    fast_pairs: int = 0  # that answer in two thirds of the time
    seconds: tuple[float, float] = (3.0, 8.0)
    budget: float | None = None
    unjudged: float = 0.0


@dataclass(slots=True)
class Truth:
    """``sick``: whose own device is at fault. ``blamable``: these, and whose own cable or switch
    port is, for which taking the node out is right. ``named``: who must at least be named.
    ``begins``: seconds until a fault does. ``told``: sick nodes whose device says so where it can
    be read. ``slow``: by node, the share of normal that is left to it, for whatever reason.
    """

    sick: set[int] = field(default_factory=set)
    blamable: set[int] = field(default_factory=set)
    named: set[int] = field(default_factory=set)
    begins: dict[int, float] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    slow: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Shape:
    """Where each node of the gang stands: its leaf and line card, its host, and its pod."""

    leaf: list[int]
    card: list[int]
    host: list[int]
    rail: bool

    @property
    def size(self) -> int:
        """Nodes."""
        return len(self.leaf)

    def behind(self, leaf: int) -> list[int]:
        """The nodes of a leaf."""
        return [i for i, leaf_ in enumerate(self.leaf) if leaf_ == leaf]

    def move(self, nodes: Iterable[int]) -> int:
        """Put these behind a leaf of their own: its number."""
        number = max(self.leaf) + 1
        for i in nodes:
            self.leaf[i] = number
        return number

    def own(self, i: int) -> list[Stage]:
        """What is the node's own and its host's."""
        return [("device", i), ("adapter", i), ("host", self.host[i])]

    def access(self, i: int) -> list[Stage]:
        """From its GPUs to its leaf, that one included."""
        return [
            *self.own(i),
            ("link", i),
            ("port", i),
            ("card", self.card[i]),
            ("leaf", self.leaf[i]),
        ]

    def between(self, members: Sequence[int]) -> list[Stage]:
        """What a pair passes, or a ring of more."""
        hosts = {self.host[i] for i in members}
        if len(hosts) == 1:  # two virtual machines of one host: by its adapters' own switch
            return [stage for i in members for stage in self.own(i)]
        stages = [stage for i in members for stage in self.access(i)]
        leaves = {self.leaf[i] for i in members}
        if len(leaves) > 1:
            stages += [("uplink", leaf) for leaf in sorted(leaves)]
            stages.append(("spine", 0))
        if len(members) == 2:
            a, b = members
            stages.append(("path", min(a, b) * self.size + max(a, b)))
        return stages

    def hairpin(self, i: int) -> list[Stage]:
        """What a node passes to itself, by its leaf's ports or by the spine."""
        across: list[Stage] = [("uplink", self.leaf[i]), ("spine", 0)] if self.rail else []
        return [*self.access(i), *across, ("itself", i)]

    def hops(self, a: int, b: int) -> int:
        """Switches between two nodes beyond the first one."""
        if self.host[a] == self.host[b]:
            return -1
        return 2 if self.leaf[a] != self.leaf[b] else 0


class StagedFabric:
    """One gang of a world and the truth about it: draws layout, faults and labels, then measures
    rounds.
    """

    def __init__(self, world: StagedWorld, number: int) -> None:
        self.world = world
        self.random = random = Random(f"{world.name}/{number}")
        low, high = world.nodes
        size = round(low * (high / low) ** random.random())
        self.shape = self._shape(size)
        self.rate = [math.exp(random.gauss(0, world.spread)) for _ in range(size)]
        self.nic = [random.choice(("", "8x400"))] * size
        self.kind = ["H100/8"] * size
        self.truth = Truth()
        self.noise = random.uniform(*world.noise)
        self.seconds = random.uniform(*world.seconds)
        self.counted = random.random() < 0.5 if world.counted is None else world.counted
        self.configured = random.random() < 0.5 if world.configured is None else world.configured
        self.background = [random.uniform(0, BACKGROUND) for _ in range(size)]
        self.now = 0.0
        self._rounds = 0
        self._slow: defaultdict[Stage, list[tuple[Spans, float]]] = defaultdict(list)
        self._capacity: dict[Stage, float] = {}
        self._foreign: defaultdict[int, list[tuple[Spans, float]]] = defaultdict(list)
        self._faults: dict[int, list[PortFault]] = {}
        self._errors: dict[int, tuple[str, float]] = {}
        self._throttles: dict[int, float] = {}
        self._silences: list[tuple[float, float]] = []
        self._loaded: set[int] = set()
        self._crowds: list[tuple[list[Stage], frozenset[int]]] = []
        self.collisions = 0.0
        for fault in world.faults:
            fault.strike(self)
        self.labels = random.choice(world.labels)
        # Whoever tells the layout vouches for the labels, too.
        self.configured = self.configured and self.labels == "true"
        self._base, self._hop = random.uniform(*world.latency), random.uniform(*world.hop)
        self._fast = {tuple(sorted(random.sample(range(size), 2))) for _ in range(world.fast_pairs)}
        gbps = self._measured(Probe(tuple(range(size)), Role.GANG), {}).gbps
        low_enough = gbps < FLOOR * NORMAL
        floor = FLOOR * NORMAL if random.random() < 0.5 else None
        self._silences.append((-random.uniform(LEAST_SILENCE, 5.0), 0.0))
        self.now, self._rounds = self.seconds, 1
        layout = Layout.RAIL if self.shape.rail else Layout.LEAF
        self.state = State(
            tuple(
                Endpoint(
                    f"node-{i}",
                    self.kind[i],
                    label,
                    pair_floor=floor,
                    nic=nic,
                    local=self._local(i),
                )
                for i, (label, nic) in enumerate(zip(self._labelled(), self.nic, strict=True))
            ),
            seed=number,
            layout=layout if self.configured else Layout.UNKNOWN,
        ).after_gang(Zone.BELOW if low_enough else Zone.UNKNOWN, gbps)

    def judged(self) -> frozenset[int]:
        """The sick who must be blamed by now: their own device says what it is (errors of a link do
        not where there are no hairpins); or nobody else is slow, their hairpin is known to pass
        their leaf alone, counters could tell of somebody else's traffic, true labels show a healthy
        node behind that leaf, and no other kind of adapter would be as slow.
        """
        if not self.counted or self.world.budget is not None:
            return frozenset()
        sick, leaf = self.truth.sick & self.shown(), self.shape.leaf
        reported = sick & self.truth.reported
        if self.world.hairpins == "none":
            reported -= self._errors.keys()
        if self.shape.size == 2 or self.labels != "true":
            return frozenset(reported if self.shape.size > 2 or self.labels == "true" else ())
        sure = self.world.hairpins == "switch" and not self.world.unjudged
        alone = len(self.truth.slow) == 1 and not self._foreign
        if not sure or not alone or self.shape.rail or not self.configured:
            return frozenset(reported)
        witnessed = {
            i
            for i in sick
            if leaf.count(leaf[i]) > 1
            and all(abs(math.log(self.truth.slow[i] / ratio)) > ALIKE for ratio in RATIOS)
        }
        return frozenset(reported | witnessed)

    def shown(self) -> frozenset[int]:
        """Who must be named by now: not whose fault began when there was hardly a round left, nor
        whoever has nobody to be compared with, unless their device says something of it.
        """
        late, reported = self.truth.begins, self.truth.reported if self.counted else set()
        rare = 2 * len(self.truth.slow) < self.shape.size or self.shape.size == 2
        return frozenset(
            i
            for i in self.truth.named
            if (i in reported and late.get(i, 0.0) < self.now - self.seconds)
            or (rare and late.get(i, 0.0) <= SEEN_FROM * self.seconds)
        )

    # What faults do.

    def slow(
        self, stage: Stage, share: float, spans: Spans = ALWAYS, nodes: Iterable[int] = ()
    ) -> None:
        """Leave a stage this share of normal, within these seconds; ``nodes`` are slow by it."""
        self._slow[stage].append((spans, share))
        for i in nodes:
            self.truth.slow[i] = min(share, self.truth.slow.get(i, 1.0))

    def limit(self, stage: Stage, nodes: float) -> None:
        """Let a stage carry no more than so many nodes at once."""
        self._capacity[stage] = nodes

    def crowd(self, stages: list[Stage], culprits: Iterable[int], share: float) -> None:
        """Slow these stages while one of the culprits takes part in the round."""
        self._crowds.append((stages, frozenset(culprits)))
        self._crowd_share = share

    def occupy(self, node: int, share: float, spans: Spans) -> None:
        """Somebody else's traffic on a node's adapters."""
        self.slow(("adapter", node), share, spans, (node,))
        self._foreign[node].append((spans, share))

    def load(self, node: int, share: float, spans: Spans) -> None:
        """Somebody else's work on a node's processors, which sends nothing."""
        self.slow(("device", node), share, spans, (node,))
        self._loaded.add(node)

    def tell(self, node: int, fact: str, spans: Spans = ALWAYS) -> None:
        """What the node's own device says of what is wrong with it: ``errors``, ``rate``, ``pcie``,
        ``replay``, ``throttle``, or nothing.
        """
        match fact:
            case "rate":
                fault = PortFault("mlx5_3:1", "rate", "runs at 200 Gbit/s", "its siblings at 400")
            case "pcie":
                fault = PortFault("mlx5_3:1", "pcie", "runs with 8 lanes", "it can have 16")
            case "errors":
                self._errors[node] = ("symbol_error", 10 ** self.random.uniform(1, 4))
                return
            case "replay":
                fault = PortFault("mlx5_3:1", "replay", "replayed 4711 packets", "no other did")
            case "throttle":
                self._throttles[node] = spans[0][0]
                return
            case _:
                return
        self._faults.setdefault(node, []).append(fault)

    # What is measured.

    def measure(self, step: Round) -> list[Result]:
        """One result for each probe of the round."""
        if step.wait >= LEAST_SILENCE:
            self._silences.append((self.now, self.now + step.wait))
        self.now += step.wait
        load: Counter[Stage] = Counter()
        if self._capacity:
            for probe in step.probes:
                load.update(stage for stage in self.passed(probe) if stage in self._capacity)
        taking = {i for probe in step.probes for i in probe.members}
        self._crowded = {
            stage: self._crowd_share
            for stages, culprits in self._crowds
            if culprits & taking
            for stage in stages
        }
        results = [self._measured(probe, load) for probe in step.probes]
        self.now += self.seconds
        self._rounds += 1
        return results

    def passed(self, probe: Probe) -> list[Stage]:
        """The stages of a probe."""
        if probe.role is Role.HAIRPIN:
            (end,) = probe.members
            inside = self.world.hairpins == "adapter"
            return self.shape.own(end) if inside else self.shape.hairpin(end)
        return self.shape.between(probe.members)

    _crowded: dict[Stage, float] = {}  # noqa: RUF012
    _crowd_share = 1.0

    def _measured(self, probe: Probe, load: dict[Stage, int]) -> Result:
        world, random = self.world, self.random
        hairpin = probe.role is Role.HAIRPIN
        if hairpin and (world.hairpins == "none" or random.random() < world.unjudged):
            return Result(Status.UNJUDGED)
        moment = self.now + self.seconds / 2
        share = 1.0
        for stage in self.passed(probe):
            for spans, factor in self._slow.get(stage, ()):
                if factor < share and any(begin <= moment < end for begin, end in spans):
                    share = factor
            if self._crowded:
                share = min(share, self._crowded.get(stage, 1.0))
            if load.get(stage, 0) > self._capacity.get(stage, math.inf):
                share = min(share, self._capacity[stage] / load[stage])
        if (
            self.collisions
            and not hairpin
            and len({self.shape.leaf[i] for i in probe.members}) > 1
            and random.random() < self.collisions
        ):
            share *= random.uniform(0.4, 0.8)
        value = NORMAL * share * min([self.rate[i] for i in probe.members])
        value *= (1 - world.drift) ** self._rounds * math.exp(self._noise()) * self._dip()
        trials = sorted([math.exp(self._noise()) * self._dip() for _ in range(3)])
        latency = self._latency(*probe.members) if len(probe.members) == 2 else 0.0
        return Result(Status.OK, value * trials[1], latency=latency)

    def _noise(self) -> float:
        noise = self.random.gauss(0, self.noise)
        if not self.world.tail:
            return noise
        return noise / math.sqrt(self.random.gammavariate(self.world.tail / 2, 2) / self.world.tail)

    def _dip(self) -> float:
        return self.random.uniform(0.3, 0.9) if self.random.random() < self.world.dips else 1.0

    def _latency(self, a: int, b: int) -> float:
        seconds = self._base + self._hop * self.shape.hops(a, b)
        if (a, b) in self._fast:
            seconds *= 2 / 3
        return seconds * math.exp(abs(self.random.gauss(0, self.world.restless)))

    # What is told.

    def told(self, state: State) -> State:
        """The state with what nodes know of themselves by now."""
        if not self.counted:
            return state
        ends = enumerate(state.endpoints)
        return replace(
            state, endpoints=tuple(replace(endpoint, local=self._local(i)) for i, endpoint in ends)
        )

    def foreign(self, node: int, begin: float, end: float) -> float:
        """GB/s of somebody else's traffic on the node's adapters between these seconds."""
        moved = sum(
            (1 - share) * max(0.0, min(end, until) - max(begin, since))
            for spans, share in self._foreign.get(node, ())
            for since, until in spans
        )
        return WIRE * moved / (end - begin) + self.background[node]

    def _load(self, node: int) -> float:
        """The share of its processor time that others take."""
        return 0.97 if node in self._loaded else 0.1 + 0.5 * self.background[node] / BACKGROUND

    def _local(self, i: int) -> Local:
        if not self.counted:
            return Local()
        errors: tuple[PortErrors, ...] = ()
        if i in self._errors:
            counter, rate = self._errors[i]
            seconds = self._rounds * self.seconds
            count = int(rate * seconds) + 1
            errors = (PortErrors("mlx5_3:1", counter, count, seconds, self._rounds),)
        faults = self._faults.get(i, [])
        if self._throttles.get(i, math.inf) < self.now:
            faults = [*faults, PortFault("GPU 3", "throttle", "hw_thermal_slowdown", "no reason")]
        silence = sum(end - begin for begin, end in self._silences)
        foreign = max(self.foreign(i, *span) for span in self._silences)
        return Local(tuple(faults), errors, True, silence, foreign, self._load(i))

    def _shape(self, size: int) -> Shape:
        random, world = self.random, self.world
        leaf: list[int] = []
        while len(leaf) < size:
            leaf += [len(set(leaf))] * random.randint(*world.leaves)
        leaf = leaf[:size]
        random.shuffle(leaf)  # ranks do not follow the racks
        ports: Counter[int] = Counter()
        card = []
        width = random.choice((2, 4, 8))
        for leaf_ in leaf:
            card.append(leaf_ * 1000 + ports[leaf_] // width)
            ports[leaf_] += 1
        rail = random.random() < 0.5 if world.rail is None else world.rail
        return Shape(leaf, card, list(range(size)), rail)

    def _labelled(self) -> list[str | None]:
        random, leaf = self.random, self.shape.leaf
        size = len(leaf)
        true: list[str | None] = [f"leaf-{number}" for number in leaf]
        match self.labels:
            case "shuffled":
                random.shuffle(true)
            case "one":
                true = ["leaf-0"] * size
            case "coarse":
                true = [f"rack-{number // 2}" for number in leaf]
            case "own":
                true = [f"leaf-{i}" for i in range(size)]
            case "stale":
                share = random.uniform(0.05, 0.3)
                true = [random.choice(true) if random.random() < share else label for label in true]
            case "half":
                true = [label if random.random() < 0.5 else None for label in true]
            case "absent":
                true = [None] * size
            case _:
                pass
        return true
