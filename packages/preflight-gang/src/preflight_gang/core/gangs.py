"""Which pod is a member of which gang, and all else that is kept of each gang.

Pure: it follows pods one at a time, as they change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec
from preflight_proto.roster import decode_roster
from preflight_proto.stamp import ContractError

from preflight_gang.api.types import Pod
from preflight_gang.core.membership import GangMember, Key, Place, config_map_of, key_of, member
from preflight_gang.core.plan import RosterWrite
from preflight_gang.core.waiting import AnswerPace, WaitingEvents


class GangState:
    """Everything that is kept of one gang while it has a member."""

    __slots__ = ("departed", "members", "pace", "too_large", "waiting", "with_event")

    def __init__(self) -> None:
        self.members: dict[str, GangMember] = {}
        self.departed: dict[str, GangMember] = {}
        """Those that had passed when their pods went, until the gang's record says so."""
        self.pace: AnswerPace | None = None
        """From its first address until it is sealed."""
        self.waiting = WaitingEvents()
        self.with_event: set[str] = set()
        """Members that have an Event in place of their answers."""
        self.too_large = False
        """Whether it was logged that no record can hold it."""

    def forget_departed(self, but: Collection[str] = ()) -> None:
        """Forget them, but for those with these uids."""
        self.departed = {uid: one for uid, one in self.departed.items() if uid in but}


class Gangs(dict[Key, GangState]):
    """All gangs that have a member.

    ``on_ignored`` is called once for each pod with an invalid stamp: its uid, and why.
    """

    def __init__(self, on_ignored: Callable[[str, ContractError], None]) -> None:
        super().__init__()
        self._on_ignored = on_ignored
        self._ignored: set[str] = set()
        self._key_by_uid: dict[str, Key] = {}

    def members(self, key: Key) -> Collection[GangMember]:
        """The gang's members; empty when it has none left."""
        return state.members.values() if (state := self.get(key)) is not None else ()

    def at(self, place: Place) -> list[Key]:
        """The gangs whose ConfigMap is there; more than one where ids hash alike."""
        return [key for key in self if key[0] == place[0] and config_map_of(key) == place]

    def place(self, pod: Pod, *, gone: bool) -> tuple[Key | None, Key | None]:
        """Put the pod's member where it belongs now: the gangs in which it was, and is."""
        uid, stamped = pod.metadata.uid, None
        try:
            stamped = key_of(pod)
        except ContractError as error:
            if not gone and uid not in self._ignored:
                self._ignored.add(uid)
                self._on_ignored(uid, error)
        if gone:
            self._ignored.discard(uid)
        now = stamped[0] if stamped is not None and not gone else None
        placed = member(pod, stamped[1]) if stamped is not None else None
        before = self._key_by_uid.pop(uid, None)
        if before is not None and before != now:
            state = self[before]
            state.members.pop(uid, None)
            state.with_event.discard(uid)
            if gone and placed is not None and placed.passed and placed.sealed:
                state.departed[uid] = placed
            if not state.members:
                del self[before]
        if now is not None and placed is not None:
            if now not in self:
                self[now] = GangState()
            self[now].members[uid] = placed
            self._key_by_uid[uid] = now
        return before, now

    def published(self, key: Key, write: RosterWrite) -> None:
        """A member's roster has been written. The watch says so too, a moment later or already."""
        uid, state = write.member.uid, self.get(key)
        known = state.members.get(uid) if state is not None else None
        if state is not None and known is not None and known.roster == write.member.roster:
            state.members[uid] = msgspec.structs.replace(
                known, roster=write.text, published=decode_roster(write.text)
            )
