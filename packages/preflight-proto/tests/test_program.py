"""How programs end: by their own status, and without a traceback when nobody reads on."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
from preflight_proto.program import UNREAD, leave, package_version, version_of


def ended(body: str, stdout: int) -> subprocess.CompletedProcess[str]:
    code = f"from preflight_proto.program import leave\nimport sys\ndef command():\n    {body}\nleave(command)"
    return subprocess.run(
        [sys.executable, "-c", code],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def _returns(status: int) -> Callable[[], int]:
    return lambda: status


def _raises(error: BaseException) -> Callable[[], int]:
    def command() -> int:
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (_returns(0), 0),
        (_returns(7), 7),
        (_raises(SystemExit(2)), 2),
        (_raises(SystemExit()), 0),
        (_raises(KeyboardInterrupt()), 130),
    ],
)
def test_a_program_ends_with_its_command_s_status(
    command: Callable[[], int], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended_with:
        leave(command)
    assert (ended_with.value.code, capsys.readouterr()) == (status, ("", ""))


@pytest.mark.parametrize(
    "body", ["print('x' * 1000000); return 0", "print('x'); return 0", "print('x'); sys.exit(0)"]
)
def test_a_reader_that_went_away_ends_it_without_a_word(body: str) -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        assert reader.stdin is not None
        reader.wait()  # nobody reads the pipe from here on
        done = ended(body, reader.stdin.fileno())
    assert (done.returncode, done.stderr) == (UNREAD, "")


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_full_disk_is_one_sentence(size: int) -> None:
    with Path("/dev/full").open("w") as full:
        done = ended(f"print('x' * {size}); return 0", full.fileno())
    assert (done.returncode, done.stderr) == (
        1,
        "standard output: cannot be written (No space left on device); write elsewhere.\n",
    )


def test_a_fault_of_the_command_itself_is_not_hidden() -> None:
    with pytest.raises(FileNotFoundError):
        leave(_raises(FileNotFoundError(errno.ENOENT, "no such file", "/nowhere")))


def test_versions_are_those_of_installed_packages() -> None:
    assert (
        version_of("preflight_proto.check.runner")
        == package_version("preflight-proto")
        == version("preflight-proto")
    )
    assert package_version("no-such-package-anywhere") == "unknown"
