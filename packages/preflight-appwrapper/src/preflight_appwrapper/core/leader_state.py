"""The knowledge of one leader of one wrapper beyond the mirrors: what it has done, what it was
answered, and what it has read for itself.

A mirror may be behind what this leader itself has written or read; what it knows better stands in
here until the mirror has passed it. Pure; nothing of it matters to the next leader, who reads
everything anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec
from preflight_kube.api.kinds import Kind

from preflight_appwrapper.api.conditions import Written
from preflight_appwrapper.api.types import Pod
from preflight_appwrapper.core.decode import ComponentObject

Name = tuple[Kind, str]
"""An object in the wrapper's namespace."""
_MOST_SAID: Final = 512


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A create that did not succeed. ``fatal``: it never will. ``unclear``: no answer came, and
    only a GET can say. ``tries``: how many there were since the component was last begun."""

    error: str
    at: datetime
    tries: int = 1
    fatal: bool = False
    unclear: bool = False


class Absent(msgspec.Struct, frozen=True):
    """A GET has said that there is none."""


class VersionedPod(msgspec.Struct, frozen=True):
    """A pod at its resourceVersion. ``strayed``: no list by our label says anything of it."""

    pod: Pod
    version: int
    strayed: bool = False


class Listed(msgspec.Struct, frozen=True):
    """The pods of a consistent LIST, by uid, at its resourceVersion."""

    version: int
    pods: Mapping[str, VersionedPod]


class LeaderState(msgspec.Struct, kw_only=True):
    """``found``: what a GET or the answer to a create said of a name. ``gone``: uids of which it is
    known that they are no more. ``empty``: when consistent reads of everything found nothing, since
    they last found something. ``first_seen``: conditions whose time was still to come. Both are
    monotonic, of this leader alone: a status has times of other clocks."""

    uid: str
    attempts: dict[str, datetime] = {}
    creates: dict[int, Attempt] = {}
    found: dict[Name, ComponentObject | Absent] = {}
    gone: set[str] = set()
    listed: Listed | None = None
    empty: list[float] = []
    first_seen: dict[Written, float] = {}
    said: dict[str, None] = {}
    due: datetime | None = None
    """The end of the period that was last spoken of."""
    blocked: bool = False

    def begin(self) -> None:
        """A new life begins; what was tried in the last one says nothing of it."""
        self.creates.clear()
        self.found.clear()
        self.attempts.clear()
        self.empty.clear()

    def tried(
        self, index: int, error: str, at: datetime, *, fatal: bool = False, unclear: bool = False
    ) -> None:
        """A create has failed; ``unclear``: it may have been done all the same."""
        known = self.creates.get(index)
        tries = known.tries + 1 if known is not None else 1
        self.creates[index] = Attempt(error=error, at=at, tries=tries, fatal=fatal, unclear=unclear)

    def saw(self, name: Name, one: ComponentObject | None, uids: Iterable[str] = ()) -> None:
        """Take in what is there under a name just now; ``uids``: of what was known under it."""
        before = self.found.get(name)
        known = {uid for uid in uids if uid} | (
            {before.uid} if isinstance(before, ComponentObject) else set()
        )
        self.gone |= known - ({one.uid} if one is not None else set())
        self.found[name] = Absent() if one is None else one

    def say(self, key: str) -> None:
        """It has been said; the oldest are forgotten."""
        self.said[key] = None
        while len(self.said) > _MOST_SAID:
            del self.said[next(iter(self.said))]
