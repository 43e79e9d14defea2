"""Which network NCCL says that it took, and a gang that went by TCP although it has better."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from check_nccl_allreduce import blame, gate, judge, tuning
from check_nccl_allreduce.control.messages import Hello, RankReport, VerdictMessage
from check_nccl_allreduce.control.rounds import LaunchRound
from check_nccl_allreduce.failures import MAX_OUTPUT, Output
from check_nccl_allreduce.settings import Settings
from test_judge import at, hellos, start

PREFIX = "node-1:77:123 [0] NCCL INFO "


def printed(*lines: str, step: int = 7) -> Output:
    """What comes of these lines, which arrive in pieces of ``step`` bytes."""
    output, data = Output(), "".join(f"{line}\n" for line in lines).encode()
    for begin in range(0, len(data), step):
        output.feed(data[begin : begin + step])
    return output


@pytest.mark.parametrize(
    ("lines", "network"),
    [
        # 2.12 to 2.18
        (["NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>", "Using network IB"], "IB"),
        # 2.19 and later name the plugin's version first
        (["Using non-device net plugin version 0", "Using network IB"], "IB"),
        (
            [
                "NET/IB : No device found.",
                "NET/Socket : Using [0]eth0:10.0.0.1<0>",
                "Using network Socket",
            ],
            "Socket",
        ),
        # since 2.27 each communicator is assigned one
        (["Initialized NET plugin IB", "Assigned NET plugin IB to comm", "Using network IB"], "IB"),
        (
            [
                "Plugin Path : /opt/hpcx/libnccl-net.so",
                "P2P plugin IBext_v8",
                "Using network IBext_v8",
            ],
            "IBext_v8",
        ),
        (
            ["NET/OFI Selected Provider is efa (found 4 nics)", "Using network AWS Libfabric"],
            "AWS Libfabric (efa)",
        ),
        (
            [
                "NET/OFI Selected provider is efa, fabric is efa-direct (found 16 nics)",
                "Using network Libfabric",
            ],
            "Libfabric (efa)",
        ),
        (
            ["NET/OFI Selected Provider is tcp (found 1 nics)", "Using network AWS Libfabric"],
            "AWS Libfabric (tcp)",
        ),
        (["NET/FasTrak : ready", "Using network FasTrak"], "FasTrak"),
    ],
)
def test_nccls_own_line_tells_its_network_in_whatever_version(
    lines: list[str], network: str
) -> None:
    assert printed(*(PREFIX + line for line in lines)).networks == (network,)


def test_ranks_that_took_different_networks_are_told_apart() -> None:
    assert printed(PREFIX + "Using network IB", PREFIX + "Using network Socket").networks == (
        "IB",
        "Socket",
    )


def test_what_nccl_narrates_pushes_no_error_out_and_what_it_warns_of_stays() -> None:
    warning = "node-1:77:123 [0] misc/socket.cc:484 NCCL WARN socketStartConnect failed"
    told = (PREFIX + f"Channel {i:04} : 0 1 2 3 4 5 6 7" for i in range(MAX_OUTPUT // 40))
    output = printed(warning, *told, "the last", step=4096)
    assert output.text == f"{warning}\nthe last\n"
    output.feed(b"unfinished")
    assert output.text.endswith("unfinished")


def test_no_output_makes_it_hold_more_than_its_share() -> None:
    output = Output()
    for _ in range(20):
        output.feed(b"x" * MAX_OUTPUT)
    assert len(output.text) <= 2 * MAX_OUTPUT


def went(networks: tuple[str, ...], *, gbps: float = 8.0, **changes: Any) -> VerdictMessage:
    """The verdict of two members whose ranks took this network."""
    those: dict[int, Hello] = hellos(2, **{"nic": "ib 8x400", "rdma": True, **changes})
    results: dict[int, RankReport] = {rank: at(gbps, networks=networks) for rank in those}
    verdict = judge.next_step(
        judge.JudgePlan(Settings(), (1, 2), 100.0), those, [LaunchRound(start(), results)]
    )
    assert isinstance(verdict, VerdictMessage)
    return verdict


def test_a_gang_that_fell_back_to_tcp_fails_and_blames_nobody() -> None:
    verdict = went(("Socket",))
    assert (verdict.outcome, verdict.code, verdict.blamed) == ("failed", "TRANSPORT_FALLBACK", {})
    assert "NCCL went by TCP (network Socket) in every member" in verdict.reason
    assert "reached 8.00 GB/s; look for libibverbs" in verdict.reason
    assert (verdict.measured, verdict.metadata["transport"]) == (8.0, "Socket")


def test_it_needs_no_floor_to_be_seen() -> None:
    assert went(("Socket",), model="NVIDIA SomethingNew").code == "TRANSPORT_FALLBACK"


def test_libfabric_without_efa_is_tcp_and_the_plugin_is_looked_for() -> None:
    verdict = went(("AWS Libfabric (tcp)",), nic="efa 32x100", fabric="efa-32x100")
    assert verdict.code == "TRANSPORT_FALLBACK"
    assert "aws-ofi-nccl" in verdict.reason


@pytest.mark.parametrize("network", ["IB", "IBext_v8", "AWS Libfabric (efa)", "FasTrak", "UCX"])
def test_any_other_network_is_none_and_stands_in_the_details(network: str) -> None:
    verdict = went((network,), gbps=450.0)
    assert (verdict.code, verdict.metadata["transport"]) == ("OK", network)


def test_that_nccl_used_multi_node_nvlink_is_told_by_itself_and_stands_in_the_result() -> None:
    comm = PREFIX + "comm 0x55d rank 3 nRanks 8 nNodes {} localRanks {} localRank 3 MNNVL {}"
    lines = PREFIX + "Using network Socket", comm.format(1, 8, 1)
    networks = printed(*lines).networks
    assert networks == ("Socket", "multi-node NVLink")
    assert printed(lines[0], comm.format(2, 4, 0)).networks == ("Socket",)
    verdict = blame.verdict_of(went(networks, gbps=450.0), 0)
    assert (verdict.code, verdict.measured) == ("OK", 450.0)
    assert verdict.details == {"transport": "Socket, multi-node NVLink"}


def test_between_two_nvlink_domains_nccl_goes_by_its_network_whatever_it_does_inside() -> None:
    lines = (
        PREFIX + "Using network Socket",
        PREFIX + "comm 0x55d rank 3 nRanks 8 nNodes 2 localRanks 4 localRank 3 MNNVL 1",
    )
    networks = printed(*lines).networks
    assert networks == ("Socket",)
    assert went(networks).code == "TRANSPORT_FALLBACK"


def test_that_nodes_could_use_nvlink_does_not_excuse_a_gang_that_went_by_tcp() -> None:
    rack: dict[str, Any] = {"model": "NVIDIA GB200", "workers": 4, "imex": True, "nvlink": "a.1"}
    assert went(("Socket",), **rack).code == "TRANSPORT_FALLBACK"
    assert went(("Socket", "multi-node NVLink"), gbps=830.0, **rack).code == "OK"


def test_where_tcp_is_all_there_is_nothing_fell_back() -> None:
    assert went(("Socket",), rdma=False, nic="", fabric="").code == "OK"
    assert went((), gbps=450.0).code == "OK"  # NCCL did not say


def test_between_pods_of_one_node_no_network_is_used() -> None:
    assert went(("Socket",), node="node-0", fabric="").code == "OK"


def test_what_only_one_member_lacks_names_that_member() -> None:
    those = hellos(2, nic="ib 8x400", rdma=True)
    results = {0: at(8, networks=("IB",)), 1: at(8, networks=("Socket",))}
    verdict = judge.next_step(
        judge.JudgePlan(Settings(), (1, 2), 100.0), those, [LaunchRound(start(), results)]
    )
    assert isinstance(verdict, VerdictMessage)
    assert "(network Socket) in rank 1 (pod-1 on node-1), although" in verdict.reason


def test_wrong_data_and_errors_come_first() -> None:
    those = hellos(2, nic="ib 8x400", rdma=True)
    launch = LaunchRound(start(), {rank: at(8, networks=("Socket",)) for rank in those})
    launch.results[1] = msgspec.structs.replace(launch.results[1], wrong=3, where="rank 1")
    assert judge.judge(Settings(), those, launch)[0].code == "WRONG_DATA"
    assert gate.fallen_back(those, launch, judge.judge(Settings(), those, launch)[0]) is None


@pytest.mark.parametrize(
    ("environ", "chosen"),
    [
        ({}, False),
        ({"NCCL_NET": "IB"}, False),
        ({"NCCL_NET": "socket"}, True),
        ({"NCCL_IB_DISABLE": "1"}, True),
        ({"NCCL_IB_DISABLE": "0"}, False),
    ],
)
def test_a_workload_that_chose_tcp_has_not_fallen_back(
    environ: dict[str, str], chosen: bool
) -> None:
    assert tuning.goes_by_tcp(environ) is chosen
