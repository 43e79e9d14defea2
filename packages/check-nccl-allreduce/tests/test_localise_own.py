"""What a node's own ports say: worth one kind of evidence where other nodes do not show the same,
and never enough alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from allreduce_testing.worlds.simulation import play
from check_nccl_allreduce.localise import (
    FATAL,
    Endpoint,
    Kind,
    Local,
    PortErrors,
    PortFault,
    Probe,
    Result,
    Role,
    Round,
    State,
    Status,
    Verdict,
    Zone,
)
from check_nccl_allreduce.localise.score import GROWTH, owned
from check_nccl_allreduce.localise.witness import Court
from hypothesis import given
from hypothesis import strategies as st
from leaf_gangs import DOWN, NORMAL
from test_localise import Chance, chances, gangs

SLOW = PortFault("mlx5_3:1", "rate", "runs at 200 Gbit/s", "its siblings at 400")
Answer = Callable[[Probe], Result]


def errors(
    count: int = 5000, rounds: int = 3, port: str = "mlx5_3:1", counter: str = "symbol_error"
) -> PortErrors:
    return PortErrors(port, counter, count, 60.0, rounds)


def gang(size: int, local: dict[int, Local], zone: Zone = Zone.BELOW) -> State:
    """Each node's counters can be read, and where nothing is said of a node none of them grew."""
    ends = (
        Endpoint(f"n{i}", "H100/1", nic="ib 1x400", local=local.get(i, Local(counted=True)))
        for i in range(size)
    )
    return State(tuple(ends), 7).after_gang(zone, 40.0)


def slow(one: int, *, to_itself: float | None = None, status: Status = Status.OK) -> Answer:
    """Slow with all others; to itself so fast, where it has a hairpin at all."""

    def answer(probe: Probe) -> Result:
        if probe.role is Role.HAIRPIN:
            share = to_itself if one in probe.members else 1.0
            return (
                Result(Status.UNJUDGED)
                if to_itself is None
                else Result(Status.OK, NORMAL * (share or 1.0))
            )
        if one not in probe.members:
            return Result(Status.OK, NORMAL)
        return Result(status, NORMAL / 2) if status is Status.OK else Result(status)

    return answer


def good(probe: Probe) -> Result:
    return Result(Status.OK, NORMAL)


def localized(state: State, answer: Answer) -> Verdict:
    return play(state, lambda one: [answer(probe) for probe in one.probes])[0]


@pytest.mark.parametrize("fault", [DOWN, SLOW])
@pytest.mark.parametrize("size", [4, 8, 40])
def test_bad_paths_and_a_port_below_its_siblings_are_two_kinds_of_evidence(
    fault: PortFault, size: int
) -> None:
    verdict = localized(gang(size, {2: Local((fault,))}), slow(2))
    assert (verdict.kind, verdict.fatal_for) == (Kind.NODE, (2,))
    [suspect] = verdict.suspects
    assert suspect.score is not None
    assert (suspect.score.noise >= FATAL, suspect.score.kinds) == (True, ("path", "local"))
    assert f"n2: {fault.sentence} (1 of {size} nodes so)" in verdict.reason
    assert "its own devices say why" in verdict.reason
    assert localized(gang(size, {}), slow(2)).fatal_for == ()


def test_a_port_that_is_down_names_its_node_and_does_not_blame_it() -> None:
    verdict = localized(gang(8, {2: Local((DOWN,))}), good)
    assert (verdict.kind, verdict.named, verdict.fatal_for) == (Kind.SUSPECT, (2,), ())
    assert "n2: mlx5_3:1 is DOWN (Polling), not ACTIVE" in verdict.reason


@pytest.mark.parametrize("to_itself", [1.0, 0.84])
def test_a_node_that_is_fast_to_itself_or_nearly_is_not_blamed_for_a_port(to_itself: float) -> None:
    local = Local((DOWN,), (errors(),) if to_itself == 1 else (), counted=True)
    verdict = localized(gang(8, {2: local}), slow(2, to_itself=to_itself))
    assert (verdict.named, verdict.fatal_for) == ((2,), ())


def test_what_all_nodes_show_is_a_habit_and_no_evidence() -> None:
    everywhere = {i: Local((DOWN,), (errors(),), counted=True) for i in range(8)}
    assert owned(gang(8, everywhere)) == {}
    verdict = localized(gang(8, everywhere), slow(2))
    assert (verdict.named, verdict.fatal_for) == ((2,), ())
    [suspect] = verdict.suspects
    assert suspect.score is not None
    assert suspect.score.kinds == ("path",)


def test_a_good_part_of_the_nodes_is_a_habit_too() -> None:
    assert set(owned(gang(8, dict.fromkeys(range(2), Local((DOWN,)))))) == {0, 1}
    assert owned(gang(8, dict.fromkeys(range(3), Local((DOWN,))))) == {}


def test_no_port_makes_wrong_data() -> None:
    state = gang(8, {2: Local((DOWN,), (errors(),), counted=True)}, Zone.WRONG)
    assert localized(state, slow(2, status=Status.WRONG)).fatal_for == ()


def test_errors_count_by_the_share_of_nodes_that_show_as_many_and_by_rounds() -> None:
    def factor(nodes: int, rounds: int, others: int = 0) -> float:
        local = {i: Local((), (errors(rounds=rounds),), counted=True) for i in range(1 + others)}
        return owned(gang(nodes, local))[0].growth

    assert (factor(8, 1), factor(8, 2), factor(8, 3)) == (8, 64, GROWTH)
    assert (factor(8, 1, others=1), factor(8, 2, others=1)) == (4, 16)


