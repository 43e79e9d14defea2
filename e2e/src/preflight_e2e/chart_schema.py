"""Makes each chart's values.schema.json: what the service says of its configuration, and what the
chart adds. And the charts' custom resource definitions, as the programs print them.

    python -m preflight_e2e.chart_schema       # asks the services, which must be on PATH

A service's schema is the one that it checks its configuration file with, so a value that Helm takes
is one that the service takes. ``charts/schema/CHART.json`` adds to it:

- ``properties``, ``$defs``: values that say how the chart itself is deployed; those that all
  charts have are in ``charts/schema/common.json``: ``each`` of them; ``shared`` stand in
  ``global.preflight`` for all of them, too; ``webhook`` in every chart that has one; ``global``;
- ``stricter``: merged over the service's schema, for what the service says in code and not in its
  schema;
- ``descriptions``: by ``Definition.key`` (``Values.key`` at the top). They win over the service's
  own.

The umbrella's schema knows the parts by name.

Each chart also gets its copy of the library chart ``preflight-common``, so that its folder alone is
all that an install needs: a link would not do, which Flux drops and Helm comments on.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from preflight_testing.helm import CHARTS, COMPUTEDOMAIN, GANG, INJECTOR, PARTS, UMBRELLA

SERVICES: dict[Path, tuple[str, ...]] = {
    INJECTOR: ("preflight-webhook", "schema"),
    GANG: ("preflight-gang", "schema"),
    **{
        PARTS / name: (name, "schema")
        for name in (
            "preflight-appwrapper",
            "preflight-computedomain",
            "preflight-gpu-scheduler",
            "preflight-mnnvl",
        )
        if (PARTS / name).is_dir()
    },
}
"""What to ask for the schema of the configuration that a chart's values hold."""

DEFINITIONS: dict[Path, tuple[str, ...]] = {
    GANG / "generated" / "definitions.yaml": ("preflight-gang", "crd"),
    PARTS / "preflight-appwrapper" / "generated" / "appwrappers.yaml": (
        "preflight-appwrapper",
        "crd",
    ),
    COMPUTEDOMAIN / "generated" / "computedomains.yaml": ("preflight-computedomain", "crd"),
    PARTS / "preflight-gpu-scheduler" / "generated" / "definitions.yaml": (
        "preflight-gpu-scheduler",
        "crd",
    ),
}
"""Each chart's file of custom resource definitions, and what prints it."""
COMMON = CHARTS / "preflight-common"
"""The library chart on which all charts stand."""
ALIKE: frozenset[str] = frozenset(json.loads((CHARTS / "schema/common.json").read_text())["each"])
"""Values of every chart, which stand in the charts' READMEs and in no values.yaml."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]


def combined(config: Schema, deployment: Schema, chart: str) -> Schema:
    """One schema for the chart's values. Raises ValueError when both know a key by the same name,
    or a description is of no key.
    """
    definitions: Schema = dict(config.get("$defs", {}))
    top = config
    while "$ref" in top:
        top = definitions.pop(top["$ref"].removeprefix("#/$defs/"))
    if both := sorted({*top["properties"]} & {*deployment["properties"]}) + sorted(
        {*definitions} & {*deployment["$defs"]}
    ):
        raise ValueError(
            f"{chart}: both the service and the chart define {', '.join(both)}; rename one of them."
        )
    schema = {
        "$schema": DIALECT,
        "title": f"Values of the chart {chart}. Generated from the service's and charts/schema",
        "type": "object",
        "additionalProperties": False,
        "properties": {**top["properties"], **deployment["properties"]},
        "patternProperties": {f"^{COMMON.name}$": {"type": "object"}},  # Helm's; it has no values
        "required": top.get("required", []),
        "$defs": {**definitions, **deployment["$defs"]},
    }
    schema = merged(schema, deployment.get("stricter", {}))
    for definition in schema["$defs"].values():
        definition.pop("description", None)  # that of a class, for readers of its source
    describe(schema, deployment.get("descriptions", {}), chart)
    return removable(schema)


def merged(below: Any, above: Any) -> Any:
    """``above`` laid over ``below``; maps key by key."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{key: merged(below.get(key), value) for key, value in above.items()}}
    return above


