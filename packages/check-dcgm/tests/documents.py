"""Documents in the shapes that DCGM's versions print, written from their documented differences."""

from __future__ import annotations

import json
from typing import Any

Warnings = list[dict[str, Any]]


def fault(
    error_id: int | None = 52,
    severity: int | None = 2,
    category: int | None = 10,
    text: str = "14 errors",
) -> dict[str, Any]:
    return {"text": text, "error_id": error_id, "severity": severity, "category": category}


def v4(
    tests: dict[str, dict[int, list[dict[str, Any]]]],
    *,
    skip: tuple[int, ...] = (),
    group: str = "GPU",
) -> str:
    """DCGM 4: root key, ints, lists, test_summary."""
    listed = []
    for name, by_gpu in tests.items():
        rows = []
        for gpu, problems in by_gpu.items():
            status = "Skip" if gpu in skip else "Fail" if problems else "Pass"
            row: dict[str, Any] = {
                "entity_group": group,
                "entity_group_id": 1 if group == "GPU" else 7,
                "entity_id": gpu,
                "status": status,
                "info": [],
            }
            if problems:
                row["warnings"] = [_warning(p) for p in problems]
            rows.append(row)
        listed.append({"name": name, "results": rows, "test_summary": {"status": "Pass"}})
    document = {"test_categories": [{"category": "Hardware", "tests": listed}]}
    return json.dumps(
        {"DCGM Diagnostic": document, "entity_groups": [], "metadata": {"version": "4.4.1"}}
    )


def v3(tests: dict[str, dict[int, list[dict[str, Any]]]], *, version: str = "3.3.9") -> str:
    """DCGM 3: another root key, gpu_id as text, null for GPUs not run, one row for deployment
    tests.
    """
    listed = []
    for name, by_gpu in tests.items():
        rows: list[dict[str, Any] | None]
        if name in {"Denylist", "Persistence Mode"}:
            problems = [(gpu, p) for gpu, found in by_gpu.items() for p in found]
            row: dict[str, Any] = {"status": "Fail" if problems else "Pass"}
            if problems:
                row["warnings"] = [
                    {"warnings": p["text"], "error_id": p["error_id"], "gpu_id": str(gpu)}
                    for gpu, p in problems
                ]
            rows = [row]
        else:
            rows = [None]
            for gpu, found in by_gpu.items():
                rows.append(
                    {
                        "gpu_id": str(gpu),
                        "status": "Fail" if found else "Pass",
                        "info": "x",
                        **({"warnings": [_warning(p) for p in found]} if found else {}),
                    }
                )
        listed.append({"name": name, "results": rows})
    return json.dumps(
        {
            "DCGM GPU Diagnostic": {
                "version": version,
                "GPU Device IDs": ["20b0"],
                "test_categories": [{"category": "Hardware", "tests": listed}],
            }
        }
    )


def _warning(problem: dict[str, Any]) -> dict[str, Any]:
    keys = {
        "warning": "text",
        "error_id": "error_id",
        "error_severity": "severity",
        "error_category": "category",
    }
    return {key: problem[source] for key, source in keys.items() if problem[source] is not None}
