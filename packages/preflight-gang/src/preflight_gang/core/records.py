"""The gangs' ConfigMaps as they were seen last, and what their records say: unpacked when it is
asked for, once a version.

Pure. Anybody who may create ConfigMaps may fill them, so there is a bound to what is kept of each
namespace, to what is kept unpacked, and to how often one is unpacked. Beyond it, nobody waits but
the gangs of that namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from preflight_kube.api.kinds import version_of

from preflight_gang.api.types import ConfigMap
from preflight_gang.core.membership import Place
from preflight_gang.core.plan import owned_by, record_of, unpacked_size
from preflight_gang.core.snapshot import Record

MOST_OF_A_NAMESPACE: Final = 16 * 1024 * 1024
"""Bytes of records: 100,000 members, as people can read them."""
_MOST_MEMBERS: Final = 200_000
"""Of all unpacked records together, at some 450 bytes each."""
_BYTES_A_SECOND: Final = 10_000_000
"""Of one ConfigMap that changes all the time; unpacking them takes a tenth of that time."""
_MOST_AT_ONCE: Final = 16
"""ConfigMaps that are read again in one go."""
_FREE: Final = 1024 * 1024
"""Bytes that are unpacked whenever they change."""


class NotYet(Exception):
    """The record changes faster than it is looked at; ``seconds`` until it will be."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds


class LeftOut(Exception):
    """The ConfigMap is there, and its record is not known; the message says why."""


class Records:
    """``clock``: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[Place, ConfigMap] = {}
        self._bytes: Counter[str] = Counter()  # kept of each namespace
        self._left_out: dict[Place, str] = {}
        self._no_room: dict[Place, None] = {}  # of these, what may be read when others have gone
        self._records: dict[Place, tuple[ConfigMap, Record | None]] = {}  # the last used one last
        self._members_kept = 0
        self._free_at: dict[Place, float] = {}

    def at(self, place: Place) -> ConfigMap | None:
        """The record's ConfigMap at ``place``, None where there is none."""
        return self._found.get(place)

    def keep(self, found: ConfigMap, *, ours: bool = False) -> None:
        """The newer of what is known and what is found; our own write (``ours``) may be ahead."""
        place, about = (found.metadata.namespace, found.metadata.name), found.metadata
        known = self._found.get(place)
        same = known.metadata if known is not None and known.metadata.uid == about.uid else about
        if version_of(same.resource_version) > version_of(about.resource_version):
            return
        self.drop(place, moved=True)
        namespace, size = place[0], _size(found)
        if self._bytes[namespace] + size > MOST_OF_A_NAMESPACE:
            self._no_room[place] = None
            self._left_out[place] = (
                f"the ConfigMap {place[1]} is not kept: those of gangs in this namespace have more than "
                f"{MOST_OF_A_NAMESPACE >> 20} MiB together; delete those that are not needed"
            )
            return
        self._found[place] = found
        self._bytes[namespace] += size
        if ours:
            self._unpack(place, found)

    def cannot_read(self, place: Place, why: str) -> None:
        """The ConfigMap at ``place`` is there and cannot be read: ``why``."""
        self.drop(place)
        self._left_out[place] = f"the ConfigMap {place[1]} cannot be read ({why}); delete it"

    def drop(self, place: Place, *, moved: bool = False) -> None:
        """``moved``: another version takes its place."""
        self._left_out.pop(place, None)
        self._no_room.pop(place, None)
        if (known := self._found.pop(place, None)) is not None:
            self._bytes[place[0]] -= _size(known)
            if not self._bytes[place[0]]:
                del self._bytes[place[0]]
        self._forget(place)
        if not moved:
            self._free_at.pop(place, None)

    def left_out(self) -> Sequence[Place]:
        """Some of those that did not fit and may be read now, if they are still there."""
        half = MOST_OF_A_NAMESPACE // 2
        return list(
            islice((at for at in self._no_room if self._bytes[at[0]] < half), _MOST_AT_ONCE)
        )

    def record(self, place: Place) -> Record | None:
        """What the ConfigMap says; None where there is none, it is not ours, or unreadable.

        Raises :class:`LeftOut` and :class:`NotYet`.
        """
        if (why := self._left_out.get(place)) is not None:
            raise LeftOut(why)
        found = self._found.get(place)
        if found is None:
            return None
        if (known := self._records.get(place)) is not None and known[0] is found:
            self._records[place] = self._records.pop(place)
            return known[1]
        if (left := self._free_at.get(place, 0.0) - self._clock()) > 0:
            raise NotYet(left)
        return self._unpack(place, found)

    def _unpack(self, place: Place, found: ConfigMap) -> Record | None:
        self._forget(place)
        record = record_of(found) if owned_by(found) else None
        if (size := unpacked_size(found)) > _FREE:
            self._free_at[place] = self._clock() + size / _BYTES_A_SECOND
        self._records[place] = (found, record)
        self._members_kept += _members_of(record)
        for other in list(self._records):
            if self._members_kept <= _MOST_MEMBERS or other == place:
                break
            self._forget(other)
        return record

    def _forget(self, place: Place) -> None:
        if (known := self._records.pop(place, None)) is not None:
            self._members_kept -= _members_of(known[1])


def _members_of(record: Record | None) -> int:
    return len(record.assignments) if record is not None else 0


def _size(found: ConfigMap) -> int:
    return 1024 + sum(map(len, found.data.values())) + sum(map(len, found.binary_data.values()))
