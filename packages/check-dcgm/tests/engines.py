"""Documents as each version of DCGM prints them, by the rules of its own source (dcgmi/Diag.cpp at
each tag).

What differs, by version:

- 2.4, 3.1: the GPU under ``gpu_ids`` as text, the words of one error under ``warnings``, no ids
  at all; 3.1 adds the version outside of the body.
- 3.2.5, 3.2.6: the same, with ``error_id`` beside the words of a test that has a result for each
  GPU.
- 3.3.1: ``gpu_id`` as text, errors in a list; a deployment test has a row for each error, of
  which only the first has a status.
- 3.3.3 to 3.3.9: a deployment test has one row, with the number of the last error's GPU (-1 for
  none) and the words under ``warnings``.
- 4.0 to 4.4: another root, entities, one test ``software``; what is about no entity stands in
  ``test_summary``.
- from 4.5: ``test_summary`` repeats every error of the test.
- from 4.0: the software test fails on every GPU at once, with the error on its own GPU's row or,
  about nobody, in ``test_summary``.
- all: a GPU that did not run a test has no row (null up to 3.3), a warning is printed as Fail,
  and the exit status is that of the worst error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VERSIONS = ("2.4.7", "3.1.8", "3.2.6", "3.3.1", "3.3.9", "4.0.0", "4.4.2", "4.5.0", "4.6.0")
TESTS = {
    1: ("software",),
    2: ("software", "memory", "pcie"),
    3: (
        "software",
        "memory",
        "diagnostic",
        "nvbandwidth",
        "pcie",
        "targeted_stress",
        "targeted_power",
    ),
    4: (
        "software",
        "memory",
        "diagnostic",
        "pcie",
        "targeted_stress",
        "targeted_power",
        "memtest",
        "pulse_test",
    ),
}
DEPLOYMENT = (
    "Denylist",
    "NVML Library",
    "CUDA Main Library",
    "Permissions and OS Blocks",
    "Persistence Mode",
    "Environment Variables",
    "Page Retirement/Row Remap",
    "Graphics Processes",
    "Inforom",
)
OLD_NAMES = {
    "memory": "GPU Memory",
    "pcie": "PCIe",
    "diagnostic": "Diagnostic",
    "targeted_stress": "Targeted Stress",
    "targeted_power": "Targeted Power",
    "memtest": "Memtest",
    "pulse_test": "Pulse Test",
}
OWN_ROW = frozenset({80, 84, 85})
"""Errors (of rows that are remapped) for which DCGM 4 fails the software test on their GPU alone;
for any other it fails on every GPU.
"""
CATEGORY = {
    "software": "Deployment",
    "pcie": "Integration",
    "targeted_stress": "Stress",
    "targeted_power": "Stress",
}


@dataclass(frozen=True)
class Fault:
    """One error of one test; ``gpu`` None is nobody's. ``status`` is how the row is printed;
    ``old`` the deployment test of 3.x.
    """

    test: str
    gpu: int | None
    error_id: int
    severity: int
    category: int
    text: str = "the words of an error"
    status: str = "Fail"
    old: str = "Permissions and OS Blocks"


@dataclass(frozen=True)
class Skip:
    """A test that did not run on a GPU, with what DCGM says about it."""

    test: str
    gpu: int
    info: str = "Plugin is not allowed on this SKU."


def document(
    version: str,
    level: int,
    gpus: Sequence[int],
    faults: Iterable[Fault] = (),
    skips: Iterable[Skip] = (),
    serials: Mapping[int, str] | None = None,
    absent: Iterable[tuple[str, int]] = (),
) -> tuple[str, int]:
    """(output, exit status); ``absent``: (test, GPU) for which there is no row at all."""
    faults, skips, absent = tuple(faults), tuple(skips), frozenset(absent)
    number = tuple(int(part) for part in version.split("."))
    status = 205 if any(f.severity == 2 for f in faults) else 226 if faults else 0
    make = _new if number >= (4,) else _old
    body = make(number, level, gpus, faults, skips, absent)
    if number >= (4,):
        entities = [
            {
                "entity_id": gpu,
                "device_id": "2330",
                **({"serial_num": serials[gpu]} if serials else {}),
            }
            for gpu in gpus
        ]
        root: dict[str, Any] = {
            "DCGM Diagnostic": body,
            "entity_groups": [{"entity_group": "GPU", "entity_group_id": 1, "entities": entities}],
            "metadata": {"version": version, "Driver Version Detected": "550.90.07"},
        }
    else:
        root = {"DCGM GPU Diagnostic": body}
        if number >= (3, 1):
            root |= {
                "version": version,
                "Driver Version Detected": "535.129.03",
                "GPU Device IDs": ["2330"],
            }
        if number >= (3, 3) and serials:
            root["GPU Device Serials"] = {str(gpu): serials[gpu] for gpu in gpus}
    return json.dumps(root, indent=3), status


def runtime_error(version: str, words: str) -> str:
    """What every version prints instead, whatever its exit status says."""
    root = "DCGM Diagnostic" if int(version[0]) >= 4 else "DCGM GPU Diagnostic"
    told = {} if version.startswith("2.") else {"version": version}
    return json.dumps({root: {**told, "runtime_error": words}}, indent=3)


def _new(
    number: tuple[int, ...],
    level: int,
    gpus: Sequence[int],
    faults: tuple[Fault, ...],
    skips: tuple[Skip, ...],
    absent: frozenset[tuple[str, int]],
) -> dict[str, Any]:
    categories: dict[str, list[dict[str, Any]]] = {}
    for test in TESTS[level]:
        rows = []
        here = [f for f in faults if f.test == test]
        for gpu in gpus:
            if (test, gpu) in absent:
                continue
            mine = [f for f in here if f.gpu == gpu]
            skip = next((s for s in skips if (s.test, s.gpu) == (test, gpu)), None)
            row: dict[str, Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu}
            everybodys = test == "software" and any(f.error_id not in OWN_ROW for f in here)
            row["status"] = mine[0].status if mine else "Skip" if skip else "Pass"
            if everybodys and not mine:
                row["status"] = "Fail"
            if mine:
                row["warnings"] = [_item(f) for f in mine]
            if skip:
                row["info"] = [skip.info]
            rows.append(row)
        whole = "Fail" if any(f.status == "Fail" for f in here) else "Pass"
        repeated = here if number >= (4, 5) else [f for f in here if f.gpu is None]
        summary: dict[str, Any] = {"status": whole}
        if repeated:
            summary["warnings"] = [_item(f) for f in repeated]
        entry: dict[str, Any] = {"name": test, "test_summary": summary}
        if rows:
            entry["results"] = rows
        categories.setdefault(CATEGORY.get(test, "Hardware"), []).append(entry)
    return {
        "test_categories": [
            {"category": name, "tests": tests} for name, tests in categories.items()
        ]
    }


def _item(fault: Fault, key: str = "warning") -> dict[str, Any]:
    return {
        key: fault.text,
        "error_id": fault.error_id,
        "error_severity": fault.severity,
        "error_category": fault.category,
    }


def _old(
    number: tuple[int, ...],
    level: int,
    gpus: Sequence[int],
    faults: tuple[Fault, ...],
    skips: tuple[Skip, ...],
    absent: frozenset[tuple[str, int]],
) -> dict[str, Any]:
    categories: dict[str, list[dict[str, Any]]] = {"Deployment": []}
    for name in DEPLOYMENT:
        here = [f for f in faults if f.test == "software" and f.old == name]
        categories["Deployment"].append({"name": name, "results": _deployment(number, here)})
    for test in TESTS[level]:
        if test not in OLD_NAMES:
            continue
        rows: list[dict[str, Any] | None] = []
        for gpu in gpus:
            if (test, gpu) in absent:
                rows.append(None)
                continue
            mine = [f for f in faults if (f.test, f.gpu) == (test, gpu)]
            skip = next((s for s in skips if (s.test, s.gpu) == (test, gpu)), None)
            row: dict[str, Any] = {"gpu_ids" if number < (3, 3) else "gpu_id": str(gpu)}
            row["status"] = mine[0].status if mine else "Skip" if skip else "Pass"
            if mine and number < (3, 3):
                row["warnings"] = mine[-1].text  # there is room for one
                if number >= (3, 2, 5):
                    row["error_id"] = mine[-1].error_id
            elif mine:
                row["warnings"] = [_item(f) for f in mine]
            if skip:
                row["info"] = skip.info
            rows.append(row)
        if any(rows):
            categories.setdefault(CATEGORY.get(test, "Hardware"), []).append(
                {"name": OLD_NAMES[test], "results": rows}
            )
    return {
        "test_categories": [
            {"category": name, "tests": tests} for name, tests in categories.items()
        ]
    }


def _deployment(number: tuple[int, ...], faults: list[Fault]) -> list[dict[str, Any]]:
    if not faults:
        return [{"status": "Pass"}]
    if number < (3, 3):
        return [{"status": faults[-1].status, "warnings": faults[-1].text}]
    if number < (3, 3, 3):
        rows = [_item(f, "warnings") for f in faults]
        rows[0]["status"] = faults[0].status
        return rows
    last = faults[-1].gpu
    return [
        {
            "status": faults[0].status,
            "gpu_id": -1 if last is None else last,
            "warnings": [_item(f, "warnings") for f in faults],
        }
    ]
