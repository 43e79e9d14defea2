from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version


def test_the_program_says_its_version_without_any_settings() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_dcgm", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"preflight-dcgm-diag {version('check-dcgm')}\n",
        "",
    )
