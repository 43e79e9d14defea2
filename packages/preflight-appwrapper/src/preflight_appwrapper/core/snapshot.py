"""From what is mirrored to what is decided on. A mirror may be behind what this leader has done and
read, which stands in until the mirror has passed it; the next leader needs none of it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import msgspec
from preflight_kube.api.kinds import Kind, kind_of

from preflight_appwrapper.api.conditions import Written, written
from preflight_appwrapper.api.types import AppWrapper, ComponentStatus, Pod
from preflight_appwrapper.core.component_status import ComponentVerdict
from preflight_appwrapper.core.decode import ComponentObject
from preflight_appwrapper.core.plan import WrapperAction, WrapperEvent

_MOST_RECORDED: Final = 512
_MOST_GONE: Final = 4096
"""Uids that are kept although no mirror shows them any more."""
Name = tuple[Kind, str]
"""An object in the wrapper's namespace."""
State = Literal["unknown", "absent", "present", "going"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """A create that did not succeed. ``fatal``: it never will. ``unclear``: no answer came, and
    only a GET can say. ``tries``: how many there were since the component was last begun, of which
    the last ``forbidden`` for want of a right."""

    error: str
    at: datetime
    tries: int = 1
    fatal: bool = False
    unclear: bool = False
    forbidden: int = 0


class LeaderState(msgspec.Struct, kw_only=True):
    """``read``: what a GET or the answer to a create said of a name; None: nothing has it.
    ``gone``: uids of which it is known that they are no more; ``refused``: by uid, why it could not
    be deleted. ``empty``: when consistent reads of everything found nothing, since they last found
    something. ``first_seen``: when a condition was first seen whose time was still to come, or of
    that very second. Both are monotonic, of this leader alone: a status has times of other
    clocks."""

    uid: str
    attempts: dict[WrapperAction, datetime] = {}
    creates: dict[int, Attempt] = {}
    read: dict[Name, ComponentObject | None] = {}
    gone: set[str] = set()
    refused: dict[str, str] = {}
    empty: list[float] = []
    first_seen: dict[Written, float] = {}
    recorded: dict[str, None] = {}
    due: datetime | None = None
    """The end of the period that was last spoken of."""

    def begin(self) -> None:
        """A new life begins; what was tried in the last one says nothing of it."""
        for known in (self.creates, self.read, self.attempts, self.refused, self.empty):
            known.clear()

    def tried(self, index: int, error: str, at: datetime, **more: Any) -> None:
        """A create has failed; ``more``: fields of :class:`Attempt`."""
        known = self.creates.get(index)
        tries = known.tries + 1 if known is not None else 1
        self.creates[index] = Attempt(error=error, at=at, tries=tries, **more)

    def saw(self, name: Name, object_: ComponentObject | None, uids: Iterable[str] = ()) -> None:
        """Take in what is there under a name just now; ``uids``: of what was known under it."""
        before = self.read.get(name)
        known = {*uids, before.uid if before is not None else ""}
        self.gone |= known - {"", object_.uid if object_ is not None else ""}
        self.read[name] = object_

    def record(self, event: WrapperEvent) -> bool:
        """Say whether an Event is made for the first time, whatever became of it."""
        new = event.key not in self.recorded
        self.recorded[event.key] = None
        while len(self.recorded) > _MOST_RECORDED:
            del self.recorded[next(iter(self.recorded))]
        return new


class SeenComponent(msgspec.Struct, frozen=True, kw_only=True):
    """A component in the cluster, under the name that the status says.

    ``confirmed``: a GET, or the answer to a create, says so; else a watch does, which may be
    behind. ``ours``: its controller is this very wrapper, by uid; ``owner``: who else it belongs
    to, in words. ``verdict`` may be the last one seen of an object that is gone. ``attempt``: the
    last create, where that did not succeed.
    """

    state: State = "unknown"
    uid: str = ""
    confirmed: bool = False
    ours: bool = False
    owner: str = ""
    finalizers: tuple[str, ...] = ()
    verdict: ComponentVerdict = ComponentVerdict()
    attempt: Attempt | None = None


class HeldEvacuation(msgspec.Struct, frozen=True, kw_only=True):
    """The reason that nothing more may be evacuated now, and until when at least."""

    sentence: str
    at: datetime


class WrapperSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The newest view of what belongs to one wrapper.

    ``complete``: every mirror is synced, and not behind what this leader itself has written or
    listed; without it nothing is decided. ``forbidden``: kinds of its components that may not be
    read. ``components`` run parallel to the status. ``pods``: all with the wrapper's label in its
    namespace. ``nodes``: by name, the resources that running pods must leave. ``strays``: objects
    whose controller is this wrapper, and which its status does not name. ``suffix``: five random
    characters for names. ``held``: the brake, where it would have an evacuation wait. The others
    are as in :class:`LeaderState`, in times of its own clock.
    """

    complete: bool = True
    forbidden: tuple[Kind, ...] = ()
    components: tuple[SeenComponent, ...] = ()
    pods: tuple[Pod, ...] = ()
    nodes: Mapping[str, frozenset[str]] = {}
    strays: tuple[ComponentObject, ...] = ()
    attempts: Mapping[WrapperAction, datetime] = {}
    refused: Mapping[str, str] = {}
    empty: tuple[datetime, ...] = ()
    suffix: str = "00000"
    held: HeldEvacuation | None = None
    first_seen: Mapping[tuple[str, str, datetime | None], datetime] = {}

    def component(self, index: int) -> SeenComponent:
        """Unknown where it was not looked for."""
        return self.components[index] if index < len(self.components) else SeenComponent()


class Mirrored(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the caches for one wrapper. ``things``: whose controller it is, or what has
    one of its components' names. ``departed``: the last that was seen of what the mirrors had.
    ``version``: up to where a kind's mirror has come.
    """

    complete: bool
    forbidden: tuple[Kind, ...] = ()
    things: Mapping[tuple[Kind, str], ComponentObject] = {}
    departed: Mapping[tuple[Kind, str], ComponentObject] = {}
    pods: Mapping[str, Pod] = {}
    nodes: Mapping[str, frozenset[str]] = {}
    version: Callable[[Kind], int] = lambda _: 0


def observe(
    wrapper: AppWrapper,
    mirrored: Mirrored,
    memory: LeaderState,
    *,
    suffix: str,
    now: datetime,
    clock: float,
    held: HeldEvacuation | None = None,
) -> WrapperSnapshot:
    """``memory`` loses what the mirrors have passed; ``clock`` is ``now``, monotonic."""
    pods = tuple(pod for uid, pod in sorted(mirrored.pods.items()) if uid not in memory.gone)
    every = wrapper.status.component_status
    components = [_component(wrapper, i, known, mirrored, memory) for i, known in enumerate(every)]
    named = {(kind_of(known.api_version, known.kind), known.name) for known in every}
    if len(memory.gone) > _MOST_GONE:
        memory.gone &= {*mirrored.pods, *(object_.uid for object_ in mirrored.things.values())}
    strays = tuple(
        object_
        for name, object_ in sorted(mirrored.things.items())
        if object_.belongs_to(wrapper) and name not in named and object_.uid not in memory.gone
    )
    if pods or strays or any(seen.ours for seen in components):
        memory.empty.clear()
    return WrapperSnapshot(
        complete=mirrored.complete,
        forbidden=mirrored.forbidden,
        components=tuple(components),
        pods=pods,
        nodes=mirrored.nodes,
        strays=strays,
        attempts=memory.attempts,
        refused=memory.refused,
        empty=tuple(_at(mono, now, clock) for mono in memory.empty),
        suffix=suffix,
        held=held,
        first_seen=_first_seen(wrapper, memory, now, clock),
    )


def _at(mono: float, now: datetime, clock: float) -> datetime:
    return now - timedelta(seconds=clock - mono)


def _first_seen(
    wrapper: AppWrapper, memory: LeaderState, now: datetime, clock: float
) -> dict[Written, datetime]:
    before, kept = memory.first_seen, dict[Written, float]()
    for condition in wrapper.status.conditions:
        key, at = written(condition), condition.last_transition_time
        # Of a time that is still to come, or of this very second, this leader knows better.
        if at is not None and (key in before or at > now - timedelta(seconds=1)):
            kept[key] = before.get(key, clock)
    memory.first_seen = kept
    return {key: _at(mono, now, clock) for key, mono in kept.items()}


def _component(
    wrapper: AppWrapper, index: int, known: ComponentStatus, mirrored: Mirrored, memory: LeaderState
) -> SeenComponent:
    attempt = memory.creates.get(index)
    if not known.name:
        return SeenComponent(state="absent", attempt=attempt)
    name = (kind_of(known.api_version, known.kind), known.name)
    shown = mirrored.things.get(name)
    if shown is not None and shown.uid in memory.gone:
        shown = None
    read = memory.read.get(name)
    if shown is not None and shown == read:
        memory.read[name] = shown  # which is kept anyway
    passed, asked = mirrored.version(name[0]), name in memory.read
    newest, confirmed = _newer(shown, read, passed, asked=asked)
    if newest is None:
        if read is not None:
            del memory.read[name]  # the mirror has passed what was known better
        last = (  # so that one that has ended well may be gone
            object_.verdict
            for object_ in (mirrored.departed.get(name), read)
            if object_ is not None and known.uid in {"", object_.uid}
        )
        says = next(last, ComponentVerdict())
        return SeenComponent(state="absent", confirmed=confirmed, verdict=says, attempt=attempt)
    return SeenComponent(
        state="going" if newest.going else "present",
        uid=newest.uid,
        confirmed=confirmed,
        ours=newest.belongs_to(wrapper),
        owner=f"{newest.owner.kind} {newest.owner.name}" if newest.owner else "",
        finalizers=newest.finalizers,
        verdict=newest.verdict,
        attempt=attempt,
    )


def _newer(
    shown: ComponentObject | None, read: ComponentObject | None, passed: int, *, asked: bool
) -> tuple[ComponentObject | None, bool]:
    """Return the newest that is known, and whether the API server itself was asked."""
    if read is None:
        return shown, asked and shown is None
    if shown is None:
        return (read, True) if passed < read.version or not read.label else (None, False)
    if shown.uid == read.uid:
        return (shown if shown.version > read.version else read), True
    return (shown, False) if shown.version > read.version else (read, True)
