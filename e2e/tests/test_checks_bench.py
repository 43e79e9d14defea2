"""The bench of the checks' start, on programs that do what a check does, or not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from preflight_e2e.bench import checks
from preflight_e2e.bench.load import BenchError

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None and shutil.which("gcc") is None,
    reason="no C compiler here: no NVML stand-in",
)
CHECK = checks.CHECKS["dcgm"]


def program(folder: Path, text: str) -> Path:
    path = folder / "check"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_each_run_is_timed_from_the_process_to_its_tool(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    starts = checks.starts_of(
        program(tmp_path, f'command -v dcgmi >> "{seen}"; dcgmi -v; exec sleep 60'), CHECK, 3
    )
    assert len(starts) == 3
    assert all(start.ms > -10 for start in starts)  # the kernel stamps files by ticks
    assert (
        len(set(seen.read_text().split())) == 4
    )  # a tool of its own for each run, and for the first, which does not count


def test_a_check_finds_a_healthy_node(tmp_path: Path) -> None:
    facts = tmp_path / "facts"
    checks.starts_of(
        program(
            tmp_path,
            f'cp "$FAKE_NODE_JSON" "{facts}"; echo "$NVIDIA_VISIBLE_DEVICES" > "{facts}.gpus"; dcgmi',
        ),
        CHECK,
        1,
    )
    gpus = [gpu["uuid"] for gpu in json.loads(facts.read_text())["gpus"]]
    assert (tmp_path / "facts.gpus").read_text().strip() == ",".join(gpus)


def test_a_check_that_ends_without_its_tool_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(
        BenchError, match=r"check-dcgm did not start dcgmi .* it said: misconfigured: NODE_NAME$"
    ):
        checks.starts_of(program(tmp_path, "echo misconfigured: NODE_NAME; exit 2"), CHECK, 1)


def test_a_program_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        BenchError, match=r"/check is not there; `nox -s bench -- checks` installs it\.$"
    ):
        checks.starts_of(tmp_path / "check", CHECK, 1)


def test_the_sizes_are_those_of_the_checks_archives(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar"
    archive.write_bytes(b"x" * 2_000_000)
    built = [
        {"reference": f"{image}:1.0.0", "archive": str(archive)}
        for image in ("preflight-dcgm-diag", "preflight-webhook")
    ]
    (tmp_path / "built.json").write_text(json.dumps(built))
    assert checks.image_sizes(tmp_path / "built.json") == {"preflight-dcgm-diag": 2.0}
    with pytest.raises(
        BenchError,
        match=r"^--images .*other\.json: .*; give what `nox -s images -- --json FILE` wrote\.$",
    ):
        checks.image_sizes(tmp_path / "other.json")


def test_a_start_is_held_against_400_ms() -> None:
    told = {
        bar.says: bar.holds
        for bar in checks.bars({"dcgm_start_ms": 399.0, "loopback_start_ms": 400.0})
    }
    assert list(told.values()) == [True, False]
