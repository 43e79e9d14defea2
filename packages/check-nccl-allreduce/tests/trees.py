"""Trees of files as the kernel of a node with RDMA adapters has them."""

from __future__ import annotations

from pathlib import Path

MELLANOX, EFA = ("0x15b3", "0x1021"), ("0x1d0f", "0xefa1")


def node(
    count: int,
    rate: float,
    layer: str = "InfiniBand",
    *,
    pci: tuple[str, str] = MELLANOX,
    name: str = "mlx5_",
    first: int = 0,
    usable: bool = True,
    rates: dict[int, float] | None = None,
    states: dict[int, str] | None = None,
) -> dict[str, str]:
    """Files of ``count`` adapters with one port each, from number ``first`` on; ``rates`` and
    ``states`` of those that differ.
    """
    tree: dict[str, str] = {}
    for number in range(first, first + count):
        folder = f"sys/class/infiniband/{name}{number}"
        tree |= {
            f"{folder}/device/vendor": pci[0],
            f"{folder}/device/device": pci[1],
            f"{folder}/ports/1/rate": f"{(rates or {}).get(number, rate):g} Gb/sec (4X NDR)",
            f"{folder}/ports/1/link_layer": layer,
            f"{folder}/ports/1/state": (states or {}).get(number, "4: ACTIVE"),
            f"sys/class/infiniband_verbs/uverbs{number}/ibdev": f"{name}{number}",
        }
        if usable:
            tree[f"dev/infiniband/uverbs{number}"] = ""
    return tree


def counters(tree: dict[str, str], **values: int) -> dict[str, str]:
    """The same, with these counters of each port, of those that the kernel has for InfiniBand."""
    found = dict(tree)
    for path in tree:
        if path.endswith("/rate"):
            port = path.removesuffix("/rate")
            for name, value in ({"symbol_error": 0, "link_downed": 0} | values).items():
                found[f"{port}/counters/{name}"] = str(value)
    return found


def write(root: Path, tree: dict[str, str]) -> None:
    for path, text in tree.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
