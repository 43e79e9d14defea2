"""What namespaces set for themselves, followed so that no admission has to ask for it.

Listed once and watched from then on. A cluster without the kind has no such objects; once read, it
stays as last seen while the API server does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
from preflight_kube.errors import KubeError, NoCluster
from preflight_kube.logs import get_logger
from preflight_proto.policy import (
    ContractError,
    PreflightConfig,
    PreflightConfigSpec,
    decode_spec,
    path,
)

from preflight_webhook.config.merged_config import in_force
from preflight_webhook.metrics import Metrics
from preflight_webhook.webhook.access import ClusterAccess

if TYPE_CHECKING:
    from preflight_kube.client.watch_lag import Mirrors
    from preflight_kube.runtime.reflector import Change, Reflector

WATCH: Final = 60
"""Seconds of one watch: so late is a silent break of it noticed."""
ABSENT: Final = 60.0
"""Seconds after which it is seen whether the cluster has the kind by now."""
POLL_EVERY: Final = 5.0
"""Seconds after which it is seen whether a new configuration wants them followed, or there is an
API server by now.
"""
PAGE: Final = 20
"""Objects of one answer: each may have megabytes that are not read."""
MOST_SPEC: Final = 64 * 1024
"""Bytes; what the CRD lets through is a tenth of that."""
_FORBIDDEN: Final = 403

log = get_logger(__name__)


class NamespaceOverride(msgspec.Struct, frozen=True):
    """What is in force in a namespace, and the name of the object that says so."""

    name: str
    spec: PreflightConfigSpec


class _Read(PreflightConfig, frozen=True, kw_only=True):
    """One with a spec of its own: what is kept must not keep the whole answer that it came in."""

    def __post_init__(self) -> None:
        if len(self.spec) > MOST_SPEC:
            raise ValueError(f"its spec has {len(self.spec)} bytes")
        msgspec.structs.force_setattr(self, "spec", self.spec.copy())


class NamespaceOverrides:
    """Use within one event loop."""

    def __init__(
        self, access: ClusterAccess, metrics: Metrics, *, absent_retry: float = ABSENT
    ) -> None:
        self._access, self._metrics, self._absent_retry = access, metrics, absent_retry
        self._in_force: dict[str, NamespaceOverride] = {}
        self._reflector: Reflector[_Read] | None = None
        self._mirrors: Mirrors | None = None
        self._alone = False  # there is no API server to ask
        self._unconnected: tuple[float, str] | None = None  # since when it cannot be asked, and why
        metrics.policies_behind.set_function(lambda: 1 if self.behind_for() else 0)
        metrics.unreadable = lambda: (
            self._mirrors.unreadable[path()] if self._mirrors is not None else 0
        )

    @property
    def synced(self) -> bool:
        """Whether all of them have been read once, or are known not to be there."""
        return self._alone or (self._reflector is not None and self._reflector.synced.is_set())

    @property
    def problem(self) -> str:
        """Why what is known may be out of date; empty while it is not."""
        if self._unconnected is not None:
            return self._unconnected[1]
        if self.synced and not self.behind_for():  # that the cluster lacks the kind is no problem
            return ""
        if self._reflector is None or (error := self._reflector.problem) is None:
            return "they have not been read yet"
        hint = "; does the ServiceAccount have list and watch on it?"
        return str(error).rstrip(".") + (hint if error.status == _FORBIDDEN else "")

    def behind_for(self) -> float:
        """Seconds since they were last read, where that has not worked since; 0 where it has."""
        if self._unconnected is not None:
            return max(time.monotonic() - self._unconnected[0], 1e-9)
        return self._mirrors.behind().get(path(), 0.0) if self._mirrors is not None else 0.0

    def of(self, namespace: str) -> NamespaceOverride | None:
        """What is in force there. Asks nobody."""
        return self._in_force.get(namespace)

    async def run(self, wanted: Callable[[], bool] = lambda: True) -> None:
        """Follow the cluster until cancelled, as long as it is ``wanted``."""
        while True:
            if wanted():
                await self._follow(wanted)
            await asyncio.sleep(POLL_EVERY)

    async def _follow(self, wanted: Callable[[], bool]) -> None:
        """Until they are not wanted any more; returns at once where there is nobody to ask."""
        try:
            client = await self._access.client()
        except NoCluster:
            self._alone = True
            return
        except KubeError as error:
            if self._unconnected is None:
                log.warning("PreflightConfigs cannot be read", error=str(error))
            since = self._unconnected[0] if self._unconnected is not None else time.monotonic()
            self._unconnected = since, str(error).rstrip(".")
            return
        self._alone, self._unconnected = False, None
        if self._reflector is None:
            # Stands on the client, which has been loaded by now.
            from preflight_kube.runtime.reflector import Reflector

            self._mirrors = client.mirrors
            self._reflector = Reflector(
                client,
                path(),
                _Read,
                on_change=self._changed,
                indexes={"namespace": lambda item: (item.metadata.namespace,)},
                limit=PAGE,
                absent_retry=self._absent_retry,
                watch_seconds=WATCH,
            )
        following = asyncio.create_task(self._reflector.run())
        try:
            while wanted() and not following.done():
                await asyncio.wait([following], timeout=POLL_EVERY)
        finally:
            following.cancel()
            await asyncio.wait([following])
        if not following.cancelled():
            following.result()

    def _changed(self, change: Change[_Read]) -> None:
        """Which one of a namespace is in force now."""
        namespace = change.object.metadata.namespace
        before, now = self._in_force.pop(namespace, None), None
        there = (
            self._reflector.by_index("namespace", namespace) if self._reflector is not None else ()
        )
        if (item := in_force(there)) is not None:
            about = {"namespace": namespace, "name": item.metadata.name}
            try:
                now = NamespaceOverride(item.metadata.name, decode_spec(item.spec))
                self._in_force[namespace] = now
            except (ContractError, RecursionError) as error:  # of a newer controller
                log.warning(
                    "PreflightConfig is accepted but not understood", error=str(error), **about
                )
        if now is not None and now != before:
            log.info("PreflightConfig is in force", namespace=namespace, preflight_config=now.name)
        elif now is None and before is not None:
            log.info("no PreflightConfig is in force any more", namespace=namespace)
        self._metrics.policies.set(len(self._in_force))
