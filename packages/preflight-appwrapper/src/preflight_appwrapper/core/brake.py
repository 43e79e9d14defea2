"""A brake on evacuations: a share of what there is within a window of time. Pure.

One mistake (a bad image of a check, a mistaken label) says of every node that work must leave it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from preflight_appwrapper.api.rules import BrakeRules

_MANY = 3
"""Nodes that fail with one code within a window, from which on that is said."""


class Brake:
    """Remembers what this process let through lately; ``clock`` is monotonic, in seconds."""

    def __init__(self, rules: BrakeRules, clock: Callable[[], float]) -> None:
        self._rules, self._clock = rules, clock
        self._spent: dict[Hashable, float] = {}  # when

    def wait(self, key: Hashable, total: int) -> float | None:
        """None: ``key`` may go now, of ``total``; else the seconds until the next one may."""
        now, window = self._clock(), self._rules.window
        self._spent = {old: at for old, at in self._spent.items() if at + window > now}
        allowed = max(1, total * self._rules.percent // 100)
        if self._rules.percent >= 100 or key in self._spent or len(self._spent) < allowed:
            return None
        return sorted(self._spent.values())[len(self._spent) - allowed] + window - now

    def take(self, key: Hashable, age: float = 0) -> bool:
        """``key`` goes, or has gone ``age`` seconds ago; False where that counts already."""
        if key in self._spent:
            return False
        self._spent[key] = self._clock() - age
        return True

    def give_back(self, key: Hashable) -> None:
        """It has not gone after all."""
        self._spent.pop(key, None)


def suspicion(leaving: Iterable[tuple[str, str]]) -> str:
    """Say what many nodes with one code at once probably are; ``leaving``: nodes and codes."""
    nodes = Counter(code for _, code in set(leaving))
    code = max(sorted(nodes), key=lambda code: nodes[code], default="")
    if not code or nodes[code] < _MANY:
        return ""
    return f"many nodes fail at once with {code}: more likely a bad image or setting of that check than so many broken nodes"
