"""Which objects of a store have a value: pods by owner, by node, by name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def namespaced_name(item: Any) -> tuple[str, ...]:
    """``namespace/name`` of an object whose Struct reads both, or its name where it reads no
    namespace: as an index, one value each.
    """
    metadata = item.metadata
    namespace = getattr(metadata, "namespace", None)
    return (f"{namespace}/{metadata.name}" if namespace else str(metadata.name),)


def owner_uids(item: Any) -> tuple[str, ...]:
    """The uids of an object's owners, as its Struct's ``metadata.owner_references`` has them."""
    return tuple(str(owner.uid) for owner in item.metadata.owner_references or ())


class Index(Generic[T]):
    """Keys by the values that ``of`` finds in their objects. What it finds must follow from the
    object alone.
    """

    def __init__(self, of: Callable[[T], Iterable[str]]) -> None:
        self._of = of
        self._values: dict[str, tuple[str, ...]] = {}
        self._keys: dict[str, str | dict[str, None]] = {}
        # Sets in the order of coming; of one key the key alone, as ten thousand sets are megabytes.

    def put(self, key: str, item: T) -> None:
        """Have ``key`` under the values of ``item``, and no others."""
        values = tuple(dict.fromkeys(self._of(item)))
        if values == self._values.get(key, ()):
            return
        self.remove(key)
        if values:
            self._values[key] = values
        for value in values:
            keys = self._keys.setdefault(value, key)
            if isinstance(keys, dict):
                keys[key] = None
            elif keys != key:
                self._keys[value] = {keys: None, key: None}

    def remove(self, key: str) -> None:
        """Forget ``key``."""
        for value in self._values.pop(key, ()):
            keys = self._keys[value]
            if isinstance(keys, dict):
                del keys[key]
            if keys == key or not keys:
                del self._keys[value]

    def keys(self, value: str) -> tuple[str, ...]:
        """The keys under ``value``, in the order in which they came under it."""
        keys = self._keys.get(value, ())
        return (keys,) if isinstance(keys, str) else tuple(keys)

    def count(self, value: str) -> int:
        """How many keys are under ``value``."""
        keys = self._keys.get(value, ())
        return 1 if isinstance(keys, str) else len(keys)

    def values(self) -> tuple[str, ...]:
        """All values that there are."""
        return tuple(self._keys)
