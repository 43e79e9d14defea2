"""Which ComputeDomains share an NVLink clique: their jobs reach each other's memory. Pure.

By allocated claims and by what the nodes offer; nothing is asked of IMEX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

from preflight_kube.runtime.indexes import Index

from preflight_computedomain.api.opaque_config import domain_of
from preflight_computedomain.api.types import ComputeDomain, Slice, UsedClaim


class Sharing:
    """Kept up to date one object at a time; ComputeDomains are uids, of which some may be gone.

    ``home``: the namespace of one, empty where it is not known. A claim of another namespace may
    name it, and gets no channel.
    """

    def __init__(self, home: Callable[[str], str] = lambda _: "") -> None:
        self._home = home
        self._claims: dict[str, tuple[frozenset[str], tuple[str, ...], str]] = {}
        self._on: Index[tuple[str, ...]] = Index(lambda nodes: nodes)  # claims by node
        self._of: dict[str, str] = {}  # a node's clique
        self._nodes: Index[str] = Index(lambda clique: [clique])

    def claim(self, claim: UsedClaim, *, gone: bool = False) -> set[str]:
        """A claim as it is now, or (``gone``) was; the ComputeDomains that this concerns."""
        uid, nodes = claim.metadata.uid, () if gone else claim.nodes
        domains = frozenset(filter(None, map(domain_of, claim.configs))) if nodes else frozenset()
        before = self._claims.get(uid, (frozenset(), (), ""))
        if before[:2] == (domains, nodes) or not (before[0] or domains):
            return set()
        concerned = self._active(map(self.clique, before[1]))
        self._on.remove(uid)
        self._claims.pop(uid, None)
        if domains:
            self._claims[uid] = domains, nodes, claim.metadata.namespace
            self._on.put(uid, nodes)
        return concerned | self._active(map(self.clique, nodes))

    def node(self, name: str, clique: str) -> set[str]:
        """A node's clique, empty for none; the ComputeDomains that this concerns."""
        before = self._of.pop(name, "")
        concerned = self._active([before])
        self._nodes.remove(name)
        if clique:
            self._of[name] = clique
            self._nodes.put(name, clique)
        return set() if before == clique else concerned | self._active([clique])

    def slice(self, item: Slice, *, gone: bool = False) -> set[str]:
        """A node's ResourceSlice, by which its clique is known; kept where nothing is offered."""
        clique = "" if gone else next(filter(None, map(_clique, item.spec.devices)), "")
        if not clique and not gone:
            return set()
        return self.node(item.spec.node_name, clique)

    def clique(self, node: str) -> str:
        """That of a node; empty where none is known."""
        return self._of.get(node, "")

    def cliques(self, domain: str) -> set[str]:
        """Those in which it is active."""
        return {clique for clique in self._nodes.values() if domain in self._active([clique])}

    def granted(self, domain: ComputeDomain, living: Iterable[ComputeDomain]) -> set[str]:
        """The cliques that ``domain`` is to have for itself: those that it has, for as long as it
        is active there, and of others where it is those that no other one has, of all that are
        ``living``. One that is gone has its cliques until its pods have ended.
        """
        about = domain.metadata
        others = [it.metadata for it in living if it.metadata.uid != about.uid]
        known = {about.uid, *(other.uid for other in others)}
        taken = set(chain.from_iterable(other.cliques for other in others))
        return {
            clique
            for clique in self.cliques(about.uid)
            if clique in about.cliques or (clique not in taken and self._active([clique]) <= known)
        }

    def others(self, domain: str) -> dict[str, set[str]]:
        """By clique, who else is active where ``domain`` is."""
        shared = self.shared().items()
        return {clique: active - {domain} for clique, active in shared if domain in active}

    def shared(self) -> dict[str, set[str]]:
        """Cliques in which more than one is active, each with all of them."""
        active = {clique: self._active([clique]) for clique in sorted(self._nodes.values())}
        return {clique: domains for clique, domains in active.items() if len(domains) > 1}

    def _active(self, cliques: Iterable[str]) -> set[str]:
        nodes = [node for clique in set(cliques) if clique for node in self._nodes.keys(clique)]
        claims = [
            self._claims[uid] for uid in {uid for node in nodes for uid in self._on.keys(node)}
        ]
        return {of for domains, _, by in claims for of in domains if self._home(of) in {"", by}}


def _clique(device: Any) -> str:
    try:
        return str(device["attributes"]["cliqueID"]["string"])
    except (KeyError, TypeError):
        return ""
