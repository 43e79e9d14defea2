from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_proto.stamp import gang_hash

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec: {template: {spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: c, image: i}]}
"""


def explain(*options: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "preflight_webhook", "explain", *options],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def test_every_pod_and_template_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    done = explain("-f", str(file))
    assert done.returncode == 0
    assert "Job train: injected" in done.stdout
    assert "reserves: 8 nvidia.com/gpu" in done.stdout
    assert "worst-case start delay: 2m" in done.stdout
    assert "Pod web: no-gpu" in done.stdout


def test_standard_input_and_json_work() -> None:
    done = explain("-f", "-", "-o", "json", stdin=JOB.split("---", maxsplit=1)[0])
    told = json.loads(done.stdout)
    assert (told["result"], told["checks"], told["worst_case_start_delay_seconds"]) == (
        "injected",
        ["dcgm-diag"],
        120.0,
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no pod in it"),
        ("kind: Service", "found Service"),
        ("a: [", "is not YAML"),
        ("kind: Pod\nspec: 5", "no pod"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(text: str, says: str) -> None:
    done = explain("-f", "-", stdin=text)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert says in done.stderr


def test_a_missing_file_is_one_sentence_and_exit_2() -> None:
    done = explain("-f", "/nowhere.yaml")
    assert (done.returncode, done.stderr) == (
        2,
        "/nowhere.yaml: No such file or directory; give a file with a pod in it.\n",
    )


MEMBERS = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: hpc}
spec: {template: {spec: {schedulingGroup: {podGroupName: llm}, containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: driver, labels: {app.kubernetes.io/gang-id: llm, app.kubernetes.io/gang-size: "3"}}
spec: {containers: [{name: c, image: i}]}
"""


def test_the_gang_is_explained(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("checks: [{name: nccl-allreduce, image: a}]\nskipNcclWithoutNetwork: false")
    lines = explain("-f", "-", "--config", str(config), stdin=MEMBERS).stdout.splitlines()
    assert [line for line in lines if line.startswith("  gang: ")] == [
        "  gang: llm (by schedulingGroup, size not known at admission); takes part in its checks; told in ConfigMap preflight-llm",
        "  gang: llm (by labels, 3 members); takes no part in its checks; told in ConfigMap preflight-llm",
    ]
    assert "Pod driver: stamped" in lines
    assert "  worst-case start delay: 15m if every check uses up its time" in lines  # 10 of them waiting for the others


def test_the_namespace_of_the_object_names_the_gang(tmp_path: Path) -> None:
    def label(text: str) -> str:
        told = json.loads(explain("-f", "-", "-o", "json", stdin=text).stdout)
        assert told["gang"]["id"] == "llm"
        [operation] = [o for o in told["patch"] if o["path"].startswith("/metadata/labels")]
        return str(operation["value"]["preflight.nvsentinel.nvidia.com/gang"])

    job = MEMBERS.split("---", maxsplit=1)[0]
    assert label(job) == gang_hash("hpc", "llm")
    assert label(job.replace(", namespace: hpc", "")) == gang_hash("default", "llm")
