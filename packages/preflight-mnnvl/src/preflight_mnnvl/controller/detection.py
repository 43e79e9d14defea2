"""What the cluster serves, asked for again: facts for :mod:`.support`, followed while the process
runs.

Nothing here ends the process, and nothing makes it unready: what is absent may come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NoReturn

import anyio
from preflight_kube.client.client import Client, KubeError
from preflight_kube.logs import get_logger
from preflight_kube.runtime.discovery import versions

from preflight_mnnvl.api.names import COMPUTE_DOMAIN_GROUP, RESOURCE_GROUP
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.support import ClusterFacts

__all__ = ["Detection"]

ABSENT: Final = 30.0
"""Seconds between two questions while ComputeDomains are not served."""
PRESENT: Final = 30.0
"""Seconds between two questions while they are. The controller's mirrors say at once when they are
gone; the webhook has none of them, and would go on admitting pods that can only wait.
"""
UNANSWERED: Final = 2.0

log = get_logger(__name__)


class Detection:
    """``facts`` are those of now; ``changed`` is called after each change of them."""

    def __init__(
        self,
        client: Client,
        config: Config,
        changed: Callable[[ClusterFacts], None] = lambda _: None,
    ) -> None:
        self.facts = ClusterFacts()
        self.known = anyio.Event()
        """Set when the API server has answered once."""
        self._client, self._config, self._changed = client, config, changed
        self._poke = anyio.Event()
        self._next = anyio.Event()

    def ask(self) -> None:
        """Have the cluster asked again now: a kind that was served is not any more."""
        self._poke.set()

    async def change(self) -> None:
        """Wait for the next change of the facts."""
        await self._next.wait()

    def see(self, **facts: Any) -> None:
        """Facts that others find: nodes, device classes."""
        found = self.facts._replace(**facts)
        if found != self.facts:
            self.facts = found
            self._next.set()
            self._next = anyio.Event()
            self._changed(found)

    async def run(self) -> NoReturn:
        """Ask again and again until cancelled, sooner after :meth:`ask`."""
        while True:
            self._poke = anyio.Event()
            pause = await self.look()
            with anyio.move_on_after(pause):
                await self._poke.wait()
                # What is being removed or made takes a moment, and this pause keeps requests few.
                await anyio.sleep(UNANSWERED)

    async def look(self) -> float:
        """Ask once; the seconds until the next time."""
        try:
            domains = await versions(self._client, COMPUTE_DOMAIN_GROUP, "computedomains")
            claims = await versions(self._client, RESOURCE_GROUP, "resourceclaims")
            required = True
            if self._config.mode == "literal" and domains:
                required = await self._channel_required(domains)
        except KubeError as error:
            if not self.known.is_set():
                log.warning("the API server has not said what it serves", error=str(error))
            return UNANSWERED
        if domains != self.facts.domains:
            served = ", ".join(domains) or "not served"
            log.info(
                "what the cluster serves", computedomains=served, resourceclaims=", ".join(claims)
            )
        self.see(domains=domains, claims=claims, channel_required=required)
        self.known.set()
        return PRESENT if domains else ABSENT

    async def _channel_required(self, versions: tuple[str, ...]) -> bool:
        """Whether the schema of ComputeDomain wants `spec.channel`;
        every account may read schemas.
        """
        version = "v1beta1" if "v1beta1" in versions else versions[0]
        path = f"/openapi/v3/apis/{COMPUTE_DOMAIN_GROUP}/{version}"
        found = await self._client.get_or_none(path, dict[str, Any])
        schemas = ((found or {}).get("components") or {}).get("schemas") or {}
        for name, schema in schemas.items():
            if name.endswith(".ComputeDomain"):
                spec = (schema.get("properties") or {}).get("spec") or {}
                return "channel" in (spec.get("required") or ())
        return True
