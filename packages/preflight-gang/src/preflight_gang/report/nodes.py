"""`preflight nodes` and `preflight node NAME`: how each node is, since when, and who found it.

Reads the cluster once; writes nothing.

What is written of a node is judged anew by its conditions of now; so a cluster without the
controller has an answer, too. A condition by which the controller has found a node sick counts,
whatever its configuration takes for sick.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from preflight_kube.api.node_health import (
    GROUP,
    PLURAL,
    SICK,
    STATES,
    CheckEnd,
    NodeHealth,
    NodeHealthStatus,
    judge,
    moment,
    path,
)
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_kube.runtime.events import timestamp

from preflight_gang.api.types import Node, node_with
from preflight_gang.config import Config

T = TypeVar("T")


async def read(patterns: Sequence[str] = SICK) -> tuple[dict[str, NodeHealthStatus], list[str]]:
    """How each node with GPUs, or of which something is known, is; what is not read, in words.

    Raises :class:`KubeError` where neither nodes nor records can be read.
    """
    async with Client(connection(home=Path.home()), agent="preflight") as client:
        records, no_records = await _listed(client, path(), NodeHealth)
        written = {type_ for health in records for type_ in _conditions(health.status)}
        type_ = node_with((), Config().gpu_resource_names, {*patterns, *written})
        nodes, no_nodes = await _listed(client, "/api/v1/nodes", type_)
    if no_nodes is not None and no_records is not None:
        raise no_nodes
    missing = []
    if isinstance(no_records, NotFound):
        missing.append(
            f"the cluster has no {PLURAL}.{GROUP}, which the gang controller writes: this is from node conditions alone, without passes and bandwidths"
        )
    elif no_records is not None:
        missing.append(f"{no_records} This is from node conditions alone")
    if no_nodes is not None:
        missing.append(f"{no_nodes} This is as the gang controller wrote it last")
    return fleet(nodes if no_nodes is None else None, records, patterns), missing


def _conditions(status: NodeHealthStatus) -> set[str]:
    """The types of the conditions by which the node, and GPUs of it, were found sick."""
    written = [(gpu.found_by, gpu.by_word_of) for gpu in status.gpus]
    written.append((status.found_by, status.by_word_of))
    return {found_by for found_by, word in written if word == "NodeCondition"}


async def _listed(client: Client, where: str, type_: type[T]) -> tuple[list[T], KubeError | None]:
    """All of a collection; or why it cannot be had, where it is not there, or not ours to read."""
    every: list[T] = []
    try:
        async for items, _ in client.pages(where, type_):
            every += items
    except KubeError as error:
        if error.status not in {403, 404}:
            raise
        return [], error
    return every, None


def fleet(
    nodes: Iterable[Node] | None, records: Iterable[NodeHealth], patterns: Sequence[str] = SICK
) -> dict[str, NodeHealthStatus]:
    """How each node is, the worst first. ``nodes``: None where they cannot be read."""
    written = {health.metadata.name: health for health in records}
    if nodes is None:
        states = {name: health.status for name, health in written.items()}
    else:
        now, states = timestamp(datetime.now(UTC)), {}
        for node in nodes:
            health, status = written.get(node.metadata.name), NodeHealthStatus()
            if health is not None and health.spec.node_uid == node.metadata.uid:
                status = health.status
            elif not (node.status.capacity or node.status.conditions):
                continue
            sick = (*patterns, *_conditions(status))
            states[node.metadata.name] = judge(status, node.status.conditions, now, sick)
    return dict(sorted(states.items(), key=lambda it: (STATES.index(it[1].state), it[0])))


def as_json(nodes: dict[str, NodeHealthStatus]) -> list[dict[str, Any]]:
    """For programs: the name of each node, and its status as it is in a NodeHealth."""
    return [{"name": name, **msgspec.to_builtins(status)} for name, status in nodes.items()]


def table(nodes: dict[str, NodeHealthStatus], now: datetime, *, wide: bool = False) -> str:
    """A row a node, and how many there are of each state."""
    head = ["NODE", "STATE", "SINCE", "FOUND BY", "LAST PASS", "GB/S", "USUAL"]
    rows = [head + (["CODE", "GPU", "BY WORD OF", "REPAIRED", "REVALIDATED"] if wide else [])]
    for name, status in nodes.items():
        row = [name, status.state, _ago(status.since, now), status.found_by]
        row += [_ago(status.last_pass, now), gbps(status.measured), gbps(status.usual)]
        if wide:
            row += [status.code, status.gpu, status.by_word_of or ""]
            row += [_ago(status.repaired, now), _ago(status.revalidated, now)]
        rows.append(row)
    counts = {state: sum(status.state == state for status in nodes.values()) for state in STATES}
    total = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{aligned(rows)}\n{len(nodes)} nodes: {total or 'none has GPUs that are known'}."


def record(name: str, status: NodeHealthStatus, now: datetime) -> str:
    """All that is known of one node, by check and GPU."""
    lines = [f"node {name}: {status.state} since {status.since or '-'} ({_ago(status.since, now)})"]
    if status.found_by:
        word = "a node condition" if status.by_word_of == "NodeCondition" else "a pod's word alone"
        lines.append(f"  found by {status.found_by}: {status.code or 'no code'} (by {word})")
    if status.repaired:
        lines.append(f"  repaired {status.repaired}, revalidated {status.revalidated or 'not yet'}")
    if status.gpus:
        rows = [["GPU", "STATE", "SINCE", "FOUND BY", "CODE"]]
        rows += [[g.uuid, g.state, _ago(g.since, now), g.found_by, g.code] for g in status.gpus]
        lines += ["", aligned(rows, "  ")]
    if status.checks:
        rows = [["CHECK", "LAST PASS", "LAST FAILURE", "GB/S", "USUAL", "OF"]]
        for check in status.checks:
            ends = [_end(check.passed, now), _end(check.failed, now)]
            rows.append([check.name, *ends, gbps(check.measured), gbps(check.usual), check.of])
        lines += ["", aligned(rows, "  ")]
    else:
        lines.append("  no check has ended here that is known of")
    return "\n".join(lines)


def _end(end: CheckEnd | None, now: datetime) -> str:
    if end is None:
        return ""
    about = " ".join(filter(None, (end.code if end.code != "OK" else "", end.gpu)))
    return f"{_ago(end.time, now)} {end.pod}{f' ({about})' if about else ''}"


def gbps(value: float | None) -> str:
    """A bandwidth for people."""
    return "" if value is None else f"{value:.4g}"


def _ago(time: str | None, now: datetime) -> str:
    """As kubectl says ages: two digits and a unit."""
    if not time:
        return ""
    seconds = max(0.0, now.timestamp() - moment(time))
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def aligned(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """A table for people; a cell that has nothing is a dash."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    filled = ([cell or "-" for cell in row] for row in rows)
    cells = ([f"{cell:{w}}" for cell, w in zip(row, widths, strict=True)] for row in filled)
    return "\n".join(indent + "  ".join(row).rstrip() for row in cells)
