"""Evacuations that the brake has wait, and their release by one annotation, or a node's label."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from preflight_kube.api import jsonpatch
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, NotFound, PreconditionFailed
from preflight_kube.runtime.events import timestamp
from preflight_proto.printable import printable

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import WRAPPERS, wrapper_path
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.core.brake import suspicion
from preflight_appwrapper.core.decode import PartialObject, wrapper
from preflight_appwrapper.core.health import RELEASE
from preflight_appwrapper.core.node_labels import HELD, LabeledNode, code, patch

_NODES: Final = "/api/v1/nodes"


class HeldWorkload(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An AppWrapper that is to leave where it runs, and waits since then."""

    namespace: str
    name: str
    since: str
    reason: str
    why: str


class HeldNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node that is to be left, and is not marked yet."""

    name: str
    uid: str
    why: str


class Evacuations(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All that waits; ``suspicion``: what many nodes with one code at once probably are."""

    workloads: tuple[HeldWorkload, ...] = ()
    nodes: tuple[HeldNode, ...] = ()
    suspicion: str = ""


def held(wrapper: AppWrapper) -> HeldWorkload | None:
    """None where it does not wait."""
    waits = c.find(wrapper.status, c.HELD)
    if waits is None or waits.status != "True" or waits.last_transition_time is None:
        return None
    return HeldWorkload(
        namespace=wrapper.metadata.namespace,
        name=wrapper.metadata.name,
        since=timestamp(waits.last_transition_time),
        reason=waits.reason,
        why=printable(waits.message),
    )


async def evacuations(health: NodeHealthConfig, *, released: bool) -> Evacuations:
    """List what waits and, if ``released``, release it. Raises :class:`~.errors.KubeError`."""
    async with Client(connection(home=Path.home()), agent="preflight-appwrapper") as client:
        waits = await waiting(client, health)
        if released:
            await release(client, waits, health)
        return waits


async def waiting(client: Client, health: NodeHealthConfig) -> Evacuations:
    """List what waits, by two requests."""
    workloads, nodes, codes = [], [], []
    async for page, _ in client.pages(WRAPPERS, PartialObject):
        workloads += [waits for raw in page if (waits := held(wrapper(raw))) is not None]
    async for some, _ in client.pages(_NODES, LabeledNode):
        for node in some:
            why = code(node.status.conditions, health)
            codes += [(node.metadata.name, why)] if why else []
            if node.metadata.labels.get(health.key) == HELD:
                about = node.metadata
                nodes.append(HeldNode(name=about.name, uid=about.uid, why=printable(why)))
    suspect = suspicion(codes)
    return Evacuations(workloads=tuple(workloads), nodes=tuple(nodes), suspicion=suspect)


async def release(client: Client, waits: Evacuations, health: NodeHealthConfig) -> None:
    """Let all of it go now, but what has gone or waits no more. Raises KubeError."""
    held = jsonpatch.test(jsonpatch.pointer("metadata", "labels", health.key), HELD)
    for node in waits.nodes:
        operations = patch(node.uid, {health.key: HELD}, health.key, health.value)
        with suppress(NotFound, PreconditionFailed):
            await client.json_patch(f"{_NODES}/{node.name}", [held, *operations])
    for workload in waits.workloads:
        body = {"metadata": {"annotations": {RELEASE: workload.since}}}
        with suppress(NotFound):
            await client.merge_patch(wrapper_path(workload.namespace, workload.name), body)


def lines(waits: Evacuations, *, released: bool) -> Iterator[str]:
    """For a terminal."""
    if not waits.workloads and not waits.nodes:
        yield "no evacuation waits"
        return
    count = f"{len(waits.workloads)} workloads and {len(waits.nodes)} nodes"
    yield f"{count} {'were released' if released else 'wait'}"
    if waits.suspicion:
        yield f"  {waits.suspicion}"
    for node in waits.nodes:
        yield f"  node {node.name}: {node.why}"
    for held in waits.workloads:
        yield f"  {held.namespace}/{held.name} since {held.since}: {held.why}"
    if not released:
        yield "release all of it: preflight-appwrapper evacuations --release"
