"""How long a run's tools have worked: what is left of the run is the check's own."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class Spent:
    """``with spent:`` around each tool. ``runs``: how many; ``seconds``: while at least one of them
    ran, by ``clock``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.runs, self.seconds = 0, 0.0
        self._clock, self._now, self._since = clock, 0, 0.0

    def __enter__(self) -> None:
        if not self._now:
            self._since = self._clock()
        self._now += 1
        self.runs += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._now -= 1
        if not self._now:
            self.seconds += self._clock() - self._since
