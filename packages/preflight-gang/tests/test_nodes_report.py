"""What people read of nodes: `preflight nodes` and `preflight node NAME`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from preflight_gang import cli
from preflight_gang.api.types import Node
from preflight_gang.report.nodes import fleet, record, table
from preflight_kube.api.node_health import (
    CheckEnd,
    EndedRun,
    NodeCondition,
    NodeHealth,
    NodeHealthStatus,
    judge,
    noted,
)
from preflight_kube.cli.commands import CommandFailed
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.plugin import ABSENT

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
GPU = "GPU-5c1b8f0e-0000-4000-8000-000000000003"
CONDITION = {
    "type": "DcgmDiagnosticMemory",
    "status": "True",
    "reason": "DcgmDiagnosticMemoryIsNotHealthy",
    "message": f"ErrorCode:DCGM_FR_FAULTY_MEMORY GPU_UUID:{GPU} is bad;",
    "lastTransitionTime": "2026-11-23T12:00:00Z",
}


def known() -> dict[str, NodeHealthStatus]:
    sick = NodeCondition(
        type=CONDITION["type"],
        status="True",
        message=CONDITION["message"],
        last_transition_time=CONDITION["lastTransitionTime"],
    )
    good = CheckEnd(time="2026-11-26T11:50:00Z", code="OK", pod="ml/train-0")
    bad = CheckEnd(time="2026-11-26T07:00:00Z", code="SLOW_GPU", pod="ml/train-1", gpu=GPU)
    status = NodeHealthStatus()
    for run in (
        EndedRun("nccl-loopback", True, good, 480.0),
        EndedRun("nccl-loopback", False, bad),
    ):
        status = noted(status, run)
    return {
        "node-b": judge(status, [sick], "2026-11-26T12:00:00Z"),
        "node-a": judge(status, [], "2026-11-26T12:00:00Z"),
    }


def test_the_table_says_who_is_sick_since_when_found_by_what_and_how_fast() -> None:
    lines = [line.split() for line in table(known(), NOW).splitlines()]
    assert lines[1:3] == [
        ["node-b", "Sick", "3d", "DcgmDiagnosticMemory", "10m", "480", "480"],
        ["node-a", "Healthy", "10m", "-", "10m", "480", "480"],
    ]
    assert " ".join(lines[3]) == "2 nodes: 1 Sick, 1 Healthy."
    wide = table(known(), NOW, wide=True).splitlines()
    assert "GPU" in wide[0]
    assert GPU in wide[1]
    assert "NodeCondition" in wide[1]


def test_a_node_is_shown_by_check_and_gpu() -> None:
    text = record("node-b", known()["node-b"], NOW)
    assert text.splitlines()[0] == "node node-b: Sick since 2026-11-23T12:00:00Z (3d)"
    assert "DcgmDiagnosticMemory: DCGM_FR_FAULTY_MEMORY (by a node condition)" in text
    assert f"5h ml/train-1 (SLOW_GPU {GPU})" in text
    assert "10m ml/train-0" in text


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def double() -> Iterator[ApiDouble]:
    with ApiDouble(absent=[ABSENT]) as made:
        yield made


@pytest.fixture
def ask(
    double: ApiDouble,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Ask:
    """Exit status and outputs of a command, as the program `preflight` runs it."""
    kubeconfig = write_kubeconfig(tmp_path / "config", double.url)
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))

    def run(add: Callable[[argparse.ArgumentParser], None], *argv: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        add(parser)
        args = parser.parse_args(argv)
        status = args.run(args)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


def made(double: ApiDouble, name: str, *conditions: dict[str, Any]) -> None:
    """A node with eight GPUs."""
    double.within(lambda: double.create("nodes", {"metadata": {"name": name}}))
    status = {"capacity": {"nvidia.com/gpu": "8"}, "conditions": list(conditions)}
    answer = httpx.patch(
        f"{double.url}/api/v1/nodes/{name}/status",
        json={"status": status},
        headers={"Content-Type": "application/merge-patch+json"},
    )
    answer.raise_for_status()


def test_nodes_are_those_of_their_conditions_and_records(double: ApiDouble, ask: Ask) -> None:
    made(double, "a-well")
    made(double, "z-sick", CONDITION)
    status, out, err = ask(cli.add_nodes)
    assert (status, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [
        ["z-sick", "Sick"],
        ["a-well", "Unknown"],
    ]
    status, out, _ = ask(cli.add_nodes, "-o", "json")
    assert [(one["name"], one["state"]) for one in json.loads(out)] == [
        ("z-sick", "Sick"),
        ("a-well", "Unknown"),
    ]
    _, out, _ = ask(cli.add_node, "z-sick", "-o", "json")
    assert json.loads(out)["gpus"][0]["uuid"] == GPU
    with pytest.raises(CommandFailed, match="no node nowhere with GPUs"):
        ask(cli.add_node, "nowhere")


def test_a_node_is_sick_by_what_the_controller_of_this_cluster_takes_for_sick() -> None:
    """Its `sickNodeConditions` are not those that are usual; it has no record of the other node."""
    status = {"conditions": [{**CONDITION, "type": "XidErrors", "message": "XID 79"}]}
    nodes = [{"metadata": {"name": name, "uid": name}, "status": status} for name in ("a", "z")]
    found = {"state": "Sick", "foundBy": "XidErrors", "byWordOf": "NodeCondition"}
    health = {"metadata": {"name": "z"}, "spec": {"nodeUID": "z"}, "status": found}
    states = fleet(msgspec.convert(nodes, list[Node]), [msgspec.convert(health, NodeHealth)])
    assert {name: one.state for name, one in states.items()} == {"z": "Sick", "a": "Unknown"}


def test_without_the_gang_controller_the_conditions_alone_are_asked_and_that_is_told(
    double: ApiDouble, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(double, "z-sick", CONDITION)
    monkeypatch.setattr("preflight_gang.report.nodes.path", lambda: f"/apis/{ABSENT}/x")
    status, out, err = ask(cli.add_nodes)
    assert (status, out.splitlines()[1].split()[:2]) == (0, ["z-sick", "Sick"])
    assert "from node conditions alone, without passes and bandwidths" in err
