"""Whole gangs: real processes, real torchrun, gloo over loopback."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
import trees
from allreduce_testing.gangs import preloaded
from allreduce_testing.gangs.gang import CHECK, MUTANTS, GangUnderTest
from needs import needs_torch

pytestmark = needs_torch


def test_two_members_pass_together(shipped: GangUnderTest) -> None:
    shipped.start(0, 1)
    shipped.seal()
    ends = shipped.all_ended()
    assert [(end.exit_code, end.result.outcome, end.result.code) for end in ends] == [
        (0, "passed", "OK")
    ] * 2
    assert ends[0].result.measured == ends[1].result.measured
    assert ends[0].result.reason == ends[1].result.reason


@pytest.mark.parametrize("said", [b"", (500).to_bytes(4, "big"), (500).to_bytes(4, "big") + b"{"])
def test_an_agent_that_is_killed_as_it_starts_takes_none_of_the_others_along(
    gang: GangUnderTest, said: bytes
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as killed:
        killed.connect(preloaded.place())
        killed.sendall(said)
    gang.start(0, 1)
    gang.seal()
    assert [end.result.code for end in gang.all_ended()] == ["OK", "OK"]


def test_a_gang_below_its_floor_fails_by_how_much_and_blames_nobody(gang: GangUnderTest) -> None:
    gang.start(0, 1, NCCL_ALLREDUCE_THRESHOLD_GBPS="5000")
    gang.seal()
    ends = gang.all_ended()
    assert [(end.exit_code, end.result.outcome, end.result.code) for end in ends] == [
        (1, "failed", "LOW_BANDWIDTH")
    ] * 2
    assert (
        "% below the floor of 5000 GB/s from NCCL_ALLREDUCE_THRESHOLD_GBPS" in ends[1].result.reason
    )
    for connector in gang.connectors:
        [event] = connector.events
        assert (event.is_fatal, event.recommended_action.name, event.error_code) == (
            False,
            "NONE",
            ["LOW_BANDWIDTH"],
        )
        # On a busy machine one of the two may look slower to itself, and is named for it.
        assert event.message.startswith("the gang's all-reduce was too slow, ")


SHARED = """
import os, time
from pathlib import Path
from check_nccl_allreduce import check, nics, ranks, sysfs

ranks.LEAST_SILENCE = 0.0
root, real = Path(os.environ["TREE"]), sysfs.counters

def counters(watched, _):
    words = int(float(os.environ["OTHERS_GBPS"]) * 1e9 / 4 * time.monotonic())
    for name in ("port_xmit_data", "port_rcv_data"):
        (root / f"sys/class/infiniband/mlx5_0/ports/1/counters/{name}").write_text(str(words))
    return real(watched, root)

sysfs.counters = counters
sysfs.interface = lambda _: nics.ports(sysfs.snapshot(root))
check.main()
"""
"""The check on a node whose adapter carries somebody else's bytes all the time."""


def test_a_slow_gang_one_of_whose_nodes_carries_somebody_elses_bytes_is_not_judged(
    gang: GangUnderTest, tmp_path: Path
) -> None:
    for rank, others in enumerate(["0", "100"]):
        tree = tmp_path / f"tree-{rank}"
        trees.write(tree, trees.counters(trees.node(1, 400)))
        own = {"TREE": str(tree), "OTHERS_GBPS": others}
        gang.start(rank, code=SHARED, NCCL_ALLREDUCE_THRESHOLD_GBPS="5000", **own)
    gang.seal()
    ends = gang.all_ended()
    assert [(end.result.outcome, end.result.code) for end in ends] == [
        ("inconclusive", "BUSY_NODE")
    ] * 2
    busy = r"somebody else kept busy node-1 \(\S+ GB/s through its adapters"
    assert re.search(busy, ends[0].result.reason)
    assert "without anything of the gang's, others moved " in ends[1].output
    assert "without anything of the gang's" not in ends[0].output  # its counters count nothing
    for connector in gang.connectors:
        assert not any(event.is_fatal for event in connector.events)


def test_a_gang_whose_nccl_says_that_it_went_by_tcp_fails_where_its_pods_have_better(
    gang: GangUnderTest,
) -> None:
    adapters = "nics.Adapters('ib-8x400', 'ib 8x400', rdma=True)"
    code = f"from check_nccl_allreduce import check, nics; check._adapters = lambda *_: {adapters}; {MUTANTS}"
    gang.start(0, 1, code=code, MUTANT="tcp", MUTANT_RANK="1")
    gang.seal()
    ends = gang.all_ended()
    assert [(end.exit_code, end.result.code) for end in ends] == [(1, "TRANSPORT_FALLBACK")] * 2
    assert "NCCL went by TCP (network Socket) in rank 1 (pod-1 on node-1)" in ends[0].result.reason
    assert "NCCL's network here: Socket" in ends[1].output
    for connector in gang.connectors:
        [event] = connector.events
        assert (event.is_fatal, event.recommended_action.name) == (False, "NONE")
        assert event.metadata["transport"] == "Socket"


def test_the_parent_never_loads_torch(shipped: GangUnderTest) -> None:
    code = CHECK.replace(
        "main()",
        "import sys, os, atexit; real = os._exit; os._exit = lambda status: (print('torch loaded:', 'torch' in sys.modules, flush=True), real(status)); main()",
    )
    shipped.start(0, 1, code=code)
    shipped.seal()
    assert all("torch loaded: False" in end.output for end in shipped.all_ended())


def test_a_member_that_cannot_see_its_gpus_ends_all_at_once_and_is_named(
    gang: GangUnderTest,
) -> None:
    gang.start(0)
    gang.start(1, NCCL_ALLREDUCE_BACKEND="auto", EXPECTED_GPUS="8")
    gang.seal()
    ends = gang.all_ended()
    assert {(end.exit_code, end.result.outcome, end.result.code) for end in ends} == {
        (1, "inconclusive", "NO_GPU")
    }
    assert {end.result.reason.split(": ")[0] for end in ends} == {"rank 1 (pod-1 on node-1)"}


def test_the_log_tells_how_soon_the_first_iteration_was_timed_and_what_the_check_itself_took(
    shipped: GangUnderTest,
) -> None:
    shipped.start(0, 1)
    shipped.seal()
    for end in shipped.all_ended():
        began = re.search(
            r"first timed iteration: (\S+) s; torchrun's own start: (\S+) s; without it: (\S+) s",
            end.output,
        )
        assert began is not None
        whole, torchrun, without = map(float, began.groups())
        assert 0 < torchrun < whole
        assert without == pytest.approx(whole - torchrun, abs=0.002)
        memory = re.search(r"holds no torch: (\S+) MB at most", end.output)
        assert memory is not None
        assert 10 < float(memory[1]) < 60
