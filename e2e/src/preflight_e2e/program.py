"""How the tools here end, and which version they are: of their own, as nothing of what they test is
imported.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Final, NoReturn

UNREAD: Final = 141
"""Exit status where whoever read the output has gone, as of a program that SIGPIPE ended: 128 +
SIGPIPE.
"""


def add_version(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` the option --version: the tool's name and the version of this package."""
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {version('preflight-e2e')}"
    )


def leave(command: Callable[[], int]) -> NoReturn:
    """Run ``command`` and exit with its status; no traceback where nobody reads its output any
    more.
    """
    try:
        try:
            status = command()
        except SystemExit as asked:  # of argparse: what it has printed is still to be flushed
            status = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # the interpreter flushes once more at its end
        status = UNREAD
    sys.exit(status)