def describe(schema: Schema, descriptions: dict[str, str], chart: str) -> None:
    """Give each key that ``descriptions`` names its description. Raises ValueError for one that
    names none.
    """
    named = {"Values": schema, **schema["$defs"]}
    for path, text in descriptions.items():
        definition, *keys = path.split(".")
        place: Any = named.get(definition, {})
        for key in keys:
            place = place.get("properties", {}).get(key, {})
        if not place:
            raise ValueError(
                f"{chart}: there is no {path} to describe; correct charts/schema/{chart}.json."
            )
        place["description"] = text


def removable(schema: Schema) -> Schema:
    """``schema`` with null for every list and map, by which Helm's users take a key away; not for
    the items of a list.
    """
    items = {item["$ref"].rpartition("/")[2] for item in _items(schema) if "$ref" in item}

    def with_null(part: Any, *, item: bool) -> Any:
        if isinstance(part, list):
            return [with_null(entry, item=True) for entry in part]
        if not isinstance(part, dict):
            return part
        relaxed: Schema = {}
        for key, value in part.items():
            if key in {"properties", "$defs"}:
                relaxed[key] = {
                    name: with_null(entry, item=name in items and key == "$defs")
                    for name, entry in value.items()
                }
            elif key in {"default", "enum", "const", "required"}:
                relaxed[key] = value
            else:
                relaxed[key] = with_null(value, item=True)
        if not item and part.get("type") in ("array", "object"):
            relaxed["type"] = [part["type"], "null"]
        return relaxed

    nullable: Schema = with_null(schema, item=True)
    return nullable


def _items(part: Any) -> list[Schema]:
    if isinstance(part, list):
        return [item for entry in part for item in _items(entry)]
    if not isinstance(part, dict):
        return []
    own = [part["items"]] if isinstance(part.get("items"), dict) else []
    return own + [item for entry in part.values() for item in _items(entry)]


def umbrella(parts: dict[str, Schema]) -> Schema:
    """The umbrella's schema: which parts there are, and what they share. Helm checks each part by
    the part's own schema, so what stands there is not repeated here: a mistake would be told
    twice."""
    part: Schema = {"type": "object"}
    charts = {
        name: {**part, "description": f"Values of the part {name}: those of its own chart."}
        for name in parts
    }
    for name, own in parts.items():
        charts[name]["properties"] = {"enabled": own["properties"]["enabled"]}
    shared = {
        key: value
        for key, value in next(iter(parts.values()))["properties"]["global"].items()
        if key != "properties"
    }
    return {
        "$schema": DIALECT,
        "title": "Values of the chart preflight. Generated from those of its parts",
        "type": "object",
        "additionalProperties": False,
        "properties": {**charts, "global": shared},
    }


def output_of(*command: str) -> bytes:
    """What a service prints. Raises OSError, CalledProcessError."""
    return subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout


def main() -> int:
    try:
        parts = {}
        for chart, command in SERVICES.items():
            deployment = json.loads((CHARTS / "schema" / f"{chart.name}.json").read_text())
            common = json.loads((CHARTS / "schema" / "common.json").read_text())
            properties = deployment["properties"]
            properties |= common["shared"] | common["each"]
            if "webhook" in properties:
                own = properties["webhook"]["properties"]
                properties["webhook"]["properties"] = common["webhook"] | own
            shared = properties["global"].setdefault("properties", {})
            shared |= common["global"]
            shared.setdefault("preflight", {}).setdefault("properties", {}).update(common["shared"])
            parts[chart.name] = combined(json.loads(output_of(*command)), deployment, chart.name)
            _write(chart, parts[chart.name])
            vendor(COMMON, chart / "charts" / COMMON.name)
        _write(UMBRELLA, umbrella(parts))
        for file, command in DEFINITIONS.items():
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(
                f"# What `{' '.join(command)}` prints. Do not edit.\n".encode()
                + output_of(*command)
            )
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"chart_schema: {error}", file=sys.stderr)
        return 2
    return 0


def vendor(library: Path, place: Path) -> None:
    """A copy that is as it should be is left alone: tests may be reading it."""
    if _files(place) != _files(library):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(library, place)


def _files(folder: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def _write(chart: Path, schema: Schema) -> None:
    (chart / "values.schema.json").write_text(json.dumps(schema, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
