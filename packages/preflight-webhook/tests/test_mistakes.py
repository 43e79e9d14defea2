"""An operator's mistakes are named before any pod exists, by the file's validation and at start
alike.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.matrix.mistake import CHECKS, Mistake, written_out
from preflight_testing.matrix.scenario import load_mistakes
from preflight_webhook.config.config import ConfigError, parse

ROWS = [row for row in load_mistakes() if row.config]
REFUSED = [row for row in ROWS if row.refused]


def configured(row: Mistake, **more: Any) -> str:
    """The row's check as an operator would roll it out; JSON is YAML."""
    image = f"registry.example.com/preflight-{row.check}:0.1.0"
    return json.dumps(
        {
            "checks": [
                {"name": row.check, "image": image, "enforcement": "observe", **row.config, **more}
            ]
        }
    )


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.id)
def test_a_mistake_that_a_known_check_would_find_is_refused_here(row: Mistake) -> None:
    with pytest.raises(ConfigError) as error:
        parse(configured(row))
    assert len(error.value.problems) == 1
    assert error.value.problems[0].startswith("checks[0].env: ")
    assert row.refused in error.value.problems[0]


@pytest.mark.parametrize("row", [row for row in ROWS if not row.refused], ids=lambda row: row.id)
def test_what_only_the_check_can_know_is_left_to_it(row: Mistake) -> None:
    assert parse(configured(row)).checks


def test_values_by_reference_are_left_to_the_check_and_written_out_they_are_refused_together() -> (
    None
):
    assert len(parse(json.dumps({"checks": CHECKS})).checks) == len(CHECKS)
    with pytest.raises(ConfigError) as error:
        parse(json.dumps({"checks": [written_out(row) for row in REFUSED]}))
    assert len(error.value.problems) == len(REFUSED)
    for row, problem in zip(REFUSED, error.value.problems, strict=True):
        assert row.refused in problem


@pytest.mark.parametrize("row", REFUSED[:1], ids=lambda row: row.id)
def test_of_an_image_that_is_not_known_nothing_is_said(row: Mistake) -> None:
    assert parse(configured(row, image="registry.example.com/mine:1")).checks


def test_a_variable_in_the_containers_overrides_is_looked_at_too() -> None:
    row = next(row for row in REFUSED if row.id == "observe-unknown-variable")
    over = {
        "env": [
            {"name": "DCGM_DIAG_LEVL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        ]
    }
    with pytest.raises(
        ConfigError,
        match=r"checks\[0\]\.container\.env: DCGM_DIAG_LEVL: .* did you mean DCGM_DIAG_LEVEL\?",
    ):
        parse(configured(row, env=[], container=over))


@pytest.mark.parametrize("command", ["validate-config", "serve"])
def test_the_program_says_so_in_one_sentence_and_exits_2(command: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        configured(next(row for row in REFUSED if row.id == "observe-unknown-variable"))
    )
    argv = (
        [str(file)]
        if command == "validate-config"
        else ["--config", str(file), "--cert-dir", str(tmp_path)]
    )
    program = [sys.executable, "-m", "preflight_webhook", command, *argv]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 2
    assert (
        "DCGM_DIAG_LEVL: dcgm-diag reads no such variable; did you mean DCGM_DIAG_LEVEL?"
        in done.stdout + done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (
            {"dcgm": {"hostengineAddr": "dcgm"}},
            'dcgm.hostengineAddr: "dcgm" is not host:port; set e.g. $(NODE_IP):5555',
        ),
        (
            {"dcgm": {"hostengineAddr": "10.0.0.1:0"}},
            'dcgm.hostengineAddr: "10.0.0.1:0" is not host:port',
        ),
        (
            {"dcgm": {"hostengineAddr": ["10.0.0.1:5555", "10.0.0.2:5555,10.0.0.1:5555"]}},
            'dcgm.hostengineAddr[1]: "10.0.0.1:5555" is listed twice; remove one.',
        ),
        (
            {"checkTimeout": "500ms"},
            'checkTimeout: "500ms" is not a duration of at least 1s; set e.g. 300s, 10m or 1h30m.',
        ),
        ({"gangTimeout": "1ms"}, 'gangTimeout: "1ms" is not a duration of at least 1s'),
        (
            {"nccl": {"allreduceThresholdGBps": 1e9}},
            "nccl.allreduceThresholdGBps: must be at most 1000000.0",
        ),
        (
            {"ncclTopology": {"instanceTypeMapping": {"kind": "/etc/topo.xml"}}},
            "ncclTopology.instanceTypeMapping.kind: must match ",
        ),
    ],
)
def test_a_value_that_a_known_check_would_refuse_in_every_pod_is_refused_by_its_own_name(
    config: dict[str, Any], problem: str
) -> None:
    checks = [
        {"name": one, "image": f"preflight-{one}:0.1.0"}
        for one in ("dcgm-diag", "nccl-loopback", "nccl-allreduce")
    ]
    with pytest.raises(ConfigError) as error:
        parse(json.dumps({"checks": checks, **config}))
    assert len(error.value.problems) == 1
    assert error.value.problems[0].startswith(problem)


def test_a_checks_own_timeout_is_judged_too() -> None:
    with pytest.raises(
        ConfigError, match=r'checks\[0\]\.timeout: "1ms" is not a duration of at least 1s'
    ):
        parse("checks: [{name: mine, image: m, timeout: 1ms}]")
