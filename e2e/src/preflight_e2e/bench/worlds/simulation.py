"""What localisation does in worlds whose truth is known: `python -m preflight_e2e.bench.worlds.simulation --json FILE`.

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
from typing import Any

from check_nccl_allreduce import localise
from check_nccl_allreduce.localise import Phase, Result, Round, State, Status, Verdict

from ...program import leave, says_version
from . import later
from .fabrics import SECONDS, Fabric, FabricWorld

__all__ = ["Fabric", "FabricWorld", "Tally", "bound", "play", "simulate", "worlds"]


@dataclass(slots=True)
class Tally:
    """Figures of one world. Nodes are counted unless the name says gangs.

    ``recall_named`` is a share of all bad nodes, ``recall_blamed`` of those that are not alone behind their switch (``judged``).
    """

    gangs: int = 0
    bad: int = 0
    judged: int = 0
    healthy: int = 0
    healthy_blamed: int = 0
    gangs_healthy_blamed: int = 0
    healthy_named: int = 0
    bad_blamed: int = 0
    bad_named: int = 0
    rounds: int = 0
    max_rounds: int = 0
    probes: int = 0
    remembered: int = 0  # healthy nodes of gangs that went before, and how many were bad in some pair there
    spells: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    by_size: dict[int, list[int]] = field(default_factory=dict)  # power of two: gangs, rounds in all, most rounds
    seconds: float = 0.0

    def add(self, verdict: Verdict, bad: set[int], judged: frozenset[int], size: int, probes: int) -> None:
        """Count one gang: its verdict against the nodes that are truly ``bad``; ``judged`` are those that recall of blame counts."""
        blamed, named = set(verdict.blamed), set(verdict.named)
        self.gangs += 1
        self.bad += len(bad)
        self.judged += len(judged)
        self.healthy += size - len(bad)
        self.healthy_blamed += len(blamed - bad)
        self.gangs_healthy_blamed += bool(blamed - bad)
        self.healthy_named += len(named - bad)
        self.bad_blamed += len(blamed & judged)
        self.bad_named += len(named & bad)
        self.rounds += verdict.rounds
        self.max_rounds = max(self.max_rounds, verdict.rounds)
        self.probes += probes
        self.kinds[verdict.kind] += 1
        row = self.by_size.setdefault(size.bit_length() - 1, [0, 0, 0])
        row[:] = [row[0] + 1, row[1] + verdict.rounds, max(row[2], verdict.rounds)]

    def merge(self, other: Tally) -> None:
        """Add the counts of another process."""
        for name in self.__slots__:
            if name not in {"max_rounds", "by_size"}:
                setattr(self, name, getattr(self, name) + getattr(other, name))
        self.max_rounds = max(self.max_rounds, other.max_rounds)
        for size, row in other.by_size.items():
            mine = self.by_size.setdefault(size, [0, 0, 0])
            mine[:] = [mine[0] + row[0], mine[1] + row[1], max(mine[2], row[2])]

    def figures(self) -> dict[str, Any]:
        """The counts and shares, as the bench's file has them."""
        return {
            "gangs": self.gangs,
            "bad": self.bad,
            "bound_percent": round(bound(self.gangs_healthy_blamed, self.gangs), 4),
            "healthy_blamed": self.healthy_blamed,
            "gangs_healthy_blamed": self.gangs_healthy_blamed,
            "healthy_named": self.healthy_named,
            "recall_blamed": round(self.bad_blamed / self.judged, 6) if self.judged else None,
            "recall_named": round(self.bad_named / self.bad, 6) if self.bad else None,
            "max_rounds": self.max_rounds,
            "mean_rounds": round(self.rounds / self.gangs, 3) if self.gangs else None,
            "probes_per_node": round(self.probes / (self.healthy + self.bad), 3) if self.gangs else None,
            **({"healthy_with_a_spell": round(self.spells / self.remembered, 6)} if self.remembered else {}),
            "kinds": dict(self.kinds.most_common()),
            "rounds_by_size": {
                str(2**k): {"gangs": gangs, "mean": round(rounds / gangs, 3), "max": most}
                for k, (gangs, rounds, most) in sorted(self.by_size.items())
            },
            "seconds": round(self.seconds, 2),
        }


def bound(found: int, gangs: int) -> float:
    """Percent: with 95 % confidence the true share is at most that (Wilson's score bound, and for none found the rule of three)."""
    if not gangs:
        return 100.0
    if not found:
        return min(100.0, 300.0 / gangs)
    z, share = 1.645, found / gangs
    centre, wide = share + z * z / (2 * gangs), z * math.sqrt(share * (1 - share) / gangs + (z / (2 * gangs)) ** 2)
    return 100 * (centre + wide) / (1 + z * z / gangs)


