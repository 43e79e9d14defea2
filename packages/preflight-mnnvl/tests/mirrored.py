"""The controller's cache without an API server: changes are told to it one by one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from preflight_kube.client.client import Client
from preflight_mnnvl.api.types import ComputeDomain, Key, Part, PodClique, PodCliqueSet, PodGang
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.cache import MnnvlCache


class Mirror(MnnvlCache):
    """All kinds are served, as what a reflector would have read of them."""

    def __init__(
        self, config: Config, touch: Callable[[Key], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(cast("Client", SimpleNamespace(clock=clock)), config, touch)
        for reflector in self.reflectors:
            reflector.synced.set()
        self._last: dict[str, Any] = {}

    def clique(self, uid: str, clique: PodClique | None) -> None:
        """A PodClique as it is now; None where it has gone."""
        self._tell(self.cliques, uid, clique)

    def set_as(self, found: PodCliqueSet, *, gone: bool = False) -> None:
        """A PodCliqueSet as it is now, or (``gone``) was."""
        self._tell(self.sets, found.metadata.uid, None if gone else found)

    def gang_as(self, found: PodGang, *, gone: bool = False) -> None:
        """The same of a PodGang."""
        self._tell(self.gangs, found.metadata.uid, None if gone else found)

    def part_as(self, part: Part, found: ComputeDomain, *, gone: bool = False) -> None:
        """The same of a ComputeDomain, claim template or claim."""
        self._tell(self.parts[part].cache, found.metadata.uid, None if gone else found)

    def served(self, part: Part, now: bool) -> None:
        """The kind is served, or is not: then there is nothing of it, as a reflector has it."""
        for cache in self.parts[part].caches.values():
            cache.absent = not now
            cache._replace({}, {})

    def _tell(self, reflector: Any, uid: str, found: Any) -> None:
        if found is None:
            reflector._remove(uid, self._last.pop(uid, None))
            return
        self._last[uid] = found
        reflector._put(uid, found)
