"""One list of labeled objects for all who ask at about the same time: an API server reads each from
all objects of the namespace. Those who ask while a list is under way share the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import anyio
import msgspec
from preflight_kube.api.kinds import version_of
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime.writes import gather

from preflight_appwrapper.api.names import LABEL, LONGEST_VALUE
from preflight_appwrapper.core.decode import PartialObject

_TOGETHER: Final = 32
"""Wrappers of one request: their names stand in its URL, of which proxies bound the length."""
_GATHER: Final = 0.02
"""Seconds for which a list that is only read for several waits for these."""


class LabeledList(msgspec.Struct, frozen=True):
    """The objects of one wrapper, as a consistent list at this resourceVersion had them."""

    version: int
    objects: tuple[Any, ...] = ()


class _Round(msgspec.Struct, eq=False):
    """One list. ``least``: the fewest names that it is read for. ``lists``: by wrapper."""

    names: set[str]
    read: Callable[[PartialObject], Any]
    least: int
    over: anyio.Event
    lists: dict[str, LabeledList] | None = None
    error: KubeError | None = None


class LabeledLists:
    """Consistent lists of objects by wrapper, one at a time of each collection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._next: dict[str, _Round] = {}  # by path: has not begun yet, and can be joined
        self._locks: dict[str, anyio.Lock] = {}

    async def of(
        self, path: str, name: str, read: Callable[[PartialObject], Any], *, least: int = 1
    ) -> LabeledList | None:
        """The objects of a wrapper in the collection ``path``, from a list that began after this
        was called; None where fewer than ``least`` wrappers share it, and nothing was read.
        ``read`` makes of each what is kept. Raises :class:`KubeError`.
        """
        if len(name) > LONGEST_VALUE:  # nothing has it as a label
            return LabeledList(0)
        joined = self._next.get(path)
        if joined is None:
            joined = self._next[path] = _Round({name}, read, least, anyio.Event())
            await self._read(path, joined)
        else:
            joined.names.add(name)
            joined.least = min(joined.least, least)
            await joined.over.wait()
        if joined.error is not None:
            raise joined.error
        return joined.lists[name] if joined.lists is not None else None

    async def _read(self, path: str, current: _Round) -> None:
        current.error = KubeError(f"{path}: the list was given up.")
        lock = self._locks.setdefault(path, anyio.Lock())
        try:
            if current.least > 1:
                await anyio.sleep(_GATHER)
            async with lock:
                del self._next[path]  # who asks from now on gets the next list
                if len(current.names) >= current.least:
                    current.lists = await self._list(path, sorted(current.names), current.read)
            current.error = None
        except KubeError as error:
            current.error = error
        finally:
            if self._next.get(path) is current:
                del self._next[path]
            current.over.set()
            if path not in self._next and not lock.locked():
                self._locks.pop(path, None)

    async def _list(
        self, path: str, names: list[str], read: Callable[[PartialObject], Any]
    ) -> dict[str, LabeledList]:
        async def some(names: list[str]) -> dict[str, LabeledList]:
            objects: dict[str, list[Any]] = {name: [] for name in names}
            at, params = 0, {"labelSelector": f"{LABEL} in ({','.join(names)})"}
            async for page, version in self._client.pages(path, PartialObject, params=params):
                at = version_of(version)
                for raw in page:
                    objects[raw.metadata.labels[LABEL]].append(read(raw))
            return {name: LabeledList(at, tuple(items)) for name, items in objects.items()}

        starts = range(0, len(names), _TOGETHER)
        parts = await gather(some(names[i : i + _TOGETHER]) for i in starts)
        return {name: items for part in parts for name, items in part.items()}
