"""The decision table of localisation, a fact for each of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from allreduce_testing.worlds.simulation import play
from check_nccl_allreduce.localise import (
    Endpoint,
    Fact,
    FactKind,
    Kind,
    Layout,
    Local,
    PortFault,
    Probe,
    Result,
    Round,
    State,
    Status,
    Verdict,
    Zone,
    matrix,
    next,
)
from leaf_gangs import DOWN, NORMAL, Answer, gang, localized, ok


def leaves(nodes: int) -> Callable[[int], str]:
    """So many nodes behind each."""
    return lambda i: f"leaf-{i // nodes}"


def slow(*bad: int, share: float = 0.6) -> Answer:
    return lambda probe, _: ok(share if set(bad) & set(probe.members) else 1.0)


def broken(status: Status, *bad: int) -> Answer:
    return lambda probe, _: Result(status) if set(bad) & set(probe.members) else ok()


def crossing(domains: Sequence[int], one: int) -> Answer:
    """Slow where a probe joins domain ``one`` with another."""

    def answer(probe: Probe, _: int) -> Result:
        there = {domains[i] for i in probe.members}
        return ok(0.5 if one in there and len(there) > 1 else 1.0)

    return answer


def nobody_is_blamed(verdict: Verdict) -> bool:
    return not verdict.blamed and not verdict.fatal_for


def test_a_lost_member_makes_the_run_inconclusive_and_is_named() -> None:
    verdict = localized(
        replace(gang(8), facts=(Fact(3, FactKind.LOST, "its connection ended"),)), slow()
    )
    assert (verdict.kind, verdict.inconclusive, verdict.fails, verdict.named) == (
        Kind.LOST,
        True,
        False,
        (3,),
    )
    assert nobody_is_blamed(verdict)
    assert "node-3: its connection ended" in verdict.reason


def test_a_lost_member_comes_before_a_device_fault_which_is_still_told() -> None:
    device = Fact(5, FactKind.DEVICE, "GPU 2 fell off the bus")
    verdict = localized(replace(gang(8), facts=(device, Fact(3, FactKind.LOST, "gone"))), slow())
    assert verdict.kind is Kind.LOST
    assert nobody_is_blamed(verdict)
    assert "GPU 2 fell off the bus" in verdict.reason


def test_local_device_evidence_is_fatal_for_its_own_node_without_any_contrast() -> None:
    verdict = localized(
        replace(gang(8), facts=(Fact(5, FactKind.DEVICE, "GPU 2 fell off the bus"),)), slow()
    )
    assert (verdict.kind, verdict.fails, verdict.blamed, verdict.fatal_for) == (
        Kind.DEVICE,
        True,
        (5,),
        (5,),
    )


def test_device_evidence_seen_during_a_probe_is_never_evidence_about_its_peer() -> None:
    def answer(probe: Probe, _: int) -> Result:
        if 2 in probe.members:
            return Result(
                Status.VOID, member=2, cause="double-bit ECC on GPU 0", fact=FactKind.DEVICE
            )
        return ok()

    assert localized(gang(8), answer).fatal_for == (2,)


def test_a_member_that_twice_could_not_take_part_is_named_but_not_blamed() -> None:
    def answer(probe: Probe, _: int) -> Result:
        return (
            Result(Status.VOID, member=2, cause="its worker was killed")
            if 2 in probe.members
            else ok()
        )

    verdict = localized(gang(8), answer)
    assert (verdict.kind, verdict.fails, verdict.named) == (Kind.MEMBER, True, (2,))
    assert nobody_is_blamed(verdict)


def test_a_single_void_probe_accuses_neither_side() -> None:
    def answer(probe: Probe, number: int) -> Result:
        return (
            Result(Status.VOID, member=2, cause="no port")
            if 2 in probe.members and number == 2
            else ok()
        )

    verdict = localized(gang(8), answer)
    assert verdict.kind is Kind.UNEXPLAINED
    assert not verdict.named
    assert any("no port" in clause for clause in verdict.undecided)


def test_of_two_nodes_the_one_below_its_own_floor_is_to_blame() -> None:
    ends = (Endpoint("a", intra=False), Endpoint("b", intra=True))
    verdict = localized(State(ends, 1).after_gang(Zone.BELOW), slow())
    assert (verdict.kind, verdict.fatal_for, verdict.rounds) == (Kind.NODE, (0,), 1)


@pytest.mark.parametrize("inside", [(None, None), (True, True), (False, False), (False, None)])
def test_of_two_nodes_without_a_local_contrast_nobody_is_to_blame(
    inside: tuple[bool | None, bool | None],
) -> None:
    ends = tuple(Endpoint(f"n{i}", intra=value) for i, value in enumerate(inside))
    verdict = localized(State(ends, 1).after_gang(Zone.BELOW), slow())
    assert (verdict.kind, verdict.fails, verdict.named) == (Kind.PAIR, True, (0, 1))
    assert nobody_is_blamed(verdict)
    assert verdict.undecided


def test_one_node_alone_is_named_and_has_no_peer_to_be_blamed_by() -> None:
    verdict = localized(gang(1), slow())
    assert verdict.named == (0,)
    assert nobody_is_blamed(verdict)


def test_where_no_pair_works_the_cause_is_systemic() -> None:
    verdict = localized(gang(8), lambda *_: Result(Status.ERROR))
    assert (verdict.kind, verdict.rounds, verdict.named) == (Kind.SYSTEMIC, 4, ())
    assert nobody_is_blamed(verdict)


def test_pairs_alike_but_below_what_pairs_must_reach_are_systemic() -> None:
    ends = tuple(Endpoint(f"n{i}", pair_floor=1.5 * NORMAL) for i in range(8))
    assert localized(State(ends, 1).after_gang(Zone.BELOW), slow()).kind is Kind.SYSTEMIC


def test_several_bad_paths_between_good_nodes_are_the_fabric() -> None:
    paths: set[tuple[int, ...]] = set()

    def answer(probe: Probe, number: int) -> Result:
        if number == 2 and len(paths) < 3:
            paths.add(probe.members)
        return ok(0.5 if probe.members in paths else 1.0)

    verdict = localized(gang(16), answer)
    assert verdict.kind is Kind.FABRIC
    assert set(verdict.links) == paths
    assert nobody_is_blamed(verdict)


def test_a_slow_uplink_is_the_fabric_at_the_boundary_of_its_domain() -> None:
    verdict = localized(gang(16, leaves(4)), crossing([i // 4 for i in range(16)], 1))
    assert verdict.kind is Kind.FABRIC
    assert "leaf-1" in verdict.reason
    assert nobody_is_blamed(verdict)


def test_paths_between_all_domains_that_are_slow_alike_are_the_fabric() -> None:
    def answer(probe: Probe, _: int) -> Result:
        return ok(0.5 if len({i // 4 for i in probe.members}) > 1 else 1.0)

    verdict = localized(gang(32, leaves(4)), answer)
    assert verdict.kind is Kind.FABRIC
    assert "50%" in verdict.reason


def test_a_domain_without_any_good_node_is_its_switch_and_not_its_nodes() -> None:
    verdict = localized(gang(16, leaves(4)), slow(4, 5, 6, 7))
    assert (verdict.kind, verdict.fails, verdict.domains) == (
        Kind.DOMAIN,
        True,
        ("leaf-1",),
    )
    assert nobody_is_blamed(verdict)


def test_a_slow_leaf_that_most_paths_between_leaves_lead_into_is_not_its_nodes() -> None:
    verdict = localized(gang(16, leaves(8)), slow(*range(8), share=0.5))
    assert (verdict.kind, verdict.domains) == (Kind.DOMAIN, ("leaf-0",))
    assert nobody_is_blamed(verdict)


def test_a_bad_node_elsewhere_is_blamed_beside_a_dark_domain() -> None:
    dark, alone = slow(4, 5, 6, 7), slow(20, share=0.35)

    def answer(probe: Probe, number: int) -> Result:
        return min(dark(probe, number), alone(probe, number), key=lambda one: one.gbps)

    def told(probe: Probe, number: int) -> Result:
        """Latencies confirm the labels."""
        near = len({i // 4 for i in probe.members}) == 1
        return answer(probe, number)._replace(latency=2e-6 if near else 4e-6)

    verdict = localized(gang(32, leaves(4), down=(20,)), told)
    assert (verdict.kind, verdict.fatal_for, verdict.domains) == (
        Kind.NODE,
        (20,),
        ("leaf-1",),
    )


def test_more_culprits_than_one_run_may_blame_are_correlated() -> None:
    ones = (1, 4, 9, 13)
    verdict = localized(gang(16, leaves(8), down=ones), slow(*ones))
    assert (verdict.kind, verdict.fails, verdict.named) == (Kind.CORRELATED, True, ones)
    assert nobody_is_blamed(verdict)


def beyond(*ones: int, share: float = 0.5) -> Answer:
    """Slow between these and the others; to themselves they are fast."""
    return lambda probe, _: ok(
        share if set(ones) & set(probe.members) and len(probe.members) > 1 else 1.0
    )


def both(first: float, second: float) -> Answer:
    return lambda probe, _: ok(
        first if 1 in probe.members else second if 5 in probe.members else 1.0
    )


def test_nodes_that_are_equally_slow_have_one_cause_wherever_they_are() -> None:
    verdict = localized(gang(16), beyond(1, 5))
    assert (verdict.kind, verdict.named) == (Kind.CORRELATED, (1, 5))
    assert nobody_is_blamed(verdict)
    assert nobody_is_blamed(localized(gang(16), both(0.6, 0.6)))


def test_two_slow_nodes_are_blamed_where_each_has_a_fact_of_its_own_and_else_not() -> None:
    assert localized(gang(16, down=(1, 5)), both(0.6, 0.6)).fatal_for == (1, 5)
    assert localized(gang(16, down=(1,)), both(0.6, 0.6)).fatal_for == ()
    assert localized(gang(16), both(0.3, 0.6)).fatal_for == ()
    assert localized(gang(16, lambda _: None, down=(1,)), both(0.3, 0.6)).fatal_for == (1,)


def other_than(state: State, **known: object) -> State:
    """The gang, with other things known of node 2."""
    ends = (replace(one, **known) if i == 2 else one for i, one in enumerate(state.endpoints))  # type: ignore[arg-type]
    return replace(state, endpoints=tuple(ends))


@pytest.mark.parametrize(
    "state",
    [
        gang(8, lambda _: None),
        replace(gang(8), layout=Layout.RAIL),
        replace(gang(8), layout=Layout.UNKNOWN),
        other_than(gang(8, leaves(4)), domain="far"),
        other_than(gang(8), local=Local()),
    ],
    ids=["no labels", "rails", "layout not known", "alone behind its leaf", "nothing counted"],
)
def test_without_a_witness_a_slow_node_is_named_and_not_blamed(state: State) -> None:
    verdict = localized(state, slow(2))
    assert (verdict.named, nobody_is_blamed(verdict)) == ((2,), True)
    assert "test it with a good node behind the same leaf" in verdict.reason


def test_a_node_that_carried_somebody_elses_bytes_in_silence_is_busy_and_nobody_is_judged() -> None:
    busy = other_than(gang(8), local=Local((DOWN,), silence=60.0, foreign=5.0))
    verdict = localized(busy, slow(2))
    assert (verdict.kind, verdict.inconclusive, verdict.named) == (Kind.BUSY, True, (2,))
    assert nobody_is_blamed(verdict)
    assert "node-2 (5 GB/s" in verdict.reason


def test_a_node_whose_processors_others_took_is_busy_unless_that_is_usual() -> None:
    taken = Local((DOWN,), silence=60.0, load=0.97)
    verdict = localized(other_than(gang(8), local=taken), slow(2))
    assert (verdict.kind, verdict.inconclusive, verdict.named) == (Kind.BUSY, True, (2,))
    assert "97% of its processors" in verdict.reason
    everybody = gang(8)
    ends = tuple(
        replace(one, local=taken if i < 5 else one.local)
        for i, one in enumerate(everybody.endpoints)
    )
    assert localized(replace(everybody, endpoints=ends), slow(2)).kind is not Kind.BUSY


def test_of_two_nodes_no_load_of_processors_is_unusual() -> None:
    pair = gang(2)
    taken = replace(pair.endpoints[0], local=Local(silence=60.0, load=1.0))
    pair = replace(pair, endpoints=(taken, pair.endpoints[1]))
    assert localized(pair, slow(1)).kind is not Kind.BUSY


@pytest.mark.parametrize("share", [0.25, 0.4, 0.5, 0.53])
def test_a_node_as_slow_as_links_of_a_lower_rate_is_of_another_kind_unless_its_device_says_why(
    share: float,
) -> None:
    verdict = localized(gang(8), slow(2, share=share))
    assert nobody_is_blamed(verdict)
    assert "compare the kinds of the adapters" in verdict.reason
    assert localized(gang(8, down=(2,)), slow(2, share=share)).fatal_for == (2,)


def test_what_a_node_was_before_it_throttled_does_not_clear_it() -> None:
    heat = PortFault("GPU 3", "throttle", "is slowed by heat", "others are not")

    def answer(probe: Probe, number: int) -> Result:
        return ok(0.6 if 2 in probe.members and number > 3 else 1.0)

    assert localized(gang(8), answer).named == (2,)
    hot = other_than(gang(8), local=Local((heat,), silence=60.0))
    verdict, last = play(hot, lambda one: [answer(probe, one.number) for probe in one.probes])
    assert verdict.fatal_for == (2,)
    assert last.rounds[2].at - last.rounds[0].at >= 60


@pytest.mark.parametrize("size", [3, 4, 5, 8, 33])
def test_a_slow_node_is_blamed_and_nobody_else(size: int) -> None:
    verdict = localized(gang(size), slow(2))
    assert (verdict.kind, verdict.fails, verdict.blamed, verdict.fatal_for) == (
        Kind.NODE,
        True,
        (2,),
        (2,),
    )
    assert "node-2 reached 60% of normal" in verdict.reason
    assert len({e.round for e in verdict.suspects[0].evidence}) >= 3


@pytest.mark.parametrize(
    ("status", "zone", "says"),
    [
        (Status.HANG, Zone.HANG, "never finished"),
        (Status.WRONG, Zone.WRONG, "delivered wrong data"),
        (Status.ERROR, Zone.ERROR, "failed"),
    ],
)
@pytest.mark.parametrize("size", [3, 4, 5, 16])
def test_hangs_and_wrong_data_are_blamed_by_the_same_rule(
    status: Status, zone: Zone, says: str, size: int
) -> None:
    verdict = localized(gang(size, zone=zone), broken(status, 2))
    assert verdict.fatal_for == (2,)
    assert verdict.suspects[0].symptom is status
    assert f"node-2 {says}" in verdict.reason


def test_a_node_that_is_a_little_slow_with_everyone_is_named_and_not_blamed() -> None:
    verdict = localized(gang(8), slow(3, share=0.84))
    assert (verdict.kind, verdict.fails, verdict.named) == (Kind.SUSPECT, True, (3,))
    assert nobody_is_blamed(verdict)


def test_the_only_node_of_its_domain_is_not_blamed_where_no_path_between_domains_was_good() -> None:
    verdict = localized(gang(5, leaves(4)), slow(4))
    assert (verdict.kind, verdict.named) == (Kind.SUSPECT, (4,))
    assert any("switch that only it is behind" in clause for clause in verdict.undecided)


@pytest.mark.parametrize("size", [8, 64, 512])
def test_one_bad_path_between_good_nodes_is_a_link(size: int) -> None:
    sick: list[tuple[int, ...]] = []

    def answer(probe: Probe, number: int) -> Result:
        if number == 2 and not sick:
            sick.append(probe.members)
        return ok(0.5 if probe.members in sick else 1.0)

    verdict = localized(gang(size), answer)
    assert (verdict.kind, verdict.fails, list(verdict.links)) == (Kind.LINK, True, sick)
    assert nobody_is_blamed(verdict)


def test_a_path_that_was_bad_once_is_transient() -> None:
    def answer(probe: Probe, number: int) -> Result:
        return ok(0.5 if number == 2 and 0 in probe.members else 1.0)

    verdict = localized(gang(8), answer)
    assert (verdict.kind, verdict.links) == (Kind.TRANSIENT, ())
    assert nobody_is_blamed(verdict)


def test_wrong_data_that_no_pair_repeats_is_not_localized() -> None:
    verdict = localized(gang(8, zone=Zone.WRONG), slow())
    assert (verdict.kind, verdict.fails) == (Kind.DATA_UNLOCALISED, True)


def test_a_slow_gang_of_good_pairs_is_unexplained_after_its_halves() -> None:
    verdict = localized(gang(8), slow())
    assert (verdict.kind, verdict.fails, verdict.rounds) == (Kind.UNEXPLAINED, True, 7)
    assert "only the whole gang is slow" in verdict.reason


def test_halves_that_are_slow_only_when_they_mix_are_the_fabric() -> None:
    def answer(probe: Probe, _: int) -> Result:
        return ok(
            0.5 if len(probe.members) > 2 and len({i // 4 for i in probe.members}) > 1 else 1.0
        )

    assert localized(gang(8, leaves(4)), answer).kind is Kind.FABRIC


def test_nothing_comparable_is_unexplained_and_says_about_whom_nothing_is_known() -> None:
    ends = tuple(Endpoint(f"n{i}", kind=f"kind-{i}") for i in range(3))
    verdict = localized(State(ends, 1).after_gang(Zone.BELOW), slow(1))
    assert verdict.kind is Kind.UNEXPLAINED
    assert any("n0, n1, n2" in clause for clause in verdict.undecided)


@pytest.mark.parametrize("zone", [Zone.BETWEEN, Zone.UNKNOWN])
def test_above_its_floor_a_gang_fails_only_on_a_confirmed_contrast(zone: Zone) -> None:
    assert localized(gang(8, zone=zone), slow(3)).fails
    assert not localized(gang(8, zone=zone), slow(3, share=0.84)).fails
    assert not localized(gang(8, zone=zone), slow()).fails
    assert not localized(gang(2, zone=zone), slow()).fails


def test_a_gang_that_passes_its_gate_has_no_rounds() -> None:
    verdict = localized(gang(8, zone=Zone.PASSED), slow(3))
    assert (verdict.kind, verdict.fails, verdict.rounds) == (Kind.PASSED, False, 1)


def test_a_round_whose_controls_are_slow_counts_but_says_nothing() -> None:
    def answer(probe: Probe, number: int) -> Result:
        return ok(0.5 if 3 in probe.members or number in {4, 5} else 1.0)

    verdict = localized(gang(32), answer)
    assert (verdict.rounds, verdict.named) == (8, (3,))
    assert nobody_is_blamed(verdict)
    assert all(e.dropped for e in verdict.matrix if e.round in {4, 5})
    assert any("round 4" in clause for clause in verdict.undecided)


def with_details(rails: Callable[[Probe], tuple[float, ...]]) -> Answer:
    def answer(probe: Probe, _: int) -> Result:
        result = ok(0.5 if 3 in probe.members else 1.0)
        if not probe.detail:
            return result
        sends_slowly = (40.0, 100.0) if probe.members[0] == 3 else (100.0, 40.0)
        return result._replace(
            rails=rails(probe), directions=sends_slowly if 3 in probe.members else (100.0, 100.0)
        )

    return answer


def test_the_last_confirmation_names_the_rail_and_the_direction() -> None:
    verdict = localized(
        gang(16, down=(3,)),
        with_details(lambda p: (50, 12, 50, 50) if 3 in p.members else (50, 50, 50, 50)),
    )
    assert verdict.fatal_for == (3,)
    assert verdict.suspects[0].note == "rail 1; sending"


def test_a_rail_that_is_slow_on_every_node_is_the_fabric() -> None:
    verdict = localized(gang(16), with_details(lambda _: (50, 12, 50, 50)))
    assert verdict.kind is Kind.FABRIC
    assert "rail 1" in verdict.reason
    assert nobody_is_blamed(verdict)


def test_the_matrix_of_a_small_gang_shows_every_measurement_as_a_share_of_normal() -> None:
    state = gang(3)
    lines = matrix(state, localized(state, slow(2)))
    assert lines[5:] == [
        "node-0 to itself: 100/100",
        "node-1 to itself: 100/100",
        "node-2 to itself: 60/60",
    ]
    assert lines[1:5] == [
        "········ ····0 ····1",
        "0 node-0",
        "1 node-1 ··100",
        "2 node-2 60/60 60/60",
    ]


def test_the_matrix_of_a_large_gang_shows_the_edges_worth_reading_and_counts_the_rest() -> None:
    state = gang(64)
    lines = matrix(state, localized(state, slow(2)))
    assert all("node-2" in line for line in lines[:-1])
    assert lines[-1].startswith("and ")


def test_every_probe_of_a_round_wants_a_result() -> None:
    state = gang(4)
    one = next(state)
    assert isinstance(one, Round)
    with pytest.raises(ValueError, match="round 2 has 2 probes and got 0 results"):
        state.after(one, [])
