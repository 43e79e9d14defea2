"""What gangs have found of each node, one bounded record a node: its figures, and the gangs in
which it was bad.

Pure. What the records are made of is the word of checks about their own nodes
(:mod:`preflight_proto.history` bounds it); when, where and whose gang it was is what the cluster
says. Records are kept in a few ConfigMaps, each with the nodes whose names fall to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Annotated, Final, Literal

import msgspec
from preflight_proto.history import MOST_PARTNERS, MOST_SPELLS, Past, Sighting, Spell, Usual, digest

__all__ = ["PREFIX", "SHARDS", "NodeHistory", "shard_name"]

SHARDS: Final = 16
PREFIX: Final = "preflight-history-"
MOST_NODES: Final = 1_250
"""Of one shard: 20,000 in all, twice as many as clusters have; beyond, the one goes that was not
seen for longest.
"""
MOST_BYTES: Final = 900 * 1024
"""Of one shard; a ConfigMap holds 1 MiB."""
MOST_KINDS: Final = 2
"""Of one node: pods may use all of its GPUs, or some."""
MOST_VALUES: Final = 9
"""Last figures that are kept of each sort; their median and spread are what is usual."""
_MOST_TEXT: Final = 96
_SPREAD: Final = 1.4826
"""Times the median absolute deviation: the standard deviation of what is normally distributed
(Rousseeuw and Croux, 1993).
"""

_Sort = Literal["alone", "two", "gang", "pair", "own"]
_Text = Annotated[str, msgspec.Meta(max_length=_MOST_TEXT)]


class NodeFigures(msgspec.Struct, array_like=True, gc=False):
    """``count`` so far, and the last values, GB/s."""

    count: int = 0
    values: Annotated[list[float], msgspec.Meta(max_length=MOST_VALUES)] = []


class NodeFinding(msgspec.Struct, array_like=True, frozen=True):
    """One gang that found the node bad: when (Unix time), digests of its namespace, of the gang and
    of the partners; whether it was bad to itself.
    """

    at: float
    namespace: _Text
    gang: _Text
    own: bool
    partners: Annotated[tuple[_Text, ...], msgspec.Meta(max_length=MOST_PARTNERS)]


class NodeRecord(msgspec.Struct, omit_defaults=True):
    """``identity``: of the node as it was; another one means that it was repaired. ``since``:
    nothing of before counts. ``last``: Unix time up to which all is in here."""

    identity: _Text = ""
    since: float = 0.0
    last: float = 0.0
    kinds: Annotated[
        dict[_Text, dict[_Sort, NodeFigures]], msgspec.Meta(max_length=MOST_KINDS)
    ] = {}
    spells: Annotated[tuple[NodeFinding, ...], msgspec.Meta(max_length=MOST_SPELLS)] = ()


class Shard(msgspec.Struct):
    """``since``: it was emptied by hand then."""

    v: int = 1
    since: float = 0.0
    nodes: dict[str, NodeRecord] = {}


def shard_name(number: int) -> str:
    """The name of the ConfigMap that holds shard ``number``."""
    return f"{PREFIX}{number:02d}"


def shard_of(node: str) -> int:
    return int(digest(node), 16) % SHARDS


class NodeHistory:
    """All records. ``age``: seconds after which what was found does not count any more."""

    def __init__(self, age: float) -> None:
        self._age = age
        self._shards = [Shard() for _ in range(SHARDS)]
        self.changed: set[int] = set()
        """Numbers of the shards that differ from what was encoded last."""

    def note(
        self,
        node: tuple[str, str],
        at: float,
        whose: tuple[str, str],
        seen: Sighting,
        gbps: float = 0.0,
    ) -> None:
        """A gang (``whose``: namespace and gang) has ended ``at`` that Unix time and has seen this
        of the ``node`` (name and identity); ``gbps``: of its all-reduce, 0 where it is not a figure
        of a healthy gang. What is older than the newest is known already, from whichever leader.
        """
        record, shard = self._record(*node, at), self._shards[number := shard_of(node[0])]
        if at <= max(record.last, record.since, shard.since):
            return
        record.last = at
        kinds = dict(record.kinds)
        figures = dict(kinds.pop(seen.kind, {}))
        gang: _Sort = "alone" if seen.nodes == 1 else "two" if seen.nodes == 2 else "gang"
        sorts: tuple[tuple[_Sort, float], ...] = (
            (gang, gbps if seen.nodes else 0.0),
            ("pair", seen.pair),
            ("own", seen.own),
        )
        for name, value in sorts:
            if value > 0:
                known = figures.get(name, NodeFigures())
                figures[name] = NodeFigures(
                    known.count + 1, [*known.values, float(f"{value:.4g}")][-MOST_VALUES:]
                )
        if figures:
            kinds[seen.kind] = figures  # the one seen last stands last
        record.kinds = dict(list(kinds.items())[-MOST_KINDS:])
        if seen.bad:
            namespace, its = digest(whose[0]), digest("/".join(whose))
            mine = [one for one in record.spells if one.gang == its]
            others = [one for one in record.spells if one.gang != its]
            own = seen.sick or any(one.own for one in mine)
            record.spells = _kept([*others, NodeFinding(at, namespace, its, own, seen.bad)])
        self.changed.add(number)
        self._bound(shard)

    def past(
        self, node: tuple[str, str], now: float, whose: tuple[str, str], members: Mapping[str, str]
    ) -> Past | None:
        """What the gang ``whose`` learns about the node (name and identity). ``members``: digest of
        a node's name to the name, of that gang's nodes.
        """
        known = self._shards[shard_of(node[0])].nodes.get(node[0])
        if known is None or known.identity != node[1]:
            return None
        own_gang, sources = digest("/".join(whose)), dict[str, int]()
        spells = [
            Spell(
                ago=round(now - one.at),
                source=sources.setdefault(one.namespace, len(sources)),
                own=one.own,
                partners=tuple(members[p] for p in one.partners if p in members),
            )
            for one in known.spells
            if one.gang != own_gang and 0 <= now - one.at <= self._age
        ]
        kind, figures = (
            next(reversed(known.kinds.items()), ("", {}))
            if now - known.last <= self._age
            else ("", {})
        )
        usual = {name: _usual(one) for name, one in figures.items() if one.values}
        if not spells and not usual:
            return None
        return Past(kind=kind, spells=tuple(spells), **usual)

    def check(self, node: str, identity: str, now: float) -> None:
        """The node is in the cluster as ``identity``: if that is another one than before, nothing
        of before counts.
        """
        if node in self._shards[shard_of(node)].nodes:
            self._record(node, identity, now)

    def shown(self, now: float) -> list[tuple[str, int, dict[str, float]]]:
        """(node, bad spells that count, what is usual in GB/s by sort) of each node."""
        rows = []
        for shard in self._shards:
            for name, node in list(shard.nodes.items()):
                figures = next(reversed(node.kinds.values()), {})
                usual: dict[str, float] = {
                    sort: median(one.values) for sort, one in figures.items() if one.values
                }
                rows.append(
                    (name, sum(1 for one in node.spells if now - one.at <= self._age), usual)
                )
        return rows

    def encoded(self, number: int) -> str:
        """One shard as JSON; it is no longer changed."""
        shard = self._shards[number]
        text = msgspec.json.encode(shard)
        while len(text) > MOST_BYTES and shard.nodes:
            for name in sorted(shard.nodes, key=lambda one: shard.nodes[one].last)[
                : max(1, len(shard.nodes) // 10)
            ]:
                del shard.nodes[name]
            text = msgspec.json.encode(shard)
        self.changed.discard(number)
        return text.decode()

    def read(self, number: int, text: str) -> None:
        """Take up a shard as somebody has written it; what is known here stays. What cannot be read
        is left out.
        """
        try:
            found = msgspec.json.decode(text, type=Shard)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return
        if found.v != 1:
            return
        shard = self._shards[number]
        shard.since = max(shard.since, found.since)
        for name, node in found.nodes.items():
            if shard_of(name) == number:
                shard.nodes.setdefault(name, node)
        self._bound(shard)

    def empty(self, number: int, now: float) -> None:
        """Somebody has deleted the shard: nothing of before ``now`` counts."""
        self._shards[number] = Shard(since=now)
        self.changed.add(number)

    def clear(self) -> None:
        """Another one leads."""
        self._shards = [Shard() for _ in range(SHARDS)]
        self.changed.clear()

    def _record(self, node: str, identity: str, now: float) -> NodeRecord:
        nodes = self._shards[shard_of(node)].nodes
        known = nodes.get(node)
        if known is None:
            nodes[node] = known = NodeRecord(identity=identity)
        elif known.identity != identity:
            nodes[node] = known = NodeRecord(identity=identity, since=now)
            self.changed.add(shard_of(node))
        return known

    @staticmethod
    def _bound(shard: Shard) -> None:
        while len(shard.nodes) > MOST_NODES:
            del shard.nodes[min(shard.nodes, key=lambda one: shard.nodes[one].last)]


def _kept(found: list[NodeFinding]) -> tuple[NodeFinding, ...]:
    """At most so many; of the namespace that has most of them the oldest goes, so that nobody
    pushes out another one's.
    """
    found = sorted(found, key=lambda one: one.at)
    while len(found) > MOST_SPELLS:
        count = {
            one.namespace: sum(1 for other in found if other.namespace == one.namespace)
            for one in found
        }
        found.remove(max(found, key=lambda one: (count[one.namespace], -one.at)))
    return tuple(found)


def _usual(figures: NodeFigures) -> Usual:
    middle = median(figures.values)
    spread = _SPREAD * median(abs(value - middle) for value in figures.values)
    return Usual(gbps=middle, spread=round(spread, 3), count=figures.count)
