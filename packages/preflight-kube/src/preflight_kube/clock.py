"""What measures time here: seconds that never go back, whatever they are read from.

Only durations are measured, never compared with another machine's time. A reading that jumps back
would put off by as much what is due; here time then stands still for a moment. One that jumps
forward makes things due early, which costs a look or a write: a holder gives up its lease, and
another's is taken. What is written carries preconditions and its leader's epoch, so even two that
both believe to lead cannot give a gang two answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """Call it for the seconds since some moment; ``read`` is what it goes by."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self._read, self._ahead, self._last = read, 0.0, read()

    def __call__(self) -> float:
        """Seconds now, never less than before."""
        now = self._read() + self._ahead
        if now < self._last:
            self._ahead += self._last - now
            now = self._last
        self._last = now
        return now
