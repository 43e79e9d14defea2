"""What holds for every gang: rounds that can be run, and blame that follows the evidence and
nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest
from allreduce_testing.worlds.faults import SickNode
from allreduce_testing.worlds.simulation import SECONDS, play
from allreduce_testing.worlds.staged import known
from allreduce_testing.worlds.stages import StagedFabric
from check_nccl_allreduce.localise import (
    FATAL,
    MAX_ROUNDS,
    Endpoint,
    Fact,
    FactKind,
    Grade,
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
from hypothesis import given, settings
from hypothesis import strategies as st
from leaf_gangs import DOWN, NORMAL

SLOW_ZONES = [zone for zone in Zone if zone is not Zone.PASSED]


@st.composite
def gangs(draw: st.DrawFn, *, least: int = 1, most: int = 40) -> State:
    """Endpoints of a few kinds and domains, some unlabelled, in any order."""
    size = draw(st.integers(least, most))
    kinds = st.sampled_from(["a", "b"]) if draw(st.booleans()) else st.just("a")
    domains = st.sampled_from([None, "x", "y", "z"] if draw(st.booleans()) else ["x", "y", "z"])
    endpoints = tuple(
        Endpoint(
            f"n{i}", draw(kinds), draw(domains), draw(st.sampled_from([None, None, True, False]))
        )
        for i in range(size)
    )
    return State(endpoints, draw(st.integers(0, 2**64 - 1))).after_gang(
        draw(st.sampled_from(SLOW_ZONES)), 30.0
    )


class Chance:
    """Anything that rounds may bring, mostly plausible; the same again for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.trouble = self.random.choice([0.1, 0.3, 0.7])

    def __call__(self, one: Round) -> list[Result]:
        return [self.result(probe) for probe in one.probes]

    def result(self, probe: Probe) -> Result:
        random = self.random
        if random.random() > self.trouble:
            return Result(Status.OK, NORMAL * random.uniform(0.97, 1.03))
        kind = random.choices(range(6), (5, 5, 2, 2, 2, 0.3))[
            0
        ]  # void is rare: two of one member end the run
        if kind < 3:
            return Result(
                Status.OK,
                NORMAL * random.uniform(*((0.2, 0.7), (0.7, 0.95), (0.01, 2.0))[kind]),
            )
        if kind < 5:
            return Result(random.choice([Status.WRONG, Status.HANG, Status.ERROR, Status.UNJUDGED]))
        return Result(Status.VOID, member=random.choice(probe.members), cause="no memory")


chances = st.integers(0, 2**64 - 1).map(Chance)


def drawn(state: State, chance: Chance) -> tuple[Verdict, State, list[Round]]:
    rounds: list[Round] = []

    def measure(one: Round) -> Sequence[Result]:
        rounds.append(one)
        return chance(one)

    verdict, last = play(state, measure)
    return verdict, last, rounds


@given(gangs(), chances)
def test_every_gang_ends_within_eight_rounds_whatever_its_probes_bring(
    state: State, chance: Chance
) -> None:
    verdict, _, rounds = drawn(state, chance)
    assert verdict.rounds <= MAX_ROUNDS
    assert verdict.rounds == 1 + len(rounds)
    assert [one.number for one in rounds] == list(range(2, 2 + len(rounds)))


@given(gangs(), chances)
def test_the_probes_of_a_round_can_run_at_the_same_time(state: State, chance: Chance) -> None:
    for one in drawn(state, chance)[2]:
        assert one.probes
        for probe in one.probes:
            assert list(probe.members) == sorted(set(probe.members))
            assert one.phase is Phase.HALVES or len(probe.members) == (
                1 if one.phase is Phase.HAIRPIN else 2
            )
        assert max(Counter(i for probe in one.probes for i in probe.members).values()) == 1


@given(gangs(), chances, st.integers(0, 39))
def test_a_node_all_of_whose_probes_are_good_is_never_blamed(
    state: State, chance: Chance, well: int
) -> None:
    well %= len(state.endpoints)
    state = replace(
        state, endpoints=tuple(replace(e, kind="a", intra=None) for e in state.endpoints)
    )

    def measure(one: Round) -> Sequence[Result]:
        found = chance(one)
        return [
            Result(Status.OK, 3 * NORMAL) if well in probe.members else result
            for probe, result in zip(one.probes, found, strict=True)
        ]

    verdict, _ = play(state, measure)
    assert well not in verdict.blamed
    assert well not in verdict.fatal_for


