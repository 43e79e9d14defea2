"""The fabric that a node stands on, from what its kernel tells."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trees
from check_nccl_allreduce import check, nics, sysfs
from check_nccl_allreduce.settings import Settings


@pytest.mark.parametrize(
    ("tree", "fabric", "nic"),
    [
        (trees.node(8, 400), "ib-8x400", "ib 8x400"),
        (trees.node(8, 200), "ib-8x200", "ib 8x200"),
        (trees.node(16, 100, "Ethernet"), "roce-16x100", "roce 16x100"),
        (
            trees.node(32, 100, "Unspecified", pci=trees.EFA, name="rdmap"),
            "efa-32x100",
            "efa 32x100",
        ),
        # a card for storage and the host, slower and of another model
        (
            trees.node(8, 400) | trees.node(1, 100, "Ethernet", pci=("0x15b3", "0x101e"), first=8),
            "ib-8x400",
            "ib 8x400",
        ),
        (
            {f"dev/aperture_devices/0000:{i:02x}:00.0": "" for i in range(8)},
            "tcpxo-8x200",
            "tcpxo 8",
        ),
        ({}, "", ""),
    ],
    ids=["ND v5", "ND v4", "Oracle", "p5", "with a card for storage", "a3-mega", "none"],
)
def test_the_fabric_is_recognized(tree: dict[str, str], fabric: str, nic: str) -> None:
    found = nics.recognize(tree)
    assert (found.fabric, found.nic, found.rdma, found.findings) == (fabric, nic, bool(fabric), ())


def test_adapters_whose_device_the_pod_has_not_got_do_not_count() -> None:
    some = trees.node(2, 400) | trees.node(6, 400, first=2, usable=False)
    assert nics.recognize(some).fabric == "ib-2x400"
    assert nics.recognize(trees.node(8, 400, usable=False)) == nics.Adapters()


@pytest.mark.parametrize("states", [{}, dict.fromkeys(range(8), "1: DOWN")])
def test_adapters_of_other_network_namespaces_are_none_that_the_kernel_has_lost(
    states: dict[int, str],
) -> None:
    tree = trees.node(8, 400, states=states)
    assert len(nics.recognize(tree).listed) == 8
    hidden = ("sys/class/infiniband/mlx5_6/", "sys/class/infiniband/mlx5_7/")
    exclusive = {path: text for path, text in tree.items() if not path.startswith(hidden)}
    assert len(nics.recognize(exclusive).watched) == 6
    assert nics.recognize(exclusive).listed == ()


@pytest.mark.parametrize(
    ("hca", "count"),
    [
        ("mlx5_0,mlx5_1", 3),
        ("=mlx5_0,mlx5_1", 2),
        ("^mlx5_1", 9),
        ("^=mlx5_1", 10),
        ("mlx5_2:2", 0),
    ],
)
def test_nccl_ib_hca_leaves_those_that_it_leaves_to_nccl(hca: str, count: int) -> None:
    assert nics.recognize(trees.node(11, 400), hca).fabric == (f"ib-{count}x400" if count else "")


@pytest.mark.parametrize(
    ("odd", "fabric", "kind", "finding"),
    [
        pytest.param(
            {"states": {3: "1: DOWN"}, "rates": {3: 10}},
            *("ib-7x400", "state", "mlx5_3:1 is DOWN, not ACTIVE"),
            id="a dead port",
        ),
        pytest.param(
            {"rates": {5: 200}},
            *("ib-8x400", "rate", "mlx5_5:1 runs at 200 Gbit/s, its siblings at 400"),
            id="a link that came up slower than its siblings",
        ),
    ],
)
def test_a_bad_port_is_found_and_the_node_is_still_of_its_kind(
    odd: dict[str, Any], fabric: str, kind: str, finding: str
) -> None:
    found = nics.recognize(trees.node(8, 400, **odd))
    assert (found.fabric, found.nic) == (fabric, "ib 8x400")
    assert [(one.port, one.kind) for one in found.faults] == [(finding[:8], kind)]
    assert found.findings == tuple(one.sentence for one in found.faults) == (finding,)


def test_a_port_whose_state_cannot_be_read_is_none_that_is_down() -> None:
    found = nics.recognize(trees.node(8, 400, states={3: ""}))
    assert (found.fabric, found.nic, found.faults) == ("ib-7x400", "ib 8x400", ())


def test_what_is_read_from_files_is_what_is_recognized(tmp_path: Path) -> None:
    trees.write(tmp_path, trees.node(8, 400) | {"dev/nvidia-caps-imex-channels/channel0": ""})
    found = nics.recognize(sysfs.snapshot(tmp_path))
    assert (found.fabric, found.imex) == ("ib-8x400", True)
    assert sysfs.snapshot(tmp_path / "nowhere") == {}


def test_what_the_operator_says_of_the_fabric_stands_before_what_was_found() -> None:
    said: list[str] = []
    run: Any = SimpleNamespace(settings=Settings(fabric="efa-32x100"), progress=said.append)
    found = check._adapters(run, trees.node(8, 400))
    assert (found.fabric, found.nic) == ("efa-32x100", "ib 8x400")
    assert said[-1] == "fabric efa-32x100, from NCCL_ALLREDUCE_FABRIC; found: ib-8x400"
