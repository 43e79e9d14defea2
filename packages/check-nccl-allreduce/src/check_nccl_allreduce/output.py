"""What torchrun and its workers print: the end of it to show and to explain a failure, and which
network NCCL says it took. Pure.

NCCL names its network at the level INFO alone, as one line of each rank: ``Using network IB``. Its
other INFO lines are dropped as they come; with thousands of ranks they would push out the errors.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["Output"]

MAX_OUTPUT: Final = 256 * 1024
MAX_LINE: Final = 64 * 1024
_INFO: Final = b" NCCL INFO "
_KEPT: Final = re.compile(
    rb" NCCL INFO .*(?:NCCL_IB_HCA set |NET/IB : No device found|Using network )"
)
"""The first two without the third say that NCCL_IB_HCA names no card that is there."""
_NETWORK: Final = re.compile(rb" NCCL INFO Using network ([ -~]{1,64})")
_PROVIDER: Final = re.compile(rb"NET/OFI Selected [Pp]rovider is ([!-+\--~]{1,64})")
"""Of aws-ofi-nccl: libfabric's provider, ``efa`` or, without EFA, ``tcp``."""


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
        libfabric's provider stands in brackets.
        """
        providers = f" ({', '.join(sorted(self._providers))})" if self._providers else ""
        return tuple(
            sorted(
                f"{name}{providers}" if "fabric" in name.lower() else name
                for name in self._networks
            )
        )

    def _take(self, line: bytes) -> None:
        if (network := _NETWORK.search(line)) is not None:
            self._networks.add(network[1].decode().strip())
        if (provider := _PROVIDER.search(line)) is not None:
            self._providers.add(provider[1].decode())
        if _INFO not in line or _KEPT.search(line):
            self._kept += line
