"""What the image's `all_reduce_perf` can do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from preflight_proto.check import Run
from preflight_proto.check import nccl as words

from .settings import Settings

PATIENCE: Final = 30.0
"""Seconds that `all_reduce_perf -h` may take, which touches no GPU."""


@dataclass(frozen=True, slots=True)
class Tool:
    """The program: whether it ``writes_json``, and the words with which it could not even start."""

    writes_json: bool = False
    broken: str = ""


async def find_tool(run: Run[Settings]) -> Tool:
    """What the image's program can do, by its own usage. Raises
    :class:`preflight_proto.check.ToolMissing`.
    """
    done = await run.command(
        [run.settings.tool, "-h"], timeout=PATIENCE, env=words.clean_environment(os.environ)
    )
    output = f"{done.stdout}\n{done.stderr}"
    error = words.classify(output)
    broken = error.line if error is not None and error.code == "LIBRARY_MISSING" else ""
    return Tool("--output_file" in output, broken)