def play(state: State, measure: Callable[[Round], Sequence[Result]], seconds: float = SECONDS) -> tuple[Verdict, State]:
    """Localise one gang whose rounds ``measure`` answers, each of which takes so long: the verdict and the last state."""
    now = 0.0
    step = localise.next(state, now)
    while isinstance(step, Round):
        if step.phase is Phase.GANG:
            raise ValueError("the gang's own round is judged by the gate: start from a state that has its zone")
        now += step.wait + seconds
        state = state.after(step, measure(step), now)
        step = localise.next(state, now)
    return step, state


def _localised(fabric: Fabric, number: int, tally: Tally) -> tuple[Verdict, State]:
    """The last of several gangs. Whoever was named in one of them is named."""
    after = later.follow(fabric, number, lambda one: play(one.state, one.measure))
    tally.remembered += after.healthy
    tally.spells += after.spells
    verdict, state = play(after.state, fabric.measure)
    return (replace(verdict, named=(*verdict.named, *fabric.bad)) if after.named else verdict), state


def _part(job: tuple[FabricWorld, range]) -> tuple[str, Tally]:
    world, numbers = job
    tally = Tally()
    began = time.perf_counter()
    for number in numbers:
        fabric = Fabric(world, number)
        verdict, state = _localised(fabric, number, tally) if world.before else play(fabric.state, fabric.measure)
        pairs = sum(len(p.round.probes) for p in state.rounds if p.round.phase is not Phase.HALVES)
        tally.add(verdict, set(fabric.bad), fabric.judged, fabric.size, pairs)
    tally.seconds = time.perf_counter() - began
    return world.name, tally


def simulate(
    chosen: Iterable[FabricWorld], jobs: int = 1, told: Callable[[str], None] = lambda _: None
) -> dict[str, Tally]:
    """Play all gangs of the worlds: world name to its figures, the same for any number of ``jobs``.

    ``told`` gets a line for each world that is played, and at most twice a minute one that says how far it is.
    """
    chosen = list(chosen)
    parts = [
        (world, range(start, min(start + 50, world.gangs))) for world in chosen for start in range(0, world.gangs, 50)
    ]
    tallies = {world.name: Tally() for world in chosen}
    left = Counter(world.name for world, _ in parts)
    gangs = sum(world.gangs for world in chosen)

    def take(results: Iterable[tuple[str, Tally]]) -> None:
        played, shown = 0, time.monotonic()
        for name, tally in results:
            tallies[name].merge(tally)
            played += tally.gangs
            if time.monotonic() - shown >= BETWEEN:
                shown = time.monotonic()
                told(f"{played:,} of {gangs:,} gangs played, {sum(not n for n in left.values())} of {len(left)} worlds")
            left[name] -= 1
            if not left[name]:
                told(f"{name}: {json.dumps(tallies[name].figures())}")

    if jobs <= 1:
        take(map(_part, parts))
    else:
        with multiprocessing.Pool(jobs) as pool:
            take(pool.imap_unordered(_part, parts))
    return tallies


BETWEEN = 30.0
"""Seconds between two lines about progress."""
SMALL = (3, 4, 5, 7, 8, 64, 1024)
CORRELATED = ("uplink", "leaf", "oversubscription", "link")
SEVERITIES = (0.20, 0.30, 0.40, 0.50, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95)
SEEN: dict[str, Any] = {
    "labels": {},
    "latencies": {"labels": "none"},
    "neither": {"labels": "none", "latency": False},
}
"""How a gang can know what stands behind which switch."""
NOISES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)


