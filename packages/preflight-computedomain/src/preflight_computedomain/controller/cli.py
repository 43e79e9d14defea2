"""The program ``compute-domain-controller``."""

from __future__ import annotations

import argparse
import os
from typing import NoReturn

from preflight_kube.cli import commands

from .. import startup

__all__ = ["main"]

_PROGRAM = "compute-domain-controller"


def main() -> NoReturn:
    """Be one replica of the controller until SIGTERM."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    about = "Makes the ResourceClaimTemplates of ComputeDomains. IMEX itself is the operator's."
    made = startup.parser(_PROGRAM, about, _run)
    made.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "preflight",
        help="where the lease is kept (POD_NAMESPACE; here %(default)s)",
    )
    made.add_argument(
        "--lease-seconds",
        type=commands.number(1, 3600, "number of seconds"),
        default=15,
        metavar="SECONDS",
        help="a leader that has not renewed its lease for so long writes no more (%(default)s)",
    )
    return made


def _run(args: argparse.Namespace) -> int:
    from .service import run

    start = startup.begin(args)
    return run(
        start, namespace=args.namespace, lease_seconds=args.lease_seconds, log_level=args.log_level
    )
