"""Values of a metric's label that users choose: so many at once, and nobody's values push out those
of others.

Pure. A registry keeps each series for ever; a label whose values users choose needs an end.
"""

from __future__ import annotations

from collections import Counter, OrderedDict

__all__ = ["LabelValues"]


class LabelValues:
    """At most ``most`` values. Beyond, the namespace that brought the most of them loses the one
    that was not used for longest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[
            str, OrderedDict[str, None]
        ] = {}  # by who brought them, least recently used first
        self._count = 0
        self._holders: Counter[str] = Counter()

    def use(self, namespace: str, value: str) -> list[str]:
        """Note that ``value`` is used; the values that are now nobody's, whose series are to be
        removed.
        """
        own = self._values.setdefault(namespace, OrderedDict())
        if value in own:
            own.move_to_end(value)
            return []
        own[value] = None
        self._count += 1
        self._holders[value] += 1
        if self._count <= self._most:
            return []
        # Ties go against who brings another one.
        largest = max(self._values, key=lambda one: (len(self._values[one]), one == namespace))
        gone, _ = self._values[largest].popitem(last=False)
        if not self._values[largest]:
            del self._values[largest]
        self._count -= 1
        self._holders[gone] -= 1
        if self._holders[gone]:
            return []
        del self._holders[gone]
        return [gone]
