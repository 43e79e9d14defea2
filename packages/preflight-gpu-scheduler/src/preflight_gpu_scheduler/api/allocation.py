"""The GPUs of a pod as annotations, and back; and as the amount of a counted resource."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Final, TypeVar

import msgspec

from preflight_gpu_scheduler.api import names

_MOST_TEXT: Final = 1024
MOST_RESERVED_TEXT: Final = 1536
"""Two names of 253 characters, 64 ids, and the rest."""
_MOST_KNOWN, _MOST_RESERVED = 16_384, 4096
"""Allocations, and reservations, that are kept as read: each is asked for again and again."""
NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}", re.ASCII)
MOST_NUMBER: Final = 10**9
"""The highest number of a reservation: one more than an annotation says at most."""
S = TypeVar("S", bound="GangStart")
Id = Annotated[int, msgspec.Meta(ge=0, le=names.MOST_ID)]


class Allocation(msgspec.Struct, frozen=True):
    """GPUs ``ids``, in ascending order and each once, of ``node``."""

    node: str
    ids: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.node}:{','.join(map(str, self.ids))}"


class GangStart(msgspec.Struct, frozen=True, kw_only=True):
    """Which pods of a gang start together: those with the same ``start``, and ``need`` of them at
    least, or none.
    """

    start: Annotated[str, msgspec.Meta(max_length=64)] = ""
    need: Annotated[int, msgspec.Meta(ge=1)] = 1


class Reserved(GangStart, frozen=True, kw_only=True):
    """The share of a plan that one member of a gang has. ``number`` is that of its leases; ``plan``
    is one for all members of one plan, ``members`` how many those are. ``first``, ``first_uid``:
    the member of the same namespace whose Binding decides for all (see :mod:`~.core.gangs`).
    """

    number: Annotated[int, msgspec.Meta(ge=1)]
    node: str
    ids: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=64)]
    plan: str
    members: Annotated[int, msgspec.Meta(ge=1)]
    first: str
    first_uid: str


@lru_cache(maxsize=_MOST_KNOWN)
def parse_allocated(text: str) -> Allocation | None:
    """`<node>:<id>,<id>`; None where it is anything else, or an id stands twice."""
    node, colon, listed = text.partition(":") if len(text) <= _MOST_TEXT else ("", "", "")
    words = listed.split(",")
    if not node or not colon or not all(NUMBER.fullmatch(word) for word in words):
        return None
    ids = tuple(sorted(map(int, words)))
    return Allocation(node, ids) if len(set(ids)) == len(ids) and ids[-1] <= names.MOST_ID else None


@lru_cache(maxsize=_MOST_RESERVED)
def parse_reserved(text: str) -> Reserved | None:
    """None where it is absent or unreadable: then nothing is reserved."""
    reserved = _decoded(text, Reserved)
    return reserved if reserved and tuple(sorted(set(reserved.ids))) == reserved.ids else None


@lru_cache(maxsize=_MOST_RESERVED)
def parse_start(text: str) -> GangStart | None:
    """The start of a member that waits for its gang, and of one that has its share of a plan."""
    start = _decoded(text, GangStart)
    return start if start and start.start else None


def _decoded(text: str, type_: type[S]) -> S | None:
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(text, type=type_) if len(text) <= MOST_RESERVED_TEXT else None
    return None


def written(reserved: GangStart) -> str:
    """The text of the annotation by which a gang starts, for :func:`parse_start` and its like."""
    return msgspec.json.encode(reserved).decode()


def binding_annotations(node: str, ids: Sequence[int], uuids: Mapping[int, str]) -> dict[str, str]:
    """The annotations that the Binding writes into the pod. ``uuids`` by id; the variables carry
    UUIDs only where all of them are known, else ids: numbers and UUIDs do not mix in one variable.
    """
    ordered = sorted(ids)
    known = [uuids.get(gpu, "") for gpu in ordered]
    by_uuid = ",".join(known) if all(known) and len(set(known)) == len(known) else ""
    return {
        names.ALLOCATED_ANNOTATION: str(Allocation(node, tuple(ordered))),
        names.NVIDIA_ANNOTATION: by_uuid or "all",
        names.CUDA_ANNOTATION: by_uuid or ",".join(map(str, ordered)),
    }


def total(containers: Sequence[Any], init: Sequence[Any], resource: str) -> int | None:
    """How many of ``resource`` the containers of a pod ask for, as the scheduler counts: an init
    container beside the sidecars before it. None where an amount is no whole number.
    """
    sidecars = most = 0
    try:
        for container in init:
            amount = _amount(container, resource)
            most = max(most, sidecars + amount)
            sidecars += amount if container.restart_policy == "Always" else 0
        return max(most, sidecars + sum(_amount(container, resource) for container in containers))
    except ValueError:
        return None


def _amount(container: Any, resource: str) -> int:
    asked = [str(part[resource]) for part in resource_lists(container) if resource in part]
    if not all(amount.isascii() and amount.isdigit() for amount in asked):
        raise ValueError(resource)
    return max((int(amount[:10]) for amount in asked), default=0)


def resource_lists(container: Any) -> list[Mapping[str, Any]]:
    """The limits and requests that are read, and there."""
    both = (getattr(container.resources, part, None) for part in ("limits", "requests"))
    return [part for part in both if part]
