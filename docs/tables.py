"""Tables of the manual that are made from the code: metrics, variables, values, reasons.

Cog runs what stands between `[[[cog` and `]]]` of a Markdown file and replaces what follows up to
`[[[end]]]`:

    <!-- [[[cog import tables; tables.metrics("preflight-gang") ]]] -->
    <!-- [[[end]]] -->

`nox -s codegen` does it for every file that has such a place, and fails where one was not up to
date.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module, resources
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cog
import yaml
from prometheus_client import CollectorRegistry

CHARTS = Path(__file__).resolve().parents[1] / "charts" / "preflight" / "charts"
_TOTAL = {"counter": "_total"}


def _gang() -> CollectorRegistry:
    metrics = import_module("preflight_gang.metrics").Metrics()
    metrics.follow(SimpleNamespace(requests=_requests(), mirrors=_mirrors()))
    return _of(metrics)


def _webhook() -> CollectorRegistry:
    return _of(import_module("preflight_webhook.metrics").Metrics())


def _mnnvl() -> CollectorRegistry:
    module = import_module("preflight_mnnvl.metrics")
    controller, webhook = module.Metrics(), module.Metrics()
    client = SimpleNamespace(requests=_requests(), mirrors=_mirrors())
    controller.controller(lambda: 0.0, client)
    webhook.admission(client)
    return _together(webhook.registry, controller.registry)


def _appwrapper() -> CollectorRegistry:
    metrics = import_module("preflight_appwrapper.metrics").Metrics()
    metrics.follow(SimpleNamespace(requests=_requests(), mirrors=_mirrors()))
    return _of(metrics)


def _compute_domain_controller() -> CollectorRegistry:
    metrics = import_module("preflight_computedomain.metrics").ControllerMetrics()
    metrics.show(SimpleNamespace(requests=_requests(), mirrors=_mirrors()), dict)
    return _of(metrics)


def _compute_domain_plugin() -> CollectorRegistry:
    return _of(import_module("preflight_computedomain.metrics").PluginMetrics("node"))


def _gpu_scheduler() -> CollectorRegistry:
    metrics = import_module("preflight_gpu_scheduler.metrics")
    extender, controller, node = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    metrics.ExtenderMetrics(extender)
    metrics.GpuControllerMetrics(controller).follow(SimpleNamespace(mirrors=_mirrors()))
    metrics.AgentMetrics(node)
    return _together(extender, controller, node)


PROGRAMS: dict[str, Callable[[], CollectorRegistry]] = {
    "preflight-webhook": _webhook,
    "preflight-gang": _gang,
    "preflight-mnnvl": _mnnvl,
    "preflight-appwrapper": _appwrapper,
    "compute-domain-controller": _compute_domain_controller,
    "compute-domain-kubelet-plugin": _compute_domain_plugin,
    "preflight-gpu-scheduler": _gpu_scheduler,
}


def metrics(program: str) -> None:
    """Each metric of a program, as its own help says it, without those of its libraries."""
    rows = []
    for name, kind, help_text, labels in _described(PROGRAMS[program]()):
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append((f"`{name}{_TOTAL.get(kind, '')}`", kind, shown, help_text))
    _table(("metric", "type", "labels", "meaning"), rows)


def variables(check: str) -> None:
    """Each variable of a check, as the schema says that is published with its image."""
    schema = json.loads(
        resources.files("preflight_proto.settings").joinpath(f"{check}.json").read_text()
    )
    needed = schema.get("required", [])
    _table(
        ("variable", "meaning", "default"),
        [
            (
                f"`{name}`",
                one["description"],
                "required" if name in needed else _code(one.get("default", "")),
            )
            for name, one in schema["properties"].items()
        ],
    )


def versions() -> None:
    """Each component's version, image, chart and tag."""
    release = import_module("preflight_e2e.release")
    cog.out(release.table(release.components(release.read(release.ROOT))))


