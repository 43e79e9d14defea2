"""Gangs that share their nodes' ports get pairs of their own."""

from __future__ import annotations

import msgspec
from gangs import gang, waiting
from hypothesis import given
from hypothesis import strategies as st
from preflight_gang.core.membership import GangMember
from preflight_gang.core.plan import seal
from preflight_gang.core.snapshot import Record


def member(name: str, ip: str, *, host_network: bool = True) -> GangMember:
    return msgspec.structs.replace(waiting(name, ip), host_network=host_network)


def sealed(
    *, id: str = "job-1", taken: frozenset[int] = frozenset(), host_network: bool = True
) -> Record:
    members = (
        member("pod-0", "10.0.0.1", host_network=host_network),
        member("pod-1", "10.0.0.2", host_network=False),
    )
    return seal(msgspec.structs.replace(gang(*members), id=id), members, "t" * 64, taken)


def test_gangs_with_networks_of_their_own_all_have_the_usual_ports() -> None:
    assert {
        (r.master_port, r.control_port)
        for r in (sealed(host_network=False), sealed(id="b", host_network=False))
    } == {(29500, 29501)}


@given(st.lists(st.text(max_size=20), unique=True, min_size=2, max_size=40))
def test_no_two_gangs_of_one_node_have_a_port_in_common(ids: list[str]) -> None:
    taken: set[int] = set()
    ports: list[int] = []
    for one in ids:
        made = sealed(id=one, taken=frozenset(taken))
        taken.add(made.master_port)
        ports += [made.master_port, made.control_port]
    assert len(set(ports)) == len(ports)


def test_a_pair_that_is_taken_is_passed_over() -> None:
    first = sealed().master_port
    assert sealed(taken=frozenset({first})).master_port == (first + 2 if first < 29998 else 20000)


def test_where_all_are_taken_the_gang_is_sealed_all_the_same() -> None:
    assert sealed(taken=frozenset(range(20000, 30000))).master_port == sealed().master_port
