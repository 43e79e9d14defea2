"""Waiting for a thing rather than for time, in asynchronous tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(true: Callable[[], object], what: str, seconds: float = 600) -> None:
    """Wait for the thing; ``seconds`` only bounds a failure, on a busy machine too."""
    end = asyncio.get_running_loop().time() + seconds
    while not true():
        if asyncio.get_running_loop().time() >= end:
            raise AssertionError(f"never happened: {what}")
        await asyncio.sleep(0.005)
