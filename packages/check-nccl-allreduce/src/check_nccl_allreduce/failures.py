"""What torchrun and its workers print: the end of it, to show and to explain a failure, and the
network that NCCL says it took. Pure.

NCCL names its network at the level INFO alone, as one line of each rank: ``Using network IB``. Its
other INFO lines are dropped as they come; with thousands of ranks they would push out the errors.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from preflight_proto.check import nccl

from .control.messages import Failure

MAX_TEXT: Final = 400
MAX_OUTPUT: Final = 256 * 1024
MAX_LINE: Final = 64 * 1024
_INFO: Final = b" NCCL INFO "
_KEPT: Final = re.compile(
    rb" NCCL INFO .*(?:NCCL_IB_HCA set |NET/IB : No device found|Using network )"
)
"""The first two without the third say that NCCL_IB_HCA names no card that is there."""
_NETWORK: Final = re.compile(rb" NCCL INFO Using network ([ -~]{1,64})")
MULTI_NODE_NVLINK: Final = "multi-node NVLink"
_MNNVL: Final = re.compile(rb" NCCL INFO comm .* nRanks [0-9]+ nNodes 1 .* MNNVL 1\b")
"""A communicator all of whose ranks are in one NVLink domain, which NCCL uses and takes for one
node. Of several domains each is one, and the flag is 1 even where each is a single machine: between
them NCCL goes by its network.
"""
_PROVIDER: Final = re.compile(rb"NET/OFI Selected [Pp]rovider is ([!-+\--~]{1,64})")
"""Of aws-ofi-nccl: libfabric's provider, ``efa`` or, without EFA, ``tcp``."""

_PEER: Final = re.compile(
    r"Connection (?:closed|reset) by peer|Connection closed by remote|Broken pipe|gloo.*(?:EOF|closed)|Failed to recv, got 0 bytes",
    re.IGNORECASE,
)
_RENDEZVOUS: Final = re.compile(
    r"DistStoreError|DistNetworkError|RendezvousConnectionError|RendezvousTimeoutError|TCPStore|EADDRINUSE|client socket"
    r"|connectFullMesh|timed out connecting|ncclUniqueId|Rendezvous",
    re.IGNORECASE,
)


class Output:
    """:meth:`feed` it with whatever has arrived."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._line = bytearray()
        self._networks: set[str] = set()
        self._providers: set[str] = set()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the output; a line that is too long is cut."""
        *lines, rest = (bytes(self._line) + chunk).split(b"\n")
        for line in lines:
            self._take(line + b"\n")
        self._line = bytearray(rest)
        if len(self._line) > MAX_LINE:
            self._take(bytes(self._line))
            self._line.clear()
        del self._kept[:-MAX_OUTPUT]

    @property
    def text(self) -> str:
        """Its last part, without what NCCL merely narrates."""
        unfinished = b"" if _INFO in self._line else bytes(self._line)
        return (bytes(self._kept) + unfinished).decode(errors="replace")

    @property
    def networks(self) -> tuple[str, ...]:
        """As NCCL calls them: one, unless the ranks here differ; none where it has not said.
        libfabric's provider stands in brackets. :data:`MULTI_NODE_NVLINK` is beside it where that
        carries the data.
        """
        providers = f" ({', '.join(sorted(self._providers))})" if self._providers else ""
        names = (f"{n}{providers}" if "fabric" in n.lower() else n for n in self._networks)
        return tuple(sorted(names))

    def _take(self, line: bytes) -> None:
        if (network := _NETWORK.search(line)) is not None:
            self._networks.add(network[1].decode().strip())
        if _MNNVL.search(line) is not None:
            self._networks.add(MULTI_NODE_NVLINK)
        if (provider := _PROVIDER.search(line)) is not None:
            self._providers.add(provider[1].decode())
        if _INFO not in line or _KEPT.search(line):
            self._kept += line


def by_output(error: str, output: str, *, before_ready: bool) -> Failure:
    """The trouble of a worker that raised ``error`` (empty: torchrun ended), or of its output."""
    known = nccl.classify(f"{output}\n{error}")
    if known is not None and known.kind is not nccl.ErrorKind.CLASS:
        return _as_known(known)
    text = error or _last_line(output)
    if _PEER.search(error):
        ended = _short(f"a peer ended, or the network between failed: {text}")
        return Failure("peer", "NCCL_REMOTE_ERROR", ended)
    if before_ready and (not error or _RENDEZVOUS.search(error)):
        return Failure("launch", "RENDEZVOUS_FAILED", _short(text))
    return Failure("class", "WORKER_ERROR", _short(text)) if known is None else _as_known(known)


def died(who: str, output: str, *, of_memory: bool = False) -> Failure:
    """A worker that ended without a word. ``of_memory``: meanwhile the kernel has killed a process
    of this container for memory, after which the others complain of a peer.
    """
    known = nccl.classify(output)
    if of_memory and (known is None or known.kind is not nccl.ErrorKind.DEVICE):
        why = f"{who} ended without a word, and the kernel has killed a process of this container for memory; give the check more memory"
        return Failure("environment", "HOST_LIMIT", _short(why))
    if known is not None:
        return _as_known(known)
    why = f"{who} ended without a word; was it killed, e.g. for memory?"
    return Failure("died", "RANK_DIED", _short(why))


def _as_known(known: nccl.NcclError) -> Failure:
    return Failure(known.kind.value, known.code, _short(f"{known.says}: {known.line}"))


def stuck(*, asleep: bool) -> Failure:
    """Killed workers that are not gone. That alone is not a fact about a device: tearing eight of
    them down at once takes its time.
    """
    where = "after SIGKILL, although it does not sleep in the kernel"
    if asleep:
        where = "in the kernel (state D), where no signal ends it"
    why = f"a killed worker stays {where}; see the node's dmesg"
    return Failure("environment", "RANK_STUCK", why)


def unresponsive(silent: Mapping[str, str]) -> Failure:
    """Of one asleep in the kernel, where the driver does not answer for GPUs (UUID → words)."""
    devices = "; ".join(f"{uuid}: {words}" for uuid, words in sorted(silent.items()))
    why = f"a killed worker stays in the kernel (state D), and the driver does not answer for {devices}"
    return Failure("device", "GPU_UNRESPONSIVE", _short(why))


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b\w*Error\b", line)]
    return (errors or lines or ["torchrun ended without a word"])[-1]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
