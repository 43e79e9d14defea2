"""One wrapper of a cluster, looked at once: the same view, and so the same step, that a controller
would decide on.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client

from . import cluster
from .actor import WrapperActor
from .cluster import Node
from .explain import Explanation, explain
from .kinds import ServedKinds
from .memory import Memory
from .metrics import Metrics
from .observe import Mirrored, observe
from .rules import WrapperRules
from .step import step
from .unhealthy_nodes import sick_resources

__all__ = ["explained", "look"]


async def explained(namespace: str, name: str, rules: WrapperRules) -> Explanation | None:
    """What there is to say of a wrapper; None where there is none. Raises
    :class:`~preflight_kube.errors.KubeError`.
    """
    async with Client(connection(home=Path.home()), agent="preflight-appwrapper") as client:
        return await look(client, namespace, name, rules)


async def look(
    client: Client, namespace: str, name: str, rules: WrapperRules
) -> Explanation | None:
    """The same, with a client; reads only."""
    actor = WrapperActor(client, ServedKinds(client), rules, Metrics())
    raw = await actor.read(namespace, name)
    if raw is None:
        return None
    wrapper, memory = cluster.wrapper(raw), Memory(uid=raw.metadata.uid)
    await actor.survey(wrapper, memory)
    nodes = {}
    for node in {held.pod.node for held in memory.listed.pods.values()} if memory.listed else ():
        found = (
            await client.get_or_none(f"/api/v1/nodes/{node}", Node)
            if node and rules.autopilot.monitor
            else None
        )
        if found is not None:
            nodes[node] = sick_resources(found.metadata.labels, rules.autopilot)
    nothing = Mirrored(
        complete=True,
        things={},
        departed={},
        pods={},
        nodes=nodes,
        version=lambda _: 0,
        pods_version=0,
    )
    now = datetime.now(UTC)
    seen = observe(wrapper, nothing, memory, suffix="xxxxx", now=now, clock=client.clock())
    return explain(wrapper, seen, step(wrapper, seen, rules, now), now)
