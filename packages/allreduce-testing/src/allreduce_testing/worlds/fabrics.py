"""Gangs whose truth is known, for :mod:`.simulation`: what each fault does to paths, and what a
node sees of it to itself.

A NIC that is bad is bad in the node's hairpin too; whatever lies beyond it (cable, line, switch,
uplink, somebody's traffic there) is not. Only somebody else's traffic on the node's own NICs slows
both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from check_nccl_allreduce import localise
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

__all__ = ["SECONDS", "Fabric", "FabricWorld"]

MOST_NODES: Final = 4096
SECONDS: Final = 5.0
"""A round takes so long."""
TIERS: Final = (2e-6, 4e-6, 7e-6)
"""Seconds of a small message behind one leaf, in one pod, and beyond."""
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

    ``fault``: ``none``, ``nodes`` (bad NICs), ``dead`` (their paths do not come up), ``pause`` (and
    their leaf suffers), or what is not a node's fault: ``uplink``, ``leaf``, ``oversubscription``,
    ``link``, ``remote`` (one node in a rack of its own), ``lone`` (a slow uplink with one node
    behind it), ``tiers`` (one to three nodes in another pod), ``card`` (part of a leaf),
    ``outliers`` (fast nodes), ``busy`` (somebody else's traffic on a node's NICs), ``hash`` (paths
    that collide), ``line`` (two nodes share one cable). ``also``: further ones at the same time.
    ``labels``: one of :data:`LABELS`. ``mixed``: every gang draws all this, and its noise, for
    itself, see :func:`drawn`.
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
    least_leaves: int = 1
    least_in_leaf: int = 1
    kinds: int = 1
    generations: int = 1  # NICs: each half as fast as the one before
    noise: float = 0.02  # per edge and round, and again per trial
    spread: float = 0.015  # among healthy nodes
    dips: float = 0.005
    dip: tuple[float, float] = (0.3, 0.9)
    flap: float = (
        0.0  # probability that what is bad is well, each round for a node and each probe for a path
    )
    tail: int = 0  # degrees of freedom of Student's t in place of the normal
    drift: float = 0.0  # what the whole fabric loses from round to round
    rounds: int = 0  # that a node is busy for
    racks: bool = False  # NVLink domains
    latency: bool = True
    shared: float = (
        0.0  # noise that all paths of a leaf have in common, most of it from round to round too
    )
    paused_hairpins: bool = False  # pause frames reach a victim's hairpin as well
    also: tuple[str, ...] = ()
    mixed: bool = False
    symptom: Status = Status.OK  # OK: bad nodes are slow
    hairpins: bool = True  # nodes with one GPU have none
    ports: tuple[str, ...] = ()  # whose ports say something: any of PORTS


DISTURBANCES: Final = (
    *(
        "uplink",
        "leaf",
        "oversubscription",
        "link",
        "remote",
        "lone",
        "tiers",
        "card",
        "line",
        "pause",
    ),
    *("outliers", "busy", "hash"),
)
LABELS: Final = ("true", "none", "half", "stale", "one", "own", "random", "coarse")
PORTS: Final = ("sick", "touched", "some", "errors")
"""A fault of each bad node's port; errors on ports of nodes that a disturbance touches, as behind a
bad cable; a fault of one node in 50, whatever else it is; errors on all ports, of which the most is
a thousand times the least."""
PERSISTENCE: Final = 0.7
"""Of the noise that a leaf's paths share, the part that stays from one round to the next."""


def drawn(world: FabricWorld, random: Random) -> FabricWorld:
    """A gang's own world, from ranges wider than those that rules were made for; up to three
    disturbances beside up to three bad nodes.
    """
    least = random.choice((1, 1, 2, 4))
    return replace(
        world,
        nodes=round(3 * (512 / 3) ** random.random()),
        leaves=(least, least + random.choice((0, 4, 12, 40))),
        bad=(0, 3),
        severity=(0.20, 0.75),
        also=tuple(random.sample(DISTURBANCES, random.choice((0, 1, 1, 2, 3)))),
        labels=random.choice(LABELS),
        latency=random.random() < 0.7,
        noise=math.exp(random.uniform(math.log(0.01), math.log(0.15))),
        shared=random.choice((0.0, 0.0, 0.02, 0.05)),
        spread=random.uniform(0.005, 0.05),
        dips=random.choice((0.0, 0.005, 0.02, 0.05)),
        dip=(random.uniform(0.2, 0.6), 0.9),
        flap=random.choice((0.0, 0.0, 0.0, 0.3, 0.5, 0.7)),
        tail=random.choice((0, 0, 0, 3, 5)),
        drift=random.choice((0.0, 0.0, 0.01, 0.03)),
        generations=random.choice((1, 1, 1, 2)),
        rounds=random.randint(1, 8),
        paused_hairpins=random.random() < 0.5,
    )


