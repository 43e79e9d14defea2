"""What failed once on a busy machine runs once more, alone: ``RERUN_FAILED=1`` asks for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

MOST = 3
"""Where more than so many fail, the change is wrong and not the machine."""


def allowed(environ: Mapping[str, str] = os.environ) -> int:
    """How many failures of a run may be tried again."""
    return MOST if environ.get("RERUN_FAILED") == "1" else 0


class PytestRun:
    """One run of pytest, as a process of its own that has begun. A context:
    its end ends the process.
    """

    def __init__(
        self, arguments: Sequence[str], environ: Mapping[str, str], report: IO[bytes] | None = None
    ) -> None:
        self._cache = tempfile.TemporaryDirectory(prefix="pytest-cache-")
        cache = ["-o", f"cache_dir={self._cache.name}"]
        self._argv = [sys.executable, "-m", "pytest", *cache, *arguments]
        self._environ, self._report = dict(environ), report
        self._process = self._begin()

    def __enter__(self) -> PytestRun:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._cache.cleanup()

    def passed(self) -> bool:
        """Wait for the end. What failed, if it is little, runs again,
        and its second result counts.
        """
        if self._process.wait() == 0:
            return True
        kept = Path(self._cache.name, "v/cache/lastfailed")
        failed = list(json.loads(kept.read_text())) if kept.is_file() else []
        if not 1 <= len(failed) <= allowed(self._environ):
            return False
        names = ", ".join(failed)
        self._write(f"failed, and run once more alone: {names}")
        self._process = self._begin("--last-failed")
        if self._process.wait() != 0:
            return False
        self._write(
            f"passed only when run again: {names}; was the machine busy, or is the test wrong?"
        )
        return True

    def _begin(self, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._argv, *more],
            stdout=self._report,
            stderr=subprocess.STDOUT if self._report else None,
            env=self._environ,
        )

    def _write(self, text: str) -> None:
        if self._report:
            self._report.write(f"{text}\n".encode())
            self._report.flush()
        else:
            print(text, flush=True)
