"""What alerts and dashboards ask for exists: metrics, ports, leases and the pods of a monitor; and
by Prometheus' own promtool, each alert fires by its cause, once, and none where all is well.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from preflight_testing.helm import PARTS, REQUIRED, render

PACKAGES = Path(__file__).resolve().parents[2] / "packages"
CHARTS = sorted(path.parent.name for path in PARTS.glob("*/Chart.yaml"))
ADMISSION = PACKAGES / "preflight-kube/src/preflight_kube/admission/metrics.py"
WORDS = {
    *("absent", "and", "by", "controller", "count", "histogram_quantile", "increase", "le", "max"),
    *("min", "offset", "on", "or", "pod", "rate", "sum", "time", "unless", "up"),
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
    for role in (item for item in objects if item["kind"] == "Role"):  # of those that programs make
        for rule in role["rules"]:
            leases |= {*rule.get("resourceNames", ())} if rule["resources"] == ["leases"] else set()
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


@pytest.mark.parametrize("chart", ["preflight-gang", "preflight-gpu-scheduler"])
def test_nobody_is_missed_where_no_replica_is_wanted(chart: str) -> None:
    objects = rendered(chart, {"alerts": {"enabled": True}, "replicas": 0})
    [group] = of("PrometheusRule", objects)["spec"]["groups"]
    assert not [rule for rule in group["rules"] if "absent(" in rule["expr"]]


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


@pytest.mark.parametrize(
    ("board", "metric"),
    [
        ("preflight-computedomain/dashboards/domains.json", "nvidia_dra_compute_domain_info"),
        ("preflight-gpu-scheduler/dashboards/gpus.json", "gpu_scheduler_devices"),
    ],
)
def test_what_two_replicas_show_is_not_added_up(board: str, metric: str) -> None:
    panels = json.loads((PARTS / board).read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    [shown] = [expr for expr in expressions if metric in expr]
    assert shown.startswith("max ") or "leader_election_master_status == 1" in shown


def test_where_only_the_definition_is_installed_nothing_is_watched() -> None:
    off = {"resources": {"computeDomains": {"enabled": False}}, "alerts": {"enabled": True}}
    kinds = {item["kind"] for item in rendered("preflight-computedomain", off)}
    assert not kinds & {"PodMonitor", "PrometheusRule"}


@pytest.mark.parametrize("override", ["nameOverride", "fullnameOverride"])
@pytest.mark.parametrize("chart", CHARTS)
def test_alerts_and_dashboards_ask_for_the_pods_of_a_chart_of_another_name(
    chart: str, override: str
) -> None:
    alerts = {"enabled": True, "dashboards": True}
    objects = rendered(chart, {override: "ours", "alerts": alerts})
    job = f"preflight/{of('PodMonitor', objects)['metadata']['name']}"  # as the operator names it
    assert job.startswith("preflight/ours-")
    boards = [item["data"] for item in objects if item["metadata"]["name"].startswith("ours-dash")]
    texts = [board for data in boards for board in data.values()]
    texts.append(json.dumps(of("PrometheusRule", objects)))
    jobs = re.findall(r'job=(~?)\\"([^"]*)\\"', "".join(texts))
    assert boards
    assert jobs
    for regex, asked_for in jobs:
        assert re.fullmatch(asked_for if regex else re.escape(asked_for), job)


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


@pytest.mark.parametrize("chart", ["preflight-appwrapper", "preflight-injector", "preflight-mnnvl"])
@pytest.mark.parametrize(("lifetime", "days"), [(90, 7.0), (22, 7.0), (15, 4.8), (3, 0.8)])
def test_a_certificate_is_late_only_once_it_should_have_been_renewed(
    chart: str, lifetime: int, days: float
) -> None:
    values = {"alerts": {"enabled": True}, "certificates": {"lifetimeDays": lifetime}}
    [group] = of("PrometheusRule", rendered(chart, values))["spec"]["groups"]
    [late] = [r["expr"] for r in group["rules"] if r["alert"].endswith("CertificateEnds")]
    assert float(re.findall(r"< (\S+) \* 86400$", late)[0]) == pytest.approx(days, abs=0.06)


def test_a_node_without_gpus_is_not_told_of_unless_the_agent_is_only_where_they_are() -> None:
    def asked_of(**agent: Any) -> str:
        values = {"alerts": {"enabled": True}, "agent": agent}
        objects = rendered("preflight-gpu-scheduler", values)
        [group] = of("PrometheusRule", objects)["spec"]["groups"]
        [down] = [r["expr"] for r in group["rules"] if r["alert"] == "GpuSchedulerNvmlDown"]
        return str(down)

    assert "gpu_agent_devices" in asked_of()
    assert "gpu_agent_devices" not in asked_of(nodeSelector={"nvidia.com/gpu.present": "true"})


# --- fired

RUNNING: dict[str, dict[str, str]] = {
    "preflight-appwrapper": {
        'leader_election_master_status{name="preflight-appwrapper"}': "1",
        "appwrapper_mirror_behind_seconds": "0",
        "appwrapper_admission_certificate_expiry_seconds": "2592000",
        "appwrapper_deletion_blocked": "0",
        "appwrapper_evacuations_held": "0",
        "appwrapper_nodes_held": "0",
        "appwrapper_evacuations_in_a_row": "3",
    },
    "preflight-computedomain": {
        'leader_election_master_status{name="compute-domain-controller"}': "1",
        'compute_domain_behind{path="/api/v1/nodes"}': "0",
        "compute_domain_nvml_up": "1",
        "compute_domain_template_conflicts": "0",
        "compute_domain_stale_claims": "0",
    },
    "preflight-gang": {
        'leader_election_master_status{name="preflight-gang"}': "1",
        'preflight_gang_behind{path="/api/v1/pods"}': "0",
        'preflight_unchecked_pods{exported_namespace="a",reason="not-started"}': "0",
        'preflight_node_last_pass_timestamp_seconds{check="dcgm-diag",node="n"}': "0",
        'preflight_check_total{check="dcgm-diag",result="passed"}': "0+9",
        'preflight_check_total{check="dcgm-diag",result="inconclusive"}': "0+1",
        # A counter of a node is there from the node's first failure on.
        **{f'preflight_check_failures_total{{check="dcgm-diag",error_code="E",node="n{n}"}}': "0+1" for n in range(5)},
        'preflight_check_failures_total{check="dcgm-diag",error_code="E",node="n5"}': "_",
        # One sick node of a gang, which the others' codes say.
        **{f'preflight_check_failures_total{{check="nccl-allreduce",error_code="PEER_FAILED",node="n{n}"}}': "0+1" for n in range(8)},
    },
    "preflight-gpu-scheduler": {
        'leader_election_master_status{name="gpu-scheduler-controller"}': "1",
        "gpu_scheduler_mirror_behind_seconds": "0",
        "gpu_scheduler_webhook_admission_certificate_expiry_seconds": "2592000",
        "gpu_scheduler_unlocked_pods": "0",
        "gpu_scheduler_stale_nodes": "0",
        "gpu_scheduler_unknown_gpus": "0",
        "gpu_agent_nvml_up": "1",
        'gpu_agent_devices{health="Healthy"}': "8",
    },
    "preflight-injector": {
        "preflight_webhook_preflight_configs_behind": "0",
        "preflight_webhook_certificate_expiry_timestamp_seconds": "2592000",
        "preflight_webhook_config_valid": "1",
        'preflight_webhook_watching{watcher="configuration"}': "1",
        **{f'preflight_webhook_latency_seconds_bucket{{le="{le}"}}': "0+100" for le in ("1.0", "+Inf")},
    },
    "preflight-mnnvl": {
        'leader_election_master_status{name="preflight-mnnvl"}': "1",
        "mnnvl_mirror_behind_seconds": "0",
        "mnnvl_admission_certificate_expiry_seconds": "2592000",
        "mnnvl_unclaimed_podcliques": "0",
    },
}  # fmt: skip
"""By chart: what its programs show where all is well, as promtool writes series, one value a
minute. Time begins at 0."""
LED = {
    "preflight-appwrapper": {
        *("appwrapper_deletion_blocked", "appwrapper_evacuations_held", "appwrapper_nodes_held"),
        "appwrapper_evacuations_in_a_row",
    },
    "preflight-computedomain": {"compute_domain_template_conflicts"},
    "preflight-gpu-scheduler": {
        *("gpu_scheduler_unlocked_pods", "gpu_scheduler_stale_nodes", "gpu_scheduler_unknown_gpus"),
    },
}
"""By chart: what a replica that leads no more goes on showing as it was."""
OF_ALL = {
    "up": "1",
    'controller_runtime_reconcile_total{controller="c",result="success"}': "0+95",
    'controller_runtime_reconcile_total{controller="c",result="error"}': "0+5",
}
CAUSES: dict[str, tuple[str, str, dict[str, str]]] = {
    "NobodyAnswers": ("^up$", "0", {}),
    "NobodyLeads": ("leader", "0", {}),
    "ReconcilesFail": ('result="error"', "0+20", {"controller": "c"}),
    "CacheBehind": ("behind", "1", {}),
    "CertificateEnds": ("expiry", "518400", {}),
    "AppWrapperDeletionBlocked": ("blocked", "1", {}),
    "AppWrapperEvacuationsHeld": ("_held$", "1", {}),
    "AppWrapperEvacuationsInARow": ("in_a_row", "4", {}),
    "ComputeDomainNvmlDown": ("nvml_up", "0", {"pod": "p"}),
    "ComputeDomainTemplateConflict": ("conflicts", "1", {}),
    "ComputeDomainStaleClaims": ("stale", "1", {"pod": "p"}),
    "PreflightUncheckedPods": ("unchecked", "1", {"exported_namespace": "a", "reason": "not-started"}),
    "PreflightManyNodesFail": ('node="n5"', "_x100 1", {"check": "dcgm-diag", "error_code": "E"}),
    "PreflightNodeNotTested": ("last_pass", "-604800", {"node": "n"}),
    "PreflightInconclusive": ('"inconclusive"', "0+3", {"check": "dcgm-diag"}),
    "GpuSchedulerUnlockedPods": ("unlocked", "1", {}),
    "GpuSchedulerStaleNodes": ("stale", "1", {}),
    "GpuSchedulerUnknownGpus": ("unknown", "1", {}),
    "GpuSchedulerNvmlDown": ("nvml_up", "0", {"pod": "p"}),
    "PreflightInjectorConfigRefused": ("config_valid", "0", {}),
    "PreflightInjectorSlow": ('le="1.0"', "0+98", {}),
    "PreflightInjectorBlind": ("watching", "0", {"watcher": "configuration"}),
    "MnnvlUnclaimedPodCliques": ("unclaimed", "1", {}),
}  # fmt: skip
"""By alert, or by the end of its name where all charts have it: which series show what else then, a
pattern and the values, and the labels with which it fires."""


def cause(alert: str) -> tuple[str, str, dict[str, str]]:
    [found] = [name for name in CAUSES if alert.endswith(name)]
    return CAUSES[found]


def unit_test(chart: str, job: str, rules: list[dict[str, Any]], fires: str = "") -> dict[str, Any]:
    """One of promtool's: of all rules that one fires for which a cause is there, or none."""
    pattern, values, labels = cause(fires) if fires else ("$^", "", {})
    series = []
    for name, running in {**OF_ALL, **RUNNING[chart]}.items():
        metric, _, own = name.partition("{")
        target = (
            f'{metric}{{namespace="preflight",job="{job}",pod="p"{"," if own else ""}{own or "}"}'
        )
        shown = values if re.search(pattern, name) else running
        series.append({"series": target, "values": f"{shown}x120"})
        if metric in LED.get(chart, ()):  # of a former leader
            series.append({"series": target.replace('pod="p"', 'pod="q"'), "values": "9x120"})
    return {
        "name": fires or "all is well",
        "interval": "1m",
        "input_series": series,
        "alert_rule_test": [
            {
                "eval_time": "110m",
                "alertname": rule["alert"],
                "exp_alerts": [
                    {
                        "exp_labels": {**rule["labels"], **labels},
                        "exp_annotations": rule["annotations"],
                    }
                ]
                * (rule["alert"] == fires),
            }
            for rule in rules
        ],
    }


