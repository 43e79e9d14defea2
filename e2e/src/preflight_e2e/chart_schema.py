"""Makes the chart's values.schema.json: what the webhook says of its configuration, and what the chart adds.

    python -m preflight_e2e.chart_schema       # asks `preflight-webhook schema`, which must be on PATH

The webhook's schema is the one that it checks its configuration file with, so a value that Helm takes is one that
the webhook takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from preflight_e2e.helm import CHARTS, INJECTOR

DEPLOYMENT = CHARTS / "schema" / f"{INJECTOR.name}.json"
RESULT = INJECTOR / "values.schema.json"

Schema = dict[str, Any]


def combined(config: Schema, deployment: Schema) -> Schema:
    """One schema for the chart's values. Raises ValueError when both know a key by the same name."""
    definitions: Schema = dict(config.get("$defs", {}))
    top = config
    while "$ref" in top:
        top = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    if both := sorted({*top["properties"]} & {*deployment["properties"]}) + sorted(
        {*definitions} & {*deployment["$defs"]}
    ):
        raise ValueError(f"both the webhook and the chart define {', '.join(both)}; rename one of them.")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the chart preflight-injector. Generated from the webhook's and charts/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {**top["properties"], **deployment["properties"]},
        "required": top.get("required", []),
        "$defs": {**definitions, **deployment["$defs"]},
    }


def main() -> int:
    try:
        said = subprocess.run(["preflight-webhook", "schema"], stdout=subprocess.PIPE, check=True).stdout
        schema = combined(json.loads(said), json.loads(DEPLOYMENT.read_text()))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"chart_schema: {error}", file=sys.stderr)
        return 2
    RESULT.write_text(json.dumps(schema, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
