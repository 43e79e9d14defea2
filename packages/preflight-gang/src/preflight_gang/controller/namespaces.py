"""Which namespaces are opted in: results of pods in other namespaces are not counted, for anybody
may write them.

The webhook works in the same ones: the label, or the lists that injector and controller are given
alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from preflight_kube.client.client import Client
from preflight_kube.runtime.reflector import Reflector

from preflight_gang.config import Config
from preflight_gang.core.unchecked import Namespace, opted_in

__all__ = ["Namespaces"]

PATH: Final = "/api/v1/namespaces"


class Namespaces:
    """Mirrored while :meth:`mirror` runs. ``changed`` is called with the name of one that has come,
    changed its label, or gone.
    """

    def __init__(
        self, client: Client, config: Config, changed: Callable[[str], None] = lambda _: None
    ) -> None:
        self._config = config
        self._reflector = Reflector(
            client,
            PATH,
            Namespace,
            on_change=lambda change: changed(change.key),
            key=lambda namespace: namespace.metadata.name,
        )
        self.mirror, self.synced = self._reflector.run, self._reflector.synced

    def opted_in(self, name: str) -> bool:
        """Whether the pods of a namespace are checked, as far as is known; not those of an unknown
        one.
        """
        found = self._reflector.store.get(name)
        return found is not None and opted_in(
            found, self._config.namespaces, self._config.exclude_namespaces
        )

    def all_opted_in(self) -> list[str]:
        """The names of those whose pods are checked, sorted."""
        return sorted(name for name in self._reflector.store if self.opted_in(name))
