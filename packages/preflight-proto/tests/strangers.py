"""The stranger's check, forked by a server that has imported it once."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import pytest
from preflight_proto.check.testing import CheckRun, FakeConnector, run_check
from preflight_testing.forked import ForkServer


@cache
def _argv() -> list[str]:
    """The command that runs it."""
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    server = ForkServer("stranger", folder.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        server.__enter__()
    atexit.register(folder.cleanup)
    atexit.register(server.__exit__, None, None, None)
    return server.argv


def run(connector: FakeConnector, folder: Path, **variables: str) -> CheckRun:
    ran = run_check(_argv(), connector, folder, variables, check="tmp-space")
    assert "Traceback" not in ran.stderr
    return ran
