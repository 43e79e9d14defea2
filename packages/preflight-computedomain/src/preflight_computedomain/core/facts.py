"""Facts about the plugin's node, from text and from what NVML says of each GPU's fabric. Pure.

Nothing here comes from IMEX, and nothing says how IMEX fares.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from preflight_kube.text import one_line

from preflight_computedomain.api.names import MAJOR_NAME, OLDEST_DRIVER, fits_as_name


class Unfit(Exception):
    """The plugin cannot start here, or the driver has gone since; one sentence says what to do."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """``node``: its name. ``boot``: the kernel's id of this boot."""

    node: str
    boot: str


_HEADING: Final = "Character devices:"
_MOST_MAJOR: Final = 4095
"""A device's major has 12 bits in Linux (include/linux/kdev_t.h)."""


def imex_major(text: str, where: str = "/proc/devices") -> int:
    """The major of the IMEX channels, among ``Character devices:``. Raises :class:`Unfit`."""
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
    """The driver's version as a semantic one: `570.158.01` is 570.158.1. Raises :class:`Unfit`."""
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
    boot = text.strip()
    if not re.fullmatch(r"[0-9A-Za-z-]{1,64}", boot):
        raise Unfit(
            f"{where}: {one_line(boot, 40)!r} is not a boot id; name the kernel's own file."
        )
    return boot


def node_name(text: str) -> str:
    """The node's name, as ``NODE_NAME`` gives it. Raises :class:`Unfit`."""
    if not fits_as_name(text):
        raise Unfit(
            f"NODE_NAME: {one_line(text, 200)!r} is not a node's name; set it by the downward API (spec.nodeName)."
        )
    return text


# --- the NVLink fabric

NOT_SUPPORTED: Final = 0
COMPLETED: Final = 3
"""States of a GPU's registration (NVML_GPU_FABRIC_STATE_*); 1 is not started, 2 in progress."""
_SUCCESS: Final = 0
_STATES: Final = {1: "has not started", 2: "is in progress"}


class FabricBroken(Unfit):
    """The node's GPUs do not belong to one clique; the plugin refuses to start with it."""


@dataclass(frozen=True, slots=True)
class FabricInfo:
    """One GPU: its UUID, and the fields of ``nvmlGpuFabricInfo``. ``cluster``: 16 bytes."""

    gpu: str
    state: int = NOT_SUPPORTED
    status: int = 0
    cluster: bytes = bytes(16)
    clique: int = 0


def unjoined(gpus: Sequence[FabricInfo]) -> str:
    """The registration of the first GPU that has not joined its fabric; empty where all have."""
    for gpu in gpus:
        if gpu.state == NOT_SUPPORTED or (gpu.state == COMPLETED and gpu.status == _SUCCESS):
            continue
        ended = f"ended with status {gpu.status}"
        what = {**_STATES, COMPLETED: ended}.get(gpu.state, f"is in state {gpu.state}")
        return f"GPU {one_line(gpu.gpu, 60)}: its registration with the NVLink fabric {what}"
    return ""


def clique(gpus: Sequence[FabricInfo], *, crash: bool = True) -> str:
    """``<cluster uuid>.<clique id>``, or empty where the node is in no clique.

    In none is a GPU whose fabric is not supported, or whose cluster is zero once it has registered
    (NVLink in one node only). ``crash`` (the gate CrashOnNVLinkFabricErrors): raise
    :class:`FabricBroken` for a GPU whose registration has not completed or has failed, instead of
    leaving it out. More than one clique always raises.
    """
    if crash and (wrong := unjoined(gpus)):
        raise FabricBroken(
            f"{wrong}; refusing to start: repair the fabric manager, or set featureGates.CrashOnNVLinkFabricErrors=false."
        )
    cliques: dict[tuple[str, int], str] = {}
    for gpu in gpus:
        joined = gpu.state == COMPLETED and gpu.status == _SUCCESS
        if joined and len(gpu.cluster) == 16 and gpu.cluster != bytes(16):
            name = one_line(gpu.gpu, 60)
            cliques.setdefault((str(uuid.UUID(bytes=gpu.cluster)), gpu.clique), name)
    if len(cliques) > 1:
        shown = ", ".join(
            f"{cluster}.{ident} (GPU {gpu})"
            for (cluster, ident), gpu in sorted(cliques.items())[:4]
        )
        raise FabricBroken(
            f"GPUs of this node are in {len(cliques)} NVLink cliques: {shown}; put all of them into one."
        )
    return "".join(f"{cluster}.{ident}" for cluster, ident in cliques)
