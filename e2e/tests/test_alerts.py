"""What alerts and dashboards ask for exists: metrics, ports, leases and the pods of a monitor."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.helm import PARTS, REQUIRED, render

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
CHARTS = sorted(path.parent.name for path in PARTS.glob("*/Chart.yaml"))
ADMISSION = PACKAGES / "preflight-kube/src/preflight_kube/admission/metrics.py"
WORDS = {
    *("absent", "by", "controller", "count", "histogram_quantile", "increase", "le", "max", "min"),
    *("or", "pod", "rate", "sum", "time", "up"),
    *("check", "error_code", "exported_namespace", "node", "reason", "watcher"),
    *("error_type", "forced", "kind", "operation", "path", "phase", "port", "program", "result"),
    *("source", "state", "status", "verb", "version"),
}
"""Of PromQL, and labels by which is summed."""


def rendered(chart: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return render(PARTS / chart, {**REQUIRED.get(PARTS / chart, {}), **values})


def of(kind: str, objects: list[dict[str, Any]]) -> dict[str, Any]:
    [found] = [item for item in objects if item["kind"] == kind]
    return found


def metrics(chart: str) -> Iterator[str]:
    """Those of the chart's programs, of the table that is made from their code."""
    package = chart.replace("preflight-injector", "preflight-webhook")
    rows = re.findall(
        r"^\| `(\w+)` \| (\w+) \|", (PACKAGES / package / "README.md").read_text(), re.M
    )
    for name, kind in rows:
        yield f"{name}_bucket" if kind == "histogram" else name
    used = (PACKAGES / package / "src").rglob("service.py")
    for prefix in re.findall(r'AdmissionMetrics\("(\w+)"', "".join(p.read_text() for p in used)):
        for name in re.findall(r'f"\{prefix\}(_\w+)"', ADMISSION.read_text()):
            yield f"{prefix}{name}"


@pytest.mark.parametrize("chart", CHARTS)
def test_without_being_asked_for_a_chart_has_neither_monitor_nor_alerts(chart: str) -> None:
    kinds = {item["kind"] for item in rendered(chart, {})}
    assert not kinds & {"PodMonitor", "PrometheusRule"}


@pytest.mark.parametrize("chart", CHARTS)
def test_every_metric_and_lease_of_an_alert_is_one_of_the_charts_programs(chart: str) -> None:
    objects = rendered(chart, {"alerts": {"enabled": True}})
    [group] = of("PrometheusRule", objects)["spec"]["groups"]
    leases = {item["metadata"]["name"] for item in objects if item["kind"] == "Lease"}
    known = {*metrics(chart)}
    assert len(group["rules"]) >= 5
    for rule in group["rules"]:
        assert asked(rule["expr"]) <= known, rule["alert"]
        assert {*re.findall(r',name="([^"]*)"', rule["expr"])} <= leases, rule["alert"]
        assert {*rule["annotations"]} == {"summary", "description"}
        assert all(text.endswith((".", ").")) for text in rule["annotations"].values())


def asked(expression: str) -> set[str]:
    """The metrics of a PromQL expression."""
    bare = re.sub(r'\{[^}]*\}|\[[^]]*\]|"[^"]*"', "", expression)
    return {*re.findall(r"[a-z_]{2,}", bare)} - WORDS


@pytest.mark.parametrize("chart", CHARTS)
def test_every_metric_of_a_dashboard_is_one_of_the_charts_programs(chart: str) -> None:
    shared = {"global": {"preflight": {"alerts": {"dashboards": True}}}}
    boards = [
        item
        for item in rendered(chart, shared)
        if item["kind"] == "ConfigMap" and "grafana_dashboard" in item["metadata"]["labels"]
    ]
    assert boards
    known = {*metrics(chart)}
    for item in boards:
        [(name, text)] = item["data"].items()
        board = json.loads(text)
        assert name == f"{board['uid']}.json"
        for panel in board["panels"]:
            for target in panel["targets"]:
                assert asked(target["expr"]) <= known, panel["title"]
                assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= WORDS | {"pod"}


@pytest.mark.parametrize("chart", CHARTS)
def test_a_monitor_of_all_parts_finds_the_pods_of_each_and_their_port(chart: str) -> None:
    shared = {"global": {"preflight": {"alerts": {"enabled": True, "labels": {"release": "p"}}}}}
    objects = rendered(chart, shared)
    monitor = of("PodMonitor", objects)
    assert monitor["metadata"]["labels"]["release"] == "p"
    assert of("PrometheusRule", objects)["metadata"]["labels"]["release"] == "p"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    [endpoint] = monitor["spec"]["podMetricsEndpoints"]
    templates = [
        item["spec"]["template"] for item in objects if item["kind"] in {"Deployment", "DaemonSet"}
    ]
    ports = [
        [port["name"] for one in template["spec"]["containers"] for port in one.get("ports", ())]
        for template in templates
        if wanted <= template["metadata"]["labels"].items()
    ]
    assert any(endpoint["port"] in names for names in ports)
    assert all(endpoint["port"] in names for names in ports if names)
