"""Kubernetes quantities (``500m``, ``1Gi``, ``1e3``), exactly: as whole nano-units, the finest that
Kubernetes keeps.

Integers rather than fractions: this is on the path of every admission.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any, Final

__all__ = [
    "MILLI",
    "UNIT",
    "effective_limits",
    "effective_requests",
    "fractional_cpu",
    "parse_quantity",
    "quantity_text",
    "whole_bytes",
    "whole_millicores",
]

UNIT: Final = 10**9
"""Nano-units in one: a core, a byte, a device."""
MILLI: Final = UNIT // 1000

_NANOS: Final[dict[str, int]] = {
    **{s: UNIT * 1024**i for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{s: UNIT * 1000**i for i, s in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{"m": 10**6, "u": 10**3, "n": 1, "": UNIT},
}
"""What each suffix is worth in nano-units."""
_LONGEST: Final = 64
"""Characters; the API server's own spelling of its largest amount takes 30."""
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([KMGTPE]i|[numkMGTPE]?))",
    re.ASCII,
)


def parse_quantity(text: str) -> int:
    """The value of ``text`` in nano-units; what is finer is rounded up, as Kubernetes does.

    Raises :class:`ValueError` with one sentence.
    """
    if len(text) > _LONGEST:
        raise ValueError(
            f'"{text[:_LONGEST]}…" has {len(text)} characters, which is not a quantity; write e.g. 8, 500m or 64Gi'
        )
    return _parsed(text)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> int:
    if text.isascii() and text.isdecimal():  # as most are
        return int(text) * UNIT
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise ValueError(f'"{text}" is not a quantity; write e.g. 8, 500m or 64Gi')
    number, exponent, suffix = match.groups()
    if "." not in number and not exponent:
        return int(number) * _NANOS[suffix or ""]
    number = (
        number.rstrip(".")
        if not number.startswith(("+.", "-.", "."))
        else number.replace(".", "0.", 1)
    )
    return ceil(
        Fraction(number)
        * (Fraction(10) ** int(exponent) * UNIT if exponent else _NANOS[suffix or ""])
    )


def quantity_text(nanos: int) -> str:
    """A quantity as the API server itself would write it, rounded down to a thousandth: 1500m, 8,
    64G.

    Its own spelling matters: what we inject is compared with what comes back on a second call.
    """
    amount, suffixes = nanos // MILLI, ("m", "", "k", "M", "G", "T", "P", "E")
    if amount == 0:
        return "0"
    step = 0
    while amount % 1000 == 0 and step < len(suffixes) - 1:
        amount, step = amount // 1000, step + 1
    return f"{amount}{suffixes[step]}"


def whole_millicores(nanos: int) -> int:
    """At most ``nanos``, in whole millicores, the finest that a container can ask for."""
    return nanos // MILLI * MILLI


def fractional_cpu(nanos: int) -> int:
    """At most ``nanos``, in whole millicores and never whole cores: the static CPU policy of a
    kubelet would pin whole cores for an init container, and may refuse the pod for it."""
    millis = nanos // MILLI
    return (millis - 1 if millis % 1000 == 0 and millis > 0 else millis) * MILLI


def whole_bytes(nanos: int) -> int:
    """At most ``nanos``, in whole bytes: the API server warns of a fraction, and a kubelet's memory
    manager refuses the pod for one.

    Less than a byte is one, as Kubernetes itself counts it.
    """
    return max(nanos // UNIT, 1) * UNIT if nanos > 0 else 0


# --- of a pod

_POD_LEVEL: Final = ("cpu", "memory")
"""What a pod as a whole may ask for, beside huge pages."""
_HUGE_PAGES: Final = "hugepages-"


def effective_requests(spec: Mapping[str, Any]) -> dict[str, int]:
    """What the scheduler reserves for a pod of this ``spec`` (plain data, as JSON has it), by
    resource, in nano-units.

    The larger of all containers and sidecars together and each init container with the sidecars
    started before it; where the pod asks for a resource itself (``spec.resources``), that; plus its
    overhead. A limit alone is a request too, as the API server defaults it.

    Raises :class:`ValueError` with one sentence for an amount that is not a quantity, with its
    path.
    """
    amounts = _over_containers(spec, _requested)
    own = _amounts(spec.get("resources"), "limits", "spec.resources")
    for resource, amount in own.items():
        if _of_pods(resource):
            amounts.setdefault(resource, amount)
    for resource, amount in _amounts(spec.get("resources"), "requests", "spec.resources").items():
        if _of_pods(resource):
            amounts[resource] = amount
    return _with_overhead(spec, amounts)


def effective_limits(spec: Mapping[str, Any]) -> dict[str, int]:
    """As :func:`effective_requests`, of the limits; a container without one adds nothing."""
    amounts = _over_containers(spec, lambda resources, where: _amounts(resources, "limits", where))
    for resource, amount in _amounts(spec.get("resources"), "limits", "spec.resources").items():
        if _of_pods(resource):
            amounts[resource] = amount
    return _with_overhead(spec, amounts, added=amounts)


def _over_containers(
    spec: Mapping[str, Any], read: Callable[[Any, str], dict[str, int]]
) -> dict[str, int]:
    running: dict[str, int] = {}  # by containers and sidecars together
    peak: dict[str, int] = {}  # during the greediest init step
    for number, container in _containers(spec, "initContainers"):
        found = read(container.get("resources"), f"spec.initContainers[{number}].resources")
        for resource, amount in found.items():
            peak[resource] = max(peak.get(resource, 0), running.get(resource, 0) + amount)
        if container.get("restartPolicy") == "Always":
            for resource, amount in found.items():
                running[resource] = running.get(resource, 0) + amount
    for number, container in _containers(spec, "containers"):
        for resource, amount in read(
            container.get("resources"), f"spec.containers[{number}].resources"
        ).items():
            running[resource] = running.get(resource, 0) + amount
    return {name: max(running.get(name, 0), peak.get(name, 0)) for name in {**running, **peak}}


def _with_overhead(
    spec: Mapping[str, Any], amounts: dict[str, int], added: Mapping[str, int] | None = None
) -> dict[str, int]:
    """``added``: only to what is in it, as a pod without a limit has none because of its overhead
    either.
    """
    for resource, amount in _quantities(spec.get("overhead"), "spec.overhead").items():
        if added is None or resource in added:
            amounts[resource] = amounts.get(resource, 0) + amount
    return amounts


def _requested(resources: Any, where: str) -> dict[str, int]:
    return {**_amounts(resources, "limits", where), **_amounts(resources, "requests", where)}


def _amounts(resources: Any, side: str, where: str) -> dict[str, int]:
    return _quantities(
        resources.get(side) if isinstance(resources, Mapping) else None, f"{where}.{side}"
    )


def _quantities(found: Any, where: str) -> dict[str, int]:
    if not isinstance(found, Mapping):
        return {}
    made = {}
    for resource, value in found.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ValueError(f"{where}.{resource}: must be a quantity; write e.g. 8, 500m or 64Gi")
        try:
            made[str(resource)] = parse_quantity(value if isinstance(value, str) else str(value))
        except ValueError as error:
            raise ValueError(f"{where}.{resource}: {error}") from None
    return made


def _containers(spec: Mapping[str, Any], key: str) -> list[tuple[int, Mapping[str, Any]]]:
    found = spec.get(key)
    return (
        [(i, one) for i, one in enumerate(found) if isinstance(one, Mapping)]
        if isinstance(found, list)
        else []
    )


def _of_pods(resource: str) -> bool:
    return resource in _POD_LEVEL or resource.startswith(_HUGE_PAGES)