@given(gangs(least=3), chances)
def test_blame_needs_known_good_peers_in_three_rounds_and_the_node_itself_in_two(
    state: State, chance: Chance
) -> None:
    verdict, _, _ = drawn(state, chance)
    cleared = {end for e in verdict.matrix if e.grade is Grade.GOOD for end in (e.a, e.b)}
    for suspect in verdict.suspects:
        if suspect.member not in verdict.blamed:
            continue
        peers = {e.b if e.a == suspect.member else e.a for e in suspect.evidence}
        assert peers <= cleared
        assert all(e.grade is Grade.BAD for e in suspect.evidence)
        assert len({e.round for e in suspect.evidence}) >= 3
        confirmations = [
            e for e in verdict.matrix if e.role is Role.ACCUSED and suspect.member in (e.a, e.b)
        ]
        assert len([e for e in confirmations if e.grade is not Grade.NONE]) >= 2
        own = [e for e in verdict.matrix if e.role is Role.HAIRPIN and e.a == suspect.member]
        assert [e.grade for e in own] == [Grade.BAD] * 2
        assert suspect.score is not None
        assert suspect.score.noise >= FATAL


@given(gangs(), chances)
def test_who_is_fatal_is_blamed_and_who_is_blamed_is_named(state: State, chance: Chance) -> None:
    verdict, _, _ = drawn(state, chance)
    assert set(verdict.fatal_for) <= set(verdict.blamed) <= set(verdict.named)
    assert not (verdict.inconclusive and verdict.blamed)
    assert not verdict.blamed or verdict.fails


@given(gangs(), chances)
def test_the_same_history_always_has_the_same_answer(state: State, chance: Chance) -> None:
    _, last, rounds = drawn(state, chance)
    for count in range(len(last.rounds) + 1):
        before = replace(last, rounds=last.rounds[:count])
        again = next(before)
        assert again == next(before)
        if count < len(rounds):
            assert again == rounds[count]


@given(gangs(), chances, st.data())
def test_other_names_for_nodes_kinds_and_domains_change_no_probe_and_no_verdict(
    state: State, chance: Chance, data: st.DataObject
) -> None:
    """Choice and judgement see positions only. Names appear in sentences and in nothing else."""
    verdict, last, rounds = drawn(state, chance)
    names = data.draw(st.permutations(range(len(state.endpoints))))
    kinds = dict(zip("ab", data.draw(st.permutations("pq")), strict=True))
    domains: dict[str | None, str | None] = dict(
        zip("xyz", data.draw(st.permutations("uvw")), strict=True)
    )
    renamed = tuple(
        replace(e, name=f"m{name}", kind=kinds[e.kind], domain=domains.get(e.domain))
        for name, e in zip(names, state.endpoints, strict=True)
    )
    state = replace(last, endpoints=renamed, rounds=())
    for one, played in zip(rounds, last.rounds, strict=True):
        assert next(state, played.at - SECONDS - one.wait) == one
        state = state.after(one, played.results, played.at)
    other = next(state)
    assert isinstance(other, Verdict)
    assert _facts(other) == _facts(verdict)
    assert {domains[d] for d in verdict.domains} == set(other.domains)


def _facts(v: Verdict) -> tuple[object, ...]:
    return v.kind, v.fails, v.blamed, v.named, v.fatal_for, v.links, v.suspects, v.rounds, v.matrix


