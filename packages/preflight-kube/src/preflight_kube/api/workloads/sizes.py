"""How many pods of a workload start together, as the object itself says: the shapes that all kinds
share. Pure.

Any field may be missing: an object then says why it knows no size. Lists have a limit, since
anybody may write such objects and all of a kind may be kept. Where the pods of an object start one
after the other, the first would wait for the last: `skip`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Final, TypeVar

import msgspec

MAX_SIZE: Final = 100_000
START_ORDER: Final = "its pods are not started together, so the first would wait for the last"

_T = TypeVar("_T")
Few = Annotated[list[_T], msgspec.Meta(max_length=256)]
Roles = Annotated[dict[str, _T], msgspec.Meta(max_length=64)]
"""Workloads have a handful of parts; Kubernetes' own Workload has eight at most."""


class DeclaredSize(msgspec.Struct, frozen=True, kw_only=True):
    """What an object says about the size: ``count`` pods, or ``skip`` and why there is none to
    test, or ``unknown`` and why. ``least``: as many as there must be before any is started, and
    there may be more."""

    count: int | None = None
    least: bool = False
    skip: str = ""
    unknown: str = ""


class SizedMetadata(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """Of an object that says how many pods start together."""

    name: str
    namespace: str = ""
    uid: str = ""


class SizedObject(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """An object that knows the size of gangs. Subclasses name the fields they read in ``spec``."""

    metadata: SizedMetadata

    def size(self, gang: str) -> DeclaredSize:
        """What it says about the gang whose raw id is ``gang``."""
        raise NotImplementedError


class Section(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """A part of an object; any field of it may be missing."""


def counted(count: int | None, what: str, *, least: bool = False) -> DeclaredSize:
    """What a count at ``what`` says."""
    if count is None or count <= 0:
        return DeclaredSize(unknown=f"it has no {what}")
    if count > MAX_SIZE:
        return DeclaredSize(unknown=beyond(count))
    return DeclaredSize(count=count, least=least)


def added(counts: Iterable[int], what: str, *, least: bool = False) -> DeclaredSize:
    """Of several parts. One below zero would take members from the others."""
    parts = list(counts)
    if min(parts, default=0) < 0:
        return DeclaredSize(unknown=f"{what} is below zero")
    return counted(sum(parts), what, least=least)


def beyond(size: int) -> str:
    """Why ``size`` is none that a gang can have; fits behind the object's name. A number as long as
    its author likes is not written out.
    """
    digits = math.ceil(abs(size).bit_length() * math.log10(2))
    number = str(size) if abs(size) < 2**63 else f"of {digits} digits"
    why = f"more than the {MAX_SIZE} that a gang can have" if size > 0 else "below zero"
    return f"its size {number} is {why}"
