"""One wrapper of a cluster, read once: the same snapshot, and so the same step, that a leader would
decide on.
"""

from __future__ import annotations

from datetime import datetime

from preflight_kube.client.client import Client
from preflight_kube.runtime.discovery import RESTMapper

from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.controller.apply import WrapperApplier
from preflight_appwrapper.core import decode
from preflight_appwrapper.core.decode import Node
from preflight_appwrapper.core.leader_state import LeaderState
from preflight_appwrapper.core.plan import WrapperStep
from preflight_appwrapper.core.reconcile import step
from preflight_appwrapper.core.snapshot import Mirrored, WrapperView, observe
from preflight_appwrapper.core.unhealthy_nodes import sick_resources
from preflight_appwrapper.metrics import Metrics

__all__ = ["decided"]


async def decided(
    client: Client, namespace: str, name: str, rules: WrapperRules, now: datetime
) -> tuple[AppWrapper, WrapperView, WrapperStep] | None:
    """Read a wrapper and all of it, and decide; None where there is none. Raises
    :class:`~preflight_kube.errors.KubeError`.
    """
    applier = WrapperApplier(client, RESTMapper(client), rules, Metrics())
    raw = await applier.read(namespace, name)
    if raw is None:
        return None
    wrapper, memory = decode.wrapper(raw), LeaderState(uid=raw.metadata.uid)
    await applier.survey(wrapper, memory)
    nodes = {}
    for node in {held.pod.node for held in memory.listed.pods.values()} if memory.listed else ():
        found = (
            await client.get_or_none(f"/api/v1/nodes/{node}", Node)
            if node and rules.autopilot.monitor
            else None
        )
        if found is not None:
            nodes[node] = sick_resources(found.metadata.labels, rules.autopilot)
    nothing = Mirrored(complete=True, nodes=nodes)
    seen = observe(wrapper, nothing, memory, suffix="xxxxx", now=now, clock=client.clock())
    return wrapper, seen, step(wrapper, seen, rules, now)
