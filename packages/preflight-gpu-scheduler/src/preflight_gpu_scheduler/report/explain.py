"""Why a pod would get which GPUs on which node, or why not, with figures: by the functions that
extender and webhook call, over files, or the cluster as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from preflight_kube.cli import commands

from preflight_gpu_scheduler.api.claim import Claim, RawClaim
from preflight_gpu_scheduler.api.gpu_node_status import Inventory, RawStatus
from preflight_gpu_scheduler.api.types import Node
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.admission import admit, claim_of
from preflight_gpu_scheduler.core.filter_prioritize import NodeView, known, refusal, view
from preflight_gpu_scheduler.core.gpu_selection import choose
from preflight_gpu_scheduler.core.snapshot import GpuSnapshot


class Files(msgspec.Struct, kw_only=True):
    """The objects of some files, by kind and name. ``views``: of a cluster's nodes."""

    pod: dict[str, Any] = {}
    claims: dict[str, Claim] = {}
    nodes: dict[str, Node] = {}
    statuses: dict[str, Inventory] = {}
    views: Mapping[str, NodeView] = {}

    def beside(self, seen: GpuSnapshot) -> Files:
        """The pod and its claim, beside what a cluster has."""
        nodes, statuses = dict(seen.nodes.store), dict(seen.statuses.store)
        return msgspec.structs.replace(self, nodes=nodes, statuses=statuses, views=seen.views())


class NodeSays(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``ids`` and ``score`` where the node passes, else ``why`` and ``figures``."""

    node: str
    ids: tuple[int, ...] = ()
    score: int = 0
    why: str = ""
    figures: str = ""


class Explained(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``refused``: why the pod would not be admitted. ``patch``: what the webhook would do."""

    refused: str = ""
    patch: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    nodes: tuple[NodeSays, ...] = ()


def files(paths: list[str]) -> Files:
    """Raises :class:`~preflight_kube.cli.commands.BadInput` with every problem of all files."""
    files, problems = Files(), list[str]()

    def take(raw: Any) -> list[str]:
        kind = raw.get("kind") if isinstance(raw, dict) else None
        if kind == "Pod":
            files.pod = raw
            return []
        try:
            if kind == "GpuClaim":
                claim = msgspec.convert(raw, RawClaim).read()
                if isinstance(claim, list):
                    return claim
                files.claims[claim.name] = claim
            elif kind == "GpuNodeStatus":
                status = msgspec.json.decode(msgspec.json.encode(raw), type=RawStatus).read()
                files.statuses[status.node] = status
            elif kind == "Node":
                node = msgspec.convert(raw, Node)
                files.nodes[node.name] = node
            else:
                return ["is not a Pod, GpuClaim, Node or GpuNodeStatus; leave it out."]
        except (msgspec.ValidationError, RecursionError) as error:
            return [f"{' '.join(str(error).split()):.200}; correct it."]
        return []

    for path in paths:
        try:
            documents = commands.manifests(path)
        except commands.BadInput as error:
            problems += error.problems
            continue
        for n, manifest in enumerate(documents):
            problems += [f"{path}: object {n + 1}: {problem}" for problem in take(manifest)]
    if problems:
        raise commands.BadInput(problems)
    if not files.pod:
        raise commands.BadInput("there is no Pod in the files; give one with -f.")
    return files


def explain(given: Files, config: Config) -> Explained:
    """Nodes stand in the order in which the extender likes them, then those that fail."""
    claim = given.claims.get(claim_of(given.pod))
    verdict = admit(given.pod, claim, config)
    if verdict.refused:
        return Explained(refused=verdict.refused, warnings=verdict.warnings)
    if claim is None:
        missing = "the GpuClaim that the pod names is not among what was given"
        return Explained(patch=verdict.patch, warnings=(*verdict.warnings, missing))
    nodes = [_node(name, given, claim, config) for name in {*given.nodes, *given.statuses}]
    nodes.sort(key=lambda node: (not node.ids, -node.score, node.node))
    return Explained(patch=verdict.patch, warnings=verdict.warnings, nodes=tuple(nodes))


def _node(name: str, given: Files, claim: Claim, config: Config) -> NodeSays:
    inventory = known(given.statuses.get(name), name, config)
    seen = given.views.get(name) or view(given.nodes.get(name), inventory, (), config)
    wanted, figures = claim.spec.selector.match_labels, ""
    if why := refusal(seen, wanted):
        if seen.blocked:
            figures = " ".join(inventory.problems) if inventory is not None else ""
        else:
            others = {key: seen.labels.get(key, "not set") for key in seen.other(wanted)}
            figures = ", ".join(f"{key} is {has}, not {wanted[key]}" for key, has in others.items())
        return NodeSays(node=name, why=why, figures=figures)
    chosen = choose(seen.slots, seen.free, claim.want)
    if chosen.why:
        devices = inventory.devices if inventory is not None else ()
        sick = [f"{each.id} ({each.reason or each.health})" for each in devices if not each.usable]
        free = f"{seen.free.bit_count()} of {len(seen.slots)} usable GPUs free"
        figures = f"{claim.count} wanted, {free}, {len(devices)} in all"
        figures += f"; not usable: {', '.join(sick)}" if sick else ""
    return NodeSays(node=name, ids=chosen.ids, score=chosen.score, why=chosen.why, figures=figures)


def text(explained: Explained) -> str:
    """For a person."""
    if explained.refused:
        return f"the pod would be refused: {explained.refused}"
    lines = [f"the webhook would change {len(explained.patch)} places of the pod"]
    lines += [f"  {operation['op']} {operation['path']}" for operation in explained.patch]
    lines += [f"warning: {warning}" for warning in explained.warnings]
    lines += [_line(node) for node in explained.nodes] or ["no node was given"]
    return "\n".join(lines)


def _line(node: NodeSays) -> str:
    if node.ids:
        return f"{node.node}: passes; GPUs {','.join(map(str, node.ids))}; score {node.score} of 10"
    return f"{node.node}: {node.why}" + (f" ({node.figures})" if node.figures else "")