def test_errors_alone_are_never_a_kind_of_evidence() -> None:
    verdict = localized(gang(64, {2: Local((), (errors(rounds=7),), counted=True)}), slow(2))
    assert (verdict.named, verdict.fatal_for) == ((2,), ())
    assert (
        "mlx5_3:1 counted 5000 symbol_error in 7 round(s), more than other nodes" in verdict.reason
    )


def test_errors_and_one_bad_look_at_itself_are_local_evidence_together() -> None:
    looks = 0

    def answer(probe: Probe) -> Result:
        nonlocal looks
        if probe.members == (2,):
            looks += 1
            return Result(Status.OK, NORMAL * 0.5) if looks == 1 else Result(Status.UNJUDGED)
        return slow(2, to_itself=1.0)(probe)

    with_errors = gang(8, {2: Local((), (errors(),), counted=True)})
    assert localized(with_errors, answer).fatal_for == (2,)
    looks = 0
    assert localized(gang(8, {}), answer).fatal_for == ()


@pytest.mark.parametrize(
    ("counter", "count", "says"),
    [
        ("symbol_error", 1, False),  # a link within its specification counts one in a minute
        ("link_downed", 1, True),
        ("port_xmit_wait", 5000, False),  # of congestion
        ("out_of_sequence", 5000, False),
        ("local_ack_timeout_err", 5000, False),
    ],
)
def test_counters_of_the_link_beyond_its_specification_alone_are_evidence(
    counter: str, count: int, *, says: bool
) -> None:
    grew = errors(count, counter=counter)
    assert bool(owned(gang(8, {2: Local((), (grew,), counted=True)}))) is says


def test_of_two_nodes_the_one_with_a_bad_port_is_named() -> None:
    ends = [replace(one, intra=None) for one in gang(2, {1: Local((DOWN,))}).endpoints]
    verdict = localized(State(tuple(ends), 7).after_gang(Zone.BELOW, 40.0), slow(1))
    assert (verdict.kind, verdict.named, verdict.fatal_for) == (Kind.PAIR, (1,), ())
    assert "look at that first" in verdict.reason
    assert "n1: mlx5_3:1 is DOWN" in verdict.reason


words = st.sampled_from(["mlx5_0:1", "mlx5_1:1", "mlx5_3:1"])
faults = st.builds(
    PortFault, words, st.sampled_from(["state", "rate", "pcie", "missing"]), words, words
)
counted = st.builds(
    PortErrors,
    words,
    st.sampled_from(["symbol_error", "link_downed", "port_rcv_errors", "port_xmit_wait"]),
    st.integers(1, 10**6),
    st.just(60.0),
    st.integers(1, 8),
)
locals_ = st.builds(
    Local,
    st.lists(faults, max_size=3).map(tuple),
    st.lists(counted, max_size=3, unique_by=lambda one: (one.port, one.counter)).map(tuple),
    st.just(True),
)


def told(state: State, draw: Random, known: list[Local]) -> State:
    ends = tuple(replace(one, local=draw.choice(known)) for one in state.endpoints)
    return replace(state, endpoints=ends)


@given(gangs(least=3), chances, st.lists(locals_, min_size=1, max_size=6), st.integers(0, 2**32))
def test_what_ports_say_changes_no_round(
    state: State, chance: Chance, known: list[Local], seed: int
) -> None:
    asked: list[Round] = []

    def measure(one: Round) -> list[Result]:
        asked.append(one)
        return chance(one)

    _, last = play(state, measure)
    answers = {played.round.number: played.results for played in last.rounds}
    again: list[Round] = []

    def repeat(one: Round) -> list[Result]:
        again.append(one)
        return list(answers[one.number])

    play(told(state, Random(seed), known), repeat)
    assert again == asked


@given(
    gangs(least=3),
    chances,
    st.lists(locals_, min_size=1, max_size=6),
    st.integers(0, 2**32),
    faults,
    counted,
    st.data(),
)
def test_more_evidence_of_its_ports_never_lowers_a_nodes_score(
    state: State,
    chance: Chance,
    known: list[Local],
    seed: int,
    fault: PortFault,
    grew: PortErrors,
    data: st.DataObject,
) -> None:
    _, last = play(told(state, Random(seed), known), chance)
    one = data.draw(st.integers(0, len(state.endpoints) - 1))
    mine = last.endpoints[one].local
    same = [old for old in mine.errors if (old.port, old.counter) == (grew.port, grew.counter)]
    more = [
        PortErrors(old.port, old.counter, old.count + grew.count, old.seconds, old.rounds + 1)
        for old in same
    ] or [grew]
    kept = tuple(old for old in mine.errors if old not in same)
    grown = Local((*mine.faults, fault), (*kept, *more), counted=True)
    ends = tuple(
        replace(end, local=grown) if i == one else end for i, end in enumerate(last.endpoints)
    )

    def value(of: State) -> tuple[float, float]:
        score = Court(of).scores.get(one)
        return (score.noise, score.local) if score else (0.0, 0.0)

    before, after = value(last), value(replace(last, endpoints=ends))
    assert after[0] >= before[0]
    assert after[1] >= before[1]


@given(gangs(least=3), chances, locals_)
def test_what_is_equal_everywhere_changes_no_blame(
    state: State, chance: Chance, known: Local
) -> None:
    verdict, last = play(state, chance)
    everywhere = replace(last, endpoints=tuple(replace(one, local=known) for one in last.endpoints))
    answers = {played.round.number: played.results for played in last.rounds}
    again, _ = play(replace(everywhere, rounds=(), facts=()), lambda one: list(answers[one.number]))
    assert set(owned(everywhere)) == set()
    assert (again.blamed, again.fatal_for) == (verdict.blamed, verdict.fatal_for)
