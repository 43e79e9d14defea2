"""A brake on evacuations: a share of what there is within a window of time. Pure.

One mistake (a bad image of a check, a mistaken label) says of every node that work must leave it.
What is beyond the share waits, and is told, until the window has moved on or somebody releases it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from preflight_appwrapper.api.rules import BrakeRules

K = TypeVar("K", bound=Hashable)

_MANY = 3
"""Nodes that fail with one code within a window, from which on that is said."""


class Brake(Generic[K]):
    """Remembers what this process let through lately; ``clock`` is monotonic, in seconds."""

    def __init__(self, rules: BrakeRules, clock: Callable[[], float]) -> None:
        self._rules, self._clock = rules, clock
        self._spent: dict[K, float] = {}  # when; the oldest first

    def wait(self, key: K, total: int) -> float | None:
        """None: ``key`` may go now, of ``total``; else the seconds until the next one may."""
        now, window = self._clock(), self._rules.window
        for old in [one for one, at in self._spent.items() if at + window <= now]:
            del self._spent[old]
        allowed = max(1, total * self._rules.percent // 100)
        if self._rules.percent >= 100 or key in self._spent or len(self._spent) < allowed:
            return None
        return list(self._spent.values())[len(self._spent) - allowed] + window - now

    def take(self, key: K) -> bool:
        """``key`` goes; False where it went before in the same window, and counts once."""
        if key in self._spent:
            return False
        self._spent[key] = self._clock()
        return True

    def give_back(self, key: K) -> None:
        """It has not gone after all."""
        self._spent.pop(key, None)


def suspicion(found: Iterable[tuple[str, str]]) -> str:
    """Say what many nodes with one code at once probably are; ``found``: nodes and codes."""
    nodes: dict[str, set[str]] = defaultdict(set)
    for node, code in found:
        nodes[code].add(node)
    code = max(sorted(nodes), key=lambda it: len(nodes[it]), default="")
    if not code or len(nodes[code]) < _MANY:
        return ""
    return f"many nodes fail at once with {code}: more likely a bad image or setting of that check than so many broken nodes"
