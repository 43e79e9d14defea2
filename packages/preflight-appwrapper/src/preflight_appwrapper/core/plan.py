"""The data of a decision: actions, Events, what comes next, and the rule that holds. Pure."""

from __future__ import annotations

from datetime import datetime

import msgspec

from preflight_appwrapper.api.types import AppWrapperStatus
from preflight_appwrapper.core.parameters import Parameters


class WrapperAction(msgspec.Struct, frozen=True, tag_field="action"):
    """Something to do, after the status is written. Each ends in another look."""

    @property
    def key(self) -> str:
        """Names what it is done to: the same key is the same deed, done again."""
        return type(self).__name__


class Finalizer(WrapperAction, frozen=True, tag=True):
    """Set or remove ours, on exactly the version of the wrapper that was decided on."""

    wanted: bool


class CreateComponent(WrapperAction, frozen=True, tag=True):
    """Component ``index`` under ``name``, owned by the wrapper with ``uid``."""

    index: int
    name: str
    uid: str

    @property
    def key(self) -> str:
        """By component and name."""
        return f"Create/{self.name}/{self.index}"


class Confirm(WrapperAction, frozen=True, tag=True):
    """GET component ``index``: a watch may be behind."""

    index: int

    @property
    def key(self) -> str:
        """By component."""
        return f"Confirm/{self.index}"


class DeleteObject(WrapperAction, frozen=True, tag=True):
    """A component or, by ``force`` (a grace of 0), a pod; with ``uid`` as precondition."""

    api_version: str
    kind: str
    name: str
    uid: str
    force: bool = False

    @property
    def key(self) -> str:
        """By object, and by whether it is forced."""
        return f"{'Force' if self.force else 'Delete'}/{self.uid}"


class List(WrapperAction, frozen=True, tag=True):
    """A consistent LIST of the labelled pods, and a GET of every component."""


class WrapperEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An Event on the wrapper; its name follows from the wrapper's uid and ``key``."""

    reason: str
    message: str
    warning: bool
    key: str


def warning(reason: str, message: str, key: str) -> WrapperEvent:
    """An Event that somebody should look into."""
    return WrapperEvent(reason=reason, message=message, warning=True, key=key)


class Next(msgspec.Struct, frozen=True):
    """The next thing that happens, ``at`` the latest, or when one of ``waits`` changes."""

    what: str
    why: str
    at: datetime | None = None
    waits: tuple[str, ...] = ("wrapper",)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Pods by what they count as. ``counting``: the failed ones nobody has made up for; ``credit``:
    pods of components that have ended well without as many, and ``ended`` those of them that count
    as succeeded. ``slack``: pods that elastic components may do without."""

    expected: int = 0
    pending: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    counting: int = 0
    credit: int = 0
    ended: int = 0
    slack: int = 0

    @property
    def needed(self) -> int:
        """The fewest that there must be."""
        return self.expected - self.slack

    @property
    def ready(self) -> int:
        """Running, succeeded, or not needed any more."""
        return self.running + self.succeeded + self.credit

    @property
    def existing(self) -> int:
        """Those, and the pending ones."""
        return self.pending + self.ready


class Holding(msgspec.Struct, frozen=True):
    """The rule that holds, as a number and a sentence with its figures."""

    rule: int
    figures: Figures
    sentence: str


class WrapperPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A decision. ``status`` is the whole new one, written first where it differs; then ``actions``
    in their order, then ``say``.

    ``row``: the row of the state table that was taken, where one was. ``next`` is None only where
    nothing happens any more. ``blocked``: what even force has not removed. ``leaves``:
    node and code of an evacuation, also of one that the brake has wait.
    """

    status: AppWrapperStatus
    parameters: Parameters
    actions: tuple[WrapperAction, ...] = ()
    say: tuple[WrapperEvent, ...] = ()
    next: Next | None = None
    row: str = ""
    holding: Holding | None = None
    blocked: tuple[str, ...] = ()
    leaves: tuple[str, str] | None = None
