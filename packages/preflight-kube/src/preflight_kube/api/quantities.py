"""Kubernetes quantities (``500m``, ``1Gi``, ``1e3``), exactly: as whole nano-units, the finest that
Kubernetes keeps.

Integers rather than fractions: this is on the path of every admission.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Final

UNIT: Final = 10**9
"""Nano-units in one: a core, a byte, a device."""
MILLI: Final = UNIT // 1000

_NANOS: Final[dict[str, int]] = {
    **{s: UNIT * 1024**i for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
    **{s: UNIT * 1000**i for i, s in enumerate(("k", "M", "G", "T", "P", "E"), 1)},
    **{"m": 10**6, "u": 10**3, "n": 1, "": UNIT},
}
"""What each suffix is worth in nano-units."""
_MOST: Final = (2**63 - 1) * UNIT
"""The API server bounds binary amounts by it (MaxInt64) and decimal ones, as 1e400, by nothing."""
_LONGEST: Final = 64
"""Characters; the API server's own spelling of its largest amount takes 30."""
_QUANTITY: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,3})|([KMGTPE]i|[numkMGTPE]?))",
    re.ASCII,
)


def parse_quantity(text: str) -> int:
    """The value of ``text`` in nano-units; what is finer is rounded up, as Kubernetes does, and
    nothing is more than 2**63 - 1 units.

    Raises :class:`ValueError` with one sentence.
    """
    if len(text) > _LONGEST:
        raise ValueError(
            f'"{text[:_LONGEST]}…" has {len(text)} characters, which is not a quantity; write e.g. 8, 500m or 64Gi'
        )
    return max(-_MOST, min(_parsed(text), _MOST))


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
    each = Fraction(10) ** int(exponent) * UNIT if exponent else _NANOS[suffix or ""]
    return ceil(Fraction(number) * each)


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
