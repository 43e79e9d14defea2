"""A row that needs more nodes than there are is skipped by name where it says so, and fails where it does not."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_e2e.runner import run
from preflight_e2e.scenario import Pod, Scenario, Step


class TwoNodes:
    nodes = ("one", "two")

    def values(self, changes: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(("below", "skipped", "problems"), [(3, True, 0), (None, False, 1)])
def test_a_row_that_needs_a_third_node(below: int | None, skipped: bool, problems: int) -> None:
    pods = tuple(Pod(name=letter, node=letter) for letter in "abc")
    row = Scenario(id="three", fault="f", sees="s", steps=(Step(pods=pods),), skipped_below=below)
    said: list[str] = []
    outcome = run(TwoNodes(), row, said.append)  # type: ignore[arg-type]
    assert (bool(outcome.skipped), len(outcome.problems)) == (skipped, problems)
    assert all("needs 3 nodes, the cluster has 2" in text for text in [*said, *outcome.problems])
