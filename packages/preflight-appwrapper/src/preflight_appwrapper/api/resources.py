"""Whether something asks for more than none of a resource: Kubernetes quantities, as far as that
needs them. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["asks", "positive"]

_QUANTITY: Final = re.compile(
    r"\+?(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE]?)",
    re.ASCII,
)
_LONGEST: Final = 64
"""Characters; the API server's own spelling of its largest amount takes 30."""


def positive(quantity: object) -> bool:
    """``"8"``, ``"500m"``, ``8``: yes. ``"0"``, ``"0m"``, a negative or malformed one: no."""
    if isinstance(quantity, bool):
        return False
    if isinstance(quantity, int | float):
        return quantity > 0
    if not isinstance(quantity, str) or len(quantity) > _LONGEST:
        return False
    match = _QUANTITY.fullmatch(quantity)
    return match is not None and any(digit in "123456789" for digit in match["number"])


def asks(spec: object, resource: str) -> bool:
    """Whether a container or init container of the pod spec ``spec`` (plain data) requests or
    limits more than none of ``resource``.
    """
    if not isinstance(spec, dict):
        return False
    return any(
        positive(amounts.get(resource))
        for key in ("containers", "initContainers")
        for container in _items(spec.get(key))
        for amounts in _amounts(container)
    )


def _items(raw: object) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _amounts(container: object) -> list[dict[str, Any]]:
    resources = container.get("resources") if isinstance(container, dict) else None
    if not isinstance(resources, dict):
        return []
    return [
        found for key in ("requests", "limits") if isinstance(found := resources.get(key), dict)
    ]