@settings(max_examples=2 * settings().max_examples)
@given(st.integers(5, 30), st.data())
def test_where_nothing_is_noisy_the_order_of_the_members_and_the_seed_do_not_decide_who_is_blamed(
    size: int, data: st.DataObject
) -> None:
    """The seeded shuffle chooses partners; with clear faults within the cap, any choice finds the
    same culprits.

    One that met nobody but culprits in both matchings (about one in 1,500 of these gangs) has a
    round less against it: it is named at least.
    """
    bad = data.draw(st.sets(st.integers(0, size - 1), max_size=max(1, min(3, size // 10))))
    endpoints = tuple(
        Endpoint(f"n{i}", "a", "x", local=Local((DOWN,) if i in bad else ())) for i in range(size)
    )
    order = data.draw(st.permutations(range(size)))
    seeds = data.draw(st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)))
    one, state, *_ = play(State(endpoints, seeds[0]).after_gang(Zone.BELOW), _oracle(bad))
    place = {member: i for i, member in enumerate(order)}
    shuffled = State(tuple(endpoints[i] for i in order), seeds[1]).after_gang(Zone.BELOW)
    there = {place[b] for b in bad}
    other, state_there, *_ = play(shuffled, _oracle(there))
    assert set(one.named) == bad
    assert set(other.named) == there
    assert bad - _met_only(bad, state) <= set(one.blamed) <= bad
    assert there - _met_only(there, state_there) <= set(other.blamed) <= there
    assert one.kind == other.kind


def _met_only(bad: set[int], state: State) -> set[int]:
    """Those of ``bad`` whom no matching brought together with another."""
    pairs = [
        set(probe.members)
        for played in state.rounds
        if played.round.phase is Phase.MATCH
        for probe in played.round.probes
    ]
    return {one for one in bad if all(pair <= bad for pair in pairs if one in pair)}


def _oracle(bad: set[int]) -> Callable[[Round], Sequence[Result]]:
    return lambda one: [
        Result(Status.OK, NORMAL * (0.5 if bad & set(probe.members) else 1.0))
        for probe in one.probes
    ]


@given(gangs(least=3, most=20), chances, st.data())
def test_a_good_edge_never_hurts_its_ends(
    state: State, chance: Chance, data: st.DataObject
) -> None:
    """One bad edge of the history made as good as its reference: neither end may become blamed by
    it, or named for nothing else.

    Who is known good now may be named for another path that is bad at it.

    Not a measurement of an edge that is made once more, which may raise the reference itself.
    """
    verdict, last, _ = drawn(state, chance)
    bad = [
        e
        for e in verdict.matrix
        if e.grade is Grade.BAD and e.reference > 0 and e.role is not Role.EDGE
    ]
    if not bad:
        return
    chosen = data.draw(st.sampled_from(bad))
    rounds = list(last.rounds)
    played = rounds[chosen.round - 2]
    results = [
        Result(Status.OK, chosen.reference) if probe.members == (chosen.a, chosen.b) else result
        for probe, result in zip(played.round.probes, played.results, strict=True)
    ]
    rounds[chosen.round - 2] = played._replace(results=tuple(results))
    better = next(replace(last, rounds=tuple(rounds)))
    if isinstance(better, Verdict):
        assert not {chosen.a, chosen.b} & (set(better.blamed) - set(verdict.blamed))
        named = {chosen.a, chosen.b} & (set(better.named) - set(verdict.named))
        assert named <= {
            end
            for edge in better.matrix
            if edge.grade is not Grade.GOOD
            for end in (edge.a, edge.b)
        }


@given(gangs(least=3), st.sampled_from([FactKind.LOST, FactKind.MEMBER]), chances)
def test_a_member_that_is_lost_or_cannot_take_part_makes_nobody_fatal(
    state: State, kind: FactKind, chance: Chance
) -> None:
    _, last, _ = drawn(state, chance)
    verdict = next(replace(last, facts=(Fact(0, kind, "gone"),)))
    assert isinstance(verdict, Verdict)
    assert not verdict.fatal_for


def test_the_first_round_is_the_whole_gang() -> None:
    state = State(tuple(Endpoint(f"n{i}") for i in range(3)), 1)
    assert next(state) == Round(1, Phase.GANG, (Probe((0, 1, 2), Role.GANG),))


def test_a_gang_without_endpoints_is_refused() -> None:
    with pytest.raises(ValueError, match="without endpoints"):
        next(State((), 1))


@pytest.mark.parametrize("size", [4, 7, 8, 33])
def test_the_two_matchings_are_the_edges_of_one_ring(size: int) -> None:
    state = State(tuple(Endpoint(f"n{i}") for i in range(size)), 3).after_gang(Zone.BELOW)
    probes: list[Probe] = []
    for _ in range(2):
        one = next(state)
        assert isinstance(one, Round)
        probes += one.probes
        state = state.after(one, [Result(Status.OK, NORMAL) for _ in one.probes])
    degrees = Counter(i for probe in probes for i in probe.members)
    assert len(set(probes)) == len(probes) == (size if size % 2 == 0 else size - 1)
    assert sorted(degrees.values()) == ([2] * size if size % 2 == 0 else [1, 1] + [2] * (size - 2))


def test_partners_of_one_domain_meet_first() -> None:
    endpoints = tuple(Endpoint(f"n{i}", domain=f"d{i % 8}") for i in range(64))
    one = next(State(endpoints, 3).after_gang(Zone.BELOW))
    assert isinstance(one, Round)
    assert all(len({i % 8 for i in probe.members}) == 1 for probe in one.probes)


def after_matchings(state: State, answer: Callable[[Probe], Result], count: int = 2) -> State:
    for _ in range(count):
        one = next(state)
        assert isinstance(one, Round)
        state = state.after(one, [answer(probe) for probe in one.probes])
    return state


def test_where_suspects_outnumber_the_known_good_a_third_matching_seeks_partners_that_have_not_met() -> (
    None
):
    state = State(tuple(Endpoint(f"n{i}") for i in range(16)), 3).after_gang(Zone.HANG)
    state = after_matchings(
        state,
        lambda p: Result(Status.HANG) if min(p.members) < 10 else Result(Status.OK, NORMAL),
    )
    third = next(state)
    assert isinstance(third, Round)
    assert third.phase is Phase.MATCH
    before = {probe.members for played in state.rounds for probe in played.round.probes}
    assert not before & {probe.members for probe in third.probes}
    assert len(third.probes) >= 6


@pytest.mark.parametrize("seed", range(20))
def test_a_suspect_in_a_small_domain_is_confirmed_on_paths_of_which_good_ones_are_known(
    seed: int,
) -> None:
    endpoints = tuple(
        Endpoint(f"n{i}", domain="x" if i < 4 else "y", local=Local((DOWN,) if i == 5 else ()))
        for i in range(7)
    )
    assert play(State(endpoints, seed).after_gang(Zone.BELOW), _oracle({5}))[0].fatal_for == (5,)


def test_where_good_nodes_have_bad_edges_too_more_evidence_is_wanted() -> None:
    state = State(tuple(Endpoint(f"n{i}") for i in range(64)), 3).after_gang(Zone.BELOW)
    assert Evidence(after_matchings(state, lambda _: Result(Status.OK, NORMAL))).enough == 3
    first = next(state)
    assert isinstance(first, Round)
    flaky = first.probes[:4]
    state = after_matchings(
        state, lambda p: Result(Status.OK, NORMAL * (0.5 if p in flaky else 1.0))
    )
    assert Evidence(state).enough == 4


def test_the_seed_alone_chooses_the_partners_and_is_the_same_in_every_process() -> None:
    code = (
        "from check_nccl_allreduce.localise import *\n"
        "s = State(tuple(Endpoint(f'n{i}', domain=f'd{i % 3}') for i in range(12)), 42).after_gang(Zone.BELOW)\n"
        "print([p.members for p in next(s).probes])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def dearest_answer(nodes: int) -> float:
    """Of the answers to a gang's rounds, in seconds of this process."""
    sick = SickNode((nodes // 10, nodes // 10))
    fabric = StagedFabric(known("speed", sick, nodes=(nodes, nodes), leaves=(4, 32)), 1)
    marks = [time.process_time()]

    def measure(one: Round) -> Sequence[Result]:
        took.append(time.process_time() - marks[-1])
        results = fabric.measure(one)
        marks.append(time.process_time())
        return results

    took: list[float] = []
    play(fabric.state, measure)
    took.append(time.process_time() - marks[-1])
    assert len(took) == MAX_ROUNDS
    return max(took)


@pytest.mark.component  # computes for a second
def test_an_answer_to_a_gang_of_2048_costs_what_eight_of_256_do_and_not_its_square() -> None:
    assert dearest_answer(2048) < 32 * min(dearest_answer(256) for _ in range(3)) + 0.1
