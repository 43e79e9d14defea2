"""One fault of a gang's fabric, a row of ``e2e/matrix/nccl-allreduce.toml``: what is broken, when,
and how each member ends.

Members are named by their ranks; each has a node of its own. ``real`` rows run check processes that
move data by gloo; in ``scripted`` ones something that is seen is made up: a device's error, or
every report; ``unit`` ones are a single decision. A row that says no ``test`` is run as it stands
by check-nccl-allreduce's ``tests/test_matrix.py``; any other is proven by the test that it names.
"""

from __future__ import annotations

from typing import Literal

import msgspec

LINE = 200
"""Mbit/s of a healthy link, each way."""


class _Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ShapedLink(_Row, frozen=True, kw_only=True):
    """What one member sends and receives, in Mbit/s: by its adapter, over which it speaks to itself
    too, or by the cable ``beyond`` it.
    """

    member: int
    beyond: bool = False
    sends: int = LINE
    receives: int = LINE


class Lane(_Row, frozen=True, kw_only=True):
    """What one member sends to one other, in Mbit/s; the rest of its link stays as it is."""

    sender: int
    receiver: int
    mbit: int


class Uplink(_Row, frozen=True, kw_only=True):
    """These members are behind a switch of their own, whose way to the others carries so many
    Mbit/s, each way.
    """

    members: tuple[int, ...]
    mbit: int


class Defect(_Row, frozen=True, kw_only=True):
    """A rank's worker does ``what`` (see ``allreduce_testing.gangs.mutants``): ``once``, in its
    first launch only; ``probes``, in probes only.
    """

    what: str
    member: int = 1
    once: bool = False
    probes: bool = False


class Act(_Row, frozen=True, kw_only=True):
    """Something is done to a member's check ``when`` the log of member ``of`` has that text, or
    once it reports (``its report``).
    """

    when: str
    does: Literal["start", "kill", "stop", "terminate"]
    member: int
    of: int = 0


class End(_Row, frozen=True, kw_only=True):
    """How ``members`` end (none: all whose end no other entry tells). ``says``: a text that the log
    has.

    ``measures``: between which two the gang's bus bandwidth is, in GB/s.
    """

    members: tuple[int, ...] = ()
    outcome: Literal["passed", "skipped", "failed", "inconclusive"]
    code: str
    exit_code: int
    says: str = ""
    measures: tuple[float, float] | None = None


class Blame(_Row, frozen=True, kw_only=True):
    """The one fatal event that this member's node raises about itself. Nobody else raises one."""

    member: int
    code: str
    action: str = "CONTACT_SUPPORT"


class Fault(_Row, frozen=True, kw_only=True):
    """``absent``: never come. ``deaf``: their connectors never answer. ``taken``: a port of rank 0
    that somebody else holds.

    ``patience``: seconds that members wait for each other. ``variables``: of every check.
    ``within``: seconds from the sealed rosters by which every member has ended. ``logs``: a text
    that the leader's log has, ``silent``: one that it has not. ``spread``: between any two pairs
    that were measured, at most, as a part of normal: the control that equal links measure alike.
    """

    id: str
    fault: str
    sees: str
    ring: Literal["real", "scripted", "unit"]
    test: str = ""
    members: int = 2
    shaped: bool = False
    links: tuple[ShapedLink, ...] = ()
    lanes: tuple[Lane, ...] = ()
    uplink: Uplink | None = None
    defect: Defect | None = None
    absent: tuple[int, ...] = ()
    deaf: tuple[int, ...] = ()
    taken: Literal["", "control", "rendezvous"] = ""
    patience: float | None = None
    acts: tuple[Act, ...] = ()
    variables: dict[str, str] = {}
    within: float = 55.0
    ends: tuple[End, ...]
    blames: tuple[Blame, ...] = ()
    logs: str = ""
    silent: str = ""
    spread: float | None = None

    @property
    def on_links(self) -> bool:
        """Whether it needs shaped links."""
        return self.shaped or bool(self.links or self.lanes or self.uplink)

    def end_of(self, member: int) -> End | None:
        """How this member ends; None where nothing is said of it."""
        own = next((end for end in self.ends if member in end.members), None)
        return own or next((end for end in self.ends if not end.members), None)
