"""Gangs with bad adapters, for :mod:`.simulation`: what depends on their size, on noise, on how bad
they are and on how it shows. What lies beyond the nodes is of :mod:`.stages`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Final

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

MOST_NODES: Final = 4096
SECONDS: Final = 5.0
"""A round takes so long."""
TIERS: Final = (2e-6, 4e-6)
"""Seconds of a small message behind one leaf, and beyond."""
LATENCY_NOISE: Final = 0.04
SILENCE: Final = 50.0
"""Seconds in which nothing runs, and nobody else's bytes were seen."""
RACK: Final = 18
"""Nodes of one NVLink domain, as GB200 NVL72 has."""
NVLINK: Final = 2.2
"""What two nodes of one NVLink domain reach, as a multiple of what NICs carry."""


@dataclass(frozen=True, slots=True)
class FabricWorld:
    """What gangs are drawn from. Spreads are standard deviations of natural logarithms.

    ``fault``: ``none``, ``nodes`` (bad NICs), ``dead`` (their paths do not come up) or ``pause``
    (and their leaf suffers). ``labels``: ``true`` or ``none``.
    """

    name: str
    gangs: int
    nodes: int | None = None  # None: log-uniform from 3 to most
    most: int = MOST_NODES
    labels: str = "true"
    fault: str = "nodes"
    severity: tuple[float, float] = (0.20, 0.70)  # a bad node's share of normal
    shares: tuple[float, ...] = (0.0, 0.01, 0.05, 0.10)
    bad: tuple[int, int] | None = None  # so many bad nodes instead of a share
    leaves: tuple[int, int] = (4, 32)
    kinds: int = 1
    generations: int = 1  # NICs: each half as fast as the one before
    noise: float = 0.02  # per edge and round, and again per trial
    spread: float = 0.015  # among healthy nodes
    dips: float = 0.005
    dip: tuple[float, float] = (0.3, 0.9)
    flap: float = 0.0  # probability that a bad node is well, each round
    tail: int = 0  # degrees of freedom of Student's t in place of the normal
    drift: float = 0.0  # what the whole fabric loses from round to round
    racks: bool = False  # NVLink domains
    latency: bool = True
    paused_hairpins: bool = False  # pause frames reach a victim's hairpin as well
    symptom: Status = Status.OK  # OK: bad nodes are slow
    hairpins: bool = True  # nodes with one GPU have none
    ports: tuple[str, ...] = ()  # whose ports say something: any of PORTS


PORTS: Final = ("sick", "errors")
"""A fault of each bad node's port; errors on ports of all nodes, of which the most is a thousand
times the least."""


