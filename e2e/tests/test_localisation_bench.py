"""The bench of localisation holds figures against its bars and prints them all."""

from __future__ import annotations

from typing import Any

from preflight_e2e.bench.localisation import bars, table, worlds


def world(**changed: Any) -> dict[str, Any]:
    figures = {
        "gangs": 1000,
        "bad": 500,
        "judged": 500,
        "bound_percent": 0.3,
        "healthy_blamed": 0,
        "gangs_healthy_blamed": 0,
        "healthy_named": 3,
        "recall_blamed": 0.995,
        "recall_named": 1.0,
        "inconclusive": 2,
        "max_rounds": 6,
        "mean_rounds": 5.4,
        "probes_per_node": 1.13,
        "kinds": {"node": 990, "suspect": 10},
    }
    return {**figures, **changed}


def figures(**sick: Any) -> dict[str, Any]:
    leaf = world(bad=0, judged=0, recall_blamed=None, recall_named=None)
    return {
        "staged": {"sick": world(**sick), "leaf": leaf, "two nodes, sick, device tells": world()},
        "labels": world(),
        "small_n": {"3": world()},
    }


def missed(measured: dict[str, Any]) -> list[str]:
    return [bar.says for bar in bars(measured) if not bar.holds]


def test_every_bar_holds_where_nobody_healthy_is_blamed_and_everybody_bad_is_found() -> None:
    assert missed(figures()) == []


def test_one_healthy_node_blamed_misses_its_bar() -> None:
    assert missed(figures(healthy_blamed=1)) == ["staged sick: healthy nodes blamed at most 0"]


def test_each_recall_has_a_bar_of_its_own() -> None:
    assert missed(figures(recall_blamed=0.969)) == ["sick: recall of blamed at least 0.97"]
    assert missed(figures(recall_named=0.9899)) == ["sick: recall of named at least 0.99"]


def test_of_two_nodes_whose_device_tells_as_many_are_blamed_as_one_pair_can_show() -> None:
    one = figures()
    one["staged"]["two nodes, sick, device tells"] = world(recall_blamed=0.951)
    assert missed(one) == []
    one["staged"]["two nodes, sick, device tells"] = world(recall_blamed=0.949)
    assert missed(one) == ["two nodes, sick, device tells: recall of blamed at least 0.95"]


def test_in_no_world_may_a_healthy_node_be_blamed_and_in_none_are_there_more_than_eight_rounds() -> (
    None
):
    one = figures()
    one["labels"] = world(healthy_blamed=1, max_rounds=9)
    assert missed(one) == [
        "labels: healthy nodes blamed at most 0",
        "labels: rounds at most 8",
    ]


def test_a_world_whose_bad_nodes_cannot_be_told_is_held_to_no_recall() -> None:
    one = figures()
    one["small_n"]["3"] = world(recall_blamed=0.0, recall_named=0.5)
    assert missed(one) == []


def test_the_file_has_an_entry_for_every_world() -> None:
    flat = worlds(figures())
    staged = ["staged sick", "staged leaf", "staged two nodes, sick, device tells"]
    assert sorted(flat) == sorted([*staged, "labels", "small_n 3"])
    assert set(flat["labels"]) == {
        "gangs",
        "bad_nodes",
        "judged",
        "healthy_blamed",
        "bound_percent",
        "recall_blamed",
        "recall_named",
        "inconclusive",
        "max_rounds",
    }


def test_the_table_has_a_line_for_every_world() -> None:
    lines = list(table(figures()))
    words = ["world", "--", "sick", "leaf", "two", "labels", "--", "3"]
    assert [line.split()[0] for line in lines] == words
    assert "99.500%" in lines[2]
    assert "node 990, suspect 10" in lines[2]
