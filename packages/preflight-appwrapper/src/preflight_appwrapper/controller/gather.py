"""Several requests at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TypeVar

import anyio
from preflight_kube.client.client import KubeError

__all__ = ["together"]

T = TypeVar("T")


async def together(asked: Iterable[Awaitable[T]]) -> list[T]:
    """What each of them answers, in their order. Raises the first :class:`KubeError` once all have
    ended.
    """
    waiting = list(asked)
    if len(waiting) == 1:
        return [await waiting[0]]
    found: dict[int, T] = {}
    failed: list[KubeError] = []

    async def one(i: int, request: Awaitable[T]) -> None:
        try:
            found[i] = await request
        except KubeError as error:
            failed.append(error)

    async with anyio.create_task_group() as group:
        for i, request in enumerate(waiting):
            group.start_soon(one, i, request)
    if failed:
        raise failed[0]
    return [found[i] for i in range(len(waiting))]
