"""The command line: what it prints, and one sentence for each thing that is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from preflight_gpu_scheduler.cli import main
from preflight_testing.apidouble import ApiAnswer, ApiDouble, write_kubeconfig


def ran(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["preflight-gpu-scheduler", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_schedulers_configuration_waits_longer_than_a_gang_and_a_bind_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text("gangBind: 40s\nbindBudget: 10s\ncountResource: ''\n")
    assert (
        ran(
            monkeypatch,
            "scheduler-config",
            "--config",
            str(tmp_path / "c.yaml"),
            "--extender-port",
            "7",
        )
        == 0
    )
    made = yaml.safe_load(capsys.readouterr().out)
    [extender] = made["extenders"]
    assert extender["httpTimeout"] == "55s"
    assert extender["urlPrefix"] == "http://127.0.0.1:7"
    assert made["percentageOfNodesToScore"] == 100
    scored = made["profiles"][0]["pluginConfig"][0]["args"]["scoringStrategy"]["resources"]
    assert [one["name"] for one in scored] == ["cpu"]


def test_every_problem_of_a_configuration_is_told_with_its_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("reservationSeconds: 4000\nstaleAfter: soon\n")
    assert ran(monkeypatch, "validate-config", str(file)) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(one.startswith(f"{file}: ") for one in said)


LOADED = """
import sys
sys.argv = ["preflight-gpu-scheduler", "agent"]
from preflight_gpu_scheduler import cli, config, service
from preflight_gpu_scheduler.node import agent, nvml
cli._parser()
config.of({"sweep": "20s"})
print(*sys.modules)
"""


def test_what_runs_on_every_node_loads_nothing_that_only_the_other_services_need() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADED], stdout=subprocess.PIPE, check=True)
    loaded = set(ran.stdout.decode().split())
    assert "preflight_gpu_scheduler.node.status" in loaded
    assert not loaded & {"cryptography", "jsonschema", "uvicorn", "uvloop"}
    core = ("admission", "snapshot", "gangs")
    assert not loaded & {f"preflight_gpu_scheduler.core.{name}" for name in core}


CLAIM: dict[str, Any] = {
    "kind": "GpuClaim",
    "metadata": {"name": "two"},
    "spec": {"devices": {"count": 2}},
}
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "p", "annotations": {"gpu.scheduling/claim": "two"}},
    "spec": {"containers": [{"name": "main", "image": "x"}]},
}


def status(name: str, *devices: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": "GpuNodeStatus",
        "metadata": {"name": name},
        "spec": {"nodeName": name},
        "status": {"devices": devices},
    }


def test_explain_names_the_gpus_or_says_why_not_with_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good: list[dict[str, Any]] = [
        {"id": n, "island": "nvlink-0", "bandwidthGBps": 450} for n in range(4)
    ]
    sick: list[dict[str, Any]] = [{"id": 0, "health": "Unhealthy", "reason": "XID 79"}, {"id": 1}]
    nodes = [{"kind": "Node", "metadata": {"name": name}} for name in ("good", "sick", "bare")]
    documents = [CLAIM, POD, status("good", *good), status("sick", *sick), *nodes]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(documents))
    assert ran(monkeypatch, "explain", "-f", str(tmp_path / "all.yaml"), "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    by_node = {one["node"]: one for one in found["nodes"]}
    assert by_node["good"]["ids"] == [0, 1]
    assert by_node["sick"]["why"] == "node has too few usable GPUs"
    assert (
        "2 wanted, 1 of 1 usable GPUs free, 2 in all; not usable: 0 (XID 79)"
        in by_node["sick"]["figures"]
    )
    assert by_node["bare"]["why"] == "no GpuNodeStatus"
    assert ran(monkeypatch, "explain", "-f", str(tmp_path / "all.yaml")) == 0
    assert "good: passes; GPUs 0,1; score 8 of 10" in capsys.readouterr().out


def test_explain_reads_what_kubectl_and_go_write(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`kubectl get -o yaml` writes a List, and Go a null for the time of what is not made yet."""
    one = {"id": 0, "island": "nvlink-0"}
    nodes = [{"kind": "Node", "metadata": {"name": "n"}}, status("n", one, {**one, "id": 1})]
    listed = {"kind": "List", "items": nodes}
    claim = {**CLAIM, "metadata": {"name": "two", "creationTimestamp": None}}
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all([POD, claim, listed]))
    assert ran(monkeypatch, "explain", "-f", str(tmp_path / "all.yaml")) == 0
    assert "n: passes; GPUs 0,1" in capsys.readouterr().out


def test_explain_lists_what_is_wrong_with_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = {**CLAIM, "spec": {"devices": {"count": 0}}}
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump_all([bad, {"kind": "Service"}]))
    assert ran(monkeypatch, "explain", "-f", str(tmp_path / "bad.yaml")) == 2
    said = capsys.readouterr().err.splitlines()
    assert "object 1: spec.devices.count:" in said[0]
    assert "object 2: is not a Pod, GpuClaim, Node or GpuNodeStatus" in said[1]


def test_a_cluster_that_does_not_answer_or_refuses_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def told(server: str) -> list[str]:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", server)))
        assert ran(monkeypatch, "show") == 1
        said = capsys.readouterr()
        assert said.out == ""
        return said.err.splitlines()

    [silent] = told("http://127.0.0.1:1")
    assert "no answer to list /" in silent
    api = ApiDouble()
    api.fault = lambda request: ApiAnswer(403, {"kind": "Status", "message": request.path})
    with api:
        refused = " ".join(told(api.url))
    asked = [request.path for request in api.requests]
    assert len(asked) == len(set(asked))  # a mirror would go on asking
    assert all(name in refused for name in ("pods", "nodes", "leases", "gpuclaims"))
