"""What the manual shows to those who write a check of their own runs as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from preflight_proto.check.kit import KitSettings
from preflight_proto.check.settings import described
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check
from preflight_proto.result import MAX_BYTES, Result

pytestmark = pytest.mark.component  # also where the kit is a wheel, which conftest.py does not read

HERE = Path(__file__).resolve().parents[1]
PAGE = (HERE.parents[1] / "docs" / "check-of-your-own.md").read_text()
README = (HERE / "README.md").read_text()
A, B = "GPU-aaaa", "GPU-bbbb"


def block(text: str, language: str, having: str) -> str:
    found = [
        one
        for one in re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        if having in one
    ]
    assert len(found) == 1
    return str(found[0])


def smi(folder: Path, width: int) -> str:
    tool = folder / "nvidia-smi"
    listed = f"0, {A}, H100, 00000000:1B:00.0\n1, {B}, H100, 00000000:2B:00.0"
    widths = f"{A}, 16, 16\n{B}, {width}, 16"
    tool.write_text(
        f'#!/bin/sh\ncase "$*" in *pcie*) echo "{widths}";; *) echo "{listed}";; esac\n'
    )
    tool.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


@pytest.fixture(params=["python", "bash"])
def argv(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    program = tmp_path / f"check.{request.param}"
    program.write_text(block(PAGE, request.param, "pcie.link.width"))
    return [
        sys.executable if request.param == "python" else shutil.which("bash") or "bash",
        str(program),
    ]


def run(argv: list[str], connector: FakeConnector, folder: Path, **variables: str) -> CheckRun:
    ran = run_check(argv, connector, folder, variables, check="pcie-width")
    assert len(ran.termination.encode()) <= MAX_BYTES
    return ran


def test_the_readmes_check_runs_as_it_is_printed(connector: FakeConnector, tmp_path: Path) -> None:
    program = tmp_path / "tmp_space.py"
    program.write_text(block(README, "python", "TMP_FULL"))
    for least, code in (("1", "OK"), ("1000000", "TMP_FULL")):
        ran = run_check(
            [sys.executable, str(program)],
            connector,
            tmp_path,
            {"LEAST_GIB": least},
            check="tmp-space",
        )
        assert ran.result.code == code


def test_the_pages_check_passes_on_healthy_gpus(
    argv: list[str], connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run(argv, connector, tmp_path, PATH=smi(tmp_path, 16))
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (0, "passed", "OK")
    assert ran.result.reason == "2 GPUs have their full PCIe width."


@pytest.mark.parametrize(("gate", "exit_code"), [("enforce", 41), ("observe", 0)])
def test_the_pages_check_fails_on_a_narrow_gpu(
    argv: list[str], connector: FakeConnector, tmp_path: Path, gate: str, exit_code: int
) -> None:
    ran = run(argv, connector, tmp_path, PATH=smi(tmp_path, 8), GATE=gate, EXIT_CODE_FAILED="41")
    assert (ran.exit_code, ran.result.code, ran.result.gated) == (
        exit_code,
        "PCIE_WIDTH",
        gate == "enforce",
    )
    assert f"{B} has x8 of x16" in ran.result.reason
    assert A not in ran.result.reason


@pytest.mark.parametrize(("policy", "exit_code"), [("block", 43), ("allow", 0)])
def test_the_pages_check_without_gpus_is_inconclusive(
    argv: list[str], connector: FakeConnector, tmp_path: Path, policy: str, exit_code: int
) -> None:
    variables = {"ON_INCONCLUSIVE": policy, "EXIT_CODE_INCONCLUSIVE": "43", "PATH": "/usr/bin:/bin"}
    ran = run(argv, connector, tmp_path, **variables)
    assert (ran.exit_code, ran.result.outcome, ran.result.code) == (
        exit_code,
        "inconclusive",
        "NO_GPU",
    )


def test_a_misspelt_gate_is_misconfigured_in_any_language(
    argv: list[str], connector: FakeConnector, tmp_path: Path
) -> None:
    ran = run(argv, connector, tmp_path, PATH=smi(tmp_path, 16), GATE="obsrve")
    assert (ran.exit_code, ran.result.outcome) == (2, "misconfigured")


def test_the_page_names_every_variable_that_all_checks_have_and_every_field_of_a_result() -> None:
    said = set(re.findall(r"`([A-Za-z_]+)`", PAGE))
    assert {*described(KitSettings)} <= said
    assert set(Result.__struct_fields__) <= said


def test_the_pages_python_check_is_documented_by_itself(tmp_path: Path) -> None:
    program = tmp_path / "check.py"
    program.write_text(block(PAGE, "python", "pcie.link.width"))
    done = subprocess.run(
        [sys.executable, str(program), "--help"], capture_output=True, text=True, check=True
    )
    assert "lanes that every GPU must have (a whole number from 1 to 16); default: 1" in done.stdout
