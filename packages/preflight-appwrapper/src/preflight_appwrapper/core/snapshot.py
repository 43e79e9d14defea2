"""From what is mirrored, and what this leader knows better, to the view that a decision is made
from. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, Literal

import msgspec
from preflight_kube.api.kinds import Kind, kind_of

from preflight_appwrapper.api.conditions import Written, written
from preflight_appwrapper.api.types import AppWrapper, ComponentStatus, Pod
from preflight_appwrapper.core.component_status import ComponentVerdict
from preflight_appwrapper.core.decode import ComponentObject
from preflight_appwrapper.core.leader_state import Absent, Attempt, LeaderState, VersionedPod

_MOST_GONE: Final = 4096
"""Uids that are kept although no mirror shows them any more."""


State = Literal["unknown", "absent", "present", "going"]


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
    listed; without it nothing is decided. ``components`` run parallel to the status. ``pods``: all
    with the wrapper's label in its namespace. ``nodes``: by name, the resources that running pods
    must leave. ``strays``: objects whose controller is this wrapper, and which its status does
    not name. ``attempts``: by :attr:`WrapperAction.key`, when this leader last did it. ``empty``:
    when consistent reads of everything found nothing, since they last found something. ``suffix``:
    five random characters for names. ``said``: keys of what has been said already.
    ``held``: the brake, where it would have an evacuation wait. ``first_seen``: when this leader
    has first seen a condition whose time was still to come, or of that very second. All times are
    of its own clock.
    """

    complete: bool = True
    components: tuple[SeenComponent, ...] = ()
    pods: tuple[Pod, ...] = ()
    nodes: Mapping[str, frozenset[str]] = {}
    strays: tuple[ComponentObject, ...] = ()
    attempts: Mapping[str, datetime] = {}
    empty: tuple[datetime, ...] = ()
    suffix: str = "00000"
    said: frozenset[str] = frozenset()
    held: HeldEvacuation | None = None
    first_seen: Mapping[tuple[str, str, datetime | None], datetime] = {}

    def component(self, index: int) -> SeenComponent:
        """Unknown where it was not looked for."""
        return self.components[index] if index < len(self.components) else SeenComponent()


class Mirrored(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the caches for one wrapper. ``things``: whose controller it is, or what has
    one of its components' names. ``departed``: the last that was seen of what the mirrors had.
    ``version``: up to where a kind's mirror has come; ``pods_version``: that of pods.
    ``elsewhere``: whether the pod with this uid is another wrapper's.
    """

    complete: bool
    things: Mapping[tuple[Kind, str], ComponentObject] = {}
    departed: Mapping[tuple[Kind, str], ComponentObject] = {}
    pods: Mapping[str, VersionedPod] = {}
    nodes: Mapping[str, frozenset[str]] = {}
    version: Callable[[Kind], int] = lambda _: 0
    pods_version: int = 0
    elsewhere: Callable[[str], bool] = lambda _: False


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
    pods = _pods(mirrored, memory)
    every = enumerate(wrapper.status.component_status)
    components = tuple(_component(wrapper, i, known, mirrored, memory) for i, known in every)
    known = wrapper.status.component_status
    named = {(kind_of(one.api_version, one.kind), one.name) for one in known}
    if len(memory.gone) > _MOST_GONE:
        memory.gone &= {*mirrored.pods, *(one.uid for one in mirrored.things.values())}
    strays = tuple(_strays(wrapper, named, mirrored, memory))
    if pods or strays or any(one.ours and one.state in {"present", "going"} for one in components):
        memory.empty.clear()
    return WrapperSnapshot(
        complete=mirrored.complete,
        components=components,
        pods=pods,
        nodes=mirrored.nodes,
        strays=strays,
        attempts=memory.attempts,
        empty=tuple(_at(one, now, clock) for one in memory.empty),
        suffix=suffix,
        said=frozenset(memory.said),
        held=held,
        first_seen=_first_seen(wrapper, memory, now, clock),
    )


def _at(mono: float, now: datetime, clock: float) -> datetime:
    return now - timedelta(seconds=clock - mono)


def _first_seen(
    wrapper: AppWrapper, memory: LeaderState, now: datetime, clock: float
) -> dict[Written, datetime]:
    before, kept = memory.first_seen, dict[Written, float]()
    for one in wrapper.status.conditions:
        key, at = written(one), one.last_transition_time
        # Of a time that is still to come, or of this very second, this leader knows better.
        if at is not None and (key in before or at > now - timedelta(seconds=1)):
            kept[key] = before.get(key, clock)
    memory.first_seen = kept
    return {key: _at(mono, now, clock) for key, mono in kept.items()}


def _pods(mirrored: Mirrored, memory: LeaderState) -> tuple[Pod, ...]:
    listed = memory.listed
    if listed is not None and mirrored.pods_version >= listed.version:
        listed = memory.listed = None
    found = {
        uid: held.pod
        for uid, held in mirrored.pods.items()
        if listed is None or held.version > listed.version or held.strayed
    }
    for uid, held in listed.pods.items() if listed is not None else ():
        if not mirrored.elsewhere(uid):
            found.setdefault(uid, held.pod)
    return tuple(found[uid] for uid in sorted(found) if uid not in memory.gone)


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
    found = memory.found.get(name)
    if shown is not None and shown == found:
        memory.found[name] = shown  # which is kept anyway
    one, confirmed = _newer(shown, found, mirrored.version(name[0]))
    if one is None and isinstance(found, ComponentObject):
        memory.found.pop(name, None)  # the mirror has passed what was known better
    if one is None:
        says = _last(known, mirrored.departed.get(name), found)
        return SeenComponent(state="absent", confirmed=confirmed, verdict=says, attempt=attempt)
    return SeenComponent(
        state="going" if one.going else "present",
        uid=one.uid,
        confirmed=confirmed,
        ours=one.belongs_to(wrapper),
        owner=one.owner_words,
        finalizers=one.finalizers,
        verdict=one.verdict,
        attempt=attempt,
    )


def _newer(
    shown: ComponentObject | None, found: ComponentObject | Absent | None, passed: int
) -> tuple[ComponentObject | None, bool]:
    """Return the newest that is known, and whether the API server itself was asked."""
    if found is None:
        return shown, False
    if isinstance(found, Absent):
        return (None, True) if shown is None else (shown, False)
    if shown is None:
        return (found, True) if passed < found.version or not found.label else (None, False)
    if shown.uid == found.uid:
        return (shown if shown.version > found.version else found), True
    return (shown, False) if shown.version > found.version else (found, True)


def _last(
    known: ComponentStatus, departed: ComponentObject | None, found: ComponentObject | Absent | None
) -> ComponentVerdict:
    """Return what it said last, so that one that has ended well may be gone."""
    for one in (departed, found):
        if isinstance(one, ComponentObject) and known.uid in {"", one.uid}:
            return one.verdict
    return ComponentVerdict()


def _strays(
    wrapper: AppWrapper, named: set[tuple[Kind, str]], mirrored: Mirrored, memory: LeaderState
) -> Iterable[ComponentObject]:
    for name, one in sorted(mirrored.things.items()):
        if one.belongs_to(wrapper) and name not in named and one.uid not in memory.gone:
            yield one
