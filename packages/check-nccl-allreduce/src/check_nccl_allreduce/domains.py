"""Which label of the nodes says what switch each is behind. Pure.

Only what stands right above a node serves: two nodes of one zone or spine may be behind different
leaf switches, and taking them for neighbours would blame nodes for what a leaf does to them alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

LEVELS: Final = (
    "network.topology.nvidia.com/accelerator",
    "network.topology.nvidia.com/leaf",
    "network.topology.nvidia.com/block",
    "topology.k8s.aws/network-node-layer-3",
    "cloud.google.com/gce-topology-subblock",
)
"""Labels that name the NVLink domain, the leaf switch or the rack of a node, the narrowest first.

From NVIDIA Topograph (``accelerator``, ``leaf``, and ``block`` as its older name for a leaf),
Amazon EC2's instance topology (layer 3 is the one nearest to the instance) and Google Compute
Engine's (a sub-block is one rack of a block).
"""


NVLINK: Final = LEVELS[0]
"""Of these, the one whose nodes reach each other by NVLink: what they exchange says nothing of
their network adapters.
"""


def kept(labels: Mapping[str, str], own: str = "") -> dict[str, str]:
    """Of a node's labels those that may name its domain. ``own``: the one the operator names."""
    return {key: labels[key] for key in ([own] if own else LEVELS) if labels.get(key)}


def choose(nodes: Sequence[Mapping[str, str]]) -> tuple[str, tuple[str | None, ...]]:
    """(the label taken, what it says of each node); ("", all None) where no node has any.

    It is the one that most nodes have; of those, one that puts nodes together rather than each by
    itself (an accelerator label of nodes without NVLink between them); of those the narrowest,
    which is the first that nodes name.
    """
    labels = [key for key in LEVELS if any(key in node for node in nodes)]
    labels += sorted({key for node in nodes for key in node} - set(LEVELS))
    if not labels:
        return "", (None,) * len(nodes)

    def worth(label: str) -> tuple[int, bool]:
        values = [node[label] for node in nodes if label in node]
        return len(values), len(set(values)) < len(values)

    label = max(labels, key=worth)  # of equals the first
    return label, tuple(node.get(label) for node in nodes)


def places(
    nodes: Sequence[Mapping[str, str]], named: Sequence[str] = ()
) -> tuple[str, tuple[str | None, ...], tuple[str | None, ...]]:
    """(the label taken, the switch that each node is behind, the NVLink domain that each is in with
    another one).

    ``named``: of each node, the domain that its driver says, which stands before a label where any
    driver says one.
    """
    racks = [rack or None for rack in named] if any(named) else [node.get(NVLINK) for node in nodes]
    shared = tuple(rack if rack is not None and racks.count(rack) > 1 else None for rack in racks)
    if any(shared):
        nodes = [{key: value for key, value in node.items() if key != NVLINK} for node in nodes]
    return (*choose(nodes), shared)
