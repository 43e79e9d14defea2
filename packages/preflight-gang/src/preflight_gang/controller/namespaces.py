"""Which namespaces are opted in: results in others are not counted, for anybody may write them.

The webhook works in the same ones: the label, or the lists that injector and controller are given
alike.
"""

from __future__ import annotations

from collections.abc import Callable

from preflight_kube.client.client import Client
from preflight_kube.runtime.reflector import Reflector

from preflight_gang.config import Config
from preflight_gang.core.unchecked import Namespace, opted_in


class Namespaces(Reflector[Namespace]):
    """``changed`` gets the name of one that is new or other."""

    def __init__(self, client: Client, config: Config, changed: Callable[[str], None]) -> None:
        super().__init__(
            client,
            "/api/v1/namespaces",
            Namespace,
            on_change=lambda change: changed(change.key),
            key=lambda namespace: namespace.metadata.name,
        )
        self._config = config

    def opted_in(self, name: str) -> bool:
        """Whether the pods of a namespace are checked; not those of an unknown one."""
        found, config = self.get(name), self._config
        return found is not None and opted_in(found, config.namespaces, config.exclude_namespaces)

    def all_opted_in(self) -> list[str]:
        """The names of those whose pods are checked, sorted."""
        return sorted(filter(self.opted_in, self.store))
