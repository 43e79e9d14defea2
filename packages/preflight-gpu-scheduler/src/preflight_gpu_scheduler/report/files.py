"""The files of `explain`, which people wrote."""

from __future__ import annotations

from typing import Any

import msgspec
from preflight_kube.cli import commands

from preflight_gpu_scheduler.api import claim as claims
from preflight_gpu_scheduler.api import gpu_node_status as inventories
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.types import Node

__all__ = ["Files", "files"]


class Files(msgspec.Struct, kw_only=True):
    """The objects of some files, by kind."""

    pod: dict[str, Any] | None = None
    claims: dict[str, Claim] = {}
    nodes: dict[str, Node] = {}
    statuses: dict[str, Inventory] = {}


def files(paths: list[str]) -> Files:
    """Raises :class:`~preflight_kube.cli.commands.BadInput` with every problem of all files."""
    found, problems = Files(), list[str]()
    for path in paths:
        try:
            documents = commands.manifests(path)
        except commands.BadInput as error:
            problems += error.problems
            continue
        for n, one in enumerate(documents):
            problems += [f"{path}: object {n + 1}: {problem}" for problem in _take(found, one)]
    if problems:
        raise commands.BadInput(problems)
    return found


def _take(found: Files, raw: Any) -> list[str]:
    kind = raw.get("kind") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or kind not in ("Pod", "GpuClaim", "Node", "GpuNodeStatus"):
        return ["is not a Pod, GpuClaim, Node or GpuNodeStatus; leave it out."]
    if kind == "Pod":
        found.pod = raw
        return []
    if kind == "GpuClaim":
        claim = claims.read(raw)
        if isinstance(claim, list):
            return claim
        found.claims[claim.name] = claim
        return []
    if kind == "GpuNodeStatus":
        status = inventories.read(raw)
        found.statuses[status.node] = status
        return []
    try:
        node = msgspec.convert(raw, Node)
    except (msgspec.ValidationError, RecursionError) as error:
        return [f"{' '.join(str(error).split()):.200}; correct it."]
    found.nodes[node.metadata.name] = node
    return []
