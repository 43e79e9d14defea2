"""The fault matrix of dcgm-diag, without a cluster: check, tools and engine are processes, and
compared is what a cluster would show.

Rows that need a cluster (a webhook, a tenant's pod) are left to it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check
from preflight_testing.fakes import FAKES
from preflight_testing.matrix.facts import node_json, uuids
from preflight_testing.matrix.mistake import Mistake
from preflight_testing.matrix.scenario import MATRIX, Scenario, ScenarioPod, load, load_mistakes

ROWS = load(MATRIX / "dcgm-diag.toml")
MINE = [
    row
    for row in ROWS
    if not any(pod.merge or pod.denied for step in row.steps for pod in step.pods)
]
MISTAKES = [row for row in load_mistakes() if row.check == "dcgm-diag" and row.outcome]
AT_ONCE = 3
"""Rows side by side: most of their time they wait."""

pytestmark = pytest.mark.timeout(300)


def test_the_matrix_has_at_least_forty_rows_of_dcgm_and_each_runs_here_or_on_a_cluster() -> None:
    assert len([row for row in ROWS if row.id.startswith("dcgm")]) >= 40
    assert len(MINE) >= 40
    assert all(row in MINE or row.ring == "e2e" for row in ROWS)


class Engine:
    """The fake hostengine as a process, and what it was asked."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        argv = [sys.executable, str(FAKES / "node" / "hostengine.py"), "127.0.0.1", str(self.port)]
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.log: list[dict[str, Any]] = []

    def configure(self, facts: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(facts) + "\n")
        self._process.stdin.flush()
        self._read_until("configured")

    def asked(self) -> set[str]:
        """The GPUs that it was asked to diagnose since it was configured."""
        self.configure({"gpus": []})  # its answer comes after all that went before
        return {uuid for line in self.log if "diag" in line for uuid in line["diag"]["gpus"]}

    def _read_until(self, key: str) -> None:
        assert self._process.stdout is not None
        while line := json.loads(self._process.stdout.readline() or '{"ended": true}'):
            assert "ended" not in line
            if key in line:
                return
            self.log.append(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


def variables(row: Scenario) -> dict[str, str]:
    """What the chart's values of a row make of the check's environment."""
    level = row.values.get("dcgm", {}).get("diagLevel", 2)
    listed = [one for check in row.values.get("checks", []) for one in check.get("env", [])]
    return {
        "DCGM_DIAG_LEVEL": str(level),
        "DCGM_QUEUE_TIMEOUT": "6s",
        **{one["name"]: str(one["value"]) for one in listed},
    }


def run(
    folder: Path,
    facts: dict[str, Any],
    addresses: str,
    gpus: list[str],
    variables: dict[str, str],
    connector: FakeConnector | Path,
    without: tuple[str, ...] = (),
) -> CheckRun:
    """The check in ``folder`` of its own, on a node of which ``facts`` tell its tools."""
    tools = folder / "bin"
    tools.mkdir()
    for name, program in (("dcgmi", "dcgmi"), ("dcgmi3", "dcgmi"), ("nvidia-smi", "nvidia-smi")):
        if name not in without:
            (tools / name).symlink_to(FAKES / "bin" / program)
    (folder / "node.json").write_text(json.dumps(facts))
    given = {
        "PATH": f"{tools}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "FAKE_NODE_JSON": str(folder / "node.json"),
        "NVIDIA_VISIBLE_DEVICES": ",".join(gpus),
        "EXPECTED_GPUS": str(len(gpus)),
        "DCGM_HOSTENGINE_ADDR": addresses,
        **variables,
    }
    argv = [sys.executable, "-c", "from check_dcgm.check import main; main()"]
    return run_check(argv, connector, folder, given, check="dcgm-diag", timeout=100)


def play(row: Scenario, folder: Path) -> None:
    """Run every pod of a row, and raise what differs."""
    engine = Engine()
    held = 0
    try:
        for step in row.steps:
            facts = node_json("node-a", step.nodes.get("a", {}))
            neighbour = node_json("node-b", step.nodes.get("b", {}))
            for number, pod in enumerate(step.pods):
                here = facts if pod.node == "a" else neighbour
                engine.log.clear()
                engine.configure(here)
                mine = uuids(f"node-{pod.node}")[held : held + pod.gpus]
                own = folder / f"{row.steps.index(step)}-{number}"
                own.mkdir()
                _one(row, pod, mine, engine, own, here)
                held += pod.gpus if pod.stays else 0
    finally:
        engine.close()


def _one(
    row: Scenario,
    pod: ScenarioPod,
    mine: list[str],
    engine: Engine,
    folder: Path,
    facts: dict[str, Any],
) -> None:
    with FakeConnector(folder / "connector.sock") as connector:
        mode = facts["connector"]["mode"]
        connector.mode = "ok" if mode == "absent" else mode
        where: FakeConnector | Path = folder / "nobody.sock" if mode == "absent" else connector
        ran = run(folder, facts, f"127.0.0.1:{engine.port}", mine, variables(row), where)
    [check] = pod.checks
    saw = (ran.result.outcome, ran.result.code, ran.exit_code)
    assert saw == (check.outcome, check.code, check.exit_code), ran.lines
    assert "Traceback" not in ran.stderr
    # There is no NVML here, and nvidia-smi lists the GPUs in its place.
    assert check.says.removeprefix("NVML ") in "\n".join(ran.lines), ran.lines
    asked = engine.asked()
    if pod.tests is not None:
        # Which GPUs a pod gets is the scheduler's choice on a cluster; here it gets the first that
        # are free.
        assert asked == {uuids(f"node-{pod.node}")[index] for index in pod.tests}
    events = connector.events
    wanted = {
        (
            e.check_name,
            e.fatal,
            e.action,
            e.code,
            uuids(f"node-{pod.node}")[e.gpu] if e.gpu is not None else "",
        )
        for e in pod.events
    }
    unhealthy = {
        (
            e.check_name,
            e.is_fatal,
            e.recommended_action.name,
            ",".join(e.error_code),
            "".join(x.entity_value for x in e.entities_impacted),
        )
        for e in events
        if not e.is_healthy
    }
    assert unhealthy == (wanted if mode == "ok" else set())
    cleared = {
        (e.check_name, e.entities_impacted[0].entity_value)
        for e in events
        if e.is_healthy and e.entities_impacted
    }
    for condition in pod.clears:
        assert {uuid for each, uuid in cleared if each == condition} == asked


@pytest.fixture(scope="session")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[None]]]:
    """Every chosen row, begun ahead of its test."""
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    chosen = [row for each in params if isinstance(row := each.get("row"), Scenario)]
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        yield {row.id: pool.submit(play, row, tmp_path_factory.mktemp(row.id)) for row in chosen}
    finally:
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("row", MINE, ids=lambda row: row.id)
def test_a_row_of_the_matrix(row: Scenario, played: dict[str, Future[None]]) -> None:
    played[row.id].result()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    running = Engine()
    yield running
    running.close()


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.id)
def test_an_operators_mistake_holds_no_observed_pod_back_and_is_named(
    row: Mistake, engine: Engine, tmp_path: Path
) -> None:
    facts = node_json("node-a", row.node)
    engine.configure(facts)
    observed = {"ON_INCONCLUSIVE": "block", "GATE": "observe", **row.env}
    with FakeConnector(tmp_path / "connector.sock") as connector:
        where: FakeConnector | Path = connector if row.socket else tmp_path / "nobody.sock"
        address = f"127.0.0.1:{engine.port}"
        ran = run(tmp_path, facts, address, uuids("node-a")[:2], observed, where, row.without)
    saw = (ran.exit_code, ran.result.outcome, ran.result.code, ran.result.gated)
    assert saw == (0, row.outcome, row.code, False), ran.lines
    assert row.says in "\n".join(ran.lines), ran.lines
    assert (
        row.says in f"{ran.result.code}: {ran.result.reason}"
    )  # of which the gang controller makes the Event


def test_of_two_addresses_the_one_that_is_the_nodes_own_is_asked(
    engine: Engine, tmp_path: Path
) -> None:
    facts = node_json("node-a", {})
    engine.configure(facts)
    addresses = f"127.0.0.1:1, 127.0.0.1:{engine.port}"
    with FakeConnector(tmp_path / "connector.sock") as connector:
        ran = run(tmp_path, facts, addresses, uuids("node-a")[:1], {}, connector)
    assert (ran.exit_code, ran.result.code) == (0, "OK"), ran.lines
    said = "\n".join(ran.lines)
    assert "passed over: hostengine 127.0.0.1:1: cannot be reached (Connection refused)" in said
    assert f"hostengine 127.0.0.1:{engine.port} is this node's" in said
    assert "asking once more" not in said
