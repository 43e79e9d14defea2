"""The program ``compute-domain-controller``."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import NoReturn

from preflight_proto.program import leave

from .. import startup
from .page import COMPONENT

__all__ = ["main"]


def main() -> NoReturn:
    """Be one replica of the controller until SIGTERM."""
    leave(_command)


def _command() -> int:
    parser = startup.parser(COMPONENT, "Makes the ResourceClaimTemplates of ComputeDomains. IMEX is the operator's.")
    parser.add_argument(
        "--namespace",
        default=os.environ.get("POD_NAMESPACE") or "preflight",
        help="where the lease is kept (POD_NAMESPACE; here %(default)s)",
    )
    parser.add_argument(
        "--lease-seconds",
        type=_seconds,
        default=15.0,
        metavar="SECONDS",
        help="a leader that has not renewed its lease for so long writes no more (%(default)s)",
    )
    args = parser.parse_args()

    from .service import run

    return startup.run(COMPONENT, args, partial(run, namespace=args.namespace, lease_seconds=args.lease_seconds))


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 1 <= found <= 3600:
        raise argparse.ArgumentTypeError(f'"{text}" is no number of seconds from 1 to 3600')
    return found
