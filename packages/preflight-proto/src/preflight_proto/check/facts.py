"""What NVML says of a GPU, and what of it is a sign of trouble: plain data of :mod:`.scan` and
:mod:`.counters`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from .verdict import Action


class FactSeverity(IntEnum):
    """What a sign makes of a run: a line of the log, an event beside a pass, a failure, or one that
    takes the GPU out of service.
    """

    NOTE = 0
    EVENT = 1
    FAILS = 2
    FATAL = 3


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One look at one GPU, by NVML's call of the same name; None where it does not say.

    Power in watts, clocks in MHz, temperature in °C. ``links`` maps a NVLink's number to whether it
    is up; ``link_errors`` maps (link, kind) to a count since the driver was loaded. ``processes``
    are those with a context on the GPU. ``bridged``: some NVLinks are down, and those that are up
    all lead to one other GPU, as bridges between two cards do. ``complete`` is false where the
    library crashed or hung: what it would have said is None, and the look clears nothing that was
    raised earlier.
    """

    uuid: str
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    ecc_uncorrectable: int | None = None
    ecc_corrected: int | None = None
    sram_threshold: bool | None = None
    recovery: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    links: Mapping[int, bool] = field(default_factory=dict)
    link_errors: Mapping[tuple[int, str], int] = field(default_factory=dict)
    power_limit: float | None = None
    power_default: float | None = None
    persistence: bool | None = None
    processes: int | None = None
    bridged: bool = False
    complete: bool = True


@dataclass(frozen=True, slots=True)
class CounterSample:
    """One GPU at one moment under load. ``reasons`` is NVML's bit mask of why clocks are not
    higher.
    """

    uuid: str
    reasons: int | None = None
    clock: int | None = None
    temperature: int | None = None
    pcie_generation: int | None = None
    pcie_replays: int | None = None


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that is wrong with one GPU, or notable. ``says`` is constant per (code, GPU);
    ``reading`` is what was read.
    """

    code: str
    severity: FactSeverity
    uuid: str
    says: str
    reading: str
    source: str
    action: Action = Action.NONE
