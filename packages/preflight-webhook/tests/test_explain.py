from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
