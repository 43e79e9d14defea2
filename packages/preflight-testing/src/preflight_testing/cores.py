"""Programs that stay on one core, so that on a small machine only what is meant is measured."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Any


def started(command: Sequence[str], core: int | None, **options: Any) -> subprocess.Popen[Any]:
    """A process on ``core`` from its first instruction, with all its threads: a runtime looks there
    for how many it may use. None: on any core. ``options`` are Popen's.
    """
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    # Who measures starts no other program meanwhile.
    return subprocess.Popen(command, preexec_fn=pin, **options)  # noqa: PLW1509
