"""The program ``compute-domain-kubelet-plugin``."""

from __future__ import annotations

import argparse
from typing import NoReturn

from preflight_kube.cli import commands

from .. import startup

__all__ = ["main"]

_PROGRAM = "compute-domain-kubelet-plugin"


def main() -> NoReturn:
    """Serve the kubelet of this node until SIGTERM."""
    commands.main(_parser)


def _parser() -> argparse.ArgumentParser:
    about = "DRA driver of one node: puts IMEX channel 0 into pods that have the claim. IMEX itself is the operator's."
    return startup.parser(_PROGRAM, about, _run)


def _run(args: argparse.Namespace) -> int:
    import anyio
    from preflight_kube import logs
    from preflight_proto import nvml

    nvml.start(logs.get_logger(__name__).warning, lasting=True)  # before there are threads
    from .service import run

    start = startup.begin(args)
    logs.set_up(_PROGRAM, args.log_level)
    try:
        anyio.run(run, start)
    except startup.CommandFailed:
        raise
    except Exception as error:
        logs.fault(
            "ended by a fault of its own; it is started anew, please report this line", error
        )
        return commands.FAILED
    finally:
        logs.flush()
    return commands.DONE
