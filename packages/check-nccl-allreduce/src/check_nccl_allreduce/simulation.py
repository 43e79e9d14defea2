"""What localisation does in worlds whose truth is known: `python -m check_nccl_allreduce.simulation --json FILE`.

Each gang is drawn from a seed of its own (world name and number), so that figures do not depend on how many processes
share the work. The function under test is the one that the check calls.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from . import localise
from .localise import Endpoint, Phase, Probe, Result, Round, State, Status, Verdict, Zone

__all__ = ["Fabric", "Tally", "World", "play", "simulate", "worlds"]

_MOST_NODES = 4096


@dataclass(frozen=True, slots=True)
class World:
    """What gangs are drawn from. Spreads are standard deviations of natural logarithms."""

    name: str
    gangs: int
    nodes: int | None = None  # None: log-uniform from 3 to 4,096
    labels: bool = True
    fault: str = "nodes"  # nodes | uplink | leaf | oversubscription | link
    severity: tuple[float, float] = (0.20, 0.70)  # a bad node's share of normal
    shares: tuple[float, ...] = (0.0, 0.01, 0.05, 0.10)
    leaves: tuple[int, int] = (4, 32)
    least_leaves: int = 1
    least_in_leaf: int = 1
    kinds: int = 1
    noise: float = 0.02  # per edge and round, and again per trial
    spread: float = 0.015  # among healthy nodes
    dips: float = 0.005
    flap: float = 0.0  # probability that a bad node is well in a round
    tail: int = 0  # degrees of freedom of Student's t in place of the normal
    drift: float = 0.0  # what the whole fabric loses from round to round
    symptom: Status = Status.OK  # OK: bad nodes are slow


@dataclass(slots=True)
class Tally:
    """Figures of one world. Recalls are shares of bad nodes; nodes are counted unless the name says gangs."""

    gangs: int = 0
    bad: int = 0
    healthy: int = 0
    healthy_blamed: int = 0
    gangs_healthy_blamed: int = 0
    healthy_named: int = 0
    bad_blamed: int = 0
    bad_named: int = 0
    rounds: int = 0
    max_rounds: int = 0
    probes: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    by_size: dict[int, list[int]] = field(default_factory=dict)  # power of two: gangs, rounds in all, most rounds
    seconds: float = 0.0

    def add(self, verdict: Verdict, bad: set[int], size: int, probes: int) -> None:
        blamed, named = set(verdict.blamed), set(verdict.named)
        self.gangs += 1
        self.bad += len(bad)
        self.healthy += size - len(bad)
        self.healthy_blamed += len(blamed - bad)
        self.gangs_healthy_blamed += bool(blamed - bad)
        self.healthy_named += len(named - bad)
        self.bad_blamed += len(blamed & bad)
        self.bad_named += len(named & bad)
        self.rounds += verdict.rounds
        self.max_rounds = max(self.max_rounds, verdict.rounds)
        self.probes += probes
        self.kinds[verdict.kind] += 1
        row = self.by_size.setdefault(size.bit_length() - 1, [0, 0, 0])
        row[:] = [row[0] + 1, row[1] + verdict.rounds, max(row[2], verdict.rounds)]

    def merge(self, other: Tally) -> None:
        for name in self.__slots__:
            if name not in {"max_rounds", "by_size"}:
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_rounds = max(self.max_rounds, other.max_rounds)
        for size, row in other.by_size.items():
            mine = self.by_size.setdefault(size, [0, 0, 0])
            mine[:] = [mine[0] + row[0], mine[1] + row[1], max(mine[2], row[2])]

    def figures(self) -> dict[str, Any]:
        return {
            "gangs": self.gangs,
            "bad": self.bad,
            "healthy_blamed": self.healthy_blamed,
            "gangs_healthy_blamed": self.gangs_healthy_blamed,
            "healthy_named": self.healthy_named,
            "recall_blamed": round(self.bad_blamed / self.bad, 6) if self.bad else None,
            "recall_named": round(self.bad_named / self.bad, 6) if self.bad else None,
            "max_rounds": self.max_rounds,
            "mean_rounds": round(self.rounds / self.gangs, 3) if self.gangs else None,
            "probes_per_node": round(self.probes / (self.healthy + self.bad), 3) if self.gangs else None,
            "kinds": dict(self.kinds.most_common()),
            "rounds_by_size": {
                str(2**k): {"gangs": gangs, "mean": round(rounds / gangs, 3), "max": most}
                for k, (gangs, rounds, most) in sorted(self.by_size.items())
            },
            "seconds": round(self.seconds, 2),
        }


class Fabric:
    """One gang and the truth about it: draws endpoints and faults, then measures rounds."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.random = random = Random(f"{world.name}/{number}")  # noqa: S311, a simulation must be repeatable
        self.size, self.leaf = self._shape()
        size = self.size
        kind = [random.randrange(world.kinds) for _ in range(size)]
        self.rate = [400.0 / 2**k for k in kind]
        self.quality = [math.exp(random.gauss(0, world.spread)) for _ in range(size)]
        self.bad: dict[int, float] = {}
        if world.fault == "nodes":
            share = random.choice(world.shares)
            count = min(max(1, round(share * size)), max(1, size // 10)) if share else 0
            self.bad = {i: random.uniform(*world.severity) for i in random.sample(range(size), count)}
        self.sick_leaf = self._sick_leaf() if world.fault in {"uplink", "leaf"} else -1
        self.factor = 1 / random.uniform(1.5, 4) if world.fault == "oversubscription" else random.uniform(0.2, 0.7)
        endpoints = tuple(
            Endpoint(f"node-{i}", f"kind-{kind[i]}", f"leaf-{self.leaf[i]}" if world.labels else None)
            for i in range(size)
        )
        self.state = State(endpoints, seed=number).after_gang(Zone.BELOW)
        self.link = frozenset[int]()
        if world.fault == "link":
            first = localise.next(self.state)
            assert isinstance(first, Round)
            self.link = frozenset(random.choice(first.probes).members)

    def _shape(self) -> tuple[int, list[int]]:
        """(number of nodes, leaf of each)."""
        world, random = self.world, self.random
        while True:
            size = world.nodes or round(3 * (_MOST_NODES / 3) ** random.random())
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

    def _sick_leaf(self) -> int:
        counts = Counter(self.leaf)
        return self.random.choice([one for one in sorted(counts) if counts[one] > 1] or sorted(counts))

    def measure(self, one: Round) -> list[Result]:
        """One result for each probe of the round."""
        flap = self.world.flap
        sick = {i: f for i, f in self.bad.items() if not flap or self.random.random() >= flap}
        return [self._probe(probe, sick, one.number) for probe in one.probes]

    def _probe(self, probe: Probe, sick: dict[int, float], number: int) -> Result:
        world, random = self.world, self.random
        members = probe.members
        if world.symptom is not Status.OK and any(i in sick for i in members):
            return Result(world.symptom)
        rate, quality = self.rate, self.quality
        value = min([rate[i] * quality[i] * sick.get(i, 1.0) for i in members])
        if world.fault != "nodes":
            value *= self._path(members)
        if world.drift:
            value *= (1 - world.drift) ** number
        value *= math.exp(self._noise())
        if random.random() < world.dips:
            value *= random.uniform(0.3, 0.9)
        trials = []
        for _ in range(3):
            trial = math.exp(self._noise())
            if random.random() < world.dips:
                trial *= random.uniform(0.3, 0.9)
            trials.append(trial)
        trials.sort()
        return Result(Status.OK, value * trials[1])

    def _noise(self) -> float:
        world, random = self.world, self.random
        if not world.tail:
            return random.gauss(0.0, world.noise)
        chi = random.gammavariate(world.tail / 2, 2)
        return world.noise * random.gauss(0, 1) / math.sqrt(chi / world.tail)

    def _path(self, members: tuple[int, ...]) -> float:
        """The share of normal that the path between the members' leaves has."""
        fault, leaf = self.world.fault, self.leaf
        if fault == "link":
            return self.factor if len(members) == 2 and self.link == set(members) else 1.0
        leaves = {leaf[i] for i in members}
        if fault == "oversubscription":
            return self.factor if len(leaves) > 1 else 1.0
        touched = self.sick_leaf in leaves and (fault == "leaf" or len(leaves) > 1)
        return self.factor if touched else 1.0


def play(state: State, measure: Callable[[Round], Sequence[Result]]) -> tuple[Verdict, State]:
    """Localise one gang whose rounds ``measure`` answers: the verdict and the last state."""
    step = localise.next(state)
    while isinstance(step, Round):
        if step.phase is Phase.GANG:
            raise ValueError("the gang's own round is judged by the gate: start from a state that has its zone")
        state = state.after(step, measure(step))
        step = localise.next(state)
    return step, state


def _part(job: tuple[World, range]) -> tuple[str, Tally]:
    world, numbers = job
    tally = Tally()
    began = time.perf_counter()
    for number in numbers:
        fabric = Fabric(world, number)
        verdict, state = play(fabric.state, fabric.measure)
        pairs = sum(len(p.round.probes) for p in state.rounds if p.round.phase is not Phase.HALVES)
        tally.add(verdict, set(fabric.bad), fabric.size, pairs)
    tally.seconds = time.perf_counter() - began
    return world.name, tally


def simulate(chosen: Iterable[World], jobs: int = 1, told: Callable[[str], None] = lambda _: None) -> dict[str, Tally]:
    """Play all gangs of the worlds: world name to its figures, the same for any number of ``jobs``."""
    chosen = list(chosen)
    parts = [
        (world, range(start, min(start + 50, world.gangs))) for world in chosen for start in range(0, world.gangs, 50)
    ]
    tallies = {world.name: Tally() for world in chosen}
    left = Counter(world.name for world, _ in parts)

    def take(results: Iterable[tuple[str, Tally]]) -> None:
        for name, tally in results:
            tallies[name].merge(tally)
            left[name] -= 1
            if not left[name]:
                told(f"{name}: {json.dumps(tallies[name].figures())}")

    if jobs <= 1:
        take(map(_part, parts))
    else:
        with multiprocessing.Pool(jobs) as pool:
            take(pool.imap_unordered(_part, parts))
    return tallies


SMALL = (3, 4, 5, 7, 8, 64, 1024)
CORRELATED = ("uplink", "leaf", "oversubscription", "link")
SEVERITIES = (0.20, 0.30, 0.40, 0.50, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95)
NOISES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)


def worlds(scale: float = 1.0) -> dict[str, World | dict[str, World]]:
    """Every world of the bench, alone or in a group; ``scale`` shrinks the number of gangs."""

    def gangs(number: int) -> int:
        return max(1, round(number * scale))

    base = World("labels", gangs(10_000))
    less = replace(base, gangs=gangs(1_000))
    some = replace(base, gangs=gangs(300))  # without a bar
    one_bad = (1e-9,)  # a share above none is at least one node
    others = {
        "mild: 0.70-0.95 of normal": replace(some, severity=(0.70, 0.95)),
        "scattered: leaves of 1-4": replace(some, leaves=(1, 4)),
        "noise x2": replace(some, noise=2 * base.noise),
        "noise x3": replace(some, noise=3 * base.noise),
        "dips 2 %": replace(some, dips=0.02),
        "dips 5 %": replace(some, dips=0.05),
        "three kinds": replace(some, kinds=3),
        "flapping": replace(some, flap=0.5),
        "Student t, 3 degrees": replace(some, tail=3),
        "drift 3 % a round": replace(some, drift=0.03),
        "hangs": replace(some, symptom=Status.HANG),
        "wrong data": replace(some, symptom=Status.WRONG),
    }
    groups: dict[str, dict[str, World]] = {
        "small_n": {
            str(n): replace(
                base,
                nodes=n,
                gangs=gangs(5_000 if n < 64 else 2_000 if n < 1000 else 500),
                severity=(0.65, 0.70),
                shares=one_bad,
            )
            for n in SMALL
        },
        "correlated": {fault: replace(less, fault=fault, least_leaves=2) for fault in CORRELATED},
        "correlated_unlabelled": {
            fault: replace(less, fault=fault, labels=False, least_leaves=2, least_in_leaf=2) for fault in CORRELATED
        },
        "others": others,
        "severity": {f"{f:.2f}": replace(some, severity=(f, f), shares=(0.01, 0.05, 0.10)) for f in SEVERITIES},
        "noise": {f"{x:g}": replace(some, noise=x * base.noise) for x in NOISES},
    }
    named = {
        group: {key: replace(world, name=f"{group} {key}") for key, world in members.items()}
        for group, members in groups.items()
    }
    return {"labels": base, "no_labels": replace(base, name="no_labels", labels=False, gangs=less.gangs), **named}


def report(jobs: int, scale: float, chosen: Sequence[str] = ()) -> dict[str, Any]:
    """All figures in the shape of :func:`worlds`, or those of the chosen groups; progress goes to stderr."""
    everything = {name: entry for name, entry in worlds(scale).items() if not chosen or name in chosen}
    alone = [entry for entry in everything.values() if isinstance(entry, World)]
    grouped = [world for entry in everything.values() if not isinstance(entry, World) for world in entry.values()]

    def told(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    tallies = simulate(alone + grouped, jobs, told)

    def figures(entry: World | dict[str, World]) -> dict[str, Any]:
        if isinstance(entry, World):
            return tallies[entry.name].figures()
        return {key: tallies[world.name].figures() for key, world in entry.items()}

    return {name: figures(entry) for name, entry in everything.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description="Localisation in worlds whose truth is known.")
    parser.add_argument("--json", type=Path, metavar="FILE", required=True, help="write the figures to FILE")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the gangs to play (%(default)s)")
    parser.add_argument(
        "--group", action="append", default=[], choices=list(worlds()), help="only this one (repeatable)"
    )
    args = parser.parse_args()
    args.json.write_text(json.dumps(report(args.jobs, args.scale, args.group), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
