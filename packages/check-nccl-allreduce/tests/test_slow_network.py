"""A gang across two network namespaces whose link is shaped: real bandwidth against a set floor. Needs root and tc."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from gangs import Gang, needs_torch

LINE = 200
"""Mbit/s of a healthy link: 0.025 GB/s, of which gloo makes bus bandwidth nearly all."""
FLOOR = "0.015"


def may_shape() -> bool:
    """Whether this process may make network namespaces and shape links, tried out."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        return False
    name = f"pf-try-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode != 0:
        return False
    shape = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "tbf", *tbf(100)]
    worked = subprocess.run(shape, capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return worked


def tbf(rate: int) -> list[str]:
    return ["rate", f"{rate}mbit", "burst", "128kb", "latency", "100ms"]


pytestmark = [
    needs_torch,
    pytest.mark.skipif(not may_shape(), reason="needs root, ip and tc with network namespaces and tbf"),
]


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class ShapedGang(Gang):
    """Two members, each in a network namespace of its own, joined by one link."""

    def __enter__(self) -> ShapedGang:
        self.names = [f"pf-{os.getpid()}-{rank}" for rank in (0, 1)]
        for name in self.names:
            run("ip", "netns", "add", name)
        run(
            "ip",
            "link",
            "add",
            "pf0",
            "netns",
            self.names[0],
            "type",
            "veth",
            "peer",
            "name",
            "pf1",
            "netns",
            self.names[1],
        )
        for rank, name in enumerate(self.names):
            inside = ("ip", "-n", name)
            run(*inside, "address", "add", f"{self.address(rank)}/24", "dev", f"pf{rank}")
            run(*inside, "link", "set", f"pf{rank}", "up")
            run(*inside, "link", "set", "lo", "up")
            self.shape(rank, LINE)
        return self

    def __exit__(self, *args: object) -> None:
        try:
            super().__exit__(*args)  # type: ignore[arg-type]
        finally:
            for name in self.names:
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def shape(self, rank: int, rate: int) -> None:
        """What this member sends goes out at ``rate`` Mbit/s."""
        device = ["dev", f"pf{rank}", "root", "tbf", *tbf(rate)]
        run("ip", "netns", "exec", self.names[rank], "tc", "qdisc", "replace", *device)

    def address(self, rank: int) -> str:
        return f"10.97.0.{rank + 1}"

    def command(self, rank: int, code: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[rank], *super().command(rank, code)]


@pytest.fixture
def shaped(tmp_path: Path) -> Iterator[ShapedGang]:
    with ShapedGang(tmp_path) as one:
        yield one


def test_a_healthy_link_passes_the_floor(shaped: ShapedGang) -> None:
    shaped.start(0, 1, NCCL_ALLREDUCE_THRESHOLD_GBPS=FLOOR, NCCL_ALLREDUCE_SIZE="4Mi")
    shaped.seal()
    ends = shaped.all_ended()
    assert [(end.exit_code, end.result.code) for end in ends] == [(0, "OK")] * 2
    assert ends[0].result.measured is not None
    assert 0.015 < ends[0].result.measured < 0.028  # the shaper lets a burst of 3 % of the payload through at once


@pytest.mark.parametrize("rank", [0, 1])
def test_one_slow_sender_fails_the_gang_by_how_much(shaped: ShapedGang, rank: int) -> None:
    shaped.shape(rank, LINE // 4)
    shaped.start(0, 1, NCCL_ALLREDUCE_THRESHOLD_GBPS=FLOOR, NCCL_ALLREDUCE_SIZE="4Mi")
    shaped.seal()
    ends = shaped.all_ended()
    assert [(end.exit_code, end.result.outcome, end.result.code) for end in ends] == [
        (1, "failed", "LOW_BANDWIDTH")
    ] * 2
    assert "% below the floor of 0.015 GB/s from NCCL_ALLREDUCE_THRESHOLD_GBPS" in ends[0].result.reason
    assert all(not event.is_fatal for connector in shaped.connectors for event in connector.events)