@dataclass(slots=True)
class FabricFault:
    """One thing that is wrong: with which endpoints, and what it leaves of normal; from when on,
    where it passes.
    """

    name: str
    touched: frozenset[int]
    factor: float
    begins: float = 0.0


class Fabric:
    """One gang and the truth about it: draws endpoints and faults, then measures rounds."""

    def __init__(self, world: FabricWorld, number: int) -> None:
        self.random = random = Random(f"{world.name}/{number}")
        self.world = world = drawn(world, random) if world.mixed else world
        self.size, self.leaf = self._shape()
        size = self.size
        self.pod = [0] * size
        kind = [random.randrange(world.kinds) for _ in range(size)]
        generation = [random.randrange(world.generations) for _ in range(size)]
        self.rate = [400.0 / 2 ** (k + g) for k, g in zip(kind, generation, strict=True)]
        self.quality = [math.exp(random.gauss(0, world.spread)) for _ in range(size)]
        self.bad: dict[int, float] = {}
        self._able: list[float] = []  # what each healthy node reaches
        self.faults = [self._fault(name) for name in (world.fault, *world.also)]
        self.now = 0.0
        self._pausing: frozenset[int] = (
            frozenset()
        )  # leaves in which a culprit takes part in this round
        self._sway: dict[int, float] = {}  # by leaf, what its paths have in common now
        self._able = [rate * quality for rate, quality in zip(self.rate, self.quality, strict=True)]
        labels = self._labels()
        self.state = State(
            tuple(
                Endpoint(
                    f"node-{i}",
                    f"kind-{kind[i]}",
                    labels[i],
                    nic=f"8x{400 >> generation[i]}",
                    nvlink=f"rack-{i // RACK}" if world.racks else None,
                    local=self._local(i, number),
                )
                for i in range(size)
            ),
            seed=number,
            layout=Layout.LEAF,
        ).after_gang(Zone.BELOW)
        for fault in self.faults:
            if fault.name == "link":
                first = localise.next(self.state)
                assert isinstance(first, Round)
                fault.touched = frozenset(random.choice(first.probes).members)
        self._on_paths = [fault for fault in self.faults if fault.name not in _ON_NODES]
        self._busy = [fault for fault in self.faults if fault.name == "busy"]

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
        while True:
            size = world.nodes or round(3 * (world.most / 3) ** random.random())
            if world.racks:
                size = RACK * random.randint(2, 8)
            leaf: list[int] = []
            number = 0
            while len(leaf) < size:
                leaf += [number] * random.randint(*world.leaves)
                number += 1
            leaf = leaf[:size]
            counts = Counter(leaf)
            if len(counts) >= world.least_leaves and min(counts.values()) >= world.least_in_leaf:
                random.shuffle(leaf)  # ranks do not follow the racks
                return size, leaf

    def _fault(self, name: str) -> FabricFault:
        """One thing that goes wrong, where it does."""
        world, random, size = self.world, self.random, self.size
        everyone = range(size)
        factor = random.uniform(0.2, 0.7)
        touched: Iterable[int] = ()
        begins = 0.0
        if name in {"nodes", "dead"} or (name == "pause" and not self.bad):
            self.bad = self._bad_nodes()
        match name:
            case "pause":
                touched = [i for i in everyone if self.leaf[i] in {self.leaf[b] for b in self.bad}]
                factor = random.uniform(0.4, 0.8)
            case "uplink" | "leaf":
                counts = Counter(self.leaf)
                sick = random.choice(
                    [one for one in sorted(counts) if counts[one] > 1] or sorted(counts)
                )
                touched = [i for i in everyone if self.leaf[i] == sick]
            case "remote" | "lone":
                one = random.randrange(size)
                self.leaf = [
                    max(self.leaf) + 1 if i == one else 0 if name == "remote" else self.leaf[i]
                    for i in everyone
                ]
                touched = (one,)
                factor = random.uniform(0.40, 0.75) if name == "remote" else factor
            case "tiers":
                far = random.sample(everyone, random.randint(1, min(3, max(1, size // 3))))
                self.pod = [int(i in far) for i in everyone]
                self.leaf = [
                    max(self.leaf) + 1 + far.index(i) if i in far else self.leaf[i]
                    for i in everyone
                ]
                touched, factor = far, random.uniform(0.40, 0.75)
            case "card":
                counts = Counter(self.leaf)
                sick = max(sorted(counts), key=lambda one: counts[one])
                those = [i for i in everyone if self.leaf[i] == sick]
                touched = random.sample(
                    those, min(len(those), random.randint(2, max(2, len(those) // 2)))
                )
            case "outliers":
                fast = random.sample(everyone, random.randint(1, max(1, size // 4)))
                for one in fast:
                    self.rate[one] *= random.uniform(1.15, 1.5)
            case "busy":
                touched, factor = (random.randrange(size),), 0.6
                begins = random.uniform(0, 50) if world.mixed else 0.0
            case "line":
                touched = random.sample(everyone, 2)
            case "oversubscription":
                factor = 1 / random.uniform(1.5, 4)
            case _:
                pass
        return FabricFault(name, frozenset(touched), factor, begins)

    def _local(self, one: int, number: int) -> Local:
        """What this node's ports say, drawn apart from all else."""
        said = self.world.ports
        if not said:
            return Local(silence=SILENCE)
        random = Random(f"{self.world.name}/{number}/ports/{one}")
        fault = PortFault("mlx5_3:1", "rate", "runs at 200 Gbit/s", "its siblings at 400")
        has = ("sick" in said and one in self.bad) or ("some" in said and random.random() < 0.02)
        touched = "touched" in said and any(one in fault.touched for fault in self.faults)
        rate = (
            10 ** random.uniform(2, 4)
            if touched
            else 10 ** random.uniform(-1, 2)
            if "errors" in said
            else 0.0
        )
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

    def _labels(self) -> list[str | None]:
        random, leaf = self.random, self.leaf
        told: dict[str, Callable[[int], str | None]] = {
            "true": lambda i: f"leaf-{leaf[i]}",
            "none": lambda _: None,
            "half": lambda i: f"leaf-{leaf[i]}" if random.random() < 0.5 else None,
            "stale": lambda i: f"leaf-{random.choice(leaf) if random.random() < 0.05 else leaf[i]}",
            "one": lambda _: "all",
            "own": lambda i: f"own-{i}",
            "random": lambda _: f"leaf-{random.choice(leaf)}",
            "coarse": lambda i: f"pod-{leaf[i] // 4}",
        }
        return [told[self.world.labels](i) for i in range(self.size)]

    def measure(self, one: Round) -> list[Result]:
        """One result for each probe of the round."""
        flap, leaf = self.world.flap, self.leaf
        sick = {i: f for i, f in self.bad.items() if not flap or self.random.random() >= flap}
        self._pausing = frozenset(
            leaf[i] for probe in one.probes for i in probe.members if i in sick
        )
        if self.world.shared:
            self._swayed()
        began = self.now + one.wait
        results = [self._probe(probe, sick, one.number, began) for probe in one.probes]
        self.now = began + SECONDS
        return results

    def _swayed(self) -> None:
        """What the paths of each leaf have in common moves on: an autoregressive process of the
        first order.
        """
        fresh = self.world.shared * math.sqrt(1 - PERSISTENCE**2)
        for one in sorted(set(self.leaf)):
            before = self._sway.get(one, self.random.gauss(0, self.world.shared))
            self._sway[one] = PERSISTENCE * before + self.random.gauss(0, fresh)

    def _probe(self, probe: Probe, sick: dict[int, float], number: int, began: float) -> Result:
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
        share = 1.0
        for fault in self._busy:
            if 0 <= began - fault.begins < world.rounds * SECONDS and fault.touched.intersection(
                members
            ):
                share = fault.factor
        for fault in self._on_paths:
            if not hairpin or (fault.name == "pause" and world.paused_hairpins):
                share = min(share, self._path(fault, members))
        value *= share
        if self._sway and not hairpin:
            value *= math.exp(min(self._sway[self.leaf[i]] for i in members))
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
        tier = 2 if self.pod[a] != self.pod[b] else 1 if self.leaf[a] != self.leaf[b] else 0
        return TIERS[tier] * math.exp(abs(self.random.gauss(0, LATENCY_NOISE)))

    def _path(self, fault: FabricFault, members: tuple[int, ...]) -> float:
        """The share of normal that the path between the members has."""
        world, random, leaf = self.world, self.random, self.leaf
        crosses = len({leaf[i] for i in members}) > 1
        hit = not fault.touched.isdisjoint(members)
        match fault.name:
            case "link":
                slow = len(members) == 2 and fault.touched.issuperset(members)
            case "oversubscription":
                slow = crosses
            case "remote" | "uplink" | "lone":
                slow = crosses and hit
            case "tiers":
                slow = len({self.pod[i] for i in members}) > 1
            case "leaf" | "card":
                slow = hit
            case "pause":
                slow = (
                    hit
                    and not any(i in self.bad for i in members)
                    and any(leaf[i] in self._pausing for i in members)
                )
            case "hash":
                return random.uniform(0.4, 0.8) if crosses and random.random() < 0.1 else 1.0
            case "line":
                return 0.5 if hit and not fault.touched.issuperset(members) else 1.0
            case _:
                slow = False
        if slow and world.flap and fault.name != "pause" and random.random() < world.flap:
            slow = False
        return fault.factor if slow else 1.0


_ON_NODES: Final = frozenset({"none", "nodes", "dead", "outliers", "busy"})
