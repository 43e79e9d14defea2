"""What stands against a GPU that was replaced is cleared by whoever has replaced it."""

from __future__ import annotations

import anyio
import pytest
from preflight_proto import names
from preflight_proto.check.events import events
from preflight_proto.check.replaced import conduct, farewell
from preflight_proto.check.testing import FakeConnector
from preflight_proto.check.verdict import Action, Finding, Outcome, Subject, Verdict


def test_it_clears_the_very_identity_that_the_check_has_raised() -> None:
    finding = Finding(
        code="DCGM_FR_MEMORY",
        message="m",
        fatal=True,
        action=Action.CONTACT_SUPPORT,
        subject=Subject("Memory", "GPU-1"),
    )
    failed = Verdict(Outcome.FAILED, "DCGM_FR_MEMORY", "r", findings=(finding,))
    [raised] = [
        one for one in events("dcgm-diag", "DcgmDiagnostic", "X", failed) if not one.healthy
    ]
    [cleared] = farewell("GPU-1", [("dcgm-diag", "DcgmDiagnosticMemory")])
    assert (cleared.healthy, cleared.identity) == (True, raised.identity)


def test_the_connector_is_told_of_each_condition(connector: FakeConnector) -> None:
    environ = {names.ENV_CONNECTOR_SOCKET: str(connector.path), names.ENV_NODE_NAME: "node-a"}
    asked = ["GPU-1", "dcgm-diag=DcgmDiagnosticMemory", "nccl-loopback=NCCLLoopbackTestData"]
    assert anyio.run(conduct, asked, environ) == 0
    assert [(e.agent, e.check_name, e.is_healthy, e.node_name) for e in connector.events] == [
        ("preflight-dcgm-diag", "DcgmDiagnosticMemory", True, "node-a"),
        ("preflight-nccl-loopback", "NCCLLoopbackTestData", True, "node-a"),
    ]
    assert [e.entities_impacted[0].entity_value for e in connector.events] == ["GPU-1", "GPU-1"]


def test_a_connector_that_is_not_there_is_exit_1() -> None:
    environ = {names.ENV_CONNECTOR_SOCKET: "unix:///nowhere.sock", names.ENV_NODE_NAME: "node-a"}
    assert anyio.run(conduct, ["GPU-1", "dcgm-diag=DcgmDiagnostic"], environ) == 1


@pytest.mark.parametrize("asked", [[], ["GPU-1"], ["GPU-1", "dcgm-diag"], ["", "a=B"]])
def test_what_is_no_gpu_with_conditions_is_exit_2(asked: list[str]) -> None:
    assert anyio.run(conduct, asked, {names.ENV_NODE_NAME: "node-a"}) == 2


def test_a_node_without_a_name_is_exit_2() -> None:
    assert anyio.run(conduct, ["GPU-1", "dcgm-diag=DcgmDiagnostic"], {}) == 2
