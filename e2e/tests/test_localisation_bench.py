"""The bench of localisation holds figures against its bars and prints them all."""

from __future__ import annotations

from typing import Any

from preflight_e2e.bench.localisation import bars, table, worlds


def world(**changed: Any) -> dict[str, Any]:
    figures = {
        "gangs": 1000,
        "bad": 500,
        "bound_percent": 0.3,
        "healthy_blamed": 0,
        "gangs_healthy_blamed": 0,
        "healthy_named": 3,
        "recall_blamed": 0.995,
        "recall_named": 1.0,
        "max_rounds": 6,
        "mean_rounds": 5.4,
        "probes_per_node": 1.13,
        "kinds": {"node": 990, "suspect": 10},
    }
    return {**figures, **changed}


def figures(**labels: Any) -> dict[str, Any]:
    correlated = world(bad=0, recall_blamed=None, recall_named=None)
    return {
        "labels": world(**labels),
        "small_n": {"3": world()},
        "correlated": {"leaf": correlated},
    }


def missed(measured: dict[str, Any]) -> list[str]:
    return [bar.says for bar in bars(measured) if not bar.holds]


def test_every_bar_holds_where_nobody_healthy_is_blamed_and_everybody_bad_is_found() -> None:
    assert missed(figures()) == []


def test_one_healthy_node_blamed_misses_its_bar() -> None:
    assert missed(figures(healthy_blamed=1)) == ["labels: healthy nodes blamed at most 0"]


def test_each_recall_has_a_bar_of_its_own() -> None:
    assert missed(figures(recall_blamed=0.969)) == ["labels: recall of blamed at least 0.97"]
    assert missed(figures(recall_named=0.9899)) == ["labels: recall of named at least 0.99"]


def test_in_no_world_may_a_healthy_node_be_blamed_and_in_none_are_there_more_than_eight_rounds() -> (
    None
):
    one = figures()
    one["correlated"]["leaf"] = world(healthy_blamed=1, max_rounds=9)
    assert missed(one) == [
        "correlated leaf: healthy nodes blamed at most 0",
        "correlated leaf: rounds at most 8",
    ]


def test_what_can_only_be_named_has_a_bar_for_that_alone() -> None:
    one = figures()
    one["bad_nodes"] = {"flapping": world(recall_blamed=0.0, recall_named=0.81)}
    assert missed(one) == []
    one["bad_nodes"] = {"flapping": world(recall_named=0.79)}
    assert missed(one) == ["flapping: recall of named at least 0.8"]


def test_the_file_has_an_entry_for_every_world() -> None:
    flat = worlds(figures())
    assert list(flat) == ["labels", "small_n 3", "correlated leaf"]
    assert set(flat["labels"]) == {
        "gangs",
        "bad_nodes",
        "healthy_blamed",
        "bound_percent",
        "recall_blamed",
        "recall_named",
        "max_rounds",
    }


def test_the_table_has_a_line_for_every_world() -> None:
    lines = list(table(figures()))
    assert [line.split()[0] for line in lines] == ["world", "labels", "--", "3", "--", "leaf"]
    assert "99.500%" in lines[1]
    assert "node 990, suspect 10" in lines[1]
