"""Evacuations that the brake has wait, in a cluster, and its release by whoever may: workloads by
an annotation that is good for this one time, nodes by the label that they wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from preflight_kube.api import jsonpatch
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_proto.printable import printable

from preflight_appwrapper.api import conditions as c
from preflight_appwrapper.api.names import WRAPPERS, wrapper_path
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.core.brake import suspicion
from preflight_appwrapper.core.deadlines import text as clock
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


def held(one: AppWrapper) -> HeldWorkload | None:
    """None where it does not wait."""
    found = c.find(one.status.conditions, c.HELD)
    if found is None or found.status != "True" or found.last_transition_time is None:
        return None
    return HeldWorkload(
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        since=clock(found.last_transition_time),
        reason=found.reason,
        why=printable(found.message),
    )


async def evacuations(health: NodeHealthConfig, *, released: bool) -> Evacuations:
    """List what waits and, if ``released``, release it. Raises :class:`~.errors.KubeError`."""
    async with Client(connection(home=Path.home()), agent="preflight-appwrapper") as client:
        found = await waiting(client, health)
        if released:
            await release(client, found, health)
        return found


async def waiting(client: Client, health: NodeHealthConfig) -> Evacuations:
    """List what waits, by two requests."""
    workloads, nodes, codes = [], [], []
    async for page, _ in client.pages(WRAPPERS, PartialObject):
        workloads += [one for raw in page if (one := held(wrapper(raw))) is not None]
    async for some, _ in client.pages(_NODES, LabeledNode):
        for node in some:
            why = code(node.status.conditions, health)
            codes += [(node.metadata.name, why)] if why else []
            if node.metadata.labels.get(health.key) == HELD:
                about = node.metadata
                nodes.append(HeldNode(name=about.name, uid=about.uid, why=printable(why)))
    suspect = suspicion(codes)
    return Evacuations(workloads=tuple(workloads), nodes=tuple(nodes), suspicion=suspect)


async def release(client: Client, found: Evacuations, health: NodeHealthConfig) -> None:
    """Let all of it go now. Raises :class:`~preflight_kube.errors.KubeError`."""
    held = jsonpatch.test(jsonpatch.pointer("metadata", "labels", health.key), HELD)
    for node in found.nodes:
        operations = patch(node.uid, {health.key: HELD}, health.key, health.value)
        await client.json_patch(f"{_NODES}/{node.name}", [held, *operations])
    for one in found.workloads:
        body = {"metadata": {"annotations": {RELEASE: one.since}}}
        await client.merge_patch(wrapper_path(one.namespace, one.name), body)


def lines(found: Evacuations, *, released: bool) -> Iterator[str]:
    """For a terminal."""
    count = f"{len(found.workloads)} workloads and {len(found.nodes)} nodes"
    if not found.workloads and not found.nodes:
        yield "no evacuation waits"
        return
    yield f"{count} {'were released' if released else 'wait'}"
    if found.suspicion:
        yield f"  {found.suspicion}"
    yield from (f"  node {one.name}: {one.why}" for one in found.nodes)
    yield from (
        f"  {one.namespace}/{one.name} since {one.since}: {one.why}" for one in found.workloads
    )
    if not released:
        yield "release all of it: preflight-appwrapper evacuations --release"
