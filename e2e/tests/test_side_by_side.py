"""Rows run side by side only where they cannot disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from preflight_e2e import side_by_side
from preflight_e2e.lab import LabError
from preflight_e2e.runner import ScenarioOutcome
from preflight_testing.matrix.scenario import Scenario, ScenarioPod, ScenarioStep


class Lab:
    """Keeps what happened in its order. A row is over when it is told so, or at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, nodes: int = 2) -> None:
        self.nodes = [f"node-{number}" for number in range(nodes)]
        self.happened: list[str] = []
        self.running: dict[str, Sequence[str]] = {}
        self.meets: dict[str, threading.Barrier] = {}
        self.together: set[frozenset[str]] = set()
        self.lock = threading.Lock()
        self.raises = ""
        monkeypatch.setattr(side_by_side, "run", self.run)

    def ready(self, values: dict[str, Any]) -> None:
        self.happened.append(f"ready {values}")

    def values(self, changes: dict[str, Any]) -> None:
        assert not self.running, "the chart is upgraded under a running row"
        self.happened.append(f"values {changes}")

    def run(
        self, _lab: Any, row: Scenario, _say: Callable[[str], None], nodes: Sequence[str]
    ) -> ScenarioOutcome:
        with self.lock:
            taken = [node for held in self.running.values() for node in held]
            assert not set(taken) & set(nodes), "two rows on one node"
            self.running[row.id] = nodes
            self.happened.append(row.id)
        try:
            if row.id in self.meets:
                self.meets[row.id].wait(10)
            if row.id == self.raises:
                raise LabError("the cluster is gone")
        finally:
            with self.lock:
                self.together.add(frozenset(self.running))
                del self.running[row.id]
        return ScenarioOutcome(row.id)


def row(name: str, *letters: str, within: float | None = None, **values: Any) -> Scenario:
    pods = tuple(ScenarioPod(name=letter, node=letter, within=within) for letter in letters)
    return Scenario(id=name, fault="f", sees="s", values=values, steps=(ScenarioStep(pods=pods),))


def outcomes(lab: Lab, *rows: Scenario) -> list[str]:
    return [one.id for one in side_by_side.run_all(lab, rows, lambda _: None, lab.ready)]  # type: ignore[arg-type]


def test_rows_of_one_node_each_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    lab.meets["one"] = lab.meets["two"] = threading.Barrier(2)
    assert outcomes(lab, row("one", "a"), row("two", "a")) == ["one", "two"]


def test_outcomes_are_in_the_order_of_the_rows_and_no_node_has_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"row-{number}" for number in range(40)]
    lab = Lab(monkeypatch, 4)
    assert outcomes(lab, *(row(name, *"abcd"[: 1 + len(name) % 3]) for name in names)) == names


def test_a_row_that_measures_time_runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    outcomes(
        lab, *(row(f"row-{number}", "a", within=5 if number == 2 else None) for number in range(5))
    )
    assert all(seen == {"row-2"} for seen in lab.together if "row-2" in seen)
    assert any("row-2" in seen for seen in lab.together)


def test_the_chart_is_upgraded_once_for_rows_of_the_same_values_while_nothing_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab(monkeypatch)
    rows = [row("one", "a", x=1), row("two", "a", x=1), row("three", "a", x=2)]
    assert outcomes(lab, *rows) == ["one", "two", "three"]
    assert [line for line in lab.happened if line.startswith("values")] == [
        "values {'x': 1}",
        "values {'x': 2}",
    ]
    assert lab.happened[-2:] == ["values {'x': 2}", "three"]


def test_the_chart_is_upgraded_once_the_cluster_has_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = Lab(monkeypatch)
    outcomes(lab, row("one", "a", x=1), row("two", "a", x=2))
    prepared = [line for line in lab.happened if line not in {"one", "two"}]
    assert prepared == ["ready {'x': 1}", "values {'x': 1}", "ready {'x': 2}", "values {'x': 2}"]


def test_a_row_that_raises_gives_its_nodes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(monkeypatch)
    lab.raises = "one"
    with pytest.raises(LabError):
        outcomes(lab, row("one", "a", "b"), row("two", "a", "b"))
    assert "two" in lab.happened
