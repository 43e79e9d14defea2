"""What DCGM's error ids mean and what its tests are called, in every version.

The table itself is ``errors.toml``.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Final

from preflight_proto.check import Action

__all__ = ["ENVIRONMENT", "HARDWARE", "KnownError", "Severity", "action_for", "canonical_test", "known"]


class Severity(IntEnum):
    """DCGM's error severities (dcgm_errors.h)."""

    NONE = 0
    MONITOR = 1
    ISOLATE = 2
    UNKNOWN = 3
    TRIAGE = 4
    CONFIG = 5
    RESET = 6


HARDWARE: Final = frozenset({9, 10, 11, 12, 13, 15})
"""Categories thermal, memory, nvlink, nvswitch, pcie, other hardware: at severity *triage* a fault of the hardware."""

ENVIRONMENT: Final = frozenset({3, 4, 8, 16})
"""Categories software config, software library, other software, internal: never a fault of the hardware."""

_TESTS: Final = {
    "memory": "Memory",
    "gpu memory": "Memory",
    "pcie": "Pcie",
    "diagnostic": "Diagnostic",
    "targeted stress": "TargetedStress",
    "targeted power": "TargetedPower",
    "memory bandwidth": "MemoryBandwidth",
    "sm stress": "SmStress",
    "memtest": "Memtest",
    "pulse test": "PulseTest",
    "eud": "Eud",
    "eud test": "Eud",
    "context create": "ContextCreate",
    "nvbandwidth": "Nvbandwidth",
    "nccl tests": "NcclTests",
    "nvlink": "Nvlink",
    # The deployment tests of 3.x are one test, "software", in 4.x: one condition for both.
    "software": "Software",
    "denylist": "Software",
    "blacklist": "Software",
    "nvml library": "Software",
    "cuda main library": "Software",
    "cuda toolkit library": "Software",
    "permissions and os blocks": "Software",
    "persistence mode": "Software",
    "environment variables": "Software",
    "page retirement/row remap": "Software",
    "graphics processes": "Software",
    "inforom": "Software",
}

_STRESS: Final = frozenset({"Diagnostic", "TargetedStress", "TargetedPower", "SmStress", "PulseTest"})


@dataclass(frozen=True, slots=True)
class KnownError:
    """One row of ``errors.toml``; ``says`` is constant text for people."""

    name: str
    severity: int
    category: int
    says: str


@cache
def known() -> dict[int, KnownError]:
    """The table by error id."""
    raw = tomllib.loads((files(__package__) / "errors.toml").read_text())
    return {int(number): KnownError(**row) for number, row in raw.items()}


def canonical_test(name: str) -> str:
    """The CamelCase name under which a test is reported, the same for DCGM 3 (`GPU Memory`) and 4 (`memory`)."""
    words = " ".join(name.replace("_", " ").lower().split())
    if words in _TESTS:
        return _TESTS[words]
    return "".join(part.capitalize() for part in re.findall(r"[a-z0-9]+", words)) or "Unnamed"


def action_for(test: str) -> Action:
    """ADR-026's table: a failed stress test is for the extended utility diagnostics, all other hardware for support."""
    return Action.RUN_DCGMEUD if test in _STRESS else Action.CONTACT_SUPPORT
