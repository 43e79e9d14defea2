"""What the command lines of all programs have in common: their version, and how they end."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

CANCELLED: Final = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""
UNREAD: Final = 141
"""Exit status where whoever read the output has gone, as of a program that SIGPIPE ended: 128 +
SIGPIPE.
"""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What writing says of standard output that goes to a file which takes no more."""


def package_version(distribution: str) -> str:
    """The version of an installed package, by its metadata; "unknown" where it is not installed."""
    from importlib.metadata import (
        PackageNotFoundError,
        version,
    )  # slow to load, and most runs never say their version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"


def version_of(module: str) -> str:
    """The version of the installed package that ``module`` (a dotted name) comes from; "unknown"
    where no package brings it.
    """
    from importlib.metadata import packages_distributions

    root = module.partition(".")[0]
    distributions = packages_distributions().get(root) or [root.replace("_", "-")]
    return package_version(distributions[0])


def leave(command: Callable[[], int]) -> NoReturn:
    """Run ``command`` and exit with its status; no traceback for a reader that went away, a full
    disk, or Ctrl-C.
    """
    status = 1
    try:
        status = _ended(command)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # None: it was closed before the start
                stream.flush()
    except BrokenPipeError:
        _discard()
        status = UNREAD
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard()
        with suppress(OSError, ValueError):
            print(
                f"standard output: cannot be written ({error.strerror or error}); write elsewhere.",
                file=sys.stderr,
            )
        status = 1
    sys.exit(status)


def _ended(command: Callable[[], int]) -> int:
    try:
        return command()
    except KeyboardInterrupt:
        return CANCELLED
    except SystemExit as asked:  # of argparse: what it has printed is still to be flushed
        return asked.code if isinstance(asked.code, int) else 0 if asked.code is None else 1


def _discard() -> None:
    """Let what is left in the buffers go nowhere: the interpreter flushes them once more at its
    end.
    """
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                os.dup2(nowhere, stream.fileno())
