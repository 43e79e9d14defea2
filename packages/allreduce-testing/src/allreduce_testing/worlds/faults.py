"""What goes wrong in a fabric of stages, and who is to blame for it: the faults of
:mod:`.stages`'s worlds, drawn anew for each gang.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .stages import Spans, StagedFabric

FOREVER: Final = 1e9
LONGEST: Final = 400.0
"""Seconds, more than any test takes."""
SLOW: Final = (0.2, 0.7)
"""What a fault leaves of normal."""


@dataclass(frozen=True, slots=True)
class SickNode:
    """Nodes whose own device is at fault (``adapter``, ``device``), or whose own cable (``link``)
    or switch port (``port``) is.

    ``tells``: what the device says, one of them each. ``together``: behind one leaf. ``equal``: as
    slow as each other. ``onset``: seconds until it begins.
    """

    count: tuple[int, int] = (1, 1)
    stage: str = "adapter"
    share: tuple[float, float] = SLOW
    tells: tuple[str, ...] = ("",)
    together: bool = False
    equal: bool = False
    onset: tuple[float, float] | None = None

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the nodes, slow their stage, and let their devices tell."""
        random, shape, truth = fabric.random, fabric.shape, fabric.truth
        count = min(random.randint(*self.count), max(1, shape.size // 4))
        among = list(range(shape.size))
        if self.together:
            among = random.choice(_groups(fabric, 2) or [among])
        alike = random.uniform(*self.share)
        for i in random.sample(among, min(count, len(among))):
            begins = -FOREVER if self.onset is None else random.uniform(*self.onset)
            spans: Spans = ((begins, FOREVER),)
            fact = random.choice(self.tells)
            share = alike if self.equal else random.uniform(*self.share)
            share = 0.5 if fact in {"rate", "pcie"} else share
            fabric.slow((self.stage, i), share, spans, (i,))
            fabric.tell(i, fact, spans)
            truth.blamable.add(i)
            truth.named.add(i)
            if self.onset is not None:
                truth.begins[i] = begins
            if self.stage in {"adapter", "device"}:
                truth.sick.add(i)
                if fact:
                    truth.reported.add(i)


@dataclass(frozen=True, slots=True)
class Beyond:
    """What is beyond the nodes: a line ``card``, a ``leaf``, its ``uplink``, the ``spine``.

    ``members``: nodes of the gang behind it; for an uplink, or one behind a slow leaf, they stand
    behind a leaf of their own. ``begins``, ``lasts``: seconds in which somebody else's traffic
    fills it, None: it is slow for good; ``pause``: seconds until it is so again, None: once.
    ``unequal``: each port of the card is slow by itself. ``counts``: links through it count errors.
    ``capacity``: of a spine, this part of what the nodes of each leaf can send.
    """

    what: str
    members: tuple[int, int] = (2, 6)
    share: tuple[float, float] = SLOW
    unequal: bool = False
    counts: bool = False
    capacity: tuple[float, float] | None = None
    lasts: tuple[float, float] | None = None
    begins: tuple[float, float] = (-10.0, 0.0)
    pause: tuple[float, float] | None = None

    def strike(self, fabric: StagedFabric) -> None:
        """Draw who is behind it, and slow it."""
        random, shape = fabric.random, fabric.shape
        share = random.uniform(*self.share)
        if self.what == "leaf" and self.capacity:
            for leaf in set(shape.leaf):
                if random.random() < 0.5:
                    those = len(shape.behind(leaf))
                    fabric.limit(("leaf", leaf), those * random.uniform(*self.capacity))
            return
        if self.what == "spine":
            if self.capacity:
                for leaf in set(shape.leaf):
                    those = len(shape.behind(leaf))
                    fabric.limit(("uplink", leaf), those * random.uniform(*self.capacity))
            else:
                fabric.slow(("spine", 0), share)
            return
        touched = self._touched(fabric)
        match self.what:
            case "card":
                card = min(0, *shape.card) - 1
                for i in touched:
                    shape.card[i] = card
                    if self.unequal:
                        fabric.slow(("port", i), random.uniform(*self.share), nodes=(i,))
                if not self.unequal:
                    fabric.slow(("card", card), share, nodes=touched)
                if len(touched) == 1:  # nothing distinguishes it from the node's own port
                    fabric.truth.blamable.update(touched)
            case "leaf" | "uplink":
                spans: Spans = ((-FOREVER, FOREVER),)
                if self.lasts:
                    spans = _spans(random, self.begins, self.lasts, self.pause)
                fabric.slow((self.what, shape.leaf[touched[0]]), share, spans, touched)
            case _:
                raise ValueError(f"a fault beyond the nodes is none of {self.what!r}")
        if len(touched) == 1 and not self.lasts:
            fabric.truth.named.update(touched)
        for i in touched if self.counts else ():
            fabric.tell(i, "errors")

    def _touched(self, fabric: StagedFabric) -> list[int]:
        random, shape = fabric.random, fabric.shape
        count = min(random.randint(*self.members), max(1, shape.size // 2))
        if self.what == "uplink" or (self.what == "leaf" and self.members == (1, 1)):
            those = random.sample(range(shape.size), count)
            shape.move(those)
            return those
        groups = _groups(fabric, 2) or [list(range(shape.size))]
        those = random.choice(groups)
        return those if self.what == "leaf" else random.sample(those, min(count, len(those)))


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else's traffic on the adapters of healthy nodes. ``begins``, ``lasts``: seconds;
    ``pause``: seconds until it comes again, None: once. ``mute``: it takes processors instead.
    """

    count: tuple[int, int] = (1, 1)
    begins: tuple[float, float] = (-10.0, 0.0)
    lasts: tuple[float, float] = (FOREVER, FOREVER)
    pause: tuple[float, float] | None = None
    share: tuple[float, float] = (0.3, 0.7)
    everybody: bool = False
    mute: bool = False

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the nodes, and occupy their adapters for a while, or for good."""
        random, size = fabric.random, fabric.shape.size
        count = size if self.everybody else min(random.randint(*self.count), max(1, size // 3))
        for i in random.sample(range(size), count):
            spans = _spans(random, self.begins, self.lasts, self.pause)
            use = fabric.load if self.mute else fabric.occupy
            use(i, random.uniform(*self.share), spans)
            if spans[0][0] <= 0 and spans[0][1] > FOREVER / 2 and not self.everybody:
                fabric.truth.named.add(i)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Nodes whose adapters are of another generation; where that is not visible, virtual functions
    say nothing, or what their physical one says.
    """

    ratios: tuple[float, ...] = (1 / 2, 1 / 4, 2 / 5)
    count: tuple[int, int] = (1, 6)
    visible: bool = False

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the nodes and their rate."""
        random, size = fabric.random, fabric.shape.size
        ratio = random.choice(self.ratios)
        count = min(random.randint(*self.count), max(1, size // 2))
        for i in random.sample(range(size), count):
            fabric.rate[i] *= ratio
            fabric.truth.slow[i] = ratio
            if self.visible:
                fabric.nic = [nic or "8x400" for nic in fabric.nic]
                fabric.nic[i] = f"8x{400 * ratio:g}"
            elif 4 * count <= size:
                fabric.truth.named.add(i)


@dataclass(frozen=True, slots=True)
class Older:
    """Nodes whose adapters are of a lower rate, which is not visible; to themselves they lack less,
    since PCIe leaves the faster ones only a share of theirs (``pcie``).
    """

    ratios: tuple[float, ...] = (1 / 2, 1 / 4, 2 / 5)
    count: tuple[int, int] = (1, 1)
    pcie: tuple[float, float] = (0.7, 0.95)

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the nodes and their rates, and slow the others to themselves."""
        random, size = fabric.random, fabric.shape.size
        count = min(random.randint(*self.count), max(1, size // 3))
        older, share = set(random.sample(range(size), count)), random.uniform(*self.pcie)
        for i in range(size):
            if i not in older:
                fabric.slow(("itself", i), share)
                continue
            ratio = random.choice(self.ratios)
            fabric.rate[i] *= ratio
            fabric.truth.slow[i] = ratio
            if 4 * count <= size:
                fabric.truth.named.add(i)


@dataclass(frozen=True, slots=True)
class Fewer:
    """Nodes, up to half, with fewer GPUs than the others, and adapters in use: of other kinds."""

    count: tuple[int, int] = (1, 4)

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the nodes and how many GPUs they have."""
        random, size = fabric.random, fabric.shape.size
        for i in random.sample(range(size), min(random.randint(*self.count), size // 2)):
            gpus = random.choice((4, 6, 7))
            fabric.kind[i] = f"H100/{gpus}"
            fabric.rate[i] *= gpus / 8


@dataclass(frozen=True, slots=True)
class Storm:
    """Pause frames that a node of another job brings on a leaf: they slow the ports of most of its
    nodes, each as much as it is in the way.
    """

    share: tuple[float, float] = (0.2, 0.85)
    often: float = 0.7

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the leaf and its victims."""
        random, shape = fabric.random, fabric.shape
        those = shape.behind(random.choice(sorted(set(shape.leaf))))
        victims = [i for i in those if random.random() < self.often]
        for i in victims:
            fabric.slow(("port", i), random.uniform(*self.share), nodes=(i,))
        if len(victims) == 1:  # nothing distinguishes it from the node's own port
            fabric.truth.blamable.update(victims)


@dataclass(frozen=True, slots=True)
class Fast:
    """Nodes, up to a quarter, that are faster than all others."""

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the nodes and their rate."""
        random, size = fabric.random, fabric.shape.size
        for i in random.sample(range(size), random.randint(1, max(1, size // 4))):
            fabric.rate[i] *= random.uniform(1.15, 1.5)


@dataclass(frozen=True, slots=True)
class Hosts:
    """Hosts with two endpoints each. ``sick``: the adapters of one are bad. ``contended``: of each,
    the two get half while both are measured, and all others have adapters to themselves.
    """

    count: tuple[int, int] = (1, 4)
    sick: bool = False
    contended: bool = False

    def strike(self, fabric: StagedFabric) -> None:
        """Put endpoints together on hosts, as drawn."""
        random, shape = fabric.random, fabric.shape
        count = min(random.randint(*self.count), max(1, shape.size // 4))
        chosen = random.sample(range(shape.size), 2 * count)
        for number, (a, b) in enumerate(zip(chosen[::2], chosen[1::2], strict=True)):
            shape.host[b] = shape.host[a]
            shape.leaf[b], shape.card[b] = shape.leaf[a], shape.card[a]
            if self.contended:
                fabric.limit(("host", shape.host[a]), 1.0)
            if self.sick and number == 0:
                fabric.slow(("host", shape.host[a]), random.uniform(*SLOW), nodes=(a, b))
                fabric.truth.blamable.update((a, b))
                fabric.truth.named.update((a, b))


@dataclass(frozen=True, slots=True)
class Collisions:
    """Flows that share a way through the spine by their hash: ``often``, of pairs anew each time;
    ``node``: all of one node, always; ``pair``: one pair, always.
    """

    often: float = 0.0
    node: bool = False
    pair: bool = False
    moves: tuple[float, float] | None = None

    def strike(self, fabric: StagedFabric) -> None:
        """Slow the paths that share a way."""
        random, shape = fabric.random, fabric.shape
        if self.moves is None:
            fabric.collisions = self.often
        else:
            for a in range(shape.size):
                for b in range(a if shape.rail else a + 1, shape.size):
                    if a != b and shape.leaf[a] == shape.leaf[b]:
                        continue
                    spans, at = [], -random.uniform(0, self.moves[1])
                    while at < LONGEST:
                        until = at + random.uniform(*self.moves)
                        if random.random() < self.often:
                            spans.append((at, until))
                        at = until
                    if spans:
                        stage = ("itself", a) if a == b else ("path", a * shape.size + b)
                        fabric.slow(stage, random.uniform(0.4, 0.7), tuple(spans))
        if self.node:
            # All that leaves this node's leaf on its behalf: it is a leaf of its own in that.
            end = random.randrange(shape.size)
            share = random.uniform(*SLOW)
            others = [i for i in range(shape.size) if shape.leaf[i] != shape.leaf[end]]
            fabric.truth.slow[end] = share
            for i in others:
                fabric.slow(("path", min(end, i) * shape.size + max(end, i)), share)
            if shape.rail:
                fabric.slow(("itself", end), share)
        if self.pair:
            a, b = sorted(random.sample(range(shape.size), 2))
            fabric.slow(("path", a * shape.size + b), random.uniform(*SLOW))


@dataclass(frozen=True, slots=True)
class Bundle:
    """One slow link of the few that a leaf's uplink is made of: whichever pairs, and in a
    rail-optimised fabric hairpins, their hash puts on it are slow, each time.
    """

    leaves: tuple[int, int] = (1, 2)
    links: tuple[int, int] = (2, 8)

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the leaves, and of each who is on the slow link."""
        random, shape = fabric.random, fabric.shape
        leaves = sorted(set(shape.leaf))
        for leaf in random.sample(leaves, min(random.randint(*self.leaves), len(leaves))):
            part, share = 1 / random.randint(*self.links), random.uniform(*SLOW)
            beyond = [i for i in range(shape.size) if shape.leaf[i] != leaf]
            for a in shape.behind(leaf):
                if shape.rail and random.random() < part:
                    fabric.slow(("itself", a), share)
                for b in beyond:
                    if random.random() < part:
                        fabric.slow(("path", min(a, b) * shape.size + max(a, b)), share)


@dataclass(frozen=True, slots=True)
class SlowToThemselves:
    """Healthy nodes whose hairpins are slow, such as by the BIOS, and whose paths are not."""

    often: float = 0.1
    share: tuple[float, float] = SLOW

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the nodes."""
        random = fabric.random
        for i in range(fabric.shape.size):
            if random.random() < self.often:
                fabric.slow(("itself", i), random.uniform(*self.share))


@dataclass(frozen=True, slots=True)
class Pauses:
    """A sick node whose switch sends pause frames to the others of its leaf while it takes part;
    those slow their hairpins as well.
    """

    share: tuple[float, float] = (0.4, 0.8)

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the sick node, and crowd its leaf."""
        random, shape, truth = fabric.random, fabric.shape, fabric.truth
        counts = Counter(shape.leaf)
        end = random.choice([i for i in range(shape.size) if counts[shape.leaf[i]] > 1] or [0])
        fabric.slow(("adapter", end), random.uniform(*SLOW), nodes=shape.behind(shape.leaf[end]))
        truth.sick.add(end)
        truth.blamable.add(end)
        truth.named.add(end)
        fabric.crowd([("leaf", shape.leaf[end])], (end,), random.uniform(*self.share))


@dataclass(frozen=True, slots=True)
class Marks:
    """Facts of devices that slow nothing: one of them, of this ``share`` of the nodes."""

    share: float = 0.02
    tells: tuple[str, ...] = ("errors", "pcie", "replay")

    def strike(self, fabric: StagedFabric) -> None:
        """Draw the fact and the nodes, and let their devices tell."""
        fact = fabric.random.choice(self.tells)
        for i in range(fabric.shape.size):
            if fabric.random.random() < self.share:
                fabric.tell(i, fact)


def _spans(
    random: Random,
    begins: tuple[float, float],
    lasts: tuple[float, float],
    pause: tuple[float, float] | None,
) -> Spans:
    """When it is so: once, or again and again."""
    begin = random.uniform(*begins)
    spans = [(begin, begin + random.uniform(*lasts))]
    while pause is not None and spans[-1][1] < LONGEST:
        begin = spans[-1][1] + random.uniform(*pause)
        spans.append((begin, begin + random.uniform(*lasts)))
    return tuple(spans)


def _groups(fabric: StagedFabric, least: int) -> list[list[int]]:
    """The nodes of each leaf that has so many."""
    groups = [fabric.shape.behind(leaf) for leaf in sorted(set(fabric.shape.leaf))]
    return [those for those in groups if len(those) >= least]
