"""torchrun, loaded ahead of time: imports torch while the gang is still awaited, then takes its
arguments from stdin.

A line of JSON, ``{"argv": [...], "launch": N, "env": {...}, "within": S}``, has it fork torchrun;
``{"fork": N, "env": {...}, "within": S}`` forks N workers for probes. What ``env`` sets, or unsets
with null, holds for later lines too. Either takes the place of all that it has forked before, which
has S seconds to go. It ends with its input. The ranks are forked too (``--start-method=fork``):
with eight of them on a few cores, eight imports of torch would take longer than the measurement.
Nothing here touches CUDA before.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
from contextlib import suppress

from .process import AGENT, LINK, adopt_orphans, asleep, end, end_with_parent, kill


def main() -> None:
    """Load torch, then fork workers as the check orders, until it ends."""
    end_with_parent()
    adopt_orphans()
    # A rank that aborts has tens of gigabytes mapped, and nobody reads its core.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The seconds that these cost are the reason for this module.
    from torch.distributed import run  # noqa: F401

    from . import rank  # noqa: F401

    report(loaded=True)
    children: list[int] = []
    for line in iter(sys.stdin.readline, ""):
        order = json.loads(line)
        for name, value in order["env"].items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        left = end(children, order["within"], kill=kill)
        children = []
        if left:  # they may hold their GPUs still: new workers would only fall over them
            report(stuck=True, asleep=asleep(left))
            continue
        if "argv" in order:
            if (child := os.fork()) == 0:
                end_with_parent(os.getppid())
                os.environ[AGENT] = str(os.getpid())
                launch(order["argv"])
                return
            children.append(child)
            threading.Thread(target=report_end, args=(child, order["launch"]), daemon=True).start()
        else:
            os.environ[AGENT] = str(os.getpid())
            children = [fork(local) for local in range(order["fork"])]


def report_end(child: int, number: int) -> None:
    """Report to the check when this launch's torchrun has ended."""
    with suppress(ChildProcessError):  # it was killed for the next one, and reaped already
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    report(over=number)


def report(**what: int) -> None:
    """One line to the check."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(os.environ[LINK])
        link.sendall(json.dumps(what).encode() + b"\n")


def fork(local: int) -> int:
    """One worker for probes; its process id."""
    from . import rank

    if (child := os.fork()) != 0:
        return child
    try:
        rank.probes_only(local)
    finally:
        os._exit(1)


def launch(argv: list[str]) -> None:
    """torchrun with these options, on our own function instead of a script."""
    from torch.distributed import run
    from torch.distributed.launcher.api import elastic_launch

    from . import rank

    config, _, _ = run.config_from_args(run.parse_args([*argv, "--start-method=fork", "rank"]))
    elastic_launch(config=config, entrypoint=rank.main)()


if __name__ == "__main__":
    main()
