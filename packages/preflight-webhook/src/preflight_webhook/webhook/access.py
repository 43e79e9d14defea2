"""The cluster's API server, once somebody needs it: an admission webhook starts without one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from preflight_kube.auth.connection import Connection, connection

if TYPE_CHECKING:
    from preflight_kube.client.client import Client

CONCURRENCY: Final = 32
"""Requests under way, for everybody."""
TIMEOUT: Final = 10.0
"""Seconds for the next bytes of an answer."""
ATTEMPTS: Final = 2
"""Of a read: an API server that has just restarted is asked once more, and no admission waits for a
third time.
"""


class ClusterAccess:
    """Use within one event loop. ``connect`` says how the API server is reached; what it raises,
    :meth:`client` raises.
    """

    def __init__(self, connect: Callable[[], Connection] = connection) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._connecting = asyncio.Lock()

    async def client(self) -> Client:
        """The one client of this process. Raises :class:`~preflight_kube.errors.KubeError` while
        there is none; it is looked for at each call.
        """
        async with self._connecting:
            if self._client is None:
                target = await asyncio.to_thread(self._connect)
                from preflight_kube.client.client import (
                    Client,  # megabytes, for who asks an API server
                )

                self._client = Client(
                    target,
                    agent="preflight-webhook",
                    concurrency=CONCURRENCY,
                    timeout=TIMEOUT,
                    attempts=ATTEMPTS,
                )
        return self._client

    async def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            await self._client.aclose()
