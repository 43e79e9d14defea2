"""What the known checks take for variables: each publishes a JSON Schema, and the files here are
those schemas.

``nox -s codegen`` makes ``<check>.json`` of what ``<check's program> --schema`` prints. Whoever
configures checks can refuse with it, before any pod exists, what a check would refuse in the pod. A
schema is JSON Schema 2020-12 of an object of texts; what that language cannot say of a text is in
``format`` and in these keywords:

- ``x-minimum``, ``x-maximum``, ``x-more-than``, ``x-multiple-of``: of the number, of the seconds,
  or of the bytes that the text stands for;
- ``x-is-not``, ``x-set``: the words of the sentence about a value that is not taken;
- ``x-image``: the last part of the image's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

from ..durations import parse_duration
from ..printable import printable

Schema = Mapping[str, Any]

MAX_GBPS: Final = 1e6
"""GB/s; beyond is no measurement: the fastest NVLink domain has about a thousandth of it."""

KNOWN: Final = ("dcgm-diag", "nccl-loopback", "nccl-allreduce")
_PREFIX: Final = "preflight-"
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_REFERENCE: Final = re.compile(r"\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)")
"""What the kubelet replaces in a value."""
_STAND_IN: Final = "replaced"


def check_of(check: str) -> str | None:
    """The known check that is meant by its name (``dcgm-diag``) or by its image
    (``registry/preflight-dcgm-diag:0.1.0``), else None.
    """
    name = check.partition("@")[0].rpartition("/")[2].partition(":")[0].removeprefix(_PREFIX)
    return name if name in KNOWN else None


@cache
def schema(check: str) -> Schema:
    """The schema of a known check, by its name. Raises :class:`KeyError` for others."""
    if check not in KNOWN:
        raise KeyError(check)
    import json  # checks know their own
    from importlib.resources import files

    read: dict[str, Any] = json.loads((files(__package__) / f"{check}.json").read_bytes())
    return read


def problems(check: str, environ: Mapping[str, str]) -> list[str]:
    """What the check would refuse of the variables that an operator sets for it, one sentence each,
    beginning with the variable.

    ``check`` is an image or a name; of one that is not known there is no opinion, and the list is
    empty. ``environ`` are the operator's variables alone: none is missed. An empty value counts as
    not set, so a variable whose value comes from elsewhere is given as empty, and its name alone is
    judged. Values with references such as ``$(NODE_IP)`` are judged where they are addresses only.
    """
    known = check_of(check)
    return [] if known is None else refused(schema(known), environ)


def refused(described: Schema, environ: Mapping[str, str]) -> list[str]:
    """As :func:`problems`, by the schema ``described``."""
    errors: list[str] = []
    variables: Mapping[str, Schema] = described["properties"]
    used = {name for value in environ.values() for name in _REFERENCE.findall(value)}
    for name, value in environ.items():
        if name in variables:
            errors += _of_value(name, value.strip(), variables[name])
        elif name not in used and not any(
            re.search(pattern, name) for pattern in described.get("patternProperties", ())
        ):
            errors.append(_unknown(described["title"], name, variables))
    return errors


def _unknown(check: str, name: str, variables: Iterable[str]) -> str:
    from difflib import get_close_matches  # for mistakes alone

    near = get_close_matches(name.upper(), list(variables), 1, 0.75)
    what = (
        f"did you mean {near[0]}?"
        if near
        else "remove it; the check's --help lists those that it reads."
    )
    return f"{printable(name, 80)}: {check} reads no such variable; {what}"


def _of_value(name: str, value: str, described: Schema) -> list[str]:
    if described.get("format") == "endpoints":
        return (
            endpoint_problems(name, _REFERENCE.sub(_STAND_IN, value), shown=value) if value else []
        )
    if not value or _REFERENCE.search(value) or takes(described, value):
        return []
    otherwise = (
        f", or remove it to use {described['default'] or 'the built-in behaviour'}"
        if "default" in described
        else ""
    )
    return [
        f'{name}: "{printable(value, 80)}" is not {described["x-is-not"]}; set {described["x-set"]}{otherwise}.'
    ]


def takes(described: Schema, value: str) -> bool:
    """Whether the schema of a variable takes ``value``, which is not empty and has no space at its
    ends.
    """
    if "enum" in described and value not in described["enum"]:
        return False
    if "pattern" in described and not re.search(described["pattern"], value):
        return False
    read = _FORMATS.get(described.get("format", ""))
    try:
        number = read(value) if read is not None else None
    except (ValueError, OverflowError):
        return False
    if number is None:
        return True
    least, most, more = (described.get(f"x-{word}") for word in ("minimum", "maximum", "more-than"))
    fits = (
        (least is None or number >= least)
        and (most is None or number <= most)
        and math.isfinite(number)
    )
    return (
        fits
        and (more is None or number > more)
        and not number % described.get("x-multiple-of", number or 1)
    )


def size_bytes(raw: str) -> int:
    """Bytes of a size such as ``4G``, ``4Gi``, ``4GiB`` or ``1024``; K, M and G are powers of 1024.
    Raises :class:`ValueError`.
    """
    match = re.fullmatch(r"([0-9]{1,12})([KMG]?)i?B?", raw, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError(raw)
    return int(match[1]) * _UNITS[match[2].upper()]


def endpoints(raw: str) -> tuple[str, ...]:
    """The addresses of a list separated by commas, each as host:port. An IPv6 address, as
    ``$(NODE_IP):5555`` makes one of, gets the brackets without which its port is not told from
    it."""
    return tuple(_bracketed(item.strip()) for item in raw.split(","))


def _bracketed(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else address


def endpoint_problems(name: str, raw: str, *, shown: str | None = None) -> list[str]:
    """What is wrong with a list of addresses, one sentence for each of its entries. ``shown``: the
    list as it was written.
    """
    errors = []
    example = "set e.g. $(NODE_IP):5555 or dcgm-hostengine.nvsentinel.svc:5555"
    written = raw if shown is None else shown
    seen: set[str] = set()
    for given, address in zip(written.split(","), endpoints(raw), strict=True):
        endpoint = printable(given.strip(), 80)
        host, _, port = address.rpartition(":")
        if not address:
            errors.append(f"{name}: the list has an empty entry; remove the comma too many.")
        elif reference := _REFERENCE.search(address):
            errors.append(
                f'{name}: "{endpoint}" refers to {reference[1]}, which is not set; set that variable before this one.'
            )
        elif (
            not re.fullmatch(r"\[[0-9a-fA-F:.%a-z]+\]|[^\s:\[\]/,-][^\s:\[\]/,]*", host)
            or not host.isprintable()
        ):
            errors.append(f'{name}: "{endpoint}" is not host:port; {example}.')
        elif not (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65536):
            errors.append(
                f'{name}: "{endpoint}" is not host:port, its port is not a number from 1 to 65535; {example}.'
            )
        elif endpoint in seen:
            errors.append(f'{name}: "{endpoint}" is listed twice; remove one.')
        seen.add(endpoint)
    return errors


def _printable(raw: str) -> None:
    if not raw.isprintable():
        raise ValueError(raw)


def _listed(raw: str) -> None:
    _printable(raw)
    if not all(item.strip() for item in raw.split(",")):
        raise ValueError(raw)


def _whole(raw: str) -> int:
    if not (raw.isascii() and raw.lstrip("-").isdigit()):
        raise ValueError(raw)
    return int(raw)


def _endpoints(raw: str) -> None:
    if endpoint_problems("", raw):
        raise ValueError(raw)


_FORMATS: Final[Mapping[str, Callable[[str], float | None]]] = {
    "printable": _printable,
    "list": _listed,
    "whole-number": _whole,
    "number": float,
    "go-duration": parse_duration,
    "size": size_bytes,
    "endpoints": _endpoints,
}
