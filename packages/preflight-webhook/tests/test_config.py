from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from preflight_testing.reviews import EVERYTHING
from preflight_webhook.config.config import ConfigError, parse

# ADR-026's example, with image names as a registry-less cluster has them.
ADR = """
checks:
  - name: dcgm-diag
    image: nvsentinel/preflight-dcgm-diag:v1
  - name: nccl-loopback
    image: nvsentinel/preflight-nccl-loopback:v1
dcgm: {hostengineAddr: "dcgm-hostengine.nvsentinel.svc:5555", diagLevel: 1}
nccl: {loopbackThresholdGBps: 10.0, allreduceThresholdGBps: 5.0}
checkTimeout: "300s"
gangTimeout: "600s"
gangDiscovery: {method: "workloadRef"}
gpuDetection: {resourceNames: ["nvidia.com/gpu"], deviceClasses: []}
networkDetection: {resourceNames: ["nvidia.com/mlnxnics"], deviceClasses: []}
ncclEnvPatterns: ["NCCL_*", "UCX_*", "OMPI_*"]
ncclTopology:
  instanceTypeLabel: "node.kubernetes.io/instance-type"
  instanceTypeMapping: {"p5.48xlarge": "aws-p5.48xlarge.xml"}
  enableFallback: true
"""


def test_the_adrs_values_are_good() -> None:
    assert [c.name for c in parse(ADR).checks] == ["dcgm-diag", "nccl-loopback"]


def test_the_configuration_of_the_bench_is_good() -> None:
    assert len(parse(EVERYTHING).checks) == 3


def test_an_empty_file_is_a_configuration_without_checks() -> None:
    assert parse("").checks == ()


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return caught.value.problems


def test_every_problem_is_listed_with_its_path() -> None:
    found = problems(
        "checks: [{name: A, image: '', x: 1}, {name: b}, {name: b, image: c, timeout: 5x}]\n"
        "dcgm: {diagLevel: 9}\nfoo: 1\ncheckTimeout: 5x\nplatformConnector: {auth: {expirationSeconds: 60}}"
    )
    paths = {problem.split(":")[0] for problem in found}
    assert paths == {
        "foo", "checks[0].name", "checks[0].image", "checks[0].x", "checks[1].image", "checks[2].name", "checks[2].timeout",
        "dcgm.diagLevel", "checkTimeout", "platformConnector.auth.expirationSeconds",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text", ["[1, 2]", "a: b: c", "\t", "checks: [1]", "checks: {}", "dcgm: 5", "'"]
)
def test_what_is_no_configuration_is_refused_in_sentences(text: str) -> None:
    assert all(problem.count("\n") == 0 and problem.endswith(".") for problem in problems(text))


def test_validate_config_prints_every_problem_and_exits_2(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("dcgm: {diagLevel: 9}\ncheckTimeout: never\n")
    done = subprocess.run(
        [sys.executable, "-m", "preflight_webhook", "validate-config", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        f"{file}: dcgm.diagLevel: must be at most 4; found the number 9.",
        f'{file}: checkTimeout: "never" is not a duration; write e.g. 300s, 10m or 1h30m.',
    ]


@pytest.mark.parametrize("path", ["/nowhere/config.yaml", "/"])
def test_an_unreadable_file_is_one_sentence(path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "preflight_webhook", "validate-config", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert done.stderr.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("gangDiscovery: {method: gossip}", "gangDiscovery.method"),
        ("gangDiscovery: {optIn: [jobset, cron]}", "gangDiscovery.optIn[1]"),
        ("checks: [{name: a, image: b, gang: 1}]", "checks[0].gang"),
    ],
)
def test_unknown_words_of_gangs_are_named(text: str, path: str) -> None:
    [problem] = problems(text)
    assert problem.startswith(f"{path}: ")


def test_a_mount_of_a_volume_that_nobody_has_is_a_problem_once() -> None:
    wrong = (
        "checks: [{name: a, image: b, container: {volumeMounts: [{name: data, mountPath: /d}]}}]"
    )
    where = "checks[0].container.volumeMounts[0].name: "
    assert [problem.startswith(where) for problem in problems(wrong)] == [True]
    beside = problems(f"{wrong}\nunknown: 1")
    assert len([problem for problem in beside if problem.startswith(where)]) == 1
    assert len(beside) == 2
