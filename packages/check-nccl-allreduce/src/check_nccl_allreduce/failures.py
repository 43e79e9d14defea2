"""What the output of a failed launch means: the kit's reading of NCCL, and what torch and gloo say
besides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from preflight_proto.check import nccl

from .control.messages import Failure

__all__ = ["MAX_TEXT", "by_output", "died", "stuck", "unresponsive"]

MAX_TEXT: Final = 400

_PEER: Final = re.compile(
    r"Connection (?:closed|reset) by peer|Connection closed by remote|Broken pipe|gloo.*(?:EOF|closed)",
    re.IGNORECASE,
)
_RENDEZVOUS: Final = re.compile(
    r"DistStoreError|DistNetworkError|RendezvousConnectionError|RendezvousTimeoutError|TCPStore|EADDRINUSE|client socket"
    r"|connectFullMesh|Rendezvous",
    re.IGNORECASE,
)


def by_output(error: str, output: str, *, before_ready: bool) -> Failure:
    """The trouble of a worker that raised ``error`` (empty: torchrun itself ended), or whose
    ``output`` says more.
    """
    known = nccl.classify(f"{output}\n{error}")
    if known is not None and known.kind is not nccl.ErrorKind.CLASS:
        return Failure(known.kind.value, known.code, _short(f"{known.says}: {known.line}"))
    said = error or _last_line(output)
    if _PEER.search(error):
        return Failure(
            "peer",
            "NCCL_REMOTE_ERROR",
            _short(f"a peer ended, or the network between failed: {said}"),
        )
    if before_ready and (not error or _RENDEZVOUS.search(error)):
        return Failure("launch", "RENDEZVOUS_FAILED", _short(said))
    if known is not None:
        return Failure("class", known.code, _short(f"{known.says}: {known.line}"))
    return Failure("class", "WORKER_ERROR", _short(said))


def died(who: str, output: str) -> Failure:
    """A worker that ended without a word."""
    known = nccl.classify(output)
    if known is not None:
        return Failure(known.kind.value, known.code, _short(f"{known.says}: {known.line}"))
    return Failure(
        "died", "RANK_DIED", _short(f"{who} ended without a word; was it killed, e.g. for memory?")
    )


def stuck(*, asleep: bool) -> Failure:
    """Killed workers that are not gone. That alone is not a fact about a device: tearing eight of
    them down at once takes its time.
    """
    where = (
        "in the kernel (state D), where no signal ends it"
        if asleep
        else "after SIGKILL, although it does not sleep in the kernel"
    )
    return Failure(
        "environment", "RANK_STUCK", f"a killed worker stays {where}; see the node's dmesg"
    )


def unresponsive(silent: Mapping[str, str]) -> Failure:
    """Of one that sleeps in the kernel, where the driver does not answer for GPUs either (UUID →
    words).
    """
    told = "; ".join(f"{uuid}: {words}" for uuid, words in sorted(silent.items()))
    return Failure(
        "device",
        "GPU_UNRESPONSIVE",
        _short(
            f"a killed worker stays in the kernel (state D), and the driver does not answer for {told}"
        ),
    )


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b\w*Error\b", line)]
    return (errors or lines or ["torchrun ended without a word"])[-1]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
