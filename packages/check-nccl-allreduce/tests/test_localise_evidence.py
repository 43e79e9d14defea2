"""What one kind of evidence is worth and what two are, and what each sort of gang
is measured by.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from allreduce_testing.worlds.faults import SickNode
from allreduce_testing.worlds.simulation import simulate
from allreduce_testing.worlds.staged import FACTS, known
from check_nccl_allreduce.localise import (
    APART,
    FATAL,
    Endpoint,
    Fact,
    FactKind,
    Kind,
    Local,
    Phase,
    Probe,
    Result,
    Role,
    Round,
    State,
    Status,
    Verdict,
    Zone,
    next,
)
from check_nccl_allreduce.localise.evidence import Evidence
from leaf_gangs import DOWN, Answer, gang, ok, played

SLOW = 0.6
"""What a bad node leaves of its paths: no ratio of links' rates."""


def bad(one: int, to_itself: float = SLOW) -> Answer:
    """Slow with all others, and so fast to itself."""

    def answer(probe: Probe, _: int) -> Result:
        if one not in probe.members:
            return ok()
        return ok(to_itself if probe.role is Role.HAIRPIN else SLOW)

    return answer


@pytest.mark.parametrize("size", [3, 4, 8, 40])
def test_slow_with_others_and_to_itself_is_fatal_and_slow_with_others_alone_is_named(
    size: int,
) -> None:
    both, _ = played(gang(size), bad(2))
    assert (both.kind, both.fatal_for) == (Kind.NODE, (2,))
    [suspect] = both.suspects
    assert suspect.score is not None
    assert (suspect.score.noise >= FATAL, suspect.score.kinds) == (True, ("path", "local"))
    path, _ = played(gang(size), bad(2, to_itself=1.0))
    assert (path.kind, path.fatal_for, path.named) == (Kind.SUSPECT, (), (2,))
    assert "look at its cable, its switch port and the path behind it" in path.reason


@pytest.mark.parametrize(("to_itself", "blamed"), [(0.6, (2,)), (0.7, (2,)), (0.75, ())])
def test_a_hairpin_that_lacks_less_than_two_thirds_of_what_the_paths_lack_blames_nobody(
    to_itself: float, blamed: tuple[int, ...]
) -> None:
    """On a log scale; the paths are at 60 % of normal."""
    verdict, _ = played(gang(8), bad(2, to_itself))
    assert (verdict.fatal_for, verdict.named) == (blamed, (2,))


@pytest.mark.parametrize(
    ("slow", "themselves", "enough"), [(2, 1, True), (14, 1, False), (14, 14, True)]
)
def test_of_many_that_are_asked_one_is_bad_to_itself_by_chance_and_not_all(
    slow: int, themselves: int, *, enough: bool
) -> None:
    def answer(probe: Probe, _: int) -> Result:
        return ok(
            0.5
            if min(probe.members) < (themselves if probe.role is Role.HAIRPIN else slow)
            else 1.0
        )

    verdict, _ = played(gang(200, lambda i: f"leaf-{i % 10}"), answer)
    scores = {one.member: one.score for one in verdict.suspects}
    assert scores.keys() >= set(range(themselves))
    for one in range(themselves):
        score = scores[one]
        assert score is not None
        assert (score.local >= 1e3) is enough


def test_hairpins_are_of_suspects_and_known_good_nodes_and_are_the_last_two_rounds() -> None:
    _, last = played(gang(12), bad(3))
    hairpins = [played.round for played in last.rounds if played.round.phase is Phase.HAIRPIN]
    assert last.rounds[-2:] == tuple(played for played in last.rounds if played.round in hairpins)
    assert len(hairpins) == 2
    for one in hairpins:
        assert all(len(probe.members) == 1 for probe in one.probes)
        assert (3,) in [probe.members for probe in one.probes]
        assert len(one.probes) >= 4


def test_a_hairpin_that_clears_every_suspect_is_not_made_twice() -> None:
    _, last = played(gang(12), bad(3, to_itself=1.0))
    assert [played.round.phase for played in last.rounds].count(Phase.HAIRPIN) == 1


def test_the_last_rounds_are_at_least_45_seconds_after_the_first_bad_edge() -> None:
    _, last = played(gang(12), bad(3))
    confirmations = [played for played in last.rounds if played.round.phase is Phase.CONFIRM]
    assert confirmations[0].round.wait == 0
    late = [played for played in last.rounds if played.at >= last.rounds[0].at + APART]
    assert len(late) >= 3


def test_without_time_to_wait_nobody_waits_and_nobody_is_blamed_for_being_slow() -> None:
    state = gang(12)
    now = 0.0
    while isinstance(step := next(state, now, until=45.0), Round):
        assert step.wait == 0
        now += 5.0
        state = state.after(step, [bad(3)(probe, step.number) for probe in step.probes], now)
        if now > 30:
            break
    while isinstance(step := next(state, now, until=now), Round):
        state = state.after(step, [bad(3)(probe, step.number) for probe in step.probes], now)
    assert isinstance(step, Verdict)
    assert (step.fatal_for, step.named) == ((), (3,))


