"""What both programs do before anything else: read the gates, set up the log, find the API server; each problem is one sentence.

Exit statuses: 0 after SIGTERM, 1 this node or its cluster does not allow it, 2 bad input.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
from preflight_kube import logs
from preflight_kube.connection import Connection, connection
from preflight_kube.errors import BadAccess
from preflight_proto.program import package_version

from . import gates
from .gates import Gates, GatesInvalid

__all__ = ["EXIT_BAD_INPUT", "EXIT_FAILED", "Failed", "Start", "gates_of", "parser", "run"]

EXIT_FAILED: Final = 1
EXIT_BAD_INPUT: Final = 2
LEVELS: Final = ("debug", "info", "warning", "error")

log = logging.getLogger(__name__)


class Failed(Exception):
    """The program cannot do its work here; one sentence."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a program begins with. ``host``, ``port``: of /healthz, /readyz and /metrics."""

    target: Connection
    gates: Gates
    environ: Mapping[str, str]
    host: str
    port: int


def parser(program: str, about: str) -> argparse.ArgumentParser:
    """The arguments that both have."""
    made = argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog="Feature gates are read from FEATURE_GATES (Name=true,Other=false), with IMEX_MODE and IMEX_ISOLATION. "
        "Exit status: 0 after SIGTERM; 1 it cannot work here; 2 bad input.",
    )
    made.add_argument("--version", action="version", version=f"%(prog)s {package_version('preflight-computedomain')}")
    made.add_argument("--host", default="0.0.0.0", help="address of the plain port (%(default)s)")  # noqa: S104
    made.add_argument("--port", type=_port, default=8080, help="/healthz, /readyz, /metrics (%(default)s; 0: any)")
    made.add_argument(
        "--log-level",
        choices=LEVELS,
        default=os.environ.get("LOG_LEVEL") or "info",
        help="LOG_LEVEL (here %(default)s)",
    )
    return made


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f'"{text}" is no port; give a number from 0 to 65535')
    return int(text)


def gates_of(environ: Mapping[str, str]) -> Gates:
    """What the environment says of the gates. Raises :class:`GatesInvalid`, also where IMEX is not host-managed."""
    found = gates.read(
        environ.get("FEATURE_GATES", ""),
        mode=environ.get("IMEX_MODE", ""),
        isolation=environ.get("IMEX_ISOLATION", ""),
    )
    if not found.host_managed:
        raise GatesInvalid((gates.OFF,))
    return found


def run(program: str, args: argparse.Namespace, main: Callable[[Start], Coroutine[Any, Any, None]]) -> int:
    """Run ``main`` to its end; the exit status. What it raises becomes one sentence: :class:`Failed`, OSError of the port."""
    if args.log_level not in LEVELS:
        print(f"{program}: LOG_LEVEL is {args.log_level!r}; set one of {', '.join(LEVELS)}.", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        found = gates_of(os.environ)
        target = connection()
    except GatesInvalid as error:
        for problem in error.problems:
            print(f"{program}: {problem}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except BadAccess as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    logs.set_up(program, args.log_level)
    for note in found.notes:
        log.warning(note) if "forced" in note else log.info(note)
    try:
        anyio.run(main, Start(target, found, os.environ, args.host, args.port))
    except Failed as error:
        log.error(str(error))
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_FAILED
    except Exception as error:
        logs.fault("ended by a fault of its own; it is started anew, please report this line", error)
        return EXIT_FAILED
    return 0
