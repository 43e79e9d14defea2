"""What namespaces set for themselves, followed so that no admission has to ask for it.

Listed once a minute, watched in between. A cluster without the kind has no such objects; once read, it stays as last seen while the API
server does not answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import httpx
import msgspec
from preflight_proto.policy import ContractError, PreflightConfig, Spec, decode_spec, path

from ..configuration.effective import in_force
from ..metrics import Metrics
from .kube import UNPACKED, Answer, Connection, NoCluster, ask

__all__ = ["NamespaceOverride", "NamespaceOverrides"]

ROUND: Final = 60.0
"""Seconds from one list to the next, at most: so late is a silent break of the watch noticed."""
ABSENT: Final = 60.0
"""Seconds after which it is seen whether the cluster has the kind by now."""
BACK_OFF: Final = (0.2, 15.0)
"""Seconds, first and longest pause after failures in a row."""
LOOK_EVERY: Final = 5.0
"""Seconds after which it is seen whether a new configuration wants them followed."""
PAGE: Final = 20
"""Objects of one answer: each may have megabytes that are not read."""
MOST_SPEC: Final = 64 * 1024
"""Bytes; what the CRD lets through is a tenth of that."""
MOST_LINE: Final = 8 * 1024 * 1024
"""Bytes of one event."""
MOST_PAGE: Final = 48 * 1024 * 1024
"""Bytes of one answer: its objects at the largest that etcd takes, and what JSON adds."""
PATIENCE: Final = 10.0
"""Seconds for the next bytes of an answer."""
MOST_PATIENCE: Final = 30.0
"""Seconds for the whole of one that is no watch."""

log = logging.getLogger(__name__)


class NamespaceOverride(msgspec.Struct, frozen=True):
    """What is in force in a namespace, and the name of the object that says so."""

    name: str
    spec: Spec


class _List(msgspec.Struct):
    class _Meta(msgspec.Struct, rename="camel"):
        resource_version: str = ""
        more: str = msgspec.field(name="continue", default="")

    items: list[msgspec.Raw] | None
    metadata: _Meta


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Refused(Exception):
    """The API server does not give what is asked for. The message is one sentence."""


class NamespaceOverrides:
    """Use within one event loop. ``connect`` says how the API server is reached and may raise :class:`~.kube.KubeError`."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        metrics: Metrics,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._connect, self._metrics, self._transport, self._sleep = connect, metrics, transport, sleep
        self._items: dict[str, dict[str, PreflightConfig]] = {}
        self._in_force: dict[str, NamespaceOverride] = {}
        self._told: dict[str, str] = {}  # by namespace, what was not understood
        self._behind_since: float | None = None
        self.synced = False
        """Whether all of them have been read once, or are known not to be there."""
        self.problem = "they have not been read yet"
        """Why what is known may be out of date; empty while it is not."""

    def behind_for(self) -> float:
        """Seconds since they were last read, where that has not worked since; 0 where it has."""
        return time.monotonic() - self._behind_since if self._behind_since is not None else 0.0

    def of(self, namespace: str) -> NamespaceOverride | None:
        """What is in force there. Asks nobody."""
        return self._in_force.get(namespace)

    async def run(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Follow the cluster until cancelled, as long as it is ``wanted``."""
        failures = 0
        while True:
            if not wanted():
                await self._sleep(LOOK_EVERY)
                continue
            started = time.monotonic()
            try:
                there = await self._round()
            except Exception as error:  # whatever it is, the next round may do better
                pause = min(BACK_OFF[1], BACK_OFF[0] * 2.0 ** min(failures, 16))
                failures += 1
                self._behind(error)
            else:
                # One that ended at once is not taken up again at once.
                pause = 0.0 if there and time.monotonic() - started > 1 else 1.0 if there else ABSENT
                failures = 0
            if pause:
                await self._sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 (spread, not a secret)

    async def _round(self) -> bool:
        """One list, and the watch from there to its end; False where there is nothing to follow."""
        try:
            target = await asyncio.to_thread(self._connect)
        except NoCluster:
            self._read({})
            return False
        headers = {"User-Agent": "preflight-webhook", **UNPACKED}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        async with httpx.AsyncClient(
            base_url=target.server,
            verify=target.verify,
            timeout=PATIENCE,
            trust_env=False,  # proxies of the environment are for the world outside
            headers=headers,
            transport=self._transport,
        ) as http:
            found: dict[str, dict[str, PreflightConfig]] = {}
            asked = {"limit": str(PAGE)}
            while True:
                async with asyncio.timeout(MOST_PATIENCE):
                    answer = await ask(http, path(), MOST_PAGE, asked)
                if answer.absent:
                    self._read({})
                    return False
                _check(answer)
                listed = msgspec.json.decode(answer.body, type=_List)
                for raw in listed.items or ():
                    if (item := self._item(raw)) is not None:
                        found.setdefault(item.metadata.namespace, {})[item.metadata.uid] = item
                if not listed.metadata.more:
                    break
                asked["continue"] = listed.metadata.more
            self._read(found)
            await self._watch(http, listed.metadata.resource_version)
        return True

    async def _watch(self, http: httpx.AsyncClient, version: str) -> None:
        seconds = round(ROUND * random.uniform(0.8, 1.0))  # noqa: S311 (spread)
        asked = {"watch": "true", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        timeout = httpx.Timeout(PATIENCE, read=seconds + PATIENCE)
        # A server that ends neither its lines nor its watch is left, too.
        async with (
            asyncio.timeout(seconds + PATIENCE),
            http.stream("GET", path(), params=asked, timeout=timeout) as answer,
        ):
            _check(Answer(answer.status_code, b"", absent=False))
            async for line in _lines(answer.aiter_raw()):
                event = msgspec.json.decode(line, type=_Event)
                if event.type == "ERROR":
                    return  # too old a version, mostly: listed anew
                if event.type != "BOOKMARK" and (item := self._item(event.object)) is not None:
                    self._changed(item, gone=event.type == "DELETED")

    def _item(self, raw: msgspec.Raw) -> PreflightConfig | None:
        """None for what is no such object, which is counted; one of them must not hide the others."""
        try:
            item = msgspec.json.decode(raw, type=PreflightConfig)
            if len(item.spec) > MOST_SPEC:
                raise ValueError(f"its spec has {len(item.spec)} bytes")
        except (ValueError, RecursionError) as error:  # a ValidationError and a UnicodeDecodeError are ValueErrors
            self._metrics.unreadable.labels("PreflightConfig").inc()
            self._warn("", f"a PreflightConfig is skipped, as it cannot be read: {str(error)[:256]}")
            return None
        # What is kept must not keep the whole answer that it came in.
        return msgspec.structs.replace(item, spec=item.spec.copy())

    def _read(self, found: dict[str, dict[str, PreflightConfig]]) -> None:
        before, self._items = self._items, found
        for namespace in before.keys() | found.keys():
            self._settle(namespace)
        self.synced, self.problem, self._behind_since = True, "", None
        self._metrics.policies_behind.set(0)

    def _changed(self, item: PreflightConfig, *, gone: bool) -> None:
        namespace, uid = item.metadata.namespace, item.metadata.uid
        here = self._items.setdefault(namespace, {})
        if gone:
            here.pop(uid, None)
        else:
            here[uid] = item
        self._settle(namespace)

    def _settle(self, namespace: str) -> None:
        """Which one of a namespace is in force now."""
        before, now = self._in_force.pop(namespace, None), None
        item = in_force(self._items.get(namespace, {}).values())
        if item is not None:
            try:
                now = NamespaceOverride(item.metadata.name, decode_spec(item.spec))
            except (ContractError, RecursionError) as error:  # of a newer controller
                self._warn(namespace, f"PreflightConfig {item.metadata.name} is accepted but not understood: {error}")
        if now is not None:
            self._in_force[namespace] = now
        if now != before:
            said = f"PreflightConfig {now.name} is in force" if now else "no PreflightConfig is in force any more"
            log.info("namespace %s: %s", namespace, said)
        self._metrics.policies.set(len(self._in_force))

    def _warn(self, namespace: str, what: str) -> None:
        if self._told.get(namespace) != what:
            self._told[namespace] = what
            log.warning("namespace %s: %s", namespace or "not known", what)

    def _behind(self, error: Exception) -> None:
        why = (str(error) or type(error).__name__).rstrip(".")
        if why != self.problem:
            log.warning("watch of PreflightConfigs failed, those seen last hold: %s", why)
        self.problem = why
        if self._behind_since is None:
            self._behind_since = time.monotonic()
        self._metrics.policies_behind.set(1)


def _check(answer: Answer) -> None:
    if answer.is_success:
        return
    hint = "; does the ServiceAccount have list and watch on it?" if answer.status == httpx.codes.FORBIDDEN else ""
    raise _Refused(f"GET {path()}: the API server answered {answer.status}{hint}")


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a watch. Only a line feed ends one: the other characters that end lines of text may stand within a JSON string."""
    rest = bytearray()
    async for chunk in chunks:
        *lines, tail = chunk.split(b"\n")
        for line in lines:
            rest += line
            if rest:
                yield bytes(rest)
            rest = bytearray()
        rest += tail
        if len(rest) > MOST_LINE:
            raise _Refused(f"GET {path()}: one event has more than {MOST_LINE} bytes")
