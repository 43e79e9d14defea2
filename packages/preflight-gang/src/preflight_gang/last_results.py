"""The last results of each check on each node: when it passed there last, and the bandwidth that it
measured.

Pure. Numbers alone, for each node of the cluster and each configured check: 10,000 nodes with three
checks take some 10 MB.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

import msgspec

__all__ = ["LastResults", "NodeResult"]

_MOST_NODES: Final = 20_000
"""Twice as many as clusters have; beyond, the one goes that was not checked for longest."""


class NodeResult(msgspec.Struct, gc=False):
    """``passed``: Unix time of the last pass. ``gbps``: GB/s, the last that was measured, ``at``
    which Unix time.
    """

    passed: float | None = None
    gbps: float | None = None
    at: float = 0.0


class LastResults:
    """Of nodes that the cluster has: who calls has seen to that."""

    def __init__(self, most: int = _MOST_NODES) -> None:
        self._most = most
        self._nodes: OrderedDict[str, dict[str, NodeResult]] = OrderedDict()

    def note(self, node: str, check: str, at: float, *, passed: bool, gbps: float | None) -> None:
        """A run of ``check`` on ``node`` ended ``at`` that Unix time. One that ended earlier than
        another changes nothing.
        """
        checks = self._nodes.setdefault(node, {})
        self._nodes.move_to_end(node)
        seen = checks.setdefault(check, NodeResult())
        if passed:
            seen.passed = max(at, seen.passed or 0.0)
        if gbps is not None and at >= seen.at:
            seen.gbps, seen.at = gbps, at
        if len(self._nodes) > self._most:
            self._nodes.popitem(last=False)

    def forget(self, node: str) -> None:
        """It is not a node of the cluster any more."""
        self._nodes.pop(node, None)

    def clear(self) -> None:
        """Forget all, as when another replica leads."""
        self._nodes.clear()

    def __iter__(self) -> Iterator[tuple[str, str, NodeResult]]:
        """(node, check, what was seen)."""
        for node, checks in list(self._nodes.items()):
            for check, seen in list(checks.items()):
                yield node, check, seen