class Fabric:
    """One gang and the truth about it: draws endpoints and faults, then measures rounds."""

    def __init__(self, world: FabricWorld, number: int) -> None:
        self.random = random = Random(f"{world.name}/{number}")
        self.world = world
        self.size, self.leaf = self._shape()
        size = self.size
        kind = [random.randrange(world.kinds) for _ in range(size)]
        generation = [random.randrange(world.generations) for _ in range(size)]
        rate = [400.0 / 2 ** (k + g) for k, g in zip(kind, generation, strict=True)]
        quality = [math.exp(random.gauss(0, world.spread)) for _ in range(size)]
        self._able = [each * good for each, good in zip(rate, quality, strict=True)]
        """What each node reaches when it is healthy."""
        self.bad = {} if world.fault == "none" else self._bad_nodes()
        leaves = {self.leaf[i] for i in self.bad} if world.fault == "pause" else set()
        self._victims = {i for i in range(size) if self.leaf[i] in leaves and i not in self.bad}
        self._paused = random.uniform(0.4, 0.8)
        self._pausing: frozenset[int] = frozenset()
        """Leaves in which a culprit takes part in this round."""
        self.now = 0.0
        named = world.labels == "true"
        self.state = State(
            tuple(
                Endpoint(
                    f"node-{i}",
                    f"kind-{kind[i]}",
                    f"leaf-{self.leaf[i]}" if named else None,
                    nic=f"8x{400 >> generation[i]}",
                    nvlink=f"rack-{i // RACK}" if world.racks else None,
                    local=self._local(i, number),
                )
                for i in range(size)
            ),
            seed=number,
            layout=Layout.LEAF,
        ).after_gang(Zone.BELOW)

    @property
    def judged(self) -> frozenset[int]:
        """The bad nodes that are not alone at their position: another healthy node is behind the
        same leaf.
        """
        healthy = Counter(self.leaf[i] for i in range(self.size) if i not in self.bad)
        return frozenset(i for i in self.bad if healthy[self.leaf[i]])

    def _shape(self) -> tuple[int, list[int]]:
        """(number of nodes, leaf of each)."""
        world, random = self.world, self.random
        size = world.nodes or round(3 * (world.most / 3) ** random.random())
        if world.racks:
            size = RACK * random.randint(2, 8)
        leaf: list[int] = []
        while len(leaf) < size:
            leaf += [len(set(leaf))] * random.randint(*world.leaves)
        leaf = leaf[:size]
        random.shuffle(leaf)  # ranks do not follow the racks
        return size, leaf

    def _local(self, end: int, number: int) -> Local:
        """What this node's ports say, drawn apart from all else."""
        faults = self.world.ports
        if not faults:
            return Local(silence=SILENCE)
        random = Random(f"{self.world.name}/{number}/ports/{end}")
        fault = PortFault("mlx5_3:1", "rate", "runs at 200 Gbit/s", "its siblings at 400")
        has = "sick" in faults and end in self.bad
        rate = 10 ** random.uniform(-1, 2) if "errors" in faults else 0.0
        errors = (
            (PortErrors("mlx5_3:1", "symbol_error", int(rate * 60) + 1, 60.0, 7),) if rate else ()
        )
        return Local((fault,) if has else (), errors, counted=True, silence=SILENCE)

    def _bad_nodes(self) -> dict[int, float]:
        world, random, size = self.world, self.random, self.size
        if world.bad is not None:
            count = min(random.randint(*world.bad), max(1, size // 4))
        else:
            share = random.choice(world.shares)
            count = min(max(1, round(share * size)), max(1, size // 10)) if share else 0
        return {i: random.uniform(*world.severity) for i in random.sample(range(size), count)}

    def measure(self, round_: Round) -> list[Result]:
        """One result for each probe of the round."""
        flap, leaf = self.world.flap, self.leaf
        sick = {i: f for i, f in self.bad.items() if not flap or self.random.random() >= flap}
        self._pausing = frozenset(
            leaf[i] for probe in round_.probes for i in probe.members if i in sick
        )
        results = [self._probe(probe, sick, round_.number) for probe in round_.probes]
        self.now += round_.wait + SECONDS
        return results

    def _probe(self, probe: Probe, sick: dict[int, float], number: int) -> Result:
        world = self.world
        members = probe.members
        hairpin = probe.role is Role.HAIRPIN
        if hairpin and not world.hairpins:
            return Result(Status.UNJUDGED)
        if sick and any(i in sick for i in members):
            if world.fault == "dead" and not hairpin:
                return Result(Status.UNJUDGED)
            if world.symptom is not Status.OK:
                return Result(world.symptom)
        nvlink = world.racks and len({i // RACK for i in members}) == 1 and not hairpin
        able = self._able
        value = min([able[i] if nvlink or i not in sick else able[i] * sick[i] for i in members])
        value *= NVLINK if nvlink else 1.0
        if (not hairpin or world.paused_hairpins) and any(
            i in self._victims and self.leaf[i] in self._pausing for i in members
        ):
            value *= self._paused
        value *= (1 - world.drift) ** number * math.exp(self._noise()) * self._dip()
        trials = sorted([math.exp(self._noise()) * self._dip() for _ in range(3)])
        return Result(Status.OK, value * trials[1], latency=self._latency(members))

    def _dip(self) -> float:
        return (
            self.random.uniform(*self.world.dip) if self.random.random() < self.world.dips else 1.0
        )

    def _noise(self) -> float:
        world, random = self.world, self.random
        if not world.tail:
            return random.gauss(0.0, world.noise)
        chi = random.gammavariate(world.tail / 2, 2)
        return world.noise * random.gauss(0, 1) / math.sqrt(chi / world.tail)

    def _latency(self, members: tuple[int, ...]) -> float:
        if not self.world.latency or len(members) != 2:
            return 0.0
        a, b = members
        return TIERS[self.leaf[a] != self.leaf[b]] * math.exp(
            abs(self.random.gauss(0, LATENCY_NOISE))
        )
