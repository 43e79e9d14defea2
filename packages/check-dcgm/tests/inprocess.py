"""The check from its variables to its exit status in the tests' own process: a function answers in
the place of the programs that it would start.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import anyio
import pytest
from check_dcgm import candidates, check
from preflight_proto.check import Completed, child, gpus, log, runner
from preflight_proto.check.testing import CheckRun, FakeConnector, environment
from preflight_proto.result import from_termination

Terminate = signal.Signals | Callable[[float], signal.Signals]
Tool = Callable[[Sequence[str], float | None, Terminate], Completed]
"""Command, seconds that it may take and what ends it then → how it ended."""
PAUSE = (0.02, 0.02)
"""Seconds, in the place of those between two looks at an engine."""


def completed(argv: Sequence[str], status: int, stdout: str, stderr: str = "") -> Completed:
    return Completed(tuple(argv), status, stdout, stderr, False, False, 0.0)


def conduct(
    tool: Tool, connector: FakeConnector, folder: Path, variables: Mapping[str, str]
) -> CheckRun:
    """Run the check as the kubelet would, with ``tool`` for dcgmi and nvidia-smi."""

    async def run(
        argv: Sequence[str],
        *,
        timeout: float | None = None,
        terminate: Terminate = signal.SIGTERM,
        **_: object,
    ) -> Completed:
        return tool(argv, timeout, terminate)

    lines: list[str] = []
    errors: list[str] = []
    given = environment(connector, folder, variables)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "run", run)
        patch.setattr(log, "echo", lines.append)
        patch.setattr(log, "complain", errors.append)
        patch.setattr(candidates, "AGAIN", PAUSE)
        patch.setattr(check, "PAUSE", PAUSE)
        # Not the process's own environment: the matrix starts processes with it in other threads.
        patch.setattr(gpus, "find", partial(gpus.find, environ=given))
        status = anyio.run(runner.conduct, check.CHECK, given)
    text = (folder / "termination-log").read_text()
    result = from_termination(check.CHECK.name, text, status)
    return CheckRun(status, lines, "\n".join(errors), result, text)
