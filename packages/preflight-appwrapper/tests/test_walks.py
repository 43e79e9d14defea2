"""Many histories, drawn by seed: what :mod:`test_properties` asks of some, at thousands of
decisions.

Nothing is made smaller here that fails: a seed is all that it takes to see it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from random import Random

import pytest
from hypothesis import settings
from test_properties import Histories

DECISIONS = 80 * settings().max_examples
PARTS = 3
STEPS = 40
PHASES = ("Running", "Failed", "Succeeded", "Pending")


def walk(seed: int) -> Histories:
    """One history of 40 steps, and its fair end."""
    draw = Random(seed)
    made = Histories()
    made.begin(limit=draw.randint(-1, 3), delay=draw.choice(["0s", "5s"]))
    steps: dict[Callable[[], object], int] = {
        lambda: made.time_passes(seconds=draw.choice([0.0, 0.3, 1.0, 2.0, 5.0, 30.0])): 6,
        made.a_few_looks: 6,
        made.all_pods_run: 3,
        lambda: made.a_pod_changes(phase=draw.choice(PHASES), which=draw.randint(0, 5)): 2,
        lambda: ends(made, draw.choice(["Complete", "Failed"])): 1,
        made.all_ends_well: 1,
        lambda: made.a_node_is_marked(sick=draw.random() < 0.3): 1,
        lambda: made.it_is_suspended_or_not(value=draw.random() < 0.3): 1,
        lambda: made.creating_is_refused(refused=draw.random() < 0.3, fatal=draw.random() < 0.2): 1,
        lambda: made.a_request_goes_wrong(
            number=draw.randint(1, 4), fault=draw.choice(["lost", "answer lost"])
        ): 1,
        lambda: made.another_leads(skew=draw.choice([-600, -5, 0, 5, 600])): 1,
        made.a_pod_hangs: 1,
        lambda: lost(made, draw): 1,
        lambda: made.it_is_deleted() if draw.random() < 0.1 else None: 1,
    }
    try:
        for _ in range(STEPS):
            draw.choices(list(steps), list(steps.values()))[0]()
            made.counts_phases_and_times_never_go_back()
        made.teardown()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}") from error
    return made


def ends(made: Histories, how: str) -> None:
    if ("batch/v1", "Job", "train") in made.player.world.objects:
        made.the_job_ends(type_=how)


def lost(made: Histories, draw: Random) -> None:
    if made.player.world.objects and draw.random() < 0.3:
        made.somebody_deletes_a_component(which=draw.randint(0, 5))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_nothing_is_left_and_every_history_ends(part: int) -> None:
    decisions, phases = 0, Counter[str]()
    for seed in count(part, PARTS):
        made = walk(seed)
        decisions += made.player.looks
        phases.update(made.player.world.phases)
        if decisions >= DECISIONS / PARTS:
            break
    print(f"{decisions} decisions, {sum(phases.values())} transitions: {dict(phases)}")
    assert {"Running", "Resetting", "Suspending", "Succeeded", "Failed"} <= phases.keys()
