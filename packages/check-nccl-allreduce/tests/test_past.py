"""What other gangs have found of a node: it names, it is one kind of evidence at most, and it is
nobody's word alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from allreduce_testing.worlds.simulation import play
from check_nccl_allreduce import localise
from check_nccl_allreduce.localise import (
    Endpoint,
    Kind,
    Past,
    Result,
    Round,
    Sighting,
    Spell,
    State,
    Status,
    Usual,
    Zone,
)
from preflight_proto.history import digest

NODES, BAD = 12, 5
HOUR = 3600.0


def gang(past: Past | None = None, size: int = NODES, bad: int = BAD) -> State:
    """All behind one leaf."""
    endpoints = tuple(
        Endpoint(f"node-{i}", "kind", "leaf", past=past if i == bad else None) for i in range(size)
    )
    return State(endpoints, 7).after_gang(Zone.BELOW, 200.0)


def spells(
    *sources: int, own: bool = True, ago: float = HOUR, partners: Iterable[str] = ()
) -> Past:
    return Past(spells=tuple(Spell(ago, source, own, tuple(partners)) for source in sources))


def slow(hairpin: float | None = 1.0) -> Callable[[Round], list[Result]]:
    """Every path of node 5 is slow; its hairpin, where there is one, reaches that share of the
    others'.
    """

    def measure(one: Round) -> list[Result]:
        found = []
        for probe in one.probes:
            if len(probe.members) == 1:
                share = hairpin if BAD in probe.members else 1.0
                found.append(
                    Result(Status.UNJUDGED)
                    if hairpin is None
                    else Result(Status.OK, 380.0 * (share or 0.0))
                )
            else:
                found.append(Result(Status.OK, 180.0 if BAD in probe.members else 360.0))
        return found

    return measure


def test_path_alone_names_and_path_with_two_namespaces_that_found_it_bad_to_itself_blames() -> None:
    alone, _ = play(gang(), slow(None))
    assert (alone.blamed, alone.named) == ((), (BAD,))
    twice, _ = play(gang(spells(0, 1)), slow(None))
    assert twice.blamed == (BAD,)
    assert twice.suspects[0].score is not None
    assert twice.suspects[0].score.kinds == ("path", "time")
    assert "which other gangs have found" in twice.reason


@pytest.mark.parametrize(
    "past",
    [
        spells(0),
        spells(0, 0, 0, 0),
        spells(0, 1, own=False),
        spells(0, 1, ago=60.0),
        spells(0, 1, partners=[f"node-{i}" for i in range(NODES) if i != BAD][:4]),
    ],
    ids=[
        "one namespace",
        "one namespace four times",
        "never to itself",
        "the same moment",
        "the same partners",
    ],
)
def test_no_other_past_makes_a_path_fatal(past: Past) -> None:
    partners = {name for spell in past.spells for name in spell.partners}
    state = gang(past)
    if partners:  # all that find it bad now found it bad then
        everyone = tuple(f"node-{i}" for i in range(NODES) if i != BAD)
        own = replace(
            state.endpoints[BAD],
            past=Past(spells=tuple(Spell(HOUR, n, True, everyone) for n in (0, 1))),
        )
        state = replace(
            state, endpoints=tuple(own if i == BAD else e for i, e in enumerate(state.endpoints))
        )
    verdict, _ = play(state, slow(None))
    assert verdict.blamed == ()
    assert verdict.named == (BAD,)


def test_who_is_well_to_itself_is_not_blamed_whatever_other_gangs_say() -> None:
    verdict, _ = play(gang(spells(0, 1, 2, 3)), slow(1.0))
    assert verdict.blamed == ()
    assert verdict.named == (BAD,)


def test_a_healthy_node_with_a_bad_past_is_neither_blamed_nor_named() -> None:
    verdict, _ = play(
        gang(spells(0, 1, 2, 3)),
        lambda one: [Result(Status.OK, 360.0) for _ in one.probes],
    )
    assert (verdict.blamed, verdict.named) == ((), ())


def comes_and_goes() -> Callable[[Round], list[Result]]:
    """Node 5 is bad in the first matching and well after it."""
    return lambda one: [
        Result(Status.OK, 180.0 if one.number == 2 and BAD in p.members else 360.0)
        for p in one.probes
    ]


def test_who_was_bad_once_here_and_once_elsewhere_is_named_and_alone() -> None:
    before, _ = play(gang(), comes_and_goes())
    assert (before.kind, before.named) == (Kind.TRANSIENT, ())
    again, _ = play(gang(spells(0, own=False)), comes_and_goes())
    assert (again.kind, again.named, again.blamed) == (Kind.INTERMITTENT, (BAD,), ())
    assert "in another gang with other partners" in again.reason


def test_where_many_have_a_past_it_names_nobody() -> None:
    state = gang()
    everyone = tuple(replace(e, past=spells(0, own=False)) for e in state.endpoints)
    verdict, _ = play(
        replace(state, endpoints=everyone),
        lambda one: [Result(Status.OK, 180.0 if one.number == 2 else 360.0) for _ in one.probes],
    )
    assert verdict.blamed == ()
    assert verdict.kind is not Kind.INTERMITTENT


def pair(own: float, other: float) -> Callable[[Round], list[Result]]:
    return lambda one: [Result(Status.OK, own if p.members == (0,) else other) for p in one.probes]


def test_of_two_the_one_that_is_worse_than_it_used_to_be_is_named_and_not_blamed() -> None:
    usual = Past(own=Usual(380.0, 4.0, 9))
    endpoints = tuple(Endpoint(f"node-{i}", "kind", past=usual) for i in (0, 1))
    verdict, _ = play(State(endpoints, 1).after_gang(Zone.BELOW, 200.0), pair(300.0, 370.0))
    assert (verdict.kind, verdict.named, verdict.blamed) == (Kind.PAIR, (0,), ())
    assert "node-0 is worse than it used to be" in verdict.reason


def test_of_two_the_one_that_others_have_found_bad_is_named_and_not_blamed() -> None:
    endpoints = (Endpoint("node-0", "kind"), Endpoint("node-1", "kind", past=spells(0, own=False)))
    verdict, _ = play(State(endpoints, 1).after_gang(Zone.BELOW, 200.0), pair(380.0, 380.0))
    assert (verdict.named, verdict.blamed) == ((1,), ())
    met = (
        Endpoint("node-0", "kind"),
        Endpoint("node-1", "kind", past=spells(0, partners=["node-0"])),
    )
    verdict, _ = play(State(met, 1).after_gang(Zone.BELOW, 200.0), pair(380.0, 380.0))
    assert verdict.named == (0, 1)


@pytest.mark.parametrize(
    ("gbps", "words"), [(180.0, "reaches 50% of what it did"), (350.0, "reaches what it did")]
)
def test_a_lone_node_is_held_against_its_own_past_in_words(gbps: float, words: str) -> None:
    state = State((Endpoint("node-0", "kind", past=Past(alone=Usual(360.0, 4.0, 9))),), 1)
    verdict = localise.next(state.after_gang(Zone.BELOW, gbps))
    assert isinstance(verdict, localise.Verdict)
    assert words in verdict.reason
    assert (verdict.named, verdict.blamed) == ((0,), ())


def test_too_few_gangs_say_nothing_of_what_is_usual() -> None:
    state = State((Endpoint("node-0", "kind", past=Past(alone=Usual(360.0, 4.0, 2))),), 1)
    verdict = localise.next(state.after_gang(Zone.BELOW, 100.0))
    assert isinstance(verdict, localise.Verdict)
    assert "of what it did" not in verdict.reason


def test_a_gang_sees_who_was_bad_with_whom_and_what_the_others_reach() -> None:
    _, state = play(gang(), slow(0.5))
    seen = localise.sightings(state)
    assert seen[BAD].sick
    assert (seen[BAD].edges, seen[BAD].pair) == (0, 0.0)
    everyone = {digest(f"node-{i}") for i in range(NODES) if i != BAD}
    assert seen[BAD].bad
    assert set(seen[BAD].bad) <= everyone
    others = [one for i, one in enumerate(seen) if i != BAD]
    assert all(
        one.pair == 360.0 and one.edges >= 1 and not one.bad and not one.sick for one in others
    )


def test_who_is_slow_by_its_path_alone_is_not_sick() -> None:
    _, state = play(gang(), slow(1.0))
    one = localise.sightings(state)[BAD]
    assert one.bad
    assert one == Sighting(bad=one.bad, own=380.0)
