"""SIGTERM that arrives before a check can act on it.

A check's imports take longer than some pods live, and the kernel drops a signal for which process 1
has no handler. So a program remembers the signal first of all, and imports this module alone for
it:

    def main() -> NoReturn:
        remember()
        from .check import CHECK, run_main  # what takes time
        run_main(CHECK)

Started by ``env --block-signal=TERM``, as our images do it, no moment is left: a blocked signal
waits for :func:`remember`.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _State:
    """Of the process, as its signal handlers are."""

    arrived = False
    callback: Callable[[], object] | None = None


def remember() -> None:
    """From now on SIGTERM and SIGINT end nothing: they are what :func:`notify` passes on. Takes
    blocked ones as well.
    """
    for number in _SIGNALS:
        signal.signal(number, _remember)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def notify(callback: Callable[[], object] | None) -> None:
    """Call this for each signal, at once for those that came since :func:`remember`; None: nobody
    any more.
    """
    _State.callback = callback
    if _State.arrived and callback is not None:
        callback()


def _remember(number: int, frame: FrameType | None) -> None:
    _State.arrived = True
    if _State.callback is not None:
        _State.callback()
