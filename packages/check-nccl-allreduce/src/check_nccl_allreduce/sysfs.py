"""What the kernel says of this node's network adapters: their description, once, for :mod:`.nics`;
their ports' counters, for :mod:`.ports`; and which interface is this pod's.

Every read is bounded: so many files of a pattern, so many bytes of a file, and nothing but regular
files.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

import anyio
import psutil

from . import nics, ports

_FILES: Final = (
    *(f"{nics.PORTS}/*/ports/*/{name}" for name in ("rate", "link_layer", "state", "phys_state")),
    *(f"{nics.PORTS}/*/device/{name}" for name in nics.ADAPTER),
    f"{nics.VERBS}/uverbs*/ibdev",
)
_PRESENT: Final = (f"{nics.UVERBS}/uverbs*", f"{nics.APERTURES}/*", f"{nics.IMEX}/channel*")
"""Devices: that they are there is all that counts, and they are not opened."""
PROCESSORS: Final = "proc/stat"
_MEMORY: Final = ("sys/fs/cgroup/memory.events", "sys/fs/cgroup/memory/memory.oom_control")
"""Where a container finds its own control group's ``oom_kill``: version 2, and version 1."""
_MOST_FILES: Final = 512
"""Of each pattern: more adapters than any node has."""
_MOST_BYTES: Final = 256
_WITHIN: Final = 2.0
"""Seconds for all counters. An adapter whose firmware hangs holds up whoever asks it; then counters
are not asked for any more.
"""


def snapshot(root: Path = Path("/")) -> dict[str, str]:
    """By path below ``root``, what each file says. Never raises:
    what cannot be read is left out.
    """
    texts: dict[str, str] = {}
    for pattern in _FILES:
        for path in _matching(root, pattern):
            if (text := _text(path)) is not None:
                texts[str(path.relative_to(root))] = text
    for pattern in _PRESENT:
        texts |= {str(path.relative_to(root)): "" for path in _matching(root, pattern)}
    return texts


def counters(watched: Sequence[nics.Port], root: Path = Path("/")) -> dict[tuple[str, str], int]:
    """By port and counter, its value; of several files that match, the sum. Never raises: what
    cannot be read is left out.
    """
    counts: dict[tuple[str, str], int] = {}
    for port in watched[:_MOST_FILES]:
        for name, pattern in ports.paths(port.device, port.number, port.kind).items():
            whole = f"{nics.NET if port.kind == 'net' else nics.PORTS}/{pattern}"
            for path in _matching(root, whole) if "*" in pattern else [root / whole]:
                value = ports.number(_text(path) or "")
                if value is not None:
                    counts[port.name, name] = counts.get((port.name, name), 0) + value
    return counts


def oom_kills(root: Path = Path("/")) -> int:
    """How many processes of this container the kernel has killed for memory; 0 where it does not
    say.
    """
    for path in _MEMORY:
        for line in (_text(root / path) or "").splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return ports.number(count) or 0
    return 0


def interface(name: str | None, root: Path = Path("/")) -> tuple[nics.Port, ...]:
    """The network interface with this name as a port, where it is an adapter's own: one end of a
    pair, a bridge or a virtual function carries what is its pod's alone, and shows no neighbor.
    """
    device = root / nics.NET / (name or "lo") / "device"
    if not device.exists() or (device / "physfn").exists():
        return ()
    return (nics.Port(name or "", "0", "net", "", "ACTIVE", 0.0, usable=True),)


def interface_of(address: str) -> str | None:
    """The interface that has ``address``, else the one in whose subnet it lies, or None."""
    wanted = ipaddress.ip_address(address)
    containing = None
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            try:
                own = ipaddress.ip_interface(
                    f"{entry.address.split('%')[0]}/{entry.netmask or ''}".rstrip("/")
                )
            except ValueError:  # a hardware address
                continue
            if own.ip == wanted:
                return name
            if wanted in own.network:
                containing = containing or name
    return containing


def free_port(address: str) -> int:
    """A port that nobody holds just now on ``address``."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port


class Counters:
    """Reads counters in a thread of its own, which ends with the process: a read that never comes
    back holds up nothing.
    """

    def __init__(
        self, watched: Sequence[nics.Port], root: Path = Path("/"), within: float = _WITHIN
    ) -> None:
        self._watched, self._root, self._within = tuple(watched), root, within

    @property
    def whole(self) -> bool:
        """Whether these ports' bytes are all that pass them, whoever sends them."""
        return not any(port.shared for port in self._watched)

    def processors(self) -> str:
        """The kernel's account of processor time; empty where there is none."""
        return _text(self._root / PROCESSORS) or ""

    async def read(self) -> Mapping[tuple[str, str], int]:
        """Empty where there are none, and for good once they did not come in time."""
        if not self._watched:
            return {}
        answer: list[dict[tuple[str, str], int]] = []
        thread = threading.Thread(
            target=lambda: answer.append(counters(self._watched, self._root)), daemon=True
        )
        thread.start()
        give_up = time.monotonic() + self._within
        # There is no event to wait for: a thread of its own answers.
        while thread.is_alive() and time.monotonic() < give_up:  # noqa: ASYNC110
            await anyio.sleep(0.005)
        if not answer:
            self._watched = ()
            return {}
        return answer[0]


def _text(path: Path) -> str | None:
    """The beginning of a regular file; None where none can be read without waiting."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return os.read(file, _MOST_BYTES).decode("ascii", errors="replace").strip()
    except OSError:
        return None
    finally:
        os.close(file)


def _matching(root: Path, pattern: str) -> Iterator[Path]:
    try:
        yield from sorted(islice(root.glob(pattern), _MOST_FILES))
    except (OSError, ValueError):
        return
