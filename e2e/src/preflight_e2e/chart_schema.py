"""Makes each chart's values.schema.json: what the service says of its configuration, and what the chart adds. And the gang
chart's definition of PreflightConfig, as the controller says it.

    python -m preflight_e2e.chart_schema       # asks the services, which must be on PATH

A service's schema is the one that it checks its configuration file with, so a value that Helm takes is one that
the service takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from preflight_e2e.helm import CHARTS, GANG, INJECTOR

SERVICES: dict[Path, tuple[str, ...]] = {
    INJECTOR: ("preflight-webhook", "schema"),
    GANG: ("preflight-gang", "schema"),
}
"""What to ask for the schema of the configuration that a chart's values hold."""

CRD = GANG / "generated" / "preflightconfigs.yaml"

Schema = dict[str, Any]


def combined(config: Schema, deployment: Schema, chart: str) -> Schema:
    """One schema for the chart's values. Raises ValueError when both know a key by the same name."""
    definitions: Schema = dict(config.get("$defs", {}))
    top = config
    while "$ref" in top:
        top = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    if both := sorted({*top["properties"]} & {*deployment["properties"]}) + sorted(
        {*definitions} & {*deployment["$defs"]}
    ):
        raise ValueError(f"{chart}: both the service and the chart define {', '.join(both)}; rename one of them.")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Values of the chart {chart}. Generated from the service's and charts/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {**top["properties"], **deployment["properties"]},
        "required": top.get("required", []),
        "$defs": {**definitions, **deployment["$defs"]},
    }


def said(*command: str) -> bytes:
    """What a service prints. Raises OSError, CalledProcessError."""
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def main() -> int:
    try:
        for chart, command in SERVICES.items():
            deployment = json.loads((CHARTS / "schema" / f"{chart.name}.json").read_text())
            schema = combined(json.loads(said(*command)), deployment, chart.name)
            (chart / "values.schema.json").write_text(json.dumps(schema, indent=2, sort_keys=True) + "\n")
        CRD.parent.mkdir(exist_ok=True)
        CRD.write_bytes(b"# What `preflight-gang crd` prints. Do not edit.\n" + said("preflight-gang", "crd"))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"chart_schema: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
