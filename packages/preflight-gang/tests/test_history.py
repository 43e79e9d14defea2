"""What is remembered of a node: bounded, of one life of it, and nobody's to fill up."""

from __future__ import annotations

import msgspec
import pytest
from preflight_gang.core.node_history import MOST_BYTES, MOST_NODES, SHARDS, NodeHistory, shard_of
from preflight_proto.history import MOST_SPELLS, Past, Sighting, Usual, digest

HOUR, DAY = 3600.0, 86_400.0
NOW = 1_800_000_000.0
NODE = ("node-a", "as it was")
FINE = Sighting(kind="H100/8/8x400/4Gi", nodes=8, pair=370.0, edges=3)


def bad(*partners: str, own: bool = False) -> Sighting:
    return Sighting(kind=FINE.kind, nodes=8, bad=tuple(digest(one) for one in partners), sick=own)


def past(
    book: NodeHistory, whose: tuple[str, str] = ("ours", "next"), now: float = NOW, *members: str
) -> Past | None:
    return book.past(NODE, now, whose, {digest(one): one for one in members})


def test_what_is_usual_is_median_and_spread_of_the_last_gangs() -> None:
    book = NodeHistory(14 * DAY)
    for i, gbps in enumerate([10.0, *[368.0, 370.0, 372.0] * 3]):
        book.note(NODE, NOW - DAY + i, ("a", "g"), FINE, gbps)
    published = past(book)
    assert published is not None
    assert published.kind == FINE.kind
    assert published.gang == Usual(370.0, 2.965, 10)
    assert published.pair == Usual(370.0, 0.0, 10)
    assert (published.alone, published.two, published.own, published.spells) == (
        None,
        None,
        None,
        (),
    )


def test_a_spell_says_when_whose_and_with_whom_of_this_gang() -> None:
    book = NodeHistory(14 * DAY)
    book.note(NODE, NOW - 3 * HOUR, ("a", "g"), bad("node-b", "node-c"))
    book.note(NODE, NOW - HOUR, ("b", "g"), bad("node-d", own=True))
    published = past(book, ("ours", "next"), NOW, "node-a", "node-c", "node-d", "node-e")
    assert published is not None
    assert [(s.ago, s.source, s.own, s.partners) for s in published.spells] == [
        (3 * HOUR, 0, False, ("node-c",)),
        (HOUR, 1, True, ("node-d",)),
    ]


def test_no_gang_is_told_of_its_own_spell() -> None:
    book = NodeHistory(14 * DAY)
    book.note(NODE, NOW - HOUR, ("a", "g"), bad("node-b"))
    assert past(book, ("a", "g")) is None
    assert past(book, ("a", "other")) is not None


def test_all_pods_and_restarts_of_one_gang_are_one_spell() -> None:
    book = NodeHistory(14 * DAY)
    book.note(NODE, NOW - HOUR, ("a", "g"), bad("node-b", own=True))
    book.note(NODE, NOW - HOUR, ("a", "g"), bad("node-b"))
    book.note(NODE, NOW - HOUR + 60, ("a", "g"), bad("node-c"))
    published = past(book)
    assert published is not None
    assert [(s.ago, s.own) for s in published.spells] == [(HOUR - 60, True)]


def test_what_is_older_than_the_age_does_not_count() -> None:
    book = NodeHistory(DAY)
    book.note(NODE, NOW - DAY - 1, ("a", "g"), bad("node-b"))
    assert past(book) is None


@pytest.mark.parametrize("how", ["seen in the cluster", "seen by a gang", "asked for"])
def test_nothing_outlives_a_repair(how: str) -> None:
    book, repaired = NodeHistory(14 * DAY), ("node-a", "another boot")
    book.note(NODE, NOW - 2 * HOUR, ("a", "g"), bad("node-b"), 370.0)
    if how == "seen in the cluster":
        book.check(*repaired, NOW - HOUR)
    elif how == "seen by a gang":
        book.note(repaired, NOW - HOUR, ("a", "h"), FINE)
    published = book.past(repaired, NOW, ("ours", "next"), {})
    assert published is None or published.spells == ()


def test_who_comes_after_a_repair_hears_nothing_of_before_from_pods_that_are_still_there() -> None:
    book, repaired = NodeHistory(14 * DAY), ("node-a", "another boot")
    book.note(NODE, NOW - 2 * HOUR, ("a", "g"), bad("node-b"))
    book.check(*repaired, NOW - HOUR)
    book.note(repaired, NOW - 2 * HOUR, ("a", "g"), bad("node-b"))
    assert book.past(repaired, NOW, ("ours", "next"), {}) is None


def test_a_shard_that_was_deleted_stays_empty_of_what_was_before() -> None:
    book = NodeHistory(14 * DAY)
    book.note(NODE, NOW - 2 * HOUR, ("a", "g"), bad("node-b"))
    book.empty(shard_of("node-a"), NOW - HOUR)
    book.note(NODE, NOW - 2 * HOUR, ("a", "g"), bad("node-b"))
    assert past(book) is None
    kept = NodeHistory(14 * DAY)
    kept.read(shard_of("node-a"), book.encoded(shard_of("node-a")))
    kept.note(NODE, NOW - 2 * HOUR, ("a", "g"), bad("node-b"))
    assert past(kept) is None


def test_the_next_leader_knows_what_the_last_one_has_kept() -> None:
    book, kept = NodeHistory(14 * DAY), NodeHistory(14 * DAY)
    book.note(NODE, NOW - 2 * HOUR, ("a", "g"), bad("node-b"))
    book.note(NODE, NOW - HOUR, ("a", "h"), FINE, 371.0)
    assert book.changed == {shard_of("node-a")}
    kept.read(shard_of("node-a"), book.encoded(shard_of("node-a")))
    assert past(kept) == past(book)
    assert book.changed == set()


def test_a_namespace_with_many_gangs_pushes_out_its_own_spells_alone() -> None:
    book = NodeHistory(14 * DAY)
    book.note(NODE, NOW - 9 * HOUR, ("small", "g"), bad("node-b"))
    for i in range(50):
        book.note(NODE, NOW - 8 * HOUR + i, ("large", f"g-{i}"), bad("node-c"))
    published = past(book)
    assert published is not None
    assert len(published.spells) == MOST_SPELLS
    assert [s.ago for s in published.spells if s.source == published.spells[0].source] == [9 * HOUR]


def test_all_records_together_have_a_bound_in_nodes_and_in_bytes() -> None:
    book = NodeHistory(14 * DAY)
    seen = msgspec.structs.replace(bad("b", "c", "d", "e"), pair=371.2, own=380.4)
    for i in range(MOST_NODES * SHARDS // 4 + 10_000):
        name = f"node-{i}.a-rather-long-name-of-a-node-in-a-cluster.example.com"
        if shard_of(name) == 3:
            for gang in range(4):
                whole = msgspec.structs.replace(seen, kind=f"{'k' * 90}{gang % 2}")
                book.note((name, "x" * 16), NOW + i + gang / 10, ("ns", f"g-{gang}"), whole, 370.12)
    assert 0 < len(book.shown(NOW)) <= MOST_NODES
    assert len(book.encoded(3)) <= MOST_BYTES


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no",
        "[]",
        '{"v":2,"nodes":{}}',
        '{"v":1,"nodes":{"node-a":{"spells":[[1,2]]}}}',
        "[" * 9000,
    ],
)
def test_what_cannot_be_read_is_as_nothing(text: str) -> None:
    book = NodeHistory(14 * DAY)
    for number in range(SHARDS):
        book.read(number, text)
    assert book.shown(NOW) == []
