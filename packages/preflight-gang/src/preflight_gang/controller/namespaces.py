"""Which namespaces are opted in: results of pods in other namespaces are not counted, for anybody
may write them.

The webhook works in the same ones: the label, or the lists that injector and controller are given
alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio
from preflight_kube.client.client import Client
from preflight_kube.runtime.reflector import Change, Reflector

from preflight_gang.config import Config
from preflight_gang.core.opt_in import Namespace, opted_in

__all__ = ["Namespaces"]

PATH: Final = "/api/v1/namespaces"


class Namespaces:
    """Mirrored while :meth:`mirror` runs. ``changed`` is called with the name of one that has come,
    changed its label, or gone.
    """

    def __init__(
        self, client: Client, config: Config, changed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._config, self._changed = config, changed
        self._mirror = Reflector(
            client,
            PATH,
            Namespace,
            on_change=self._on_change,
            key=lambda namespace: namespace.metadata.name,
        )

    async def mirror(self) -> None:
        """Follow the cluster until cancelled."""
        await self._mirror.run()

    @property
    def synced(self) -> anyio.Event:
        """Set once all namespaces have been read."""
        return self._mirror.synced

    def opted_in(self, name: str) -> bool:
        """Whether the pods of a namespace are checked, as far as is known; not those of an unknown
        one.
        """
        found = self._mirror.store.get(name)
        return found is not None and opted_in(
            found, self._config.namespaces, self._config.exclude_namespaces
        )

    def all_opted_in(self) -> list[str]:
        """The names of those whose pods are checked, sorted."""
        return sorted(name for name in self._mirror.store if self.opted_in(name))

    def _on_change(self, change: Change[Namespace]) -> None:
        self._changed(change.key)
