"""Whether anybody can read what a check says changes nothing else."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from preflight_proto.check import log
from preflight_proto.check.testing import FakeConnector, environment
from preflight_proto.result import Result, from_termination
from strangers import STRANGER, run_within

PLACES = ["full", "gone", "closed", "stalled"]


Ended = tuple[int, Result, list[Any]]
"""All that must not depend on a log: exit status, result, events."""


def ended(status: int, folder: Path, connector: FakeConnector) -> Ended:
    text = (folder / "termination-log").read_text()
    result = from_termination("tmp-space", text, status)
    # How much room /tmp has changes between two runs.
    reason = re.sub(r"\d+ GiB free", "N GiB free", result.reason)
    events = [replace(event, generated_timestamp=None, metadata={}) for event in connector.events]
    connector.batches.clear()
    return status, msgspec.structs.replace(result, duration=0.0, reason=reason), events


def run(
    connector: FakeConnector,
    folder: Path,
    variables: Mapping[str, str],
    stdout: str = "",
    stderr: str = "",
) -> Ended:
    """Run the stranger's check with streams that lead to such places."""
    (folder / "termination-log").unlink(missing_ok=True)
    ends: list[int] = []
    given: dict[str, int] = {}
    for name, place in (("stdout", stdout), ("stderr", stderr)):
        if place in {"full", "closed"}:
            given[name] = os.open("/dev/full", os.O_WRONLY)
        elif place:
            reader, given[name] = os.pipe()
            if place == "stalled":
                os.set_blocking(given[name], False)
                while True:
                    try:
                        os.write(given[name], b"x" * 4096)
                    except BlockingIOError:
                        break
                os.set_blocking(given[name], True)
                ends.append(reader)
            else:
                os.close(reader)
    closing = "".join(
        f" {number}>&-" for number, place in ((1, stdout), (2, stderr)) if place == "closed"
    )
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@"{closing}', "sh", *STRANGER],
        env=environment(connector, folder, variables),
        stdin=subprocess.DEVNULL,
        stdout=given.get("stdout", subprocess.DEVNULL),
        stderr=given.get("stderr", subprocess.DEVNULL),
    )
    status = process.wait(timeout=40)
    for descriptor in [*ends, *given.values()]:
        os.close(descriptor)
    return ended(status, folder, connector)


CASES: dict[str, dict[str, str]] = {
    "passes": {},
    "fails": {"LEAST_GIB": "1000000"},
    "observes": {"LEAST_GIB": "1000000", "GATE": "observe"},
    "breaks": {"GO": "wrong", "PREFLIGHT_LOG": "debug"},
    "misconfigured": {"LEAST_GIB": "many"},
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_written_changes_no_verdict_no_status_no_result_and_no_event(
    connector: FakeConnector, tmp_path: Path, case: str
) -> None:
    """Each place is that of each stream in some case, and of stdout in half of them."""
    as_ever = run(connector, tmp_path, CASES[case])
    number = [*CASES].index(case)
    first, second, third, _ = PLACES[number % 4 :] + PLACES[: number % 4]
    for places in ((first, second), (third, third)):
        assert run(connector, tmp_path, CASES[case], *places) == as_ever, places


@pytest.mark.parametrize(("argument", "status"), [("--help", 0), ("--level=2", 2)])
def test_a_manual_that_nobody_reads_changes_no_status(argument: str, status: int) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*STRANGER, argument], stdout=full, stderr=full, check=False)
    assert done.returncode == status


def test_a_reader_that_stalls_costs_a_second_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = [0.0]

    class Stalled:
        def register(self, descriptor: int, events: int) -> None: ...

        def poll(self, milliseconds: float) -> list[Any]:
            waited.append(waited[-1] + milliseconds / 1000)
            return []

    monkeypatch.setattr(log, "select", SimpleNamespace(poll=Stalled, POLLOUT=0))
    monkeypatch.setattr(log, "time", SimpleNamespace(monotonic=lambda: waited[-1]))
    monkeypatch.setattr(log._State, "left", log.PATIENCE)
    for _ in range(3):
        log.echo("a line")
    assert waited[-1] == log.PATIENCE == 1.0


@pytest.mark.parametrize("path", ["/nowhere/log", "/dev/full", "/", "/proc/self/nothing"])
def test_a_result_that_cannot_be_written_is_said_and_changes_no_status(
    connector: FakeConnector, tmp_path: Path, path: str
) -> None:
    ran = run_within(connector, tmp_path, PREFLIGHT_RESULT_PATH=path)
    assert ran.exit_code == 0
    assert any(f"result: {path} cannot be written" in line for line in ran.lines)
    assert ran.lines[-1].startswith("tmp-space: passed OK")
