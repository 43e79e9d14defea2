"""The worlds of fabrics of stages, one a row: what is wrong, and what the gang can know of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from .faults import (
    FOREVER,
    Beyond,
    Bundle,
    Busy,
    Collisions,
    Fast,
    Fewer,
    Hosts,
    Kinds,
    Marks,
    Pauses,
    SickNode,
    SlowToThemselves,
    Storm,
)
from .stages import StagedWorld, WorldFault

W = StagedWorld
TRUE: Final = ("true",)
BLIND: Final = ("absent",)
LIES: Final = ("shuffled", "one", "coarse", "own", "stale")
FACTS: Final = ("errors", "rate", "pcie", "replay")
CARD, LEAF, UPLINK = Beyond("card"), Beyond("leaf"), Beyond("uplink")
LONE, RACK = Beyond("uplink", (1, 1)), Beyond("uplink", (2, 4))
CROWDED_UPLINKS = Beyond("spine", capacity=(0.25, 0.7))
CROWDED_LEAF = Beyond("leaf", capacity=(0.25, 0.7))
LASTING, MINUTES, SHORT = Busy(), Busy(lasts=(60, 150)), Busy((1, 1), (0, 10), (10, 50))
BURSTS = Busy(lasts=(10, 10), pause=(5, 30))
MILD: Final = (0.60, 0.70)


def known(name: str, *faults: WorldFault, **changed: Any) -> StagedWorld:
    """A world in which gangs know all that can be known: labels, counters, layout."""
    all_known = W(name, faults, labels=TRUE, counted=True, configured=True, rail=False)
    return replace(all_known, **changed)


WORLDS: Final[tuple[StagedWorld, ...]] = (
    # Nothing, or what is a node's own.
    W("healthy"),
    W("healthy, heavy noise", noise=(0.05, 0.12), dips=0.03, spread=0.04),
    W("healthy, heavy tails", tail=3),
    W("healthy, a fifth of all values dips", dips=0.2),
    W("healthy, a fabric that drifts", drift=0.03),
    known("sick", SickNode()),
    W("sick, whatever the labels", (SickNode(),)),
    W("sick, device tells", (SickNode(tells=FACTS),), labels=TRUE, counted=True),
    W("sick, device tells, no labels", (SickNode(tells=FACTS),), labels=BLIND, counted=True),
    known("two or three sick", SickNode((2, 3)), nodes=(8, 72)),
    known("sick in a gang of hundreds", SickNode((1, 3)), nodes=(128, 1024), gangs=1000),
    W(
        "two sick behind one leaf",
        (SickNode((2, 2), together=True),),
        nodes=(8, 72),
        leaves=(4, 16),
    ),
    W("two sick, equally", (SickNode((2, 2), equal=True),), nodes=(8, 72)),
    known("sick, a little", SickNode(share=MILD)),
    known("sick in a gang of three to five", SickNode(), nodes=(3, 5), leaves=(3, 5)),
    W("slow cable", (SickNode(stage="link", tells=("", "errors")),)),
    W("slow switch port", (SickNode(stage="port", tells=("", "errors")),)),
    # What is beyond the nodes.
    W("line card", (CARD,)),
    known("line card, all known", CARD, leaves=(4, 16)),
    known("line card, ports unequally slow, all known", Beyond("card", unequal=True)),
    W("line card, ports unequally slow", (Beyond("card", unequal=True),)),
    W("line card of two", (Beyond("card", (2, 2)),)),
    W("line card whose links count errors", (Beyond("card", counts=True),), counted=True),
    W("two line cards", (CARD, CARD), nodes=(12, 72)),
    W("line card and a slow leaf", (CARD, LEAF), nodes=(12, 72)),
    W("slow leaf", (LEAF,), leaves=(2, 8)),
    W("slow leaf, labels lie", (LEAF,), leaves=(2, 8), labels=LIES),
    W("slow uplink", (UPLINK,)),
    known("slow leaf, all known", LEAF, leaves=(2, 8)),
    known("slow uplink, all known", UPLINK),
    W("slow uplink, lone node", (LONE,), rail=False),
    W("slow spine", (Beyond("spine", share=(0.3, 0.7)),)),
    W("oversubscribed", (CROWDED_UPLINKS,)),
    known("slow leaf with one member", Beyond("leaf", (1, 1))),
    known("slow leaf with one member, labels lie", Beyond("leaf", (1, 1)), labels=LIES),
    known("slow leaf with one member, stale labels", Beyond("leaf", (1, 1)), labels=("stale",)),
    known("another job fills a leaf", Beyond("leaf", lasts=(30, 120)), leaves=(2, 8)),
    known("another job fills a leaf with one member", Beyond("leaf", (1, 1), lasts=(30, 120))),
    known("another job fills a small rack's uplink", Beyond("uplink", (2, 4), lasts=(30, 120))),
    # A rail-optimised fabric: hairpins pass the spine.
    W("rails, lone node", (LONE,), rail=True),
    W("rails, lone node, true labels", (LONE,), rail=True, labels=TRUE),
    W("rails, lone node, labels lie", (LONE,), rail=True, labels=LIES),
    W("rails, small rack", (RACK,), rail=True),
    W("rails, small rack, true labels", (RACK,), rail=True, labels=TRUE),
    W("rails, sick", (SickNode(),), rail=True, labels=TRUE, counted=True),
    W("rails, line card", (CARD,), rail=True),
    W("rails, one node's flows collide", (Collisions(node=True),), rail=True, leaves=(2, 6)),
    W("one node's flows collide", (Collisions(node=True),), rail=False, leaves=(2, 6)),
    W("flows collide", (Collisions(often=0.1),), leaves=(2, 8)),
    W("one slow path", (Collisions(pair=True),)),
    known("one slow link of an uplink's", Bundle(), rail=None),
    # Kinds of adapters.
    W("two kinds, hidden", (Kinds(),)),
    W("two kinds, hidden, one node", (Kinds(count=(1, 1)),)),
    known("two kinds, hidden, all known", Kinds()),
    known("two kinds, hidden, one node, all known", Kinds(count=(1, 1))),
    W("two kinds, visible", (Kinds(visible=True),)),
    W("two kinds, hidden, and a sick node", (Kinds(count=(2, 6)), SickNode())),
    known("fewer GPUs on some nodes, and a line card", Fewer(), CARD, nodes=(8, 72)),
    # Somebody else's traffic.
    W("neighbour's traffic of 10 to 50 s", (SHORT,)),
    W("neighbour's traffic of 60 to 150 s", (MINUTES,), counted=True),
    W("neighbour's traffic of 60 to 150 s, nothing counted", (MINUTES,), counted=False),
    W("neighbour's traffic, lasting", (LASTING,), counted=True),
    W("neighbour's traffic, lasting, nothing counted", (LASTING,), counted=False),
    known("neighbour's traffic, lasting, all known", LASTING),
    known("neighbour's traffic of 60 to 150 s, all known", MINUTES),
    known("neighbour's traffic in bursts, all known", BURSTS),
    W("neighbour's traffic, two nodes", (Busy((2, 3)),)),
    W("neighbour's traffic in bursts", (BURSTS,)),
    W(
        "neighbour's traffic and a sick node",
        (LASTING, SickNode()),
        nodes=(6, 72),
        labels=TRUE,
        counted=True,
    ),
    W("everybody's traffic in bursts", (Busy(lasts=(5, 10), pause=(20, 60), everybody=True),)),
    W("two nodes, a neighbour's traffic", (LASTING,), nodes=(2, 2)),
    W("two nodes, sick", (SickNode(),), nodes=(2, 2), leaves=(2, 2)),
    W(
        "two nodes, sick, device tells",
        (SickNode(tells=FACTS),),
        nodes=(2, 2),
        leaves=(2, 2),
        labels=TRUE,
        counted=True,
    ),
    W("two nodes, slow uplink", (LONE,), nodes=(2, 2)),
    W("two nodes, two kinds", (Kinds(count=(1, 1)),), nodes=(2, 2)),
    # Hosts, pause frames, throttling.
    W("hosts of two, one sick", (Hosts(sick=True),), nodes=(6, 72)),
    W("hosts of two beside hosts of one", (Hosts((1, 6), contended=True),), nodes=(6, 72)),
    W("pause frames", (Pauses(),), leaves=(3, 8)),
    known("pause frames from another job", Storm(), nodes=(12, 72), leaves=(2, 8)),
    W("throttles", (SickNode(stage="device", tells=("throttle",), onset=(-10, 60)),), counted=True),
    W("throttles, nobody says why", (SickNode(stage="device", onset=(-10, 60)),), counted=False),
    # What a gang cannot measure.
    W("hairpins inside adapters, slow cable", (SickNode(stage="link"),), hairpins="adapter"),
    W("hairpins inside adapters, sick", (SickNode(),), hairpins="adapter", labels=TRUE),
    W("hairpins inside adapters, lone node", (LONE,), hairpins="adapter"),
    W("no hairpins, sick", (SickNode(tells=("", *FACTS)),), hairpins="none"),
    W("no hairpins, line card that counts", (Beyond("card", counts=True),), hairpins="none"),
    W("hairpins late, line card", (CARD,), unjudged=0.5),
    W("short of time, sick", (SickNode(),), budget=60.0, seconds=(6.0, 12.0)),
    W("short of time, neighbour's traffic", (LASTING,), budget=60.0, seconds=(6.0, 12.0)),
    # Devices that tell of what slows nothing.
    W("marks", (Marks(),), counted=True),
    W("marks and a line card", (Marks(), CARD), counted=True),
    W("marks and a slow uplink", (Marks(), LONE), counted=True, rail=False),
    W("marks and a neighbour's traffic", (Marks(), LASTING), counted=True),
    W("marks on all and a line card", (Marks(1.0), CARD), counted=True),
    W("marks on all and a lone node", (Marks(1.0), LONE), counted=True, rail=True),
    # Latencies that show no tiers, or false ones.
    W("a fast pair, lone node", (LONE,), fast_pairs=1),
    known("a fast pair, sick", SickNode(), fast_pairs=1),
    W("restless latencies, small rack", (RACK,), restless=0.2),
    # Causes that come, go and move; healthy nodes that are slow to themselves.
    known("a neighbour's work on the processors", Busy(mute=True)),
    known("traffic that begins between the looks", Busy((1, 3), begins=(5, 60))),
    known("collisions that move", Collisions(often=0.15, moves=(20, 90)), rail=None),
    known("leaves that cannot carry all of their nodes", CROWDED_LEAF, leaves=(4, 16)),
    known("another job fills a leaf later", Beyond("leaf", begins=(0, 60), lasts=(30, FOREVER))),
    known("a leaf that stalls for seconds", Beyond("leaf", lasts=(2, 12), pause=(2, 12))),
    known("a leaf that comes and goes", Beyond("leaf", lasts=(5, 30), pause=(5, 30))),
    known("an uplink that comes and goes", Beyond("uplink", lasts=(5, 30), pause=(5, 30))),
    known("fast nodes", Fast()),
    known("fast nodes and a small rack's slow uplink", Fast(), RACK),
    known("slow to themselves, and a small rack's slow uplink", SlowToThemselves(), RACK),
    known("slow to themselves, and oversubscribed", SlowToThemselves(), CROWDED_UPLINKS),
    # Several things at once.
    W("line card and a sick node", (CARD, SickNode()), nodes=(8, 72)),
    W("lone node and a sick node", (LONE, SickNode()), nodes=(6, 72)),
    W("lone node and a neighbour's traffic", (LONE, LASTING), nodes=(6, 72)),
    W("many things", (CARD, LONE, MINUTES, Kinds((0.5,), (1, 2)), SickNode()), nodes=(16, 72)),
)
