from __future__ import annotations

import itertools

import pytest
from check_nccl_allreduce import floors

GIB = 1024**3


@pytest.mark.parametrize("row", floors.known(), ids=lambda r: f"{r.model[0]}-{r.fabric}-{r.nodes}")
def test_every_published_healthy_figure_passes_its_floor_by_ten_percent(
    row: floors.FloorRow,
) -> None:
    assert all(healthy >= 1.1 * row.floor for healthy in row.healthy)


@pytest.mark.parametrize("row", floors.known(), ids=lambda r: f"{r.model[0]}-{r.fabric}-{r.nodes}")
def test_what_is_expected_is_no_more_than_what_was_seen(row: floors.FloorRow) -> None:
    assert row.floor < row.expected <= min(row.healthy)


def test_no_two_rows_are_for_the_same_gang() -> None:
    for one, other in itertools.combinations(floors.known(), 2):
        same = (one.gpus, one.nodes, one.fabric) == (other.gpus, other.nodes, other.fabric)
        assert not (same and set(one.model) & set(other.model))


@pytest.mark.parametrize(
    ("model", "gpus", "fabric", "nodes", "size", "floor"),
    [
        ("NVIDIA H100 80GB HBM3", 8, "ib-8x400", 2, 4 * GIB, 380),
        ("NVIDIA H100 80GB HBM3", 8, "ib-8x400", 5, 8 * GIB, 300),
        ("NVIDIA A100-SXM4-80GB", 8, "efa-4x100", 2, 4 * GIB, 65),
        ("NVIDIA GB200", 4, "mnnvl", 18, 4 * GIB, 650),
    ],
)
def test_known_hardware_has_a_floor(
    model: str, gpus: int, fabric: str, nodes: int, size: int, floor: float
) -> None:
    row = floors.find(model, gpus, fabric, nodes, size)
    assert row is not None
    assert row.floor == floor


@pytest.mark.parametrize(
    ("model", "gpus", "fabric", "nodes", "size"),
    [
        ("NVIDIA H100 80GB HBM3", 8, "", 2, 4 * GIB),
        ("NVIDIA H100 80GB HBM3", 8, "ib-1x100", 2, 4 * GIB),
        ("NVIDIA H100 80GB HBM3", 4, "ib-8x400", 2, 4 * GIB),
        ("NVIDIA H100 80GB HBM3", 8, "ib-8x400", 2, GIB),
        ("NVIDIA H100 80GB HBM3", 8, "ib-8x400", 1, 4 * GIB),
        ("NVIDIA H100 NVL", 8, "ib-8x400", 2, 4 * GIB),
        ("NVIDIA L40S", 8, "ib-8x400", 2, 4 * GIB),
    ],
    ids=[
        "unknown fabric",
        "another fabric",
        "fewer GPUs",
        "smaller size",
        "one node",
        "another variant",
        "another model",
    ],
)
def test_what_is_not_known_has_none(
    model: str, gpus: int, fabric: str, nodes: int, size: int
) -> None:
    assert floors.find(model, gpus, fabric, nodes, size) is None


def test_the_slowest_rank_and_the_median_iteration_make_the_bandwidth() -> None:
    # 4 ranks: factor 1.5; slowest per iteration: 0.5, 0.4, 9.0 seconds; median 0.5
    assert floors.bus_bandwidth(10**9, [(0.5, 0.1, 0.2), (0.3, 0.4, 9.0)], 4) == pytest.approx(3.0)


@pytest.mark.parametrize("ring", floors.rings(), ids=lambda r: f"{r.model[0]}-{r.kind}")
def test_rings_of_healthy_nodes_pass_their_floor_by_ten_percent(ring: floors.Ring) -> None:
    assert all(healthy >= 1.1 * ring.share for healthy in ring.healthy)


@pytest.mark.parametrize(
    ("model", "gpus", "fabric", "floor"),
    [
        ("NVIDIA A100-SXM4-80GB", 8, "efa-4x100", 37.5),
        ("NVIDIA H100 80GB HBM3", 8, "ib-8x400", 320),
        ("NVIDIA H100 80GB HBM3", 8, "efa-32x100", 300),
        ("NVIDIA GB200", 4, "ib-4x400", 160),
    ],
)
def test_a_ring_is_held_against_the_wire(model: str, gpus: int, fabric: str, floor: float) -> None:
    assert floors.ring_floor(model, gpus, fabric) == pytest.approx(floor)


def test_no_ring_must_reach_more_than_the_wire_carries() -> None:
    for row in floors.known():
        for model in row.model:
            floor, wire = (
                floors.ring_floor(f"NVIDIA {model}", row.gpus, row.fabric),
                floors.wire(row.fabric),
            )
            assert floor is None or (wire is not None and floor <= 0.8 * wire)


@pytest.mark.parametrize(
    ("model", "gpus", "fabric"),
    [
        ("NVIDIA L40S", 8, "ib-8x400"),
        ("NVIDIA H100 80GB HBM3", 1, "ib-8x400"),
        ("NVIDIA GH200 480GB", 8, "ib-8x400"),
        ("NVIDIA H100 80GB HBM3", 8, ""),
        ("NVIDIA GB200", 4, "mnnvl"),
        ("NVIDIA H100 80GB HBM3", 8, "tcpxo-8x200"),
    ],
)
def test_a_ring_of_which_nothing_is_known_has_no_floor(model: str, gpus: int, fabric: str) -> None:
    assert floors.ring_floor(model, gpus, fabric) is None
