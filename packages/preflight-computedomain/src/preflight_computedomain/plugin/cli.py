"""The program ``compute-domain-kubelet-plugin``."""

from __future__ import annotations

from typing import NoReturn

from preflight_proto.program import leave

from .. import startup

__all__ = ["main"]

_PROGRAM = "compute-domain-kubelet-plugin"


def main() -> NoReturn:
    """Serve the kubelet of this node until SIGTERM."""
    leave(_command)


def _command() -> int:
    about = "DRA driver of one node: puts IMEX channel 0 into pods that have the claim. IMEX itself is the operator's."
    args = startup.parser(_PROGRAM, about).parse_args()

    from .service import run

    return startup.run(_PROGRAM, args, run)
