"""The simulation measures what it says, the same way each time; and localisation keeps its promises
in it.
"""

from __future__ import annotations

import pytest
from allreduce_testing.worlds.simulation import Fabric, FabricWorld, play, report, simulate, worlds
from check_nccl_allreduce.localise import (
    Phase,
    Probe,
    Role,
    Round,
    State,
    Status,
    Zone,
)


def test_figures_do_not_depend_on_how_many_processes_share_the_gangs() -> None:
    world = FabricWorld("shared", 60, nodes=12)
    alone, shared = (simulate([world], jobs)["shared"].figures() for jobs in (1, 2))
    assert {k: v for k, v in alone.items() if k != "seconds"} == {
        k: v for k, v in shared.items() if k != "seconds"
    }


@pytest.mark.parametrize("size", [3, 4, 5, 7, 8, 64])
def test_in_a_small_gang_the_one_slow_node_is_named_and_no_healthy_one(size: int) -> None:
    tally = simulate(
        [FabricWorld(f"N={size}", 300, nodes=size, severity=(0.65, 0.70), shares=(1e-9,))]
    )[f"N={size}"]
    assert tally.healthy_blamed == 0
    assert tally.judged >= 280  # the others stand alone behind their switch
    assert tally.bad_named >= 0.99 * tally.bad
    assert tally.max_rounds <= 8


def test_a_slow_node_slows_every_probe_that_it_is_in() -> None:
    fabric = Fabric(
        FabricWorld(
            "exact", 1, nodes=10, shares=(0.1,), noise=0, spread=0, dips=0, severity=(0.5, 0.5)
        ),
        0,
    )
    (bad,) = fabric.bad
    other = (bad + 1) % 10
    probes = tuple(
        Probe(tuple(sorted(p)), Role.MATCH)
        for p in ((bad, other), ((bad + 2) % 10, (bad + 3) % 10))
    )
    results = fabric.measure(Round(2, Phase.MATCH, probes))
    assert [r.gbps for r in results] == [200.0, 400.0]


def test_a_gang_must_have_been_judged_before_it_is_played() -> None:
    fabric = Fabric(FabricWorld("ungated", 1, nodes=4), 0)
    with pytest.raises(ValueError, match="judged by the gate"):
        play(State(fabric.state.endpoints, 1), fabric.measure)


def test_hanging_nodes_are_found_by_their_hangs() -> None:
    fabric = Fabric(FabricWorld("hang", 1, nodes=20, shares=(0.1,), symptom=Status.HANG), 3)
    verdict, _ = play(State(fabric.state.endpoints, 1).after_gang(Zone.HANG), fabric.measure)
    assert set(verdict.named) >= set(fabric.bad)
    assert {one.symptom for one in verdict.suspects if one.member in fabric.bad} == {Status.HANG}


def test_a_report_has_the_figures_of_the_chosen_worlds() -> None:
    figures = report(1, 0.002, ["labels", "small_n"])
    assert set(figures) == {"labels", "small_n"}
    assert {"gangs", "healthy_blamed", "recall_blamed", "recall_named", "max_rounds"} <= set(
        figures["labels"]
    )
    assert set(figures["small_n"]) == {"3", "4", "5", "7", "8", "64", "1024"}


def test_every_world_has_a_name_of_its_own() -> None:
    names = [
        w.name for e in worlds().values() for w in (e.values() if isinstance(e, dict) else [e])
    ]
    assert len(set(names)) == len(names)
