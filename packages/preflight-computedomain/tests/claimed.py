"""Claims as the API server has them, and a node's plugin on temporary folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from preflight_computedomain.api.names import API_VERSION, CHANNEL_CONFIG, DEVICE, DRIVER
from preflight_computedomain.api.types import ResourceClaim
from preflight_computedomain.core.claims import KubeletClaim
from preflight_computedomain.core.facts import NodeFacts, Unfit
from preflight_computedomain.metrics import PluginMetrics
from preflight_computedomain.node.atomic_file import Disk
from preflight_computedomain.node.host import CliqueOwner
from preflight_computedomain.node.lock import Lock
from preflight_computedomain.node.prepare import ClaimPreparer, ClusterReader, Times
from preflight_computedomain.node.state_dir import ClaimStore
from preflight_kube.errors import KubeError

NODE = "node-1"
CLIQUE = "00000000-0000-0000-0000-0000000000aa.7"
DOMAIN = "d0000000-0000-0000-0000-000000000001"
FACTS = NodeFacts(NODE, "boot-1")
MAJOR = 235


def uid(number: int) -> str:
    return f"c0000000-0000-0000-0000-{number:012d}"


def ref(number: int = 1, name: str = "") -> KubeletClaim:
    return KubeletClaim("team-a", name or f"claim-{number}", uid(number))


def parameters(**changed: Any) -> dict[str, Any]:
    made = {
        "allocationMode": "Single",
        "apiVersion": API_VERSION,
        "domainID": DOMAIN,
        "kind": CHANNEL_CONFIG,
        **changed,
    }
    return {key: value for key, value in made.items() if value is not None}


def config(
    given: Any = None,
    *,
    requests: tuple[str, ...] = ("channel",),
    source: str = "FromClaim",
    driver: str = DRIVER,
) -> dict[str, Any]:
    opaque = {"driver": driver, "parameters": parameters() if given is None else given}
    return {"requests": list(requests), "source": source, "opaque": opaque}


def result(
    device: str = DEVICE, *, request: str = "channel", pool: str = NODE, driver: str = DRIVER
) -> dict[str, Any]:
    return {"request": request, "driver": driver, "pool": pool, "device": device}


def document(
    of: KubeletClaim,
    results: list[Any] | None = None,
    configs: list[Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    devices = {
        "results": [result()] if results is None else results,
        "config": [config()] if configs is None else configs,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": of.name, "namespace": of.namespace, "uid": of.uid},
        "spec": {},
        "status": {"allocation": {"devices": devices}, **status},
    }


def claim(
    of: KubeletClaim,
    results: list[Any] | None = None,
    configs: list[Any] | None = None,
    **status: Any,
) -> ResourceClaim:
    return msgspec.json.decode(
        json.dumps(document(of, results, configs, **status)).encode(), type=ResourceClaim
    )


@dataclass
class Cluster(ClusterReader):
    """An API server of a dictionary. ``down``: it does not answer; ``asked``: what was asked."""

    claims: dict[tuple[str, str], ResourceClaim] = field(default_factory=dict)
    known: dict[str, frozenset[str]] = field(
        default_factory=lambda: {"team-a": frozenset({DOMAIN})}
    )
    granted: dict[str, frozenset[str]] = field(default_factory=dict)  # NVLink cliques, by uid
    down: bool = False
    asked: list[str] = field(default_factory=list)

    def add(self, of: KubeletClaim, made: ResourceClaim | None = None) -> KubeletClaim:
        self.claims[of.namespace, of.name] = made or claim(of)
        return of

    async def claim(self, namespace: str, name: str) -> ResourceClaim | None:
        self.asked.append(f"get {namespace}/{name}")
        if self.down:
            raise KubeError("https://10.0.0.1: no answer")
        return self.claims.get((namespace, name))

    async def domains(self, namespace: str) -> Mapping[str, frozenset[str]]:
        self.asked.append(f"list {namespace}")
        if self.down:
            raise KubeError("https://10.0.0.1: no answer")
        return {uid: self.granted.get(uid, frozenset()) for uid in self.known.get(namespace, ())}


@dataclass
class Clique(CliqueOwner):
    current: str = CLIQUE
    later: str = ""
    unknown: str = ""
    refreshes: int = 0

    async def refreshed(self) -> str:
        self.refreshes += 1
        self.current = self.current or self.later
        return self.current


@dataclass
class Node:
    """One node's folders, and its plugin of now."""

    root: Path
    cluster: Cluster = field(default_factory=Cluster)
    clique: Clique = field(default_factory=Clique)
    facts: NodeFacts = FACTS
    major: int = MAJOR
    times: Times = field(default_factory=lambda: Times(call=3, answer=30, first=0.01, longest=0.05))
    patience: float = 0.3
    exclusive: bool = False
    step: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.cdi.mkdir(exist_ok=True)

    @property
    def folder(self) -> Path:
        return self.root / "plugins" / DRIVER

    @property
    def cdi(self) -> Path:
        return self.root / "cdi"

    @property
    def lock(self) -> Path:
        return self.folder / "pu.lock"

    def driver(self) -> int:
        """The channels' major of now; zero is none."""
        if not self.major:
            raise Unfit("/proc/devices: no such character device; load the NVIDIA driver.")
        return self.major

    def store(self) -> ClaimStore:
        return ClaimStore(self.folder, self.cdi, self.facts, self.driver, Disk(self.step))

    def page(self, metrics: PluginMetrics | None = None) -> ClaimPreparer:
        return ClaimPreparer(
            self.facts.node,
            self.cluster,
            self.store(),
            lock=Lock(self.lock, self.patience),
            clique=self.clique,
            metrics=metrics or PluginMetrics(self.facts.node),
            times=self.times,
            exclusive=self.exclusive,
        )

    def files(self) -> Mapping[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.cdi.iterdir())}

    def states(self) -> dict[str, str]:
        return {key: entry.state for key, entry in self.store().entries().items()}
