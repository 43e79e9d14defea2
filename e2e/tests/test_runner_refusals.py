"""What a row makes of what it cannot have: nodes that are not there, objects that are refused."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes.client import ApiException
from preflight_e2e.runner import run
from preflight_testing.matrix.scenario import Object, Scenario, ScenarioPod, ScenarioStep


class TwoNodes:
    nodes = ("one", "two")

    def values(self, changes: dict[str, Any]) -> None: ...


@pytest.mark.parametrize(("below", "skipped", "problems"), [(3, True, 0), (None, False, 1)])
def test_a_row_that_needs_a_third_node(below: int | None, skipped: bool, problems: int) -> None:
    pods = tuple(ScenarioPod(name=letter, node=letter) for letter in "abc")
    row = Scenario(
        id="three", fault="f", sees="s", steps=(ScenarioStep(pods=pods),), skipped_below=below
    )
    said: list[str] = []
    outcome = run(TwoNodes(), row, said.append)  # type: ignore[arg-type]
    assert (bool(outcome.skipped), len(outcome.problems)) == (skipped, problems)
    assert all("needs 3 nodes, the cluster has 2" in text for text in [*said, *outcome.problems])


class Refusing(TwoNodes):
    """Its API server refuses every object; what of the lab a row uses before that does nothing."""

    def configure(self, node: str, changes: dict[str, Any], *, wait: bool = True) -> None: ...

    def node_log(self, node: str) -> list[dict[str, Any]]:
        return []

    def namespace(self, name: str, labels: dict[str, str]) -> str:
        return name

    def remove_namespace(self, name: str) -> None: ...

    def create(self, namespace: str, collection: str, body: dict[str, Any]) -> None:
        refusal = ApiException(status=422, reason="Unprocessable Entity")
        refusal.body = '{"message": "admin access is forbidden"}'
        raise refusal


def test_an_object_that_the_api_server_refuses_fails_its_row_and_no_other() -> None:
    step = ScenarioStep(
        objects=(Object(collection="v1/g/things", body={}),),
        pods=(ScenarioPod(name="a", node="a"),),
    )
    row = Scenario(id="refused", fault="f", sees="s", steps=(step,))
    outcome = run(Refusing(), row, lambda _: None)  # type: ignore[arg-type]
    assert outcome.problems == ["the API server says: admin access is forbidden"]
