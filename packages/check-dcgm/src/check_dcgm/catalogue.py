"""What DCGM's error ids mean and what its tests are called, in every version.

The table itself is ``errors.toml``; an operator's file of the same form may replace rows of it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final

from preflight_proto.check import Action


class ErrorSeverity(IntEnum):
    """DCGM's error severities (dcgm_errors.h)."""

    NONE = 0
    MONITOR = 1
    ISOLATE = 2
    UNKNOWN = 3
    TRIAGE = 4
    CONFIG = 5
    RESET = 6


CATEGORIES: Final = range(1, 17)
HARDWARE: Final = frozenset({9, 10, 11, 12, 13, 15})
"""Categories thermal, memory, nvlink, nvswitch, pcie, other hardware: at severity *triage* a fault
of the hardware.
"""

PERFORMANCE: Final = frozenset({1, 2, 14})
"""Categories performance threshold, performance violation, power: at severity *triage* a hardware
test measured too little.
"""

ENVIRONMENT: Final = frozenset({3, 4, 8, 16})
"""Categories software config, software library, other software, internal: never a fault of the
hardware.
"""

CUDA: Final = 6
"""Category of a CUDA call that failed: what the test was about to do, it has not done."""

SOFTWARE: Final = "Software"
"""The one test that reports warnings: its severity decides, while any other test that failed is
never a pass.
"""

COUNTER: Final = 34
"""DCGM_FR_FIELD_THRESHOLD, up to 3.2 of any counter, also of uncorrectable memory errors."""

MEMORY: Final = "Memory"
"""The test with one result for all GPUs, that of the last one."""

_DEPLOYMENT: Final = {
    "denylist": 23,
    "blacklist": 23,
    "nvml library": 22,
    "cuda main library": 22,
    "cuda toolkit library": 22,
    "permissions and os blocks": 18,
    "persistence mode": 29,
    "environment variables": 28,
    "page retirement/row remap": None,
    "page retirement": None,  # up to 2.3
    "graphics processes": 25,
    "inforom": 9,
}
"""Up to 3.3 each is a test of its own, with one result for all GPUs; in 4.x they are one,
`software`. With the id of the error that each finds.
"""

_TESTS: Final = {
    "memory": MEMORY,
    "gpu memory": MEMORY,
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
    "cpu eud": "CpuEud",
    "cpu eud test": "CpuEud",
    "context create": "ContextCreate",
    "nvbandwidth": "Nvbandwidth",
    "nccl tests": "NcclTests",
    "nvlink": "Nvlink",
    "software": SOFTWARE,
    **dict.fromkeys(_DEPLOYMENT, SOFTWARE),
}

STRESS: Final = frozenset(
    {"Diagnostic", "TargetedStress", "TargetedPower", "SmStress", "PulseTest"}
)

_LEVELS: Final = (
    frozenset({SOFTWARE}),
    frozenset({MEMORY, "Pcie"}),
    frozenset({"Diagnostic", "TargetedStress", "TargetedPower"}),
    frozenset({"Memtest", "PulseTest"}),
)
"""What each level adds on every version; levels also run tests that depend on the engine's
packages, and those are not asked for.
"""


_BY_WORDS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), number)
    for pattern, number in (
        (r"faulty memory", 52),
        (r"\bnot exceed\b.*\bbandwidth|\bbandwidth\b.*\b(?:below|not exceed)", 30),
        (r"\blatency\b.*\bexceed", 31),
        (
            r"\blink width\b",
            46,
        ),  # "below the minimum allowed link generation": DCGM's text for the width says so too
        (r"\blink generation\b", 45),
        (r"\bremap\w*\b.*\bfail|\bfail\w*\b.*\bremap", 80),
        (r"\bpending\b.*\bremap|\bremap\w*\b.*\bpending", 85),
        (r"\buncorrectable\b.*\bremap", 84),
        (r"\bpending\b.*\b(?:DBE|double)|\b(?:DBE|double)\b.*\bpending", 83),
        (r"\bpending\b.*\bpage|\bpending retired page", 6),
        (r"\bretired pages\b.*\bDBE", 8),
        (r"\bretired pages\b", 7),
        (r"\bvolatile double[- ]bit", 4),
        (r"double[- ]bit", 57),
        (r"\bNvSwitch physical ID\b.*\bdown\b", 17),
        (r"\bNvSwitch \d+'s NvLink\b.*\bdown\b", 88),
        (r"\bNvLink\b.*\bdown\b", 14),
        (r"\buncontained\b", 81),
        (r"\bmemory mismatch was detected\b", 58),
        (r"\bmiscompare failure in the L1 cache\b", 79),
        (r"\bfatal errors on NvSwitch\b", 15),
        (r"\bcorrupt InfoROM\b", 9),
        (r"\bPCIe replays per minute\b", 3),
        (r"\bstress level\b.*\bdid not reach\b", 50),
        (r"\bMax power\b.*\bdid not reach\b", 63),
        (r"\bachieved a memory bandwidth\b.*\bfailing to meet\b", 62),
        (r"\becc_dbe_\w+ for GPU \d+ which is above\b", 106),
        (r"\becc_dbe_\w+ for GPU\b", 103),
        (r"\becc_sbe_\w+ for GPU \d+ which is above\b", 105),
        (r"\bpcie_replay_counter for GPU \d+ which is above\b", 107),
        (r"\bxid_errors for GPU\b", 101),
        (r"\bmet or exceeded the threshold of [\d.]+ per second\b", 38),
    )
)
"""Documents up to 3.2 print no id for deployment tests, and up to 3.1 none at all: the words say
which error it is. Up to 3.2 they also say which counter it is of which :data:`COUNTER` was printed.
"""


