"""Gangs on a network of shaped links, one namespace for each member: who is slow, found by real probes. Needs root and tc."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gangs import CHECK, MUTANTS, Ended, Gang, needs_torch
from test_slow_network import may_shape, run, tbf

LINE = 200
"""Mbit/s of a healthy link."""
SICK = 80
FLOOR = "0.015"
"""GB/s: between what the sick link and what a healthy one allows."""

pytestmark = [
    needs_torch,
    pytest.mark.skipif(not may_shape(), reason="needs root, ip and tc with network namespaces and tbf"),
]


class SwitchedGang(Gang):
    """Members in network namespaces of their own around one bridge; what each sends and receives is shaped on its link."""

    def __enter__(self) -> SwitchedGang:
        self.names: list[str] = []
        self.hub = f"pf-{os.getpid()}-hub"
        run("ip", "netns", "add", self.hub)
        run("ip", "-n", self.hub, "link", "add", "hub", "type", "bridge")
        run("ip", "-n", self.hub, "link", "set", "hub", "up")
        return self

    def __exit__(self, *args: object) -> None:
        try:
            super().__exit__(*args)  # type: ignore[arg-type]
        finally:
            for name in (*self.names, self.hub):
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def join(self, count: int) -> None:
        """Make the links of this many members, all healthy."""
        self.size = count
        for rank in range(count):
            name = f"pf-{os.getpid()}-{rank}"
            run("ip", "netns", "add", name)
            self.names.append(name)
            run("ip", "-n", self.hub, "link", "add", f"pf{rank}", "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", self.hub, "link", "set", f"pf{rank}", "master", "hub", "up")
            run("ip", "-n", name, "address", "add", f"{self.address(rank)}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            self.shape(rank, LINE)

    def shape(self, rank: int, sends: int, receives: int | None = None) -> None:
        """Mbit/s of one member's link."""
        for name, device, rate in (
            (self.names[rank], "eth0", sends),
            (self.hub, f"pf{rank}", receives or sends),
        ):
            run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *tbf(rate))

    def address(self, rank: int) -> str:
        return f"10.97.0.{rank + 1}"

    def command(self, rank: int, code: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[rank], *super().command(rank, code)]

    def ends(self, code: str = CHECK, **variables: str) -> list[Ended]:
        given = {"NCCL_ALLREDUCE_SIZE": "4Mi", "NCCL_ALLREDUCE_THRESHOLD_GBPS": FLOOR, **variables}
        self.start(*range(self.size), code=code, **given)
        self.seal()
        return self.all_ended()

    def fatal(self) -> list[int]:
        """The ranks whose nodes were reported as faulty."""
        return [i for i, one in enumerate(self.connectors) if any(event.is_fatal for event in one.events)]


@pytest.fixture
def switched(tmp_path: Path) -> Iterator[SwitchedGang]:
    with SwitchedGang(tmp_path) as one:
        yield one


@pytest.mark.parametrize("count", [3, 4])
def test_one_slow_member_is_blamed_by_name_and_nobody_else(switched: SwitchedGang, count: int) -> None:
    switched.join(count)
    switched.shape(1, SICK)
    ends = switched.ends()
    assert {(end.exit_code, end.result.outcome, end.result.code) for end in ends} == {(1, "failed", "LOW_BANDWIDTH")}
    assert "node-1 reached" in ends[0].result.reason
    assert switched.fatal() == [1]
    [event] = switched.connectors[1].events
    assert (list(event.error_code), event.recommended_action.name) == (["NODE_SLOW"], "CONTACT_SUPPORT")


def test_a_member_that_only_receives_slowly_is_blamed_as_well(switched: SwitchedGang) -> None:
    switched.join(3)
    switched.shape(2, LINE, SICK)
    assert {end.result.code for end in switched.ends()} == {"LOW_BANDWIDTH"}
    assert switched.fatal() == [2]


def test_when_all_are_equally_slow_nobody_is_blamed(switched: SwitchedGang) -> None:
    switched.join(3)
    for rank in range(3):
        switched.shape(rank, SICK)
    ends = switched.ends()
    assert {(end.exit_code, end.result.code) for end in ends} == {(1, "LOW_BANDWIDTH")}
    assert "look for what all share" in ends[0].result.reason
    assert switched.fatal() == []


def test_of_two_members_the_pair_is_named_and_nobody_blamed(switched: SwitchedGang) -> None:
    switched.join(2)
    switched.shape(1, SICK)
    ends = switched.ends()
    assert {(end.exit_code, end.result.code) for end in ends} == {(1, "LOW_BANDWIDTH")}
    assert "node-0, node-1 or the path between them; test each with a third node" in ends[0].result.reason
    assert switched.fatal() == []


def test_a_healthy_gang_makes_no_probe(switched: SwitchedGang) -> None:
    switched.join(3)
    ends = switched.ends()
    assert {(end.exit_code, end.result.code) for end in ends} == {(0, "OK")}
    assert "of localisation" not in ends[0].output


def test_wrong_data_is_traced_to_the_node_that_makes_it(switched: SwitchedGang) -> None:
    switched.join(3)
    ends = switched.ends(MUTANTS, MUTANT="flipped-bit", MUTANT_RANK="2")
    assert {(end.exit_code, end.result.code) for end in ends} == {(1, "WRONG_DATA")}
    assert "node-2 delivered wrong data" in ends[0].result.reason
    assert switched.fatal() == [2]
    assert list(switched.connectors[2].events[0].error_code) == ["NODE_WRONG_DATA"]


def test_a_hang_is_traced_to_its_node_by_fresh_workers(switched: SwitchedGang) -> None:
    switched.join(3)
    ends = switched.ends(MUTANTS, MUTANT="hang", MUTANT_RANK="0", NCCL_ALLREDUCE_SIZE="1Mi")
    assert {(end.exit_code, end.result.code) for end in ends} == {(1, "ALLREDUCE_HUNG")}
    assert "node-0 never finished" in ends[0].result.reason
    assert switched.fatal() == [0]