def test_wrong_data_and_hangs_need_no_second_moment() -> None:
    def answer(probe: Probe, _: int) -> Result:
        return Result(Status.WRONG) if 3 in probe.members else ok()

    state = replace(gang(8)).after_gang(Zone.WRONG)
    verdict, last = played(state, answer)
    assert verdict.fatal_for == (3,)
    assert all(played.round.wait == 0 for played in last.rounds)
    [suspect] = verdict.suspects
    assert suspect.score is not None
    assert suspect.score.kinds == ("path", "data")


def test_slow_controls_say_nothing_against_wrong_data() -> None:
    def answer(probe: Probe, _: int) -> Result:
        if 2 in probe.members:
            return Result(Status.WRONG)
        return ok(0.1 if probe.role is Role.HAIRPIN and probe.members == (1,) else 1.0)

    verdict, _ = played(replace(gang(3)).after_gang(Zone.WRONG), answer)
    assert verdict.fatal_for == (2,)


def test_a_label_that_groups_nobody_or_that_latencies_contradict_is_no_label() -> None:
    own = gang(8, lambda i: f"own-{i}")
    assert not Evidence(own).map.believed
    assert Evidence(gang(8, lambda i: f"leaf-{i % 2}")).map.believed
    verdict, _ = played(own, bad(2))
    assert (verdict.fatal_for, verdict.named) == ((), (2,))
    assert not Evidence(gang(40, lambda _: "zone-a")).map.believed  # more than a leaf has ports
    lying = gang(48, lambda i: f"leaf-{i % 12}")

    def answer(probe: Probe, _: int) -> Result:
        return ok(latency=18e-6 if len({i // 4 for i in probe.members}) == 1 else 20e-6)

    _, last = played(lying, answer)
    assert not Evidence(last).map.believed


def test_nodes_with_other_adapters_are_not_compared() -> None:
    ends = tuple(Endpoint(f"n{i}", "H100/8", nic="8x200" if i < 3 else "8x400") for i in range(10))

    def answer(probe: Probe, _: int) -> Result:
        return ok(0.5 if min(probe.members) < 3 else 1.0)

    verdict, _ = played(State(ends, 3).after_gang(Zone.BELOW), answer)
    assert verdict.named == ()


def test_a_bad_adapter_behind_nvlink_is_found_by_paths_between_the_domains() -> None:
    ends = tuple(
        Endpoint(
            f"n{i}", "GB200/4", nvlink=f"rack-{i // 6}", local=Local((DOWN,) if i == 7 else ())
        )
        for i in range(18)
    )

    def answer(probe: Probe, _: int) -> Result:
        inside = len(probe.members) == 2 and len({i // 6 for i in probe.members}) == 1
        return ok(2.5) if inside else ok(0.5 if 7 in probe.members else 1.0)

    assert played(State(ends, 3).after_gang(Zone.BELOW), answer)[0].fatal_for == (7,)


def test_a_node_to_which_no_path_comes_up_is_named() -> None:
    for size in (3, 8):

        def answer(probe: Probe, _: int) -> Result:
            return (
                Result(Status.UNJUDGED) if 1 in probe.members and len(probe.members) > 1 else ok()
            )

        verdict, _ = played(gang(size), answer)
        assert (verdict.named, verdict.fatal_for) == ((1,), ())
        assert "no path to it came up" in verdict.reason


def test_a_node_all_of_whose_paths_are_an_eighth_slower_is_named() -> None:
    def answer(probe: Probe, _: int) -> Result:
        return ok(0.89 if 5 in probe.members else 1.0)

    verdict, _ = played(gang(12), answer)
    assert (verdict.named, verdict.fatal_for) == ((5,), ())


def test_bad_paths_that_share_one_end_are_that_ends_and_not_the_fabrics() -> None:
    def answer(probe: Probe, number: int) -> Result:
        return ok(0.5 if 5 in probe.members and number % 2 and len(probe.members) == 2 else 1.0)

    verdict, _ = played(gang(24), answer)
    assert verdict.kind in {Kind.INTERMITTENT, Kind.SUSPECT, Kind.LINK}
    assert (5 in verdict.named, verdict.fatal_for) == (True, ())


def test_many_nodes_that_tell_of_a_device_fault_at_once_are_named_and_not_fatal() -> None:
    state = gang(64)
    for one in range(4):
        fact = Fact(one, FactKind.DEVICE, "GPU_UNRESPONSIVE")
        state = replace(state, facts=(*state.facts, fact))
    verdict = next(state)
    assert isinstance(verdict, Verdict)
    assert (verdict.named, verdict.fatal_for) == ((0, 1, 2, 3), ())


@pytest.mark.parametrize("hairpins", ["switch", "none"])
def test_bad_nodes_whose_devices_say_so_are_blamed_with_hairpins_and_without(
    hairpins: str,
) -> None:
    world = known("sick", SickNode(tells=FACTS), hairpins=hairpins, nodes=(8, 64))
    tally = simulate([world], gangs=40)["sick"]
    assert tally.healthy_blamed == 0
    assert tally.bad_blamed >= 0.95 * tally.judged > 0
