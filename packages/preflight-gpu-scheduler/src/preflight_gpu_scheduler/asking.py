"""What `show` and `explain` read: files that people wrote, and a cluster as it is at one moment."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import msgspec
from preflight_kube.auth.connection import Connection
from preflight_kube.cli import commands
from preflight_kube.client.client import Client, KubeError

from . import claim as claims
from . import inventory as inventories
from .claim import Claim
from .config import Config
from .inventory import Inventory
from .objects import Node
from .state import State

__all__ = ["Files", "files", "seen"]

T = TypeVar("T")
_PATIENCE = 30.0


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


def seen(target: Connection, config: Config, say: Callable[[State], T]) -> T:
    """What ``say`` makes of the cluster as it is now. Raises KubeError."""

    async def look() -> T:
        async with Client(target, agent="preflight-gpu-scheduler") as client:
            state = State(client, config)
            async with anyio.create_task_group() as group:
                for one in state.reflectors:
                    group.start_soon(one.run)
                with anyio.move_on_after(_PATIENCE):
                    await state.wait_synced()
                made = say(state) if state.synced else None
                group.cancel_scope.cancel()
            if made is None:
                raise KubeError(
                    client.mirrors.trouble(0.0) or "the cluster could not be read in time"
                )
            return made

    asked: Callable[[], Awaitable[T]] = look
    return anyio.run(asked)
