"""A size expression: where in an object the number of a gang's pods stands, for kinds that only the
configuration knows.

Pure. Sums of products of whole numbers and paths; a path through a list adds up what it finds in
each element:

    spec.minMember        spec.roles[].replicas        1 + spec.replicas * spec.nodesPerReplica
    metadata.labels['x/size']

Length, depth and the values looked at are limited, so no object makes it costly.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec
from preflight_kube.api.workloads.sizes import MAX_SIZE, beyond

MAX_LENGTH: Final = 256
MAX_STEPS: Final = 16
MAX_VALUES: Final = 10_000
ROOTS: Final = ("metadata.annotations", "metadata.labels", "spec", "status")

_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\['([^'\]]+)'\]|(\[\])")
_ELEMENTS: Final = "[]"


class ExpressionError(ValueError):
    """The expression cannot be used; its text fits behind the key that holds it."""


class NoNumber(ValueError):
    """The object does not say the size; its text fits behind the object's name."""


class Path(msgspec.Struct, frozen=True):
    """Steps from the object's root; ``[]`` goes into each element of a list."""

    text: str
    steps: tuple[str, ...]


class Expression(msgspec.Struct, frozen=True):
    """The sum of ``terms``, each the product of its factors."""

    terms: tuple[tuple[Path | int, ...], ...]

    def value(self, item: dict[str, Any]) -> int:
        """What it says of an object. Raises :class:`NoNumber`."""
        left = [MAX_VALUES]
        total = 0
        for term in self.terms:
            product = 1
            for factor in term:
                product *= factor if isinstance(factor, int) else _sum(item, factor, 0, left)
            total += product
        if not 0 <= total <= MAX_SIZE:
            raise NoNumber(beyond(total))
        return total


def parse(text: str) -> Expression:
    """Raises :class:`ExpressionError`."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"it is {len(text)} characters long; {MAX_LENGTH} are allowed")
    terms = (term.split("*") for term in text.split("+"))
    return Expression(tuple(tuple(_factor(f.strip()) for f in factors) for factors in terms))


def _factor(text: str) -> Path | int:
    if text.isascii() and text.isdigit():
        return int(text[:9])
    steps, at, dotted = [], 0, f".{text}"
    while found := _STEP.match(dotted, at):
        steps.append(found[1] or found[2] or _ELEMENTS)
        at = found.end()
    if at < len(dotted):
        shapes = "neither a number nor a path such as spec.minMember or spec.roles[].replicas"
        raise ExpressionError(f'"{text}" is {shapes}')
    if len(steps) > MAX_STEPS:
        raise ExpressionError(f'"{text}" has {len(steps)} steps; {MAX_STEPS} are allowed')
    if not any(tuple(steps[: root.count(".") + 1]) == tuple(root.split(".")) for root in ROOTS):
        raise ExpressionError(f'"{text}" must begin with one of {", ".join(ROOTS)}')
    return Path(text, tuple(steps))


def _sum(found: Any, path: Path, step: int, left: list[int]) -> int:
    for at in range(step, len(path.steps)):
        left[0] -= 1
        if left[0] < 0:
            raise NoNumber(f"{path.text} leads to more than {MAX_VALUES} values")
        name = path.steps[at]
        if name == _ELEMENTS:
            if not isinstance(found, list):
                raise NoNumber(f"{path.text} meets no list")
            return sum(_sum(one, path, at + 1, left) for one in found)
        if not isinstance(found, dict) or name not in found:
            raise NoNumber(f"it has no {path.text}")
        found = found[name]
    if isinstance(found, str) and found.isascii() and found.isdigit() and len(found) <= 9:
        found = int(found)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise NoNumber(f"{path.text} is not a whole number")
    return found
