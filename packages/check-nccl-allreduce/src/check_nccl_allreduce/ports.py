"""What a node knows of its own network ports: what is wrong with one, and error counters that grew
under load. Pure.

Which counters speak of a port's own link, and not of congestion or of the other end, is by the
kernel's ``Documentation/ABI/stable/ sysfs-class-infiniband``, the InfiniBand port counters of
NVIDIA's UFM manual, the kernel's ``efa`` driver, and what NVSentinel's NIC health monitor takes for
fatal, for degradation and for congestion. `docs/localisation.md` has the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec
from preflight_proto.printable import printable

MOST: Final = 16
"""Faults, and counters that grew, of one member: a message has bounds."""
TEXT: Final = 96
"""Characters of each text in them."""

AGES: Final = 1e9
"""Seconds, more than any round takes."""
_PER_HOUR: Final = 120 / 3600
"""Errors a second on a link within its specification, at most: NVSentinel's bound on symbol errors,
120 an hour, from InfiniBand's bit error rate of 10⁻¹².
"""

LINK: Final[Mapping[str, tuple[str, frozenset[str], float]]] = {
    "symbol_error": ("ports/{port}/counters", frozenset({"ib", "roce"}), _PER_HOUR),
    "port_rcv_errors": ("ports/{port}/counters", frozenset({"ib", "roce"}), _PER_HOUR),
    "link_error_recovery": ("ports/{port}/counters", frozenset({"ib", "roce"}), 0.0),
    "link_downed": ("ports/{port}/counters", frozenset({"ib", "roce"}), 0.0),
    "local_link_integrity_errors": ("ports/{port}/counters", frozenset({"ib", "roce"}), 0.0),
    "excessive_buffer_overrun_errors": ("ports/{port}/counters", frozenset({"ib"}), 0.0),
    "rx_crc_errors": ("device/net/*/statistics", frozenset({"roce"}), _PER_HOUR),
    "carrier_changes": ("device/net/*", frozenset({"roce"}), 0.0),
    "no_completion_cmds": ("hw_counters", frozenset({"efa"}), 0.0),
}
"""Of the port's own link, its cable and the switch port at its other end included: folder below the
adapter's, kinds of fabric, and how many a second say nothing yet. A credit loop or a switch that
drops makes none of these grow at an adapter."""

BYTES: Final[Mapping[str, tuple[str, ...]]] = {
    "ib": ("ports/{port}/counters/port_xmit_data", "ports/{port}/counters/port_rcv_data"),
    "roce": (
        "ports/{port}/counters/port_xmit_data",
        "ports/{port}/counters/port_rcv_data",
        "device/net/*/statistics/tx_bytes",
        "device/net/*/statistics/rx_bytes",
    ),
    "efa": ("ports/{port}/hw_counters/tx_bytes", "ports/{port}/hw_counters/rx_bytes"),
    "net": ("statistics/tx_bytes", "statistics/rx_bytes"),
}
"""By kind of fabric, what a port has carried, whoever sent it: files below the adapter's folder."""
_WAYS: Final = ({"port_xmit_data": 4, "tx_bytes": 1}, {"port_rcv_data": 4, "rx_bytes": 1})
"""Out and in, and the bytes that each counts by: those of InfiniBand count words of four."""
_FULL: Final = 2**32 - 1
"""Where a counter of 32 bits stops: nothing is seen of what comes after."""

Reading = Mapping[tuple[str, str], int]
"""By port and counter."""


class PortFault(msgspec.Struct, frozen=True):
    """What is wrong with a device: ``kind`` is state, rate, pcie or missing of a port, and throttle
    or replay of a GPU; ``found`` and ``expected`` make a clause together.
    """

    port: str
    kind: str
    found: str
    expected: str

    @property
    def sentence(self) -> str:
        """The fault in words."""
        return f"{self.port} {self.found}, {self.expected}"


class PortErrors(msgspec.Struct, frozen=True):
    """A counter of a port that grew by ``count`` in ``seconds`` under load, in ``rounds``."""

    port: str
    counter: str
    count: int
    seconds: float
    rounds: int = 1

    @property
    def rate(self) -> float:
        """Errors a second."""
        return self.count / self.seconds if self.seconds > 0 else 0.0


class Local(msgspec.Struct, frozen=True):
    """What a node knows of its own devices. ``counted``: its error counters can be read, so that
    none in ``errors`` means that none grew. ``silence``: seconds in which nothing of ours ran and
    its adapters' byte counters were read, 0 where they cannot be; ``foreign``: GB/s that somebody
    else moved through them in the busiest such while, and ``load``: the share of the node's
    processor time that others took.
    """

    faults: tuple[PortFault, ...] = ()
    errors: tuple[PortErrors, ...] = ()
    counted: bool = False
    silence: float = 0.0
    foreign: float = 0.0
    load: float = 0.0


UNKNOWN: Final = Local()


def bounded(faults: Iterable[PortFault]) -> tuple[PortFault, ...]:
    """As many as a message takes, in plain words; whoever sent them."""
    texts = ((f.port, f.kind, f.found, f.expected) for f in islice(faults, MOST))
    return tuple(PortFault(*(printable(text, TEXT) for text in each)) for each in texts)


def paths(device: str, port: str, kind: str) -> dict[str, str]:
    """By counter, the pattern of its file below ``/sys/class/infiniband``, for such a port."""
    files = [f"{folder}/{name}" for name, (folder, kinds, _) in LINK.items() if kind in kinds]
    files += BYTES.get(kind, ())
    return {file.rpartition("/")[2]: f"{device}/{file.format(port=port)}" for file in files}


def number(text: str) -> int | None:
    """A counter's value; None where that is none."""
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text.strip(), re.ASCII) else None


def grown(before: Reading, after: Reading, seconds: float) -> tuple[PortErrors, ...]:
    """What grew in between of a link's counters, most first, as many as a message takes. One that
    shrank was reset, or wrapped: no word of it.
    """
    if not seconds > 0:
        return ()
    errors = [
        PortErrors(port, counter, value - before[port, counter], seconds)
        for (port, counter), value in sorted(after.items())
        if counter in LINK and value > before.get((port, counter), value)
    ]
    return tuple(sorted(errors, key=lambda error: -error.count)[:MOST])


def carried(before: Reading, after: Reading) -> int | None:
    """Bytes that the ports carried in between, in the direction with more of them. None where that
    is not known: there is no counter, or one was reset, is full or could not be read again.
    """
    ways = []
    for units in _WAYS:
        keys = {key for key in before.keys() | after.keys() if key[1] in units}
        grew = [(before.get(key, -1), after.get(key, -1), units[key[1]]) for key in keys]
        unknown = any(not 0 <= was <= now or now == _FULL for was, now, _ in grew)
        if unknown or {port for port, _ in keys} != {port for port, _ in after}:
            return None
        ways.append(sum((now - was) * unit for was, now, unit in grew))
    return max(ways) if after else None


def taken(before: str, after: str) -> float | None:
    """The share of processor time that was taken between two readings of ``/proc/stat``; None where
    they do not say.
    """
    lines = [text.partition("\n")[0].split() for text in (before, after)]
    if any(line[:1] != ["cpu"] or not all(map(str.isdecimal, line[1:])) for line in lines):
        return None
    # User, nice, system, idle, waiting for disks, interrupts of two sorts, stolen by the host.
    spent = [int(b) - int(a) for a, b in zip(lines[0][1:9], lines[1][1:9], strict=False)]
    whole = sum(spent)
    return 1 - sum(spent[3:5]) / whole if len(spent) == 8 and min(spent) >= 0 < whole else None
