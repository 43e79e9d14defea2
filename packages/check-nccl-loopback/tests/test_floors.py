"""The table of floors: nobody healthy is below one, and no row claims more than it knows."""

from __future__ import annotations

import pytest
from check_nccl_loopback import floors
from check_nccl_loopback.floors import Floor, LinkClass

GIB, MIB = 1 << 30, 1 << 20
NVLINK, PCIE, MIXED, UNKNOWN = LinkClass.NVLINK, LinkClass.PCIE, LinkClass.MIXED, LinkClass.UNKNOWN
A100, H100, H200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200"
A100_PCIE = "NVIDIA A100 80GB PCIe"

# What was published of healthy hardware. Figures for larger sizes stand for 1 GiB where no other was published.
PUBLISHED = [
    (A100, 8, NVLINK, GIB, 231.6),
    (A100, 8, NVLINK, GIB, 228.0),
    (A100, 8, NVLINK, 256 * MIB, 197.87),
    (H100, 8, NVLINK, GIB, 466.0),
    (H100, 8, NVLINK, 256 * MIB, 423.0),
    (H200, 8, NVLINK, GIB, 480.0),
    ("NVIDIA B200", 8, NVLINK, GIB, 830.0),
    ("NVIDIA H100 NVL", 2, NVLINK, GIB, 208.0),
    (A100_PCIE, 2, NVLINK, GIB, 193.0),
    (A100_PCIE, 4, MIXED, GIB, 25.0),
    ("NVIDIA L40S", 8, PCIE, GIB, 20.0),
]


@pytest.mark.parametrize(("model", "gpus", "link", "size", "figure"), PUBLISHED)
def test_every_published_figure_passes_its_own_floor_by_a_tenth(
    model: str, gpus: int, link: LinkClass, size: int, figure: float
) -> None:
    row = floors.find(model, gpus, link, size)
    assert row is not None
    assert figure >= 1.1 * row.floor


def test_healthy_rings_of_an_h100_pass_their_floor_by_a_tenth() -> None:
    row = floors.find(H100, 8, NVLINK, GIB)
    assert row is not None
    assert row.no_nvls is not None
    assert row.no_nvls * 1.1 <= 370


@pytest.mark.parametrize("row", floors.table(), ids=lambda row: f"{row.model}x{row.gpus}@{row.size}")
def test_a_row_expects_more_than_it_demands_and_names_its_source(row: Floor) -> None:
    assert row.expected >= 1.1 * row.floor
    assert row.no_nvls is None or row.no_nvls < row.floor
    assert row.source


@pytest.mark.parametrize(
    ("model", "gpus", "link", "size"),
    [
        (H100, 4, NVLINK, GIB),
        (H100, 8, NVLINK, 128 * MIB),
        ("NVIDIA H200 NVL", 8, NVLINK, GIB),
        ("NVIDIA H100 PCIe", 8, PCIE, GIB),
        ("NVIDIA GB200", 8, NVLINK, GIB),
        ("NVIDIA X1000", 8, NVLINK, GIB),
        (A100_PCIE, 2, UNKNOWN, GIB),
        (A100_PCIE, 2, PCIE, GIB),
        ("", 8, NVLINK, GIB),
    ],
)
def test_what_nobody_has_published_has_no_floor(model: str, gpus: int, link: LinkClass, size: int) -> None:
    assert floors.find(model, gpus, link, size) is None


@pytest.mark.parametrize("link", list(LinkClass))
def test_a_board_whose_pairs_are_alike_by_design_is_known_whatever_the_driver_says(link: LinkClass) -> None:
    assert floors.find(H100, 8, link, GIB) is not None
    assert floors.uniform(H100)


def test_bridged_and_pcie_cards_are_not_compared_pair_by_pair() -> None:
    assert not any(
        map(floors.uniform, [A100_PCIE, "NVIDIA H100 NVL", "NVIDIA L40S", "NVIDIA X1000", "Tesla V100-SXM2-32GB"])
    )