DOCUMENTS = (  # what it is, where it is, who writes and who reads it, its version's module or kind, its golden files
    ("stamp of a gang", "pods", "preflight-webhook", "preflight-gang", "preflight_proto.stamp", "proto", "stamp"),
    ("roster", "pods", "preflight-gang", "gang-wide checks", "preflight_proto.roster", "proto", "roster"),
    ("claims at admission", "pods", "preflight-webhook", "preflight-gang", "preflight_proto.admitted", "proto", "claims"),
    ("topology of a node", "pods", "preflight-gang", "NCCL checks", "", "proto", "topology"),
    ("result", "termination messages", "checks", "preflight-gang", "preflight_proto.result", "proto", "result"),
    ("PreflightConfig", "its kind", "people", "preflight-webhook, preflight-gang", "preflight_proto.policy", "proto", "preflightconfig"),
    ("record of a gang", "ConfigMaps", "preflight-gang", "the next leader", "", "gang", "configmap"),
    ("NodeHealth", "its kind", "preflight-gang", "people, preflight-cli", "preflight_kube.api.node_health", "kube", "nodehealth"),
    ("lock of a GPU", "Leases", "preflight-gpu-scheduler", "its next replica", "", "gpu-scheduler", "lease"),
    ("decision about a PodClique", "PodCliques", "preflight-mnnvl", "its controller", "preflight_mnnvl.api.annotations", "mnnvl", "decision"),
    ("checkpoint", "nodes", "preflight-computedomain", "its next plugin", "", "computedomain", "v"),
)  # fmt: skip


def documents() -> None:
    """What crosses a border, and which versions readers take: those of the golden files."""
    rows = []
    for name, place, writer, reader, module, member, file in DOCUMENTS:
        golden = CHARTS.parents[2] / "packages" / f"preflight-{member}" / "tests" / "golden"
        read = {path.parent.name for path in golden.glob(f"v*/{file}*.json")}
        read |= {path.stem for path in golden.glob(f"{file}[0-9].json")}
        written = getattr(import_module(module), "VERSION", "") if module else max(read)
        version = written if isinstance(written, str) else f"v{written}"
        if version not in read:
            raise ValueError(f"{name}: no golden file of version {version} in {golden}; write one.")
        rows.append((name, place, writer, reader, version, ", ".join(sorted(read))))
    _table(("document", "where", "written by", "read by", "version", "versions read"), rows)


def values(chart: str) -> None:
    """Each value of a chart: what its schema says, and the default of its values.yaml."""
    folder = CHARTS / chart
    schema = json.loads((folder / "values.schema.json").read_text())
    given = yaml.safe_load((folder / "values.yaml").read_text()) or {}
    _table(
        ("value", "default", "meaning"), list(_values(schema, given, schema.get("$defs", {}), ""))
    )


def _values(
    schema: Any, given: Any, definitions: Any, above: str
) -> Iterator[tuple[str, str, str]]:
    for key, said in sorted(schema.get("properties", {}).items()):
        if (above + key) == "global":
            continue
        one = _resolved(said, definitions)
        default = (
            given.get(key, one.get("default", ""))
            if isinstance(given, dict)
            else one.get("default", "")
        )
        if one.get("properties"):
            yield from _values(one, default, definitions, f"{above}{key}.")
        else:
            yield f"`{above}{key}`", _code(default), one.get("description", "")


def _resolved(schema: Any, definitions: Any) -> Any:
    """The schema with what its `$ref` names; what stands beside the reference wins."""
    found = schema
    while "$ref" in found:
        beside = {key: value for key, value in found.items() if key != "$ref"}
        found = {**definitions[found["$ref"].removeprefix("#/$defs/")], **beside}
    return found


def _described(registry: CollectorRegistry) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    seen = set()
    for collector in list(
        registry._collector_to_names
    ):  # the only place that knows labels without series
        for family in collector.collect():
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            if family.name not in seen:
                seen.add(family.name)
                yield family.name, family.type, family.documentation, tuple(labels)


def _of(metrics: Any) -> CollectorRegistry:
    registry: CollectorRegistry = metrics.registry
    return registry


def _together(*registries: CollectorRegistry) -> CollectorRegistry:
    """One registry with the collectors of all; of two of one name the first one's."""
    found = CollectorRegistry()
    for registry in registries:
        for collector, names in registry._collector_to_names.items():
            if not any(name in found._names_to_collectors for name in names):
                found.register(collector)
    return found


def _requests() -> Any:
    return SimpleNamespace(count=Counter(), bytes=Counter())


def _mirrors() -> Any:
    return SimpleNamespace(behind=dict, unreadable={})


def _code(value: Any) -> str:
    if value in ("", None, {}, []):
        return ""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> None:
    lines = [head, tuple("---" for _ in head), *rows]
    cog.outl()
    for line in lines:
        cog.outl(
            "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |"
        )
    cog.outl()
