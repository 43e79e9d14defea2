"""What localisation does in worlds whose truth is known: the bench ``localisation`` plays it.

Each gang is drawn from a seed of its own (world name and number), so that figures do not depend on
how many processes share the work. The function under test is the one that the check calls.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from check_nccl_allreduce import localise
from check_nccl_allreduce.localise import (
    Phase,
    Result,
    Round,
    State,
    Status,
    Verdict,
)

from .fabrics import SECONDS, Fabric, FabricWorld
from .kept import Kept
from .staged import WORLDS
from .stages import StagedFabric, StagedWorld
from .tally import Tally, bound

__all__ = ["Fabric", "FabricWorld", "StagedFabric", "StagedWorld", "Tally", "bound"]

World = FabricWorld | StagedWorld


def play_staged(fabric: StagedFabric) -> tuple[Verdict, State]:
    """Localise a gang of a staged fabric by its own clock, with what its nodes know of themselves
    by then: the verdict and the last state.
    """
    state = fabric.state
    step = localise.next(state, fabric.now, fabric.world.budget)
    while isinstance(step, Round):
        results = fabric.measure(step)
        state = fabric.told(state.after(step, results, fabric.now))
        step = localise.next(state, fabric.now, fabric.world.budget)
    return step, state


def play(
    state: State, measure: Callable[[Round], Sequence[Result]], seconds: float = SECONDS
) -> tuple[Verdict, State]:
    """Localise one gang whose rounds ``measure`` answers, each of which takes so long: the verdict
    and the last state.
    """
    now = 0.0
    step = localise.next(state, now)
    while isinstance(step, Round):
        if step.phase is Phase.GANG:
            raise ValueError(
                "the gang's own round is judged by the gate: start from a state that has its zone"
            )
        now += step.wait + seconds
        state = state.after(step, measure(step), now)
        step = localise.next(state, now)
    return step, state


def _staged(world: StagedWorld, number: int, tally: Tally) -> None:
    fabric = StagedFabric(world, number)
    verdict, state = play_staged(fabric)
    shown, blamable = set(fabric.shown()), fabric.truth.blamable
    probes = sum(len(played.round.probes) for played in state.rounds)
    tally.add(verdict, shown, fabric.judged(), fabric.shape.size, probes, blamable)


def _part(job: tuple[World, range]) -> tuple[World, range, Tally]:
    world, numbers = job
    tally = Tally()
    began = time.process_time()
    for number in numbers:
        if isinstance(world, StagedWorld):
            _staged(world, number, tally)
            continue
        fabric = Fabric(world, number)
        verdict, state = play(fabric.state, fabric.measure)
        pairs = sum(len(p.round.probes) for p in state.rounds if p.round.phase is not Phase.HALVES)
        tally.add(verdict, set(fabric.bad), fabric.judged, fabric.size, pairs)
    tally.seconds = time.process_time() - began
    return world, numbers, tally


def simulate(
    chosen: Iterable[World],
    jobs: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    kept: Kept | None = None,
    gangs: int | None = None,
) -> dict[str, Tally]:
    """Play all gangs of the worlds, or the first ``gangs`` of each: world name to its figures, the
    same for any number of ``jobs``.

    ``progress`` gets a line for each world that is played, and at most twice a minute one that says
    how far it is. ``kept`` has the parts that an earlier run has played, and gets this one's.
    """
    chosen = [replace(world, gangs=min(gangs or world.gangs, world.gangs)) for world in chosen]
    kept = kept or Kept()
    parts = [
        (world, range(start, min(start + 50, world.gangs)))
        for world in chosen
        for start in range(0, world.gangs, 50)
    ]
    tallies = {world.name: Tally() for world in chosen}
    left = Counter(world.name for world, _ in parts)
    all_gangs = sum(world.gangs for world in chosen)
    before = [
        (world, numbers, tally)
        for world, numbers in parts
        if (tally := kept.of(world, numbers)) is not None
    ]
    new = [part for part in parts if kept.of(*part) is None]

    def take(results: Iterable[tuple[World, range, Tally]]) -> None:
        played, shown = 0, time.monotonic()
        for world, numbers, tally in results:
            name = world.name
            kept.add(world, numbers, tally)
            tallies[name].merge(tally)
            played += tally.gangs
            if time.monotonic() - shown >= BETWEEN:
                shown = time.monotonic()
                progress(
                    f"{played:,} of {all_gangs:,} gangs played, {sum(not n for n in left.values())} of {len(left)} worlds"
                )
            left[name] -= 1
            if not left[name]:
                progress(f"{name}: {json.dumps(tallies[name].figures())}")

    with ExitStack() as stack:
        played: Iterable[tuple[World, range, Tally]] = map(_part, new)
        if jobs > 1:
            played = stack.enter_context(multiprocessing.Pool(jobs)).imap_unordered(_part, new)
        take(chain(before, played))
    return tallies


STAGED = "staged"
"""The group of :data:`.staged.WORLDS`."""
BETWEEN = 30.0
"""Seconds between two lines about progress."""
SMALL = (3, 4, 5, 7, 8, 64, 1024)
SEVERITIES = (0.20, 0.30, 0.40, 0.50, 0.60, 0.65, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95)
SEEN: dict[str, Any] = {
    "labels": {},
    "latencies": {"labels": "none"},
    "neither": {"labels": "none", "latency": False},
}
"""How a gang can know what stands behind which switch."""
NOISES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0)


def worlds(scale: float = 1.0) -> dict[str, FabricWorld | dict[str, FabricWorld]]:
    """Every world of bad adapters, alone or in a group; ``scale`` shrinks the number of gangs."""

    def gangs(number: int) -> int:
        return max(1, round(number * scale))

    base = FabricWorld("labels", gangs(10_000))
    less = replace(base, gangs=gangs(3_000))
    far = replace(less, most=256)
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
        "hardware": {
            "heavy tails": replace(far, fault="none", tail=3),
            "dips to 20 %": replace(far, fault="none", dips=0.05, dip=(0.2, 0.9)),
            "dips 20 %": replace(far, fault="none", dips=0.20),
            "drift 3 % a round": replace(far, fault="none", drift=0.03),
        },
        "bad_nodes": {
            f"one to three, {seen}": replace(far, bad=(1, 3), severity=(0.2, 0.7), **how)
            for seen, how in SEEN.items()
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
            "bad nodes, one GPU": replace(far, bad=(1, 3), ports=("sick",), hairpins=False),
            "bad nodes": replace(far, bad=(1, 3), ports=("sick", "errors")),
            "one of eight NICs": replace(far, bad=(1, 1), severity=(0.875, 0.875), ports=("sick",)),
        },
        "victims": {
            seen: replace(far, fault="pause", bad=(1, 3), **how) for seen, how in SEEN.items()
        }
        | {
            "hairpins too": replace(far, fault="pause", bad=(1, 3), paused_hairpins=True),
        },
        "others": others,
        "severity": {
            f"{f:.2f}": replace(some, severity=(f, f), shares=(0.01, 0.05, 0.10))
            for f in SEVERITIES
        },
        "noise": {f"{x:g}": replace(some, noise=x * base.noise) for x in NOISES},
    }
    named = {
        group: {key: replace(world, name=f"{group} {key}") for key, world in members.items()}
        for group, members in groups.items()
    }
    return {
        "labels": base,
        "no_labels": replace(base, name="no_labels", labels="none", gangs=less.gangs),
        **named,
    }


def report(
    jobs: int, scale: float, chosen: Sequence[str] = (STAGED,), keep: Path | None = None
) -> dict[str, Any]:
    """The figures of the chosen groups, in the shape of :func:`worlds`; progress goes to stderr.

    Raises ValueError where the file ``keep`` is of other code.
    """
    gangs = {world.name: max(1, round(world.gangs * scale)) for world in WORLDS}
    groups: dict[str, World | Mapping[str, World]] = {
        STAGED: {world.name: replace(world, gangs=gangs[world.name]) for world in WORLDS},
        **worlds(scale),
    }
    everything = {name: groups[name] for name in groups if name in chosen}
    alone = [entry for entry in everything.values() if not isinstance(entry, Mapping)]
    grouped = [
        world
        for entry in everything.values()
        if isinstance(entry, Mapping)
        for world in entry.values()
    ]

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    tallies = simulate(alone + grouped, jobs, progress, Kept.open(keep) if keep else None)

    def figures(entry: World | Mapping[str, World]) -> dict[str, Any]:
        if not isinstance(entry, Mapping):
            return tallies[entry.name].figures()
        return {key: tallies[world.name].figures() for key, world in entry.items()}

    return {name: figures(entry) for name, entry in everything.items()}
