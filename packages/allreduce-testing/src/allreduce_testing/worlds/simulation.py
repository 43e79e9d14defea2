"""What localisation does in worlds whose truth is known: the bench ``localisation`` plays it.

Each gang is drawn from a seed of its own (world name and number), so that figures do not depend on
how many processes share the work. The function under test is the one that the check calls.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from check_nccl_allreduce import localise
from check_nccl_allreduce.localise import Result, Round, State, Verdict

from .kept import Kept
from .staged import WORLDS
from .stages import StagedFabric, StagedWorld
from .tally import Tally

SECONDS = 5.0
"""A round takes so long."""
AT_ONCE = 50
"""Gangs of a world that one process plays before it says what came of them."""

Part = tuple[StagedWorld, range]


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
        now += step.wait + seconds
        state = state.after(step, measure(step), now)
        step = localise.next(state, now)
    return step, state


def _part(part: Part) -> tuple[Part, Tally]:
    world, numbers = part
    tally = Tally()
    for number in numbers:
        fabric = StagedFabric(world, number)
        verdict, _ = play_staged(fabric)
        shown, blamable = set(fabric.shown()), fabric.truth.blamable
        tally.add(verdict, shown, fabric.judged(), fabric.shape.size, blamable)
    return part, tally


def simulate(
    chosen: Iterable[StagedWorld],
    jobs: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    kept: Kept | None = None,
    gangs: int | None = None,
) -> dict[str, Tally]:
    """Play all gangs of the worlds, or the first ``gangs`` of each: world name to its figures, the
    same for any number of ``jobs``.

    ``progress`` gets a line for each world that is played. ``kept`` has the parts that an earlier
    run has played, and gets this one's.
    """
    chosen = [replace(world, gangs=min(gangs or world.gangs, world.gangs)) for world in chosen]
    kept = kept or Kept()
    parts = [
        (world, range(start, min(start + AT_ONCE, world.gangs)))
        for world in chosen
        for start in range(0, world.gangs, AT_ONCE)
    ]
    tallies = {world.name: Tally() for world in chosen}
    left = Counter(world.name for world, _ in parts)
    before = [(part, tally) for part in parts if (tally := kept.of(*part)) is not None]
    new = [part for part in parts if kept.of(*part) is None]

    with ExitStack() as stack:
        played: Iterable[tuple[Part, Tally]] = map(_part, new)
        if jobs > 1:
            played = stack.enter_context(multiprocessing.Pool(jobs)).imap_unordered(_part, new)
        for (world, numbers), tally in chain(before, played):
            name = world.name
            kept.add(world, numbers, tally)
            tallies[name].merge(tally)
            left[name] -= 1
            if not left[name]:
                progress(f"{name}: {json.dumps(tallies[name].figures())}")
    return tallies


def report(jobs: int, scale: float, keep: Path | None = None) -> dict[str, dict[str, Any]]:
    """By world its figures, of this share of its gangs; progress goes to stderr.

    Raises ValueError where the file ``keep`` is of other code.
    """
    worlds = [replace(world, gangs=max(1, round(world.gangs * scale))) for world in WORLDS]

    def progress(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    tallies = simulate(worlds, jobs, progress, Kept.open(keep) if keep else None)
    return {name: tally.figures() for name, tally in tallies.items()}