@dataclass(frozen=True, slots=True)
class KnownError:
    """One row of ``errors.toml``; ``says`` and ``advice`` are constant text for people.

    ``action`` and ``fatal`` are those of a failed hardware test. ``pinned``: an operator's row,
    which wins over what a document prints.
    """

    name: str
    severity: int
    category: int
    says: str
    advice: str = ""
    action: str = Action.NONE.value
    fatal: bool = False
    since: str = ""
    source: str = ""
    formerly: tuple[str, ...] = ()
    severity_once: tuple[int, ...] = ()
    pinned: bool = False


class BadTable(ValueError):
    """An operator's table cannot be used. The message is one sentence."""


@cache
def known() -> dict[int, KnownError]:
    """The table by error id."""
    raw = tomllib.loads((files(__package__) / "errors.toml").read_text())
    return {int(number): KnownError(**with_tuples(row)) for number, row in raw.items()}


def with_tuples(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` of a TOML table, with tuples in place of lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def overridden(text: str, where: str) -> dict[int, KnownError]:
    """The table with the rows of ``text`` (TOML of the same form) in it. Raises :class:`BadTable`,
    which names ``where``.
    """
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadTable(
            f"{where}: is not TOML ({error}); write it as errors.toml of this check."
        ) from None
    table = dict(known())
    for number, row in raw.items():
        if not (number.isascii() and number.isdigit() and isinstance(row, dict)):
            raise BadTable(
                f'{where}: "{number}" is not an error id with keys under it; write e.g. [30] and fatal = false.'
            )
        table[int(number)] = _row(int(number), row, table.get(int(number)), where)
    return table


_KINDS: Final[Mapping[str, type]] = {
    "name": str,
    "says": str,
    "advice": str,
    "source": str,
    "since": str,
    "action": str,
    "severity": int,
    "category": int,
    "fatal": bool,
}


def _row(number: int, row: dict[str, Any], base: KnownError | None, where: str) -> KnownError:
    for key, value in row.items():
        if key not in _KINDS:
            raise BadTable(
                f'{where}: [{number}] has "{key}", which is not one of {", ".join(_KINDS)}.'
            )
        if not isinstance(value, _KINDS[key]) or (isinstance(value, bool) and _KINDS[key] is int):
            raise BadTable(
                f"{where}: [{number}] {key} = {value!r} is not of type {_KINDS[key].__name__}."
            )
    severity, category = row.get("severity"), row.get("category")
    if severity is not None and severity not in set(ErrorSeverity):
        raise BadTable(f"{where}: [{number}] severity = {severity} is not from 0 to 6.")
    if category and category not in CATEGORIES:
        raise BadTable(f"{where}: [{number}] category = {category} is not from 0 to 16.")
    actions = {action.value for action in Action}
    if row.get("action", Action.NONE.value) not in actions:
        raise BadTable(
            f'{where}: [{number}] action = "{row["action"]}" is not one of {", ".join(sorted(actions))}.'
        )
    if base is None:
        base = KnownError(
            f"DCGM_ERROR_{number}",
            ErrorSeverity.UNKNOWN,
            0,
            "an error that the operator has described",
        )
    return replace(
        base, pinned=True, **{f.name: row[f.name] for f in fields(KnownError) if f.name in row}
    )


def canonical_test(name: str) -> str:
    """The CamelCase name under which a test is reported, the same for DCGM 3 (`GPU Memory`) and 4
    (`memory`).
    """
    words = _plain(name)
    if words in _TESTS:
        return _TESTS[words]
    return "".join(part.capitalize() for part in re.findall(r"[a-z0-9]+", words)) or "Unnamed"


def _plain(name: str) -> str:
    return " ".join(name.replace("_", " ").lower().split())


def is_deployment(name: str) -> bool:
    """Whether it is a test of 2.x or 3.x that has one result for all GPUs."""
    return _plain(name) in _DEPLOYMENT


def required(level: int) -> frozenset[str]:
    """The tests that a diagnostic of ``level`` must have run on a GPU before it says anything about
    its health.
    """
    return frozenset().union(*_LEVELS[:level])


def by_words(test: str, text: str) -> int | None:
    """The id of an error that a document prints without one, by the test that found it and its
    words.
    """
    error_id = next((number for pattern, number in _BY_WORDS if pattern.search(text)), None)
    return error_id if error_id is not None else _DEPLOYMENT.get(_plain(test))


def action_for(test: str, row: KnownError | None = None) -> Action:
    """What a failed test calls for: what the error itself asks for (a reset), else ADR-026's table.

    The table: a failed stress test is for the extended utility diagnostics, all other hardware for
    support.
    """
    own = Action(row.action) if row is not None else Action.NONE
    if row is not None and (row.pinned or own not in {Action.NONE, Action.CONTACT_SUPPORT}):
        return own
    return Action.RUN_DCGMEUD if test in STRESS else Action.CONTACT_SUPPORT
