"""The table of floors: nobody healthy is below one, and no row claims more than it knows."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Any

import pytest
from check_nccl_loopback import floors
from check_nccl_loopback.floors import Floor, LinkClass
from preflight_proto.settings import size_bytes

GIB, MIB = 1 << 30, 1 << 20
NVLINK, PCIE, UNKNOWN = LinkClass.NVLINK, LinkClass.PCIE, LinkClass.UNKNOWN
A100, H100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200"
A100_PCIE = "NVIDIA A100 80GB PCIe"


PUBLISHED = tomllib.loads((files("check_nccl_loopback") / "floors.toml").read_text())["published"]


@pytest.mark.parametrize(
    "row", PUBLISHED, ids=lambda row: f"{row['model']} x{row['gpus']} {row['size']} {row['busbw']}"
)
def test_every_published_figure_passes_its_own_floor_by_a_tenth(row: dict[str, Any]) -> None:
    floor = floors.find(row["model"], row["gpus"], LinkClass(row["link"]), size_bytes(row["size"]))
    assert floor is not None
    assert row["busbw"] >= 1.1 * floor.floor


def test_healthy_rings_of_an_h100_pass_their_floor_by_a_tenth() -> None:
    row = floors.find(H100, 8, NVLINK, GIB)
    assert row is not None
    assert row.no_nvls is not None
    assert row.no_nvls * 1.1 <= 370


@pytest.mark.parametrize(
    "row", floors.table(), ids=lambda row: f"{row.models[0]}x{row.gpus}@{row.size}"
)
def test_a_row_expects_more_than_it_demands_and_names_its_source(row: Floor) -> None:
    assert row.expected >= 1.1 * row.floor
    assert row.no_nvls is None or row.no_nvls < row.floor
    assert row.source
    assert row.algorithm


def test_a_row_with_one_source_is_marked() -> None:
    advisory = {row.models[0] for row in floors.table() if row.advisory}
    assert {"A800-SXM*", "H20", "H800", "L40S"} <= advisory
    assert not {"A100-SXM*", "H100 80GB HBM3", "H200"} & advisory


@pytest.mark.parametrize(("model", "gpus"), [(H100, 4), (H100, 2), ("NVIDIA B200", 4), (A100, 2)])
def test_fewer_gpus_of_a_switched_board_are_held_to_half_of_its_rings(
    model: str, gpus: int
) -> None:
    whole, part = floors.find(model, 8, NVLINK, GIB), floors.find(model, gpus, NVLINK, GIB)
    assert whole is not None
    assert part is not None
    assert part.floor == pytest.approx((whole.no_nvls or whole.floor) / 2, abs=0.1)


@pytest.mark.parametrize(
    ("model", "gpus", "healthy"),
    # NCCL's own figure for a link (graph/topo.h) times the links of a pair: 20 x 4 and 20.6 x 6.
    [(A100, 2, 80.0), (H100, 2, 123.6), (H200, 2, 123.6), (A100, 3, 160.0), (H100, 4, 370.0)],
)
def test_gpus_of_a_board_without_switches_are_held_to_what_they_have_of_their_ports(
    model: str, gpus: int, healthy: float
) -> None:
    part = floors.find(model, gpus, NVLINK, GIB, direct=True)
    assert part is not None
    assert part.expected <= healthy
    assert 0.3 * healthy < part.floor < healthy / 1.1


@pytest.mark.parametrize(
    "other",
    [
        "NVIDIA GH200 480GB",
        "NVIDIA H200 NVL",
        "NVIDIA H100 NVL",
        "NVIDIA H100 PCIe",
        "NVIDIA GB200",
        "NVIDIA H20",
        "NVIDIA L40",
    ],
)
def test_a_name_is_taken_for_no_other(other: str) -> None:
    rows = [
        floors.find(name, 8, NVLINK, GIB) for name in (H100, H200, "NVIDIA B200", "NVIDIA L40S")
    ]
    assert floors.find(other, 8, NVLINK, GIB) not in [row for row in rows if row is not None]
    assert not floors.uniform("NVIDIA GH200 480GB")


@pytest.mark.parametrize(
    ("model", "gpus", "link", "size"),
    [
        (H100, 8, NVLINK, 128 * MIB),
        (H100, 1, NVLINK, GIB),
        ("NVIDIA GH200 480GB", 8, NVLINK, GIB),
        ("NVIDIA L4", 8, PCIE, GIB),
        ("NVIDIA A10G", 8, PCIE, GIB),
        ("NVIDIA H200 NVL", 8, NVLINK, GIB),
        ("NVIDIA H100 PCIe", 8, PCIE, GIB),
        ("NVIDIA GB200", 8, NVLINK, GIB),
        ("NVIDIA X1000", 8, NVLINK, GIB),
        (A100_PCIE, 2, UNKNOWN, GIB),
        (A100_PCIE, 2, PCIE, GIB),
        ("", 8, NVLINK, GIB),
    ],
)
def test_what_nobody_has_published_has_no_floor(
    model: str, gpus: int, link: LinkClass, size: int
) -> None:
    assert floors.find(model, gpus, link, size) is None


@pytest.mark.parametrize("link", list(LinkClass))
def test_a_board_whose_pairs_are_alike_by_design_is_known_whatever_the_driver_says(
    link: LinkClass,
) -> None:
    assert floors.find(H100, 8, link, GIB) is not None
    assert floors.uniform(H100)


def test_bridged_and_pcie_cards_are_not_compared_pair_by_pair() -> None:
    assert not any(
        map(
            floors.uniform,
            [A100_PCIE, "NVIDIA H100 NVL", "NVIDIA L40S", "NVIDIA X1000", "Tesla V100-SXM2-32GB"],
        )
    )
