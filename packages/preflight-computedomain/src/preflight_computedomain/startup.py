"""What both programs do before anything else: read the gates, find the API server, set up the log;
each problem is one sentence.

Exit statuses: 0 after SIGTERM, 1 this node or its cluster does not allow it, 2 bad input.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from preflight_kube.auth.connection import Connection, connection
from preflight_kube.cli import commands
from preflight_kube.cli.commands import BadInput, CommandFailed
from preflight_kube.logs import get_logger

from . import gates
from .gates import Gates, GatesInvalid

__all__ = ["CommandFailed", "Start", "begin", "gates_of", "parser", "say"]

LEVELS: Final = ("debug", "info", "warning", "error")

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """What a program begins with. ``host``, ``port``: of /healthz, /readyz and /metrics."""

    target: Connection
    gates: Gates
    environ: Mapping[str, str]
    host: str
    port: int


def parser(
    program: str, about: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    """The arguments that both have; ``run`` gets what was parsed, and returns the exit status."""
    made = argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog="Feature gates are read from FEATURE_GATES (Name=true,Other=false), with IMEX_MODE and IMEX_ISOLATION. "
        "Exit status: 0 after SIGTERM; 1 it cannot work here; 2 bad input.",
    )
    version = commands.version_of("preflight-computedomain")
    made.add_argument("--version", action="version", version=f"%(prog)s {version}")
    made.add_argument("--host", default="0.0.0.0", help="address of the plain port (%(default)s)")  # noqa: S104
    made.add_argument(
        "--port",
        type=commands.port,
        default=8080,
        help="/healthz, /readyz, /metrics (%(default)s; 0: any)",
    )
    made.add_argument(
        "--log-level",
        default=os.environ.get("LOG_LEVEL") or "info",
        help="LOG_LEVEL (here %(default)s)",
        metavar="LEVEL",
    )
    made.set_defaults(run=run)
    return made


def gates_of(environ: Mapping[str, str]) -> Gates:
    """What the environment says of the gates. Raises :class:`GatesInvalid`, also where IMEX is not
    host-managed.
    """
    found = gates.read(
        environ.get("FEATURE_GATES", ""),
        mode=environ.get("IMEX_MODE", ""),
        isolation=environ.get("IMEX_ISOLATION", ""),
    )
    if not found.host_managed:
        raise GatesInvalid((gates.OFF,))
    return found


def begin(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Start:
    """Raises BadInput with every problem of gates, log level and access."""
    problems: list[str] = []
    if args.log_level not in LEVELS:
        problems.append(
            f"LOG_LEVEL: {args.log_level!r:.60} is not a level; use one of {', '.join(LEVELS)}."
        )
    try:
        found = gates_of(environ)
    except GatesInvalid as error:
        problems += error.problems
    if problems:
        raise BadInput(problems)
    return Start(connection(environ), found, environ, args.host, args.port)


def say(found: Gates) -> None:
    """Log what was forced and what is ignored."""
    for note in found.notes:
        log.info(note)
