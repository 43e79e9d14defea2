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


def sealed(*, id: str = "job-1", record: Record | None = None, host_network: bool = True) -> Record:
    members = (
        member("pod-0", "10.0.0.1", host_network=host_network),
        member("pod-1", "10.0.0.2", host_network=False),
    )
    view = msgspec.structs.replace(gang(*members), id=id, record=record)
    return seal(view, members, "t" * 64)


def test_gangs_with_networks_of_their_own_all_have_the_usual_ports() -> None:
    assert {
        (r.master_port, r.control_port)
        for r in (sealed(host_network=False), sealed(id="b", host_network=False))
    } == {(29500, 29501)}


@given(st.text(max_size=20), st.integers(0, 10_000))
def test_each_generation_has_another_pair_outside_of_the_ephemeral_range(
    raw: str, last: int
) -> None:
    ports: list[int] = []
    for generation in (last, last + 1):
        record = msgspec.structs.replace(sealed(id=raw), generation=generation)
        made = sealed(id=raw, record=record)
        ports += [made.master_port, made.control_port]
    assert len(set(ports)) == 4
    assert all(20_000 <= port < 30_000 for port in ports)


def test_gangs_of_one_node_seldom_want_the_same_pair() -> None:
    assert len({sealed(id=f"job-{n}").master_port for n in range(100)}) > 95
