"""Races that need luck to be lost are run as often as PREFLIGHT_REPEAT says: once,
unless it is set.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable

import anyio

REPEAT = int(os.environ.get("PREFLIGHT_REPEAT", "1"))


def run(body: Callable[[int], Awaitable[None]]) -> None:
    """``body`` is told which run it is, from 0 on."""

    async def every() -> None:
        for number in range(REPEAT):
            await body(number)

    anyio.run(every)
