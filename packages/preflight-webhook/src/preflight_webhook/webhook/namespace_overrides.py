"""What namespaces set for themselves, followed so that no admission has to ask for it.

Listed once and watched from then on. A cluster without the kind has no such objects; once read, it
stays as last seen while the API server does not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
import msgspec
from preflight_kube.client.client import Client
from preflight_kube.logs import get_logger
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_proto.policy import (
    ContractError,
    PreflightConfig,
    PreflightConfigSpec,
    decode_spec,
    path,
)

from preflight_webhook.config.config import in_force
from preflight_webhook.metrics import Metrics

WATCH: Final = 60
"""Seconds of one watch: so late is a silent break of it noticed."""
ABSENT: Final = 60.0
"""Seconds after which it is seen whether the cluster has the kind by now."""
POLL_EVERY: Final = 5.0
"""Seconds after which it is seen whether a new configuration wants them followed."""
PAGE: Final = 20
"""Objects of one answer: each may have megabytes that are not read."""
MOST_SPEC: Final = 64 * 1024
"""Bytes; what the CRD lets through is a tenth of that."""

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
    """Use within one event loop. ``wanted``: whether the configuration has them followed just
    now.
    """

    def __init__(
        self,
        client: Client,
        metrics: Metrics,
        wanted: Callable[[], bool] = lambda: True,
        *,
        absent_retry: float = ABSENT,
    ) -> None:
        self._metrics, self._wanted, self._mirrors = metrics, wanted, client.mirrors
        self._in_force: dict[str, NamespaceOverride] = {}
        self._was_ready = False
        self._reflector = Reflector(
            client,
            path(),
            _Read,
            on_change=self._changed,
            indexes={"namespace": lambda item: (item.metadata.namespace,)},
            limit=PAGE,
            absent_retry=absent_retry,
            watch_seconds=WATCH,
        )
        metrics.policies_behind.set_function(lambda: int(self._mirrors.behind().get(path(), 0) > 0))
        metrics.unreadable = lambda: self._mirrors.unreadable[path()]

    def unready(self) -> str:
        """Why requests should go elsewhere: a new replica has not read them yet, nor learned that
        the cluster does not have the kind. Empty where they need not.
        """
        if self._was_ready or not self._wanted() or self._reflector.synced.is_set():
            self._was_ready = True
            return ""
        why = self._mirrors.trouble(0.0) or "they have not been read yet"
        return f"starting: PreflightConfigs of namespaces: {why}"

    def of(self, namespace: str) -> NamespaceOverride | None:
        """What is in force there. Asks nobody."""
        return self._in_force.get(namespace)

    async def run(self) -> None:
        """Follow the cluster until cancelled, as long as it is wanted."""
        while True:
            if self._wanted():
                async with anyio.create_task_group() as group:
                    group.start_soon(self._reflector.run)
                    while self._wanted():  # noqa: ASYNC110 - nobody says when that changes
                        await anyio.sleep(POLL_EVERY)
                    group.cancel_scope.cancel()
            await anyio.sleep(POLL_EVERY)

    def _changed(self, change: Change[_Read]) -> None:
        """Which one of a namespace is in force now."""
        namespace = change.object.metadata.namespace
        before, now = self._in_force.pop(namespace, None), None
        if (item := in_force(self._reflector.by_index("namespace", namespace))) is not None:
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
