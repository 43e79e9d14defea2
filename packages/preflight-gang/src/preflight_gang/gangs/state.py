"""Which pod is a member of which gang, and who had passed when its pod went.

Pure: it follows what it is shown of pods, one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import msgspec
from preflight_proto.roster import decode_roster
from preflight_proto.stamp import ContractError, configmap_name, gang_id

from ..objects import Pod
from .membership import Key, Member, key_of, member

__all__ = ["Members", "Placed", "config_maps"]


class Placed(NamedTuple):
    """Where a pod's member was and where it is now. ``dissolved``: the gang it was in has no member left."""

    before: Key | None
    now: Key | None
    dissolved: bool


class Members:
    """Of all gangs; iterates over those with a member. ``ignored`` hears once of each pod whose stamp cannot be believed: its uid, and why."""

    def __init__(self, ignored: Callable[[str, ContractError], None]) -> None:
        self._tell_ignored = ignored
        self._ignored: set[str] = set()
        self._gangs: dict[Key, dict[str, Member]] = {}
        self._key_by_uid: dict[str, Key] = {}
        self._departed: dict[Key, dict[str, Member]] = {}  # had passed when they went, while it is not written down

    def __len__(self) -> int:
        return len(self._gangs)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._gangs)

    def of(self, key: Key) -> Collection[Member]:
        """The gang's members; empty when it has none left."""
        return self._gangs.get(key, {}).values()

    def get(self, key: Key, uid: str) -> Member | None:
        return self._gangs.get(key, {}).get(uid)

    def at(self, place: tuple[str, str]) -> list[Key]:
        """The gangs whose ConfigMap has, or may have, this namespace and name: more than one where ids hash alike, and where they were
        stamped before sources told them apart."""
        return [key for key in self._gangs if key[0] == place[0] and place[1] in config_maps(key)]

    def of_record(self, namespace: str, source: str, raw: str) -> list[Key]:
        """The gangs that a record is of: all of that raw id, where it was written before sources told them apart."""
        if source:
            return [(namespace, gang_id(source, raw))]
        return [key for key in self._gangs if key[0] == namespace and key[1].partition(":")[2] == raw]

    def place(self, pod: Pod, *, gone: bool) -> Placed:
        """Put the pod's member where it belongs now."""
        uid = pod.metadata.uid
        stamped = None
        if gone:
            self._ignored.discard(uid)
        else:
            try:
                stamped = key_of(pod)
            except ContractError as error:
                if uid not in self._ignored:
                    self._ignored.add(uid)
                    self._tell_ignored(uid, error)
        before, dissolved = self._key_by_uid.pop(uid, None), False
        if before is not None and (stamped is None or stamped[0] != before):
            gang = self._gangs[before]
            gang.pop(uid, None)
            if gone and (last := _as_it_was(pod)) is not None:
                self._departed.setdefault(before, {})[uid] = last
            if dissolved := not gang:
                del self._gangs[before]
                self._departed.pop(before, None)
        if stamped is None:
            return Placed(before, None, dissolved)
        key, stamp = stamped
        self._gangs.setdefault(key, {})[uid] = member(pod, stamp)
        self._key_by_uid[uid] = key
        return Placed(before, key, dissolved)

    def heard(self, key: Key, uid: str, roster: str) -> None:
        """What a member has been told just now; the watch says so, too, a moment later."""
        if (known := self.get(key, uid)) is not None:
            self._gangs[key][uid] = msgspec.structs.replace(known, roster=roster, told=decode_roster(roster))

    def departed(self, key: Key) -> tuple[Member, ...]:
        """Those who had passed when their pods went, while the gang's record does not say so."""
        return tuple(self._departed.get(key, {}).values())

    def forget_departed(self, key: Key, but: Collection[str] = ()) -> None:
        """All of them, or all but those with these uids."""
        left = {uid: one for uid, one in self._departed.pop(key, {}).items() if uid in but}
        if left:
            self._departed[key] = left


def config_maps(key: Key) -> tuple[str, str]:
    """The names that the ConfigMap of a gang may have: the true one, and that of members that were stamped as version 1."""
    source, _, raw = key[1].partition(":")
    return configmap_name(key[0], raw, source), configmap_name(key[0], raw, "")


def _as_it_was(pod: Pod) -> Member | None:
    """The member that a deleted pod was, if it had passed the test of a generation."""
    try:
        stamped = key_of(pod)
    except ContractError:
        return None
    last = member(pod, stamped[1]) if stamped is not None else None
    sealed = last is not None and last.told is not None and last.told.answer == "sealed"
    return last if last is not None and last.passed and sealed else None
