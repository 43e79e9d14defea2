"""Why a pod would get which GPUs on which node, or why not, with figures: the same functions that
extender and webhook call. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.api.gpu_node_status import Inventory
from preflight_gpu_scheduler.api.types import Node
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.admission import admit
from preflight_gpu_scheduler.core.filter_prioritize import refusal
from preflight_gpu_scheduler.core.gpu_selection import Chosen, choose
from preflight_gpu_scheduler.core.node_view import known, view

__all__ = ["Explained", "NodeSays", "explain", "text"]


class NodeSays(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``ids`` and ``score`` where the node passes, else ``why`` and ``figures``."""

    node: str
    ids: tuple[int, ...] = ()
    score: int = 0
    why: str = ""
    figures: str = ""


class Explained(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """``refused``: why the pod would not be admitted; then nothing else is said. ``patch``: what
    the webhook would do to it.
    """

    refused: str = ""
    patch: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    nodes: tuple[NodeSays, ...] = ()


def explain(
    pod: Mapping[str, Any],
    claim: Claim | None,
    nodes: Mapping[str, Node],
    statuses: Mapping[str, Inventory],
    *,
    busy: Mapping[str, Collection[int]],
    config: Config,
) -> Explained:
    """``busy``: ids by node that others hold. Nodes are listed in the order in which the extender
    likes them: best first, then those that fail.
    """
    verdict = admit(pod, claim, config)
    if verdict.refused or claim is None:
        missing = (
            ()
            if verdict.refused
            else ("the GpuClaim that the pod names is not among what was given",)
        )
        return Explained(
            refused=verdict.refused, patch=verdict.patch, warnings=(*verdict.warnings, *missing)
        )
    said = [
        _node(
            name,
            nodes.get(name),
            statuses.get(name),
            busy.get(name, ()),
            claim=claim,
            config=config,
        )
        for name in sorted({*nodes, *statuses})
    ]
    said.sort(key=lambda one: (not one.ids, -one.score, one.node))
    return Explained(patch=verdict.patch, warnings=verdict.warnings, nodes=tuple(said))


def _node(
    name: str,
    node: Node | None,
    found: Inventory | None,
    busy: Collection[int],
    *,
    claim: Claim,
    config: Config,
) -> NodeSays:
    found = known(found, name, config)
    seen, wanted = view(node, found, busy, config), claim.spec.selector.match_labels
    why = refusal(seen, wanted)
    chosen = Chosen(why=why) if why else choose(seen.slots, seen.free, claim.want)
    figures = ""
    if seen.blocked:
        figures = " ".join(found.problems) if found is not None else ""
    elif why:
        figures = ", ".join(
            f"{key} is {seen.labels.get(key, 'not set')}, not {value}"
            for key, value in wanted.items()
            if seen.labels.get(key) != value
        )
    elif chosen.why:
        figures = _figures(found, seen.free.bit_count(), len(seen.slots), claim)
    return NodeSays(node=name, ids=chosen.ids, score=chosen.score, why=chosen.why, figures=figures)


def _figures(found: Inventory | None, free: int, usable: int, claim: Claim) -> str:
    devices = found.devices if found is not None else ()
    sick = ", ".join(f"{one.id} ({one.reason or one.health})" for one in devices if not one.usable)
    told = f"{claim.spec.devices.count} wanted, {free} of {usable} usable GPUs free, {len(devices)} in all"
    return f"{told}; not usable: {sick}" if sick else told


def text(found: Explained) -> str:
    """For a person."""
    if found.refused:
        return f"the pod would be refused: {found.refused}"
    lines = [f"the webhook would change {len(found.patch)} places of the pod"]
    lines += [f"  {one['op']} {one['path']}" for one in found.patch]
    lines += [f"warning: {one}" for one in found.warnings]
    lines += [_line(one) for one in found.nodes] or ["no node was given"]
    return "\n".join(lines)


def _line(one: NodeSays) -> str:
    if one.ids:
        return f"{one.node}: passes; GPUs {','.join(map(str, one.ids))}; score {one.score} of 10"
    return f"{one.node}: {one.why}" + (f" ({one.figures})" if one.figures else "")
