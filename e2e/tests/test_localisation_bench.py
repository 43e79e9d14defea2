"""The bench of localisation holds figures against its bars and prints them all."""

from __future__ import annotations

from typing import Any

from preflight_e2e.bench.localisation import bars, table


def world(**changed: Any) -> dict[str, Any]:
    figures = {
        "gangs": 1000,
        "bad": 500,
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
    return {"labels": world(**labels), "small_n": {"3": world()}, "correlated": {"leaf": correlated}}


def missed(measured: dict[str, Any]) -> list[str]:
    return [bar.says for bar in bars(measured) if not bar.holds]


def test_every_bar_holds_where_nobody_healthy_is_blamed_and_everybody_bad_is_found() -> None:
    assert missed(figures()) == []


def test_one_healthy_node_blamed_misses_its_bar() -> None:
    assert missed(figures(healthy_blamed=1)) == ["labels: healthy nodes blamed at most 0"]


def test_each_recall_has_a_bar_of_its_own() -> None:
    assert missed(figures(recall_blamed=0.989)) == ["labels: recall of blamed at least 0.99"]
    assert missed(figures(recall_named=0.9989)) == ["labels: recall of named at least 0.999"]


def test_in_a_correlated_world_two_gangs_of_a_thousand_may_blame_a_healthy_node_and_three_may_not() -> None:
    few, many = figures(), figures()
    few["correlated"]["leaf"] = world(gangs_healthy_blamed=2)
    many["correlated"]["leaf"] = world(gangs_healthy_blamed=3)
    assert missed(few) == []
    assert missed(many) == ["leaf: share of gangs with a healthy node blamed at most 0.002"]


def test_the_table_has_a_line_for_every_world() -> None:
    lines = list(table(figures()))
    assert [line.split()[0] for line in lines] == ["world", "labels", "--", "3", "--", "leaf"]
    assert "99.500%" in lines[1]
    assert "node 990, suspect 10" in lines[1]
