"""The matrix of nvidia-smi, as it looks on boards of different kinds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from check_nccl_loopback import links
from check_nccl_loopback.floors import LinkClass
from check_nccl_loopback.links import _classify, parse_matrix
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import Completed, Gpu

SWITCHED = """\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tNV18\tPXB\t0-51\t0\tN/A
GPU1\tNV18\t X \tNV18\tPXB\t0-51\t0\tN/A
GPU2\tNV18\tNV18\t X \tSYS\t52-103\t1\tN/A
NIC0\tPXB\tPXB\tSYS\t X

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""
PCIE = SWITCHED.replace("NV18", "SYS")
BRIDGED = """        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      NV12    SYS     SYS     0-23
GPU1    NV12     X      SYS     SYS     24-47
GPU2    SYS     SYS      X      NV12    48-71
GPU3    SYS     SYS     NV12     X      72-95
"""


@pytest.mark.parametrize(
    ("matrix", "count", "link"),
    [
        (SWITCHED, 3, LinkClass.NVLINK),
        (PCIE, 3, LinkClass.PCIE),
        (BRIDGED, 4, LinkClass.MIXED),
        (SWITCHED, 4, LinkClass.UNKNOWN),
        ("", 2, LinkClass.UNKNOWN),
        ("No devices were found", 2, LinkClass.UNKNOWN),
    ],
)
def test_the_class_of_links_is_told_by_all_pairs(matrix: str, count: int, link: LinkClass) -> None:
    assert _classify(parse_matrix(matrix), count) is link


def test_pairs_are_those_of_gpus_alone() -> None:
    assert parse_matrix(SWITCHED) == dict.fromkeys([(0, 1), (0, 2), (1, 2)], "NVLINK")
    assert parse_matrix(BRIDGED)[0, 2] == "SYS"


HYBRID = """        GPU0    GPU1    GPU2    GPU3    CPU Affinity
GPU0     X      NV1     NV1     NV2     0-31
GPU1    NV1      X      NV2     NV1     0-31
GPU2    NV1     NV2      X      NV2     0-31
GPU3    NV2     NV1     NV2      X      0-31
"""


def test_pairs_that_differ_in_their_number_of_nvlinks_are_of_different_kinds() -> None:
    pairs = parse_matrix(HYBRID)
    assert _classify(pairs, 4) is LinkClass.NVLINK
    one = {pair for pair, kind in pairs.items() if kind == pairs[0, 1]}
    two = {pair for pair, kind in pairs.items() if kind == pairs[0, 3]}
    assert (one, two) == ({(0, 1), (0, 2), (1, 3)}, {(0, 3), (1, 2), (2, 3)})


@pytest.mark.parametrize(
    ("to_switch", "bonds", "kinds"),
    [
        (False, {(0, 1): 1, (0, 2): 2, (1, 2): 1}, 2),
        (False, {(0, 1): 2, (0, 2): 2, (1, 2): 2}, 1),
        (False, {}, 1),  # who is at the other end is not told
        (True, {}, 1),
    ],
)
def test_nvml_tells_how_many_nvlinks_join_a_pair(
    monkeypatch: pytest.MonkeyPatch,
    to_switch: bool,
    bonds: dict[tuple[int, int], int],
    kinds: int,
) -> None:
    ends = {
        gpu: [
            next(iter(set(pair) - {gpu}))
            for pair, count in bonds.items()
            if gpu in pair
            for _ in range(count)
        ]
        for gpu in range(3)
    }

    def remote(gpu: int, link: int) -> Any:
        if link >= len(ends[gpu]):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(busId=f"00000000:{ends[gpu][link]:02X}:00.0".encode())

    answers: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": int,
        "nvmlDeviceGetP2PStatus": lambda *_: 0,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda *_: 2 if to_switch else 0,
        "nvmlDeviceGetNvLinkState": lambda *_: 1,
        "nvmlDeviceGetNvLinkRemotePciInfo": remote,
        "nvmlDeviceGetPciInfo": lambda gpu: SimpleNamespace(busId=f"00000000:{gpu:02x}:00.0"),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    found = links._ask_nvml(["0", "1", "2"])
    assert _classify(found, 3) is LinkClass.NVLINK
    assert len(set(found.values())) == kinds
    assert any(kind.startswith(links.DIRECT) for kind in found.values()) is not to_switch
    if kinds == 2:
        assert found[0, 1] == found[1, 2]


@pytest.mark.anyio
async def test_a_lost_gpu_leaves_a_gap_in_the_matrix_and_none_among_the_pods_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The working GPUs keep their numbers when one falls off the bus, and a privileged container
    # sees those of others too.
    monkeypatch.setattr(links, "_ask_nvml", lambda _: {})

    async def command(argv: Sequence[str], _: float) -> Completed:
        return Completed(tuple(argv), 0, BRIDGED, "", False, False, 0.1)

    gpus = [
        Gpu(index, f"GPU-{index}", "NVIDIA A100-PCIE-40GB", f"0:{index}") for index in (0, 2, 3)
    ]
    found, source, pairs = await links.find(command, gpus)
    assert (found, source) == (LinkClass.MIXED, "nvidia-smi")
    assert pairs == {(0, 1): "SYS", (0, 2): "SYS", (1, 2): "NVLINK"}


@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(["GPU0", "GPU1", "X", "NV4", "SYS", "\n", "NIC0"])).map(" ".join),
    )
)
def test_no_matrix_makes_the_reader_raise(text: str) -> None:
    parse_matrix(text)