def worlds(scale: float = 1.0) -> dict[str, FabricWorld | dict[str, FabricWorld]]:
    """Every world of the bench, alone or in a group; ``scale`` shrinks the number of gangs."""

    def gangs(number: int) -> int:
        return max(1, round(number * scale))

    base = FabricWorld("labels", gangs(10_000))
    less = replace(base, gangs=gangs(3_000))
    far = replace(less, most=256, least_leaves=1)
    some = replace(base, gangs=gangs(300), most=1024)  # without a bar on recall
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
    groups: dict[str, dict[str, FabricWorld]] = {
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
        "correlated": {fault: replace(far, fault=fault, least_leaves=2) for fault in CORRELATED},
        "correlated_unlabelled": {
            fault: replace(far, fault=fault, labels="none", least_leaves=2) for fault in CORRELATED
        },
        "alone": {
            f"{fault}, {seen}": replace(far, fault=fault, least_leaves=1 if fault == "remote" else 2, **how)
            for fault in ("remote", "lone", "tiers")
            for seen, how in SEEN.items()
        },
        "partial": {
            f"{fault}, {seen}": replace(far, fault=fault, **how)
            for fault in ("card", "line", "pause")
            for seen, how in SEEN.items()
        }
        | {
            "pause reaches hairpins": replace(far, fault="pause", paused_hairpins=True),
            "pause reaches hairpins, unlabelled": replace(far, fault="pause", paused_hairpins=True, labels="none"),
        }
        | {
            f"flapping {fault} {p}": replace(far, fault=fault, flap=p, least_leaves=2)
            for fault in ("leaf", "uplink")
            for p in (0.3, 0.5, 0.7)
        },
        "labels_lie": {
            f"{fault}, {labels}": replace(far, fault=fault, labels=labels, least_leaves=2)
            for fault in ("leaf", "uplink", "oversubscription")
            for labels in ("half", "stale", "one", "own", "random", "coarse")
        },
        "busy": {
            f"{k} rounds": replace(far, fault="busy", rounds=k, labels="true" if k % 2 else "none") for k in range(1, 9)
        },
        "hardware": {
            "two generations": replace(far, fault="none", generations=2),
            "two generations, unlabelled": replace(far, fault="none", generations=2, labels="none"),
            "fast outliers": replace(far, fault="outliers"),
            "fast outliers, 4 or 5 nodes": replace(far, fault="outliers", nodes=5),
            "hash collisions": replace(far, fault="hash", least_leaves=2),
            "heavy tails": replace(far, fault="none", tail=3),
            "dips to 20 %": replace(far, fault="none", dips=0.05, dip=(0.2, 0.9)),
            "dips 20 %": replace(far, fault="none", dips=0.20),
            "drift 3 % a round": replace(far, fault="none", drift=0.03),
        },
        "bad_nodes": {
            f"one to three, {seen}": replace(far, bad=(1, 3), severity=(0.2, 0.7), **how) for seen, how in SEEN.items()
        }
        | {
            f"one to three, labels {labels}": replace(far, bad=(1, 3), labels=labels)
            for labels in ("half", "stale", "one", "own", "random", "coarse")
        }
        | {
            "two generations": replace(far, bad=(1, 3), generations=2, nodes=24),
            "drift": replace(far, bad=(1, 3), drift=0.03),
            "behind NVLink": replace(far, bad=(1, 3), racks=True, labels="none"),
            "one of eight NICs": replace(far, bad=(1, 1), severity=(0.875, 0.875)),
            "dead path": replace(far, bad=(1, 1), fault="dead"),
            "flapping": replace(far, bad=(1, 1), flap=0.5),
        },
        "ports": {
            "errors on all ports": replace(far, fault="card", ports=("errors",)),
            "errors on all ports, one GPU": replace(far, fault="card", ports=("errors",), hairpins=False),
            "errors behind a bad line": replace(far, fault="line", ports=("touched",)),
            "errors behind a bad line, one GPU": replace(far, fault="line", ports=("touched",), hairpins=False),
            "errors behind a slow leaf": replace(far, fault="leaf", ports=("touched", "errors"), least_leaves=2),
            "faults of some ports": replace(far, fault="card", ports=("some", "errors")),
            "faults of some ports, busy": replace(far, fault="busy", rounds=8, ports=("some",)),
            "bad nodes, one GPU": replace(far, bad=(1, 3), ports=("sick",), hairpins=False),
            "bad nodes": replace(far, bad=(1, 3), ports=("sick", "errors")),
            "one of eight NICs": replace(far, bad=(1, 1), severity=(0.875, 0.875), ports=("sick",)),
        },
        "victims": {seen: replace(far, fault="pause", bad=(1, 3), **how) for seen, how in SEEN.items()},
        "mixed": {"everything at once": replace(less, mixed=True)},
        "fleet": {
            "flapping, second gang": replace(far, bad=(1, 1), flap=0.5, before=1),
            "bad nodes, third gang": replace(far, bad=(1, 1), before=2),
        }
        | {
            f"history of a path: {fault}, {how}": replace(
                far, fault=fault, before=2, rounds=8, least_leaves=2, hairpins=how == "hairpins"
            )
            for fault in ("card", "lone", "uplink", "line", "busy")
            for how in ("hairpins", "one GPU")
        },
        "others": others,
        "severity": {f"{f:.2f}": replace(some, severity=(f, f), shares=(0.01, 0.05, 0.10)) for f in SEVERITIES},
        "noise": {f"{x:g}": replace(some, noise=x * base.noise) for x in NOISES},
    }
    named = {
        group: {key: replace(world, name=f"{group} {key}") for key, world in members.items()}
        for group, members in groups.items()
    }
    return {"labels": base, "no_labels": replace(base, name="no_labels", labels="none", gangs=less.gangs), **named}


def report(jobs: int, scale: float, chosen: Sequence[str] = ()) -> dict[str, Any]:
    """All figures in the shape of :func:`worlds`, or those of the chosen groups; progress goes to stderr."""
    everything = {name: entry for name, entry in worlds(scale).items() if not chosen or name in chosen}
    alone = [entry for entry in everything.values() if isinstance(entry, FabricWorld)]
    grouped = [world for entry in everything.values() if not isinstance(entry, FabricWorld) for world in entry.values()]

    def told(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    tallies = simulate(alone + grouped, jobs, told)

    def figures(entry: FabricWorld | dict[str, FabricWorld]) -> dict[str, Any]:
        if isinstance(entry, FabricWorld):
            return tallies[entry.name].figures()
        return {key: tallies[world.name].figures() for key, world in entry.items()}

    return {name: figures(entry) for name, entry in everything.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation", description="Localisation in worlds whose truth is known.")
    says_version(parser)
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
    leave(main)
