"""A State whose mirrors show what a test says, and the extender over it, without a server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Literal, cast

import msgspec
from preflight_gpu_scheduler.api.claim import RawClaim
from preflight_gpu_scheduler.api.gpu_node_status import RawStatus
from preflight_gpu_scheduler.api.types import Metadata
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.controller.cache import GpuCache
from preflight_gpu_scheduler.controller.controller import Controller
from preflight_gpu_scheduler.core.protocol import Runner
from preflight_gpu_scheduler.metrics import ExtenderMetrics, GpuControllerMetrics
from preflight_gpu_scheduler.webhook.extender import Extender
from preflight_kube.client.client import Client
from prometheus_client import CollectorRegistry

Kind = Literal["pod", "node", "claim", "status", "lease"]
KINDS: tuple[Kind, ...] = ("pod", "node", "claim", "status", "lease")


def tell(mirror: Any, found: Any, *, deleted: bool = False) -> None:
    """Have a cache take in what a watch says of an object."""
    key = mirror._key(found)
    if deleted:
        mirror._remove(key, msgspec.structs.replace(found))  # as it comes over a wire
    else:
        mirror._put(key, found)


class Mirrors:
    """``now``: the clock, in seconds. Everything else is shown by :meth:`show`."""

    def __init__(self, **config: Any) -> None:
        self.now = 1000.0
        self.client = cast(Client, SimpleNamespace(clock=lambda: self.now))
        self.config = Config(**config)
        self.state = GpuCache(self.client, self.config)
        self._mirrors: dict[str, Any] = dict(zip(KINDS, self.state.reflectors, strict=True))
        self.registry = CollectorRegistry()  # of a leader
        self.metrics = ExtenderMetrics(CollectorRegistry())
        self.extender = Extender(
            self.client, self.config, self.state, self.metrics, cast(Runner, None)
        )

    def leads(self) -> tuple[Controller, list[Any]]:
        """A leader over it, and what it merges into objects."""
        patches = list[Any]()

        async def merge_patch(_: str, patch: Any) -> None:
            patches.append(patch)

        cast(Any, self.client).merge_patch = merge_patch
        metrics = GpuControllerMetrics(self.registry)
        return Controller(self.client, self.config, self.state, metrics), patches

    def show(self, kind: Kind, *objects: Any, deleted: bool = False) -> None:
        for found in objects:
            tell(self._mirrors[kind], found, deleted=deleted)

    def relist(self, kind: Kind, objects: dict[str, Any]) -> None:
        """These, by their keys, are all that there are, whatever a watch did not tell."""
        self._mirrors[kind]._replace(objects, {})

    def status(
        self, node: str, *devices: dict[str, Any], observed: str | None = "t0", **more: Any
    ) -> None:
        """The GpuNodeStatus of ``node`` that says so."""
        said: dict[str, Any] = {"total": len(devices), "devices": list(devices), **more}
        if observed is not None:
            said["observedTime"] = observed
        raw = RawStatus(
            metadata=Metadata(name=node), spec={}, status=msgspec.Raw(msgspec.json.encode(said))
        )
        self.show("status", raw)

    def claim(self, name: str, count: int, *, gang: str = "") -> None:
        """A GpuClaim of the namespace ``team``."""
        spec = {"devices": {"count": count}, **({"gangRef": gang} if gang else {})}
        about = Metadata(name=name, namespace="team", uid=f"uid-{name}")
        self.show("claim", RawClaim(metadata=about, spec=spec))

    def drop_claim(self, name: str) -> None:
        """The GpuClaim of the namespace ``team`` is deleted, if it was there."""
        about = Metadata(name=name, namespace="team", uid=f"uid-{name}")
        self.show("claim", RawClaim(metadata=about, spec={}), deleted=True)

    def free(self, node: str) -> set[int]:
        """Ids that a pod could have there; none where the node takes no pods."""
        seen = self.state.view(node)
        free = {slot.id for n, slot in enumerate(seen.slots) if seen.free >> n & 1}
        return set() if seen.blocked else free
