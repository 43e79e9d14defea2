"""The umbrella chart by the values of its parts: what it makes, and what the tests of charts ask of
that.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from helm_python import Chart
from preflight_testing.helm import (
    COMPUTEDOMAIN,
    GANG,
    GPU_SCHEDULER,
    INJECTOR,
    PARTS,
    REQUIRED,
    UMBRELLA,
    Object,
    Values,
    render,
)

APPWRAPPER, MNNVL = PARTS / "preflight-appwrapper", PARTS / "preflight-mnnvl"
ALL = sorted(PARTS.iterdir())
ADR: Values = yaml.safe_load(
    (Path(__file__).parents[2] / "tests/data/adr-026-values.yaml").read_text()
)
SOURCE = {
    "name": "ours",
    "group": "scheduling.example.com",
    "resource": "podgroups",
    "kind": "PodGroup",
    "size": "spec.minMember",
    "podLabel": "scheduling.example.com/pod-group",
}
"""A source of gangs."""


def on(part: Path, **values: Any) -> Values:
    """Values of the umbrella that switch one part on."""
    return {part.name: {"enabled": True, **REQUIRED.get(part, {}), **values}}


injector, gang, scheduler = (partial(on, part) for part in (INJECTOR, GANG, GPU_SCHEDULER))
wrapper, channels, mnnvl = (partial(on, part) for part in (APPWRAPPER, COMPUTEDOMAIN, MNNVL))


def shared(**values: Any) -> Values:
    """Injector and gang controller, and values that are written once for all."""
    return {**injector(), **gang(), "global": {"preflight": values}}


def rendered(part: Path, namespace: str = "preflight", **values: Any) -> list[Object]:
    """Objects of one part, which alone makes what it makes under the umbrella."""
    return render(part, {**REQUIRED.get(part, {}), **values}, namespace=namespace)


def of(kind: str, objects: Iterable[Object]) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


def named(kind: str, objects: Iterable[Object]) -> dict[str, Object]:
    """Objects of a kind by their names."""
    return {o["metadata"]["name"]: o for o in of(kind, objects)}


def specs(kind: str, objects: Iterable[Object]) -> dict[str, Object]:
    """Specs of a kind by what the names have after that of the part."""
    return {
        name.removeprefix(f"{o['metadata']['labels']['app.kubernetes.io/name']}-"): o["spec"]
        for name, o in named(kind, objects).items()
    }


def templates(objects: Iterable[Object]) -> dict[str, Object]:
    """Templates of pods, by the kind and name of what makes them."""
    kinds = {"Deployment", "DaemonSet", "Job", "CronJob"}
    return {
        f"{o['kind']}/{o['metadata']['name']}": o["spec"].get("jobTemplate", o)["spec"]["template"]
        for o in objects
        if o["kind"] in kinds
    }


def configs(values: Values) -> dict[str, Any]:
    """Configuration of each part, by the name of its ConfigMap."""
    return {
        name: yaml.safe_load(o["data"]["config.yaml"])
        for name, o in named("ConfigMap", render(UMBRELLA, values)).items()
        if "config.yaml" in o["data"]
    }


def verbs(role: Object) -> dict[tuple[str, str], set[str]]:
    """Verbs by API group and resource."""
    given: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for each in itertools.product(rule["apiGroups"], rule["resources"]):
            given.setdefault(each, set()).update(rule["verbs"])
    return given


def notes(values: Values) -> str:
    """Notes that Helm prints after an install."""
    with Chart.load(UMBRELLA) as chart:
        files = chart.render(values, name="preflight", namespace="preflight", revision=1)
    return str(files["preflight/templates/NOTES.txt"])
