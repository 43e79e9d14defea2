"""The protocol's words: what is asked of the API server, and what it may answer.

The protocol is written as generators (:data:`Steps`): each yields a batch of requests, gets one
answer for each, and returns what came of it. Whoever runs one sends them, side by side or in order,
and never a request twice. So the code that talks to the API server and the code that is
model-checked is one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol, TypeVar

import msgspec

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import GangStart
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.lease_state import Sight


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    pass


class ReadLease(_Request, frozen=True, kw_only=True):
    """From the API server's store, not from its cache."""

    name: str


class AdoptLease(_Request, frozen=True, kw_only=True):
    """An update of nothing but ``renewTime``, in exactly this version. Whoever created it can then
    no longer give it back: its delete names the version before."""

    lease: Lease


class DeleteLease(_Request, frozen=True, kw_only=True):
    """Exactly this object in exactly this version."""

    lease: Lease


class ReadPod(_Request, frozen=True, kw_only=True):
    """From the API server's store, not from its cache. ``key``: (namespace, name)."""

    key: tuple[str, str]


class _PodWrite(_Request, frozen=True, kw_only=True):
    """One write, for exactly this version of the pod."""

    pod: Pod


class CreateLease(_PodWrite, frozen=True, kw_only=True):
    """The Lease by which one GPU becomes the pod's, in the pod's current number. ``uuid``: empty
    where it is not known.
    """

    node: str
    gpu: int
    uuid: str = ""

    @property
    def name(self) -> str:
        """Of the Lease that locks this GPU."""
        return names.lease_name(self.node, self.gpu)


class BindPod(_PodWrite, frozen=True, kw_only=True):
    """Node and annotations."""

    node: str
    annotations: dict[str, str]


class RaiseReclaimed(_PodWrite, frozen=True, kw_only=True):
    """The fence: of the pod, which was unbound, ``number`` reservations have been taken back."""

    number: int


class ReservePod(_PodWrite, frozen=True, kw_only=True):
    """Write with whom it starts, or what the plan gives it, and take our gate away."""

    reserved: GangStart


Request = (
    CreateLease
    | ReadLease
    | AdoptLease
    | DeleteLease
    | ReadPod
    | BindPod
    | RaiseReclaimed
    | ReservePod
)


class Stored(msgspec.Struct, frozen=True):
    """It was done. ``found``: the object as it is now, where it is one."""

    found: Lease | Pod | None = None


class Missing(msgspec.Struct, frozen=True):
    """404: there is no such object, for certain."""


class Exists(msgspec.Struct, frozen=True):
    """409 of a create: the name is taken."""


class Conflict(msgspec.Struct, frozen=True):
    """409: another uid or version, or a pod that is assigned, gated or being deleted. Nothing was
    stored.
    """


class Refused(msgspec.Struct, frozen=True):
    """Another refusal that says for certain that nothing was stored."""

    why: str = ""


class Lost(msgspec.Struct, frozen=True):
    """No answer, or one that leaves open what happened: it was stored, or never will be, or will be
    later.
    """


Answer = Stored | Missing | Exists | Conflict | Refused | Lost
T = TypeVar("T")
Steps = Generator[tuple[Request, ...], tuple[Answer, ...], T]
Look = Callable[[tuple[str, str]], Sight]
"""What a mirror shows of the pod with this (namespace, name)."""


class Runner(Protocol):
    """Whoever performs steps against an API server."""

    async def run(self, steps: Steps[T], budget: float) -> T:
        """What came of ``steps``, for which nothing is sent after ``budget`` seconds."""


def only(request: Request) -> Steps[Answer]:
    """One request by itself."""
    answers = yield (request,)
    return answers[0]


def read_pod(key: tuple[str, str]) -> Steps[Pod | Lost | None]:
    """The pod of this (namespace, name) as the API server has it; None where there is none, for
    certain; Lost where that is not known.
    """
    answer = yield from only(ReadPod(key=key))
    if isinstance(answer, Stored) and isinstance(answer.found, Pod):
        return answer.found
    return None if isinstance(answer, Missing) else Lost()
