"""Who has begun a connection or a request and does not go on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Stalled"]


class Stalled:
    """Finds connections whose client has begun nothing, or begun a request and not gone on, at two
    looks in a row.

    A look now and then costs a request nothing.
    """

    def __init__(self) -> None:
        self._seen: dict[Any, Any] = {}

    def look(self, connections: Iterable[Any]) -> list[Any]:
        """Those to be cut off. ``connections`` are :class:`~.connections.Bounded`."""
        waiting = {one: one.cycle for one in connections if self._waits(one)}
        stalled = [
            one for one, cycle in waiting.items() if one in self._seen and self._seen[one] is cycle
        ]
        self._seen = waiting
        return stalled

    @staticmethod
    def _waits(connection: Any) -> bool:
        """Whether more of a request has to come before anything else happens."""
        cycle = connection.cycle
        if cycle is None or cycle.response_complete:
            return not connection.idle_since
        return bool(cycle.more_body)
