"""The data of a decision: actions, Events, what comes next, and the rule that holds. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec

from preflight_appwrapper.api.types import AppWrapperStatus
from preflight_appwrapper.core.parameters import Parameters
from preflight_appwrapper.core.pods import EvacuationCause

Result = Literal["healthy", "waiting", "confirm", "succeeded", "reset", "evacuate", "held", "fail"]


class WrapperAction(msgspec.Struct, frozen=True, tag_field="action"):
    """Something to do, after the status is written; equal to itself, done again."""


class Finalizer(WrapperAction, frozen=True, tag=True):
    """Set or remove ours, on exactly the version of the wrapper that was decided on."""

    wanted: bool


class CreateComponent(WrapperAction, frozen=True, tag=True):
    """Component ``index`` under ``name``, owned by the wrapper with ``uid``."""

    index: int
    name: str
    uid: str


class Confirm(WrapperAction, frozen=True, tag=True):
    """GET component ``index``: a watch may be behind."""

    index: int


class DeleteObject(WrapperAction, frozen=True, tag=True):
    """A component or, by ``force`` (a grace of 0), a pod; with ``uid`` as precondition."""

    api_version: str
    kind: str
    name: str
    uid: str
    force: bool = False


class List(WrapperAction, frozen=True, tag=True):
    """A consistent LIST of the labelled pods, and a GET of every component."""


class WrapperEvent(msgspec.Struct, frozen=True):
    """An Event on the wrapper; its name follows from the wrapper's uid and ``key``."""

    reason: str
    message: str
    key: str
    warning: bool = True


class Next(msgspec.Struct, frozen=True):
    """The next thing that happens, ``at`` the latest, or when one of ``waits`` changes."""

    what: str
    why: str
    at: datetime | None = None
    waits: tuple[str, ...] = ("wrapper",)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Pods by what they count as. ``counting``: the failed ones nobody has made up for. Of those
    that components are to have, ``needed``: the fewest that there must be, and, none of one
    standing for one of another: ``ready`` run, have succeeded or are not needed any more,
    ``existing`` wait beside these. ``ended`` of all expected need not run any more."""

    expected: int = 0
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    counting: int = 0
    needed: int = 0
    ready: int = 0
    existing: int = 0
    ended: int = 0


class HealthJudgment(msgspec.Struct, frozen=True):
    """The rule that holds, as a number and a sentence. ``result``: what follows when no grace is
    left; ``grace``: the rule has one. ``counts``: a reset for it is counted. ``confirm``:
    components to be asked for. ``at``: when another rule may begin to hold, and ``then`` what that
    is. ``leaves``: the cause of an evacuation, also of one that the brake has wait."""

    result: Result
    rule: int
    sentence: str
    reason: str = ""
    figures: Figures = Figures()
    grace: bool = False
    counts: bool = False
    confirm: tuple[int, ...] = ()
    at: datetime | None = None
    then: str = ""
    leaves: EvacuationCause | None = None


class WrapperPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A decision. ``status`` is the whole new one, written first where it differs; then ``actions``
    in their order, then ``say``.

    ``row``: the row of the state table that was taken, where one was. ``next`` is None only where
    nothing happens any more. ``blocked``: what even force has not removed.
    """

    status: AppWrapperStatus
    parameters: Parameters
    actions: tuple[WrapperAction, ...] = ()
    say: tuple[WrapperEvent, ...] = ()
    next: Next | None = None
    row: str = ""
    judgment: HealthJudgment | None = None
    blocked: tuple[str, ...] = ()