@pytest.mark.component  # starts promtool
@pytest.mark.parametrize("chart", CHARTS)
def test_each_alert_fires_by_its_cause_once_and_no_other_then_and_none_where_all_is_well(
    chart: str, tmp_path: Path
) -> None:
    promtool = os.environ.get("PREFLIGHT_PROMTOOL") or shutil.which("promtool")
    if promtool is None:
        pytest.skip("no promtool: nox -s assets -- promtool brings one, and says what to set")
    objects = rendered(chart, {"alerts": {"enabled": True}})
    groups = of("PrometheusRule", objects)["spec"]["groups"]
    job = f"preflight/{of('PodMonitor', objects)['metadata']['name']}"
    rules = groups[0]["rules"]
    tests = [unit_test(chart, job, rules, fires) for fires in ("", *(r["alert"] for r in rules))]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    (tmp_path / "tests.yaml").write_text(
        yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "tests.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("chart", CHARTS)
def test_what_is_shown_to_alerts_has_the_labels_of_the_programs_and_a_cause_is_of_one_metric(
    chart: str,
) -> None:
    package = chart.replace("preflight-injector", "preflight-webhook")
    table = (PACKAGES / package / "README.md").read_text()
    for name in RUNNING[chart]:
        metric, labels = name.partition("{")[0].removesuffix("_bucket"), re.findall(r"(\w+)=", name)
        row = re.search(rf"^\| `{metric}` \| \w+ \| ([^|]*) \|", table, re.M)
        known = {*re.findall(r"`(\w+)`", row[1] if row else "")}
        own = {label.removeprefix("exported_") for label in labels} - {"le"}
        assert name.partition("{")[0] in {*metrics(chart)}
        assert own == known, name


def test_no_alert_waits_for_a_quantile_above_the_largest_bound_of_its_histogram() -> None:
    source = (PACKAGES / "preflight-webhook/src/preflight_webhook/metrics.py").read_text()
    [bounds] = re.findall(r"^_BUCKETS: Final = \((.*)\)$", source, re.M)
    largest = bounds.split(", ")[-1]
    objects = rendered("preflight-injector", {"alerts": {"enabled": True}})
    [group] = of("PrometheusRule", objects)["spec"]["groups"]
    [slow] = [r["expr"] for r in group["rules"] if "histogram_quantile" in r["expr"]]
    assert float(slow.rpartition(" >= ")[2]) <= float(largest)
    tried = re.findall(r'le="([^"]*)"', " ".join(RUNNING["preflight-injector"]))
    assert tried == [largest, "+Inf"]


@pytest.mark.parametrize("chart", CHARTS)
def test_what_only_a_leader_knows_is_not_asked_of_one_that_leads_no_more(chart: str) -> None:
    [group] = of("PrometheusRule", rendered(chart, {"alerts": {"enabled": True}}))["spec"]["groups"]
    text = "\n".join(rule["expr"] for rule in group["rules"])
    led = r"(\w+)({[^}]*}) and on \(pod\) leader_election_master_status\2 == 1"
    assert {metric for metric, _ in re.findall(led, text)} == LED.get(chart, set())
    assert not LED.get(chart, set()) & asked(re.sub(led, "", text))
