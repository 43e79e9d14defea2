"""What is remembered of a node from gang to gang: what its check says of it (check → gang), and
what the next gang gets (gang → check).

Pure. The gang controller keeps one bounded record per node. A check's word is about its own node
alone, and every number and length in it is bounded here, whoever wrote it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

__all__ = [
    "MAX_GBPS",
    "MOST_PARTNERS",
    "MOST_SPELLS",
    "Past",
    "Sighting",
    "Spell",
    "Usual",
    "digest",
    "said",
    "told",
]

MAX_GBPS: Final = 1e6
"""Bandwidths beyond are not measurements; the fastest NVLink domain has about a
thousandth of it.
"""
MOST_SPELLS: Final = 4
"""Bad spells that are remembered of one node."""
MOST_PARTNERS: Final = 4
"""Partners that are remembered of one spell."""
_MOST_KIND: Final = 96
_MOST_EDGES: Final = 1_000_000
_DIGEST: Final = re.compile(r"[0-9a-f]{8}")
_MOST_DIGITS: Final = 16


class Usual(msgspec.Struct, frozen=True, gc=False):
    """What a node has measured in its last gangs: median and spread (1.4826 times the median
    deviation), GB/s; ``count``: gangs so far.
    """

    gbps: float
    spread: float
    count: int


class Spell(msgspec.Struct, frozen=True, omit_defaults=True):
    """One gang in which known-good partners found the node bad, ``ago`` seconds.

    ``source`` numbers the namespaces of a node's spells, and says not which they are. ``own``: it
    was bad to itself as well, over its own NICs. ``partners``: those nodes of the *present* gang
    that found it bad then; others are not named.
    """

    ago: Annotated[float, msgspec.Meta(ge=0)]
    source: int = 0
    own: bool = False
    partners: Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_PARTNERS)] = ()


class Past(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of one node since its last repair.

    ``kind``: which hardware the figures are of. ``alone``, ``two``, ``gang``: of all-reduces of one
    node, two nodes and more; ``pair``: the middle of its good pairs; ``own``: to itself over its
    own NICs.
    """

    kind: str = ""
    spells: Annotated[tuple[Spell, ...], msgspec.Meta(max_length=MOST_SPELLS)] = ()
    alone: Usual | None = None
    two: Usual | None = None
    gang: Usual | None = None
    pair: Usual | None = None
    own: Usual | None = None

    def of(self, nodes: int) -> Usual | None:
        """What all-reduces of so many nodes usually reach here."""
        return self.alone if nodes == 1 else self.two if nodes == 2 else self.gang


class Sighting(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one gang has seen of one node. ``kind``: its hardware and what was measured; ``nodes``
    of the gang; the rest as in :class:`Past`.

    ``edges``: good pairs. ``bad``: :func:`digest` of partners that found it bad and are good
    themselves. ``sick``: it was bad to itself as well, and no busy moment explains it.
    """

    kind: str = ""
    nodes: int = 0
    pair: float = 0.0
    edges: int = 0
    own: float = 0.0
    bad: tuple[str, ...] = ()
    sick: bool = False


def digest(name: str) -> str:
    """Eight hexadecimal digits for a name: short enough for a result, and enough to see whether two
    are the same.
    """
    return hashlib.blake2s(name.encode(errors="replace"), digest_size=4).hexdigest()


def said(seen: Sighting) -> dict[str, str]:
    """``seen`` as a result's ``details``."""
    words = {
        "kind": seen.kind[:_MOST_KIND],
        "nodes": str(seen.nodes) if seen.nodes else "",
        "pair": f"{seen.pair:.4g}" if seen.pair > 0 else "",
        "edges": str(seen.edges) if seen.edges else "",
        "own": f"{seen.own:.4g}" if seen.own > 0 else "",
        "bad": ",".join(seen.bad[:MOST_PARTNERS]),
        "sick": "yes" if seen.sick else "",
    }
    return {key: value for key, value in words.items() if value}


def told(details: Mapping[str, str]) -> Sighting | None:
    """What a result's ``details`` say, None where they say nothing of this. Never raises; what is
    no such value is left out.
    """
    kind = details.get("kind", "")[:_MOST_KIND]
    if not kind:
        return None
    bad = [one for one in details.get("bad", "")[:_MOST_KIND].split(",") if _DIGEST.fullmatch(one)]
    return Sighting(
        kind=kind,
        nodes=int(_number(details, "nodes", _MOST_EDGES)),
        pair=_number(details, "pair", MAX_GBPS),
        edges=int(_number(details, "edges", _MOST_EDGES)),
        own=_number(details, "own", MAX_GBPS),
        bad=tuple(dict.fromkeys(bad))[:MOST_PARTNERS],
        sick=details.get("sick") == "yes",
    )


def _number(details: Mapping[str, str], key: str, most: float) -> float:
    try:
        value = float(details.get(key, "")[:_MOST_DIGITS])
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0 <= value <= most else 0.0
