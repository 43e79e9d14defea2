"""Records Events beside the work, as client-go's EventRecorder does: nobody waits for one, and none
fails a reconcile.

An Event's name follows from its object and what it is about, so it is there once, whoever records
it again; of the last :data:`MAX_WRITTEN` nobody asks the API server a second time. One is lost,
which is logged and counted as ``failed``, where the API server refuses it, after :data:`MAX_TRIES`
tries without an answer, and where more than :data:`MAX_PENDING` wait: then the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal

import anyio
import msgspec

from preflight_kube.client.client import Client
from preflight_kube.errors import Fenced, KubeError, NotFound
from preflight_kube.logs import get_logger
from preflight_kube.runtime.events import Regarding, event, timestamp
from preflight_kube.runtime.retry import terminating
from preflight_kube.runtime.workqueue import Backoff, Key, Queue

MAX_PENDING: Final = 10_000
MAX_TRIES: Final = 5
MAX_WRITTEN: Final = 20_000
WORKERS: Final = 4
BACKOFF: Final = Backoff(first=1.0, longest=30.0)

log = get_logger(__name__)


class _Pending(msgspec.Struct):
    body: dict[str, Any]
    tries: int = 0


class EventRecorder:
    """Writes as ``component``. ``client``: best fenced by the leadership. ``counted``: called with
    what became of each Event; one that exists already counts as nothing.
    """

    def __init__(
        self,
        client: Client,
        component: str,
        *,
        counted: Callable[[Literal["written", "failed"]], None] = lambda _: None,
    ) -> None:
        self._client, self._component, self._counted = client, component, counted
        self._pending: dict[Key, _Pending] = {}  # the oldest first
        self._written: OrderedDict[Key, None] = OrderedDict()
        self._queue = Queue("event", clock=client.clock)

    def event(
        self,
        regarding: Regarding,
        *,
        reason: str,
        message: str,
        warning: bool,
        about: str = "",
        host: str = "",
    ) -> bool:
        """Have an Event written soon. ``about`` tells it from others on the object (default: its
        reason). One that still waits under the same name is replaced. Returns whether it is new.
        """
        body = event(
            self._component,
            regarding,
            about=about or reason,
            good=not warning,
            reason=reason,
            message=message,
            now=timestamp(datetime.now(UTC)),
            host=host,
        )
        key = (body["metadata"]["namespace"], body["metadata"]["name"])
        if key in self._written:
            return False
        new = key not in self._pending
        self._pending[key] = _Pending(body)
        if len(self._pending) > MAX_PENDING:
            oldest = next(iter(self._pending))
            self._lost(self._pending.pop(oldest).body, f"more than {MAX_PENDING} wait")
        self._queue.add(key)
        return new

    async def run(self) -> None:
        """Write what is recorded until cancelled."""
        async with anyio.create_task_group() as group:
            for _ in range(WORKERS):
                group.start_soon(self._queue.work, self._write)

    async def _write(self, key: Key) -> float | None:
        """Try once; the seconds until the next try."""
        pending = self._pending.get(key)
        if pending is None:
            return None
        try:
            await self._client.create(f"/api/v1/namespaces/{key[0]}/events", pending.body)
        except Fenced:
            raise
        except KubeError as error:
            pending.tries += 1
            unanswered = not error.status or error.status == 429 or error.status >= 500
            if unanswered and pending.tries < MAX_TRIES:
                return BACKOFF.pause(pending.tries)
            if error.reason == "AlreadyExists":
                self._remember(key)
            # Who would read it goes, or has gone, with the namespace.
            elif not terminating(error) and not isinstance(error, NotFound):
                self._lost(pending.body, str(error))
        else:
            self._counted("written")
            self._remember(key)
        if self._pending.get(key) is pending:
            del self._pending[key]
        return None

    def _remember(self, key: Key) -> None:
        self._written[key] = None
        if len(self._written) > MAX_WRITTEN:
            self._written.popitem(last=False)

    def _lost(self, body: dict[str, Any], why: str) -> None:
        self._counted("failed")
        log.warning(
            "Event not written",
            namespace=body["metadata"]["namespace"],
            name=body["involvedObject"]["name"],
            reason=body["reason"],
            error=why,
        )
