"""Which ComputeDomains are active in the same NVLink clique: they share channel 0, so that their
jobs reach each other's memory.

Pure. By allocated claims and by what the nodes offer; nothing is asked of IMEX.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from preflight_computedomain.api.opaque_config import domain_of
from preflight_computedomain.api.types import Slice, UsedClaim

__all__ = ["Sharing"]


class Sharing:
    """Kept up to date one object at a time; ComputeDomains are uids, and may have been deleted
    while their pods run.
    """

    def __init__(self) -> None:
        self._claims: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {}
        self._on: dict[str, Counter[str]] = defaultdict(Counter)  # by node
        self._of: dict[str, str] = {}  # a node's clique
        self._nodes: dict[str, set[str]] = defaultdict(set)  # by clique

    def claim(self, found: UsedClaim, *, gone: bool = False) -> set[str]:
        """A claim as it is now, or (``gone``) was; the ComputeDomains that this concerns."""
        uid, nodes = found.metadata.uid, () if gone else found.nodes
        domains = frozenset(filter(None, map(domain_of, found.configs))) if nodes else frozenset()
        before = self._claims.pop(uid, (frozenset[str](), ()))
        if domains:
            self._claims[uid] = domains, nodes
        if before == (domains, nodes):
            return set()
        concerned = self._active(map(self.clique, before[1]))
        self._count(*before, -1)
        self._count(domains, nodes, 1)
        return concerned | self._active(map(self.clique, nodes))

    def node(self, name: str, clique: str) -> set[str]:
        """A node's clique, empty for none; the ComputeDomains that this concerns."""
        before = self._of.pop(name, "")
        concerned = self._active([before])
        self._nodes[before].discard(name)
        if not self._nodes[before]:
            del self._nodes[before]
        if clique:
            self._of[name] = clique
            self._nodes[clique].add(name)
        return set() if before == clique else concerned | self._active([clique])

    def slice(self, found: Slice, *, gone: bool = False) -> set[str]:
        """A node's ResourceSlice, by which its clique is known. A node that offers nothing now may
        have pods that have the channel, and keeps its clique.
        """
        clique = "" if gone else next(filter(None, map(_clique, found.spec.devices)), "")
        if not clique and not gone:
            return set()
        return self.node(found.spec.node_name, clique)

    def clique(self, node: str) -> str:
        """That of a node; empty where none is known."""
        return self._of.get(node, "")

    def others(self, domain: str) -> dict[str, set[str]]:
        """By clique, who else is active where ``domain`` is."""
        return {
            clique: found - {domain} for clique, found in self.shared().items() if domain in found
        }

    def shared(self) -> dict[str, set[str]]:
        """Cliques in which more than one is active, each with all of them."""
        found = {clique: self._active([clique]) for clique in sorted(self._nodes)}
        return {clique: domains for clique, domains in found.items() if len(domains) > 1}

    def _active(self, cliques: Iterable[str]) -> set[str]:
        nodes = [node for one in set(cliques) if one for node in self._nodes.get(one, ())]
        return {domain for node in nodes for domain in self._on.get(node, ())}

    def _count(self, domains: Iterable[str], nodes: Iterable[str], by: int) -> None:
        for node in nodes:
            for domain in domains:
                self._on[node][domain] += by
                if not self._on[node][domain]:
                    del self._on[node][domain]
            if not self._on[node]:
                del self._on[node]


def _clique(device: Any) -> str:
    try:
        return str(device["attributes"]["cliqueID"]["string"])
    except (KeyError, TypeError):
        return ""
