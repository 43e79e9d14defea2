"""What the plugin knows about its node, from text that somebody else has read.

Pure. Nothing here comes from IMEX, and nothing says how IMEX fares.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from preflight_kube.text import one_line

from preflight_computedomain.api.names import MAJOR_NAME, OLDEST_DRIVER, fits_as_name

__all__ = ["NodeFacts", "Unfit", "boot_id", "driver_fits", "imex_major", "node_name"]


class Unfit(Exception):
    """The plugin cannot start on this node, or the driver has gone since; one sentence says what
    was found where, and what to do.
    """


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """``node``: its name. ``boot``: the kernel's id of this boot."""

    node: str
    boot: str


_HEADING: Final = "Character devices:"
_MOST_MAJOR: Final = 4095
"""A device's major has 12 bits in Linux (include/linux/kdev_t.h)."""


def imex_major(text: str, where: str = "/proc/devices") -> int:
    """The major of the IMEX channels, from the section ``Character devices:``. Raises
    :class:`Unfit`.
    """
    majors = []
    section = ""
    for line in text.splitlines():
        if line.rstrip().endswith(":"):
            section = line.strip()
        elif section == _HEADING and line.split()[1:] == [MAJOR_NAME]:
            majors.append(line.split()[0])
    if not majors:
        raise Unfit(
            f"{where}: no character device {MAJOR_NAME}; load the NVIDIA driver, with NVreg_CreateImexChannel0=1 "
            "as option of its module."
        )
    if len(majors) > 1:
        shown = ", ".join(one_line(major, 20) for major in majors[:5])
        raise Unfit(
            f"{where}: {MAJOR_NAME} is there {len(majors)} times ({shown}); reload the NVIDIA driver."
        )
    if not re.fullmatch(r"[0-9]{1,9}", majors[0]) or not 0 < int(majors[0]) <= _MOST_MAJOR:
        raise Unfit(
            f"{where}: the major of {MAJOR_NAME} is {one_line(majors[0], 40)!r}, which is not a device's number."
        )
    return int(majors[0])


def driver_fits(version: str) -> str:
    """The NVIDIA driver's version as a semantic one: `570.158.01` is 570.158.1. Raises
    :class:`Unfit` where it is older than :data:`OLDEST_DRIVER`, or none.
    """
    parts = version.strip().split(".")
    if not 2 <= len(parts) <= 4 or not all(re.fullmatch(r"[0-9]{1,6}", part) for part in parts):
        raise Unfit(
            f"NVML: {one_line(version, 40)!r} is not a driver version; install {OLDEST_DRIVER} or newer."
        )
    numbers = tuple(map(int, parts))
    if numbers < tuple(map(int, OLDEST_DRIVER.split("."))):
        raise Unfit(
            f"NVML: the NVIDIA driver is {version.strip()}; install {OLDEST_DRIVER} or newer."
        )
    return ".".join(map(str, (*numbers, 0)[:3]))


def boot_id(text: str, where: str = "/proc/sys/kernel/random/boot_id") -> str:
    """The kernel's id of this boot. Raises :class:`Unfit`."""
    found = text.strip()
    if not re.fullmatch(r"[0-9A-Za-z-]{1,64}", found):
        raise Unfit(
            f"{where}: {one_line(found, 40)!r} is not a boot id; name the kernel's own file."
        )
    return found


def node_name(text: str) -> str:
    """The node's name, as ``NODE_NAME`` gives it. Raises :class:`Unfit`."""
    if not fits_as_name(text):
        raise Unfit(
            f"NODE_NAME: {one_line(text, 200)!r} is not a node's name; set it by the downward API (spec.nodeName)."
        )
    return text
