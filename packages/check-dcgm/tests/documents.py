"""A document of DCGM 4 with any tests and any errors in it, also such as no engine prints."""

from __future__ import annotations

import json
from typing import Any


def fault(
    error_id: int | None = 52,
    severity: int | None = 2,
    category: int | None = 10,
    text: str = "14 errors",
) -> dict[str, Any]:
    return {"text": text, "error_id": error_id, "severity": severity, "category": category}


def v4(tests: dict[str, dict[int, list[dict[str, Any]]]]) -> str:
    """DCGM 4: root key, ints, lists, test_summary."""
    listed = []
    for name, by_gpu in tests.items():
        rows = []
        for gpu, problems in by_gpu.items():
            row: dict[str, Any] = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu}
            row |= {"status": "Fail" if problems else "Pass", "info": []}
            if problems:
                row["warnings"] = [_warning(p) for p in problems]
            rows.append(row)
        listed.append({"name": name, "results": rows, "test_summary": {"status": "Pass"}})
    document = {"test_categories": [{"category": "Hardware", "tests": listed}]}
    return json.dumps(
        {"DCGM Diagnostic": document, "entity_groups": [], "metadata": {"version": "4.4.1"}}
    )


def _warning(problem: dict[str, Any]) -> dict[str, Any]:
    keys = {
        "warning": "text",
        "error_id": "error_id",
        "error_severity": "severity",
        "error_category": "category",
    }
    return {key: problem[source] for key, source in keys.items() if problem[source] is not None}
