"""Makes the charts' Grafana dashboards: `nox -s codegen` runs it.

A dashboard is rows of panels, a panel its title, unit and PromQL expressions by legend. Metrics and
their meaning are in the packages' READMEs; a test holds that each exists.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

CHARTS: Final = Path(__file__).parent / "preflight" / "charts"
WIDTH, HEIGHT = 24, 8
"""Of a row and of a panel, in Grafana's grid."""
Panel = tuple[str, str, dict[str, str]]


def quantile(share: float, metric: str, by: str = "") -> str:
    """PromQL: a histogram's quantile over five minutes."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket[5m])))"


def rate(metric: str, by: str) -> str:
    """PromQL: how often a second, over five minutes."""
    return f"sum by ({by}) (rate({metric}[5m]))"


def _service(chart: str, leader: str) -> list[Panel]:
    return [
        ("A replica leads", "bool", {"leads": f"max({leader})"}),
        (
            "Reconciles that fail",
            "reqps",
            {
                "{{controller}}": f'sum by (controller) (rate(controller_runtime_reconcile_total{{result="error",job=~".*{chart}.*"}}[5m]))'
            },
        ),
    ]


DASHBOARDS: Final[dict[str, tuple[str, list[list[Panel]]]]] = {
    "preflight-gang/fleet": (
        "Preflight: the fleet",
        [
            [
                ("Nodes by their health", "short", {"{{state}}": "preflight_nodes"}),
                (
                    "Bandwidth measured last, of the usual",
                    "percentunit",
                    {"{{check}} {{node}}": "preflight_measured_gbps / preflight_usual_gbps"},
                ),
            ],
            [
                (
                    "Runs of checks",
                    "reqps",
                    {"{{check}} {{result}}": rate("preflight_check_total", "check, result")},
                ),
                (
                    "Share that could not judge",
                    "percentunit",
                    {
                        "{{check}}": 'sum by (check) (rate(preflight_check_total{result=~"inconclusive|misconfigured"}[1h])) / sum by (check) (rate(preflight_check_total[1h]))'
                    },
                ),
            ],
            [
                (
                    "Nodes blamed in a day",
                    "short",
                    {
                        "{{node}} {{error_code}}": "sum by (node, error_code) (increase(preflight_blamed_total[1d])) > 0"
                    },
                ),
                (
                    "Bandwidth measured last",
                    "GBs",
                    {"{{check}} {{node}}": "preflight_measured_gbps"},
                ),
            ],
            [
                (
                    "Since the last pass",
                    "s",
                    {"{{check}} {{node}}": "time() - preflight_node_last_pass_timestamp_seconds"},
                ),
                (
                    "GPU pods without checks",
                    "short",
                    {"{{exported_namespace}} {{reason}}": "preflight_unchecked_pods"},
                ),
            ],
            [
                (
                    "Versions",
                    "short",
                    {
                        "{{program}} {{version}}": "count by (program, version) (preflight_build_info)"
                    },
                )
            ],
        ],
    ),
    "preflight-gang/gangs": (
        "Preflight: gangs",
        [
            [
                ("Gangs", "short", {"gangs": "max(preflight_gangs)"}),
                (
                    "From the first address to the roster",
                    "s",
                    {
                        "median": quantile(0.5, "preflight_gang_wait_seconds"),
                        "99 %": quantile(0.99, "preflight_gang_wait_seconds"),
                    },
                ),
            ],
            [
                (
                    "How long checks take (median)",
                    "s",
                    {"{{check}}": quantile(0.5, "preflight_check_duration_seconds", "check")},
                ),
                (
                    "Failures",
                    "short",
                    {
                        "{{check}} {{node}} {{error_code}}": "sum by (check, node, error_code) (increase(preflight_check_failures_total[1h])) > 0"
                    },
                ),
            ],
            _service("preflight-gang", "preflight_gang_leader"),
            [
                (
                    "Mirrors behind the cluster",
                    "bool",
                    {"{{path}}": "max by (path) (preflight_gang_behind)"},
                ),
                (
                    "Requests to the API server",
                    "reqps",
                    {
                        "{{verb}}": rate(
                            'rest_client_requests_total{job=~".*preflight-gang.*"}', "verb"
                        )
                    },
                ),
            ],
        ],
    ),
    "preflight-injector/admission": (
        "Preflight: admission",
        [
            [
                (
                    "Reviews of pods",
                    "reqps",
                    {"{{result}}": rate("preflight_injection_total", "result")},
                ),
                (
                    "Time to an answer",
                    "s",
                    {
                        "median": quantile(0.5, "preflight_webhook_latency_seconds"),
                        "99 %": quantile(0.99, "preflight_webhook_latency_seconds"),
                    },
                ),
            ],
            [
                (
                    "Checks that did not apply",
                    "reqps",
                    {
                        "{{check}} {{reason}}": rate(
                            "preflight_check_skipped_total", "check, reason"
                        )
                    },
                ),
                (
                    "The certificate ends in",
                    "s",
                    {"{{pod}}": "preflight_webhook_certificate_expiry_timestamp_seconds - time()"},
                ),
            ],
            [
                ("Configuration in force", "bool", {"{{pod}}": "preflight_webhook_config_valid"}),
                (
                    "Connections cut off",
                    "reqps",
                    {
                        "{{port}} {{reason}}": rate(
                            "preflight_webhook_connections_closed_total", "port, reason"
                        )
                    },
                ),
            ],
            [
                (
                    "Claims looked up",
                    "reqps",
                    {"{{result}}": rate("preflight_webhook_lookups_total", "result")},
                )
            ],
        ],
    ),
    "preflight-gpu-scheduler/gpus": (
        "Preflight: GPUs",
        [
            [
                (
                    "GPUs by state",
                    "short",
                    {
                        "{{state}}": "sum by (state) (gpu_scheduler_devices and on (pod) leader_election_master_status == 1)"
                    },
                ),
                (
                    "Claims by phase",
                    "short",
                    {"{{phase}}": "max by (phase) (gpu_scheduler_claims)"},
                ),
            ],
            [
                ("Binds", "reqps", {"{{result}}": rate("gpu_scheduler_binds_total", "result")}),
                (
                    "Time of kube-scheduler's calls (99 %)",
                    "s",
                    {"{{verb}}": quantile(0.99, "gpu_scheduler_calls_seconds", "verb")},
                ),
            ],
            [
                (
                    "Bound pods without their lease, unknown GPUs",
                    "short",
                    {
                        "pods": "max(gpu_scheduler_unlocked_pods)",
                        "GPUs": "max(gpu_scheduler_unknown_gpus)",
                    },
                ),
                ("Nodes that do not report", "short", {"nodes": "max(gpu_scheduler_stale_nodes)"}),
            ],
        ],
    ),
    "preflight-computedomain/domains": (
        "Preflight: ComputeDomains",
        [
            [
                (
                    "ComputeDomains",
                    "short",
                    {"{{status}}": "max by (status) (nvidia_dra_compute_domain_info)"},
                ),
                (
                    "Cliques with more than one",
                    "short",
                    {"cliques": "max(compute_domain_shared_cliques)"},
                ),
            ],
            [
                (
                    "Claims not prepared",
                    "reqps",
                    {"{{error_type}}": rate("nvidia_dra_node_prepare_errors_total", "error_type")},
                ),
                (
                    "Calls of the kubelet (99 %)",
                    "s",
                    {
                        "{{operation}}": quantile(
                            0.99, "nvidia_dra_request_duration_seconds", "operation"
                        )
                    },
                ),
            ],
            _service("preflight-computedomain", "compute_domain_leader"),
        ],
    ),
    "preflight-mnnvl/mnnvl": (
        "Preflight: multi-node NVLink for Grove",
        [
            [
                ("Domains by state", "short", {"{{state}}": "max by (state) (mnnvl_domains)"}),
                (
                    "PodCliques without their claim",
                    "short",
                    {"PodCliques": "max(mnnvl_unclaimed_podcliques)"},
                ),
            ],
            [
                (
                    "Reviews",
                    "reqps",
                    {"{{kind}} {{result}}": rate("mnnvl_admission_total", "kind, result")},
                ),
                (
                    "From a PodGang to its domain",
                    "s",
                    {"99 %": quantile(0.99, "mnnvl_adoption_seconds")},
                ),
            ],
            _service("preflight-mnnvl", "mnnvl_leader"),
        ],
    ),
    "preflight-appwrapper/wrappers": (
        "Preflight: AppWrappers",
        [
            [
                (
                    "Wrappers by phase",
                    "short",
                    {"{{phase}}": "max by (phase) (appwrapper_current)"},
                ),
                ("Resets", "reqps", {"{{reason}}": rate("appwrapper_resets_total", "reason")}),
            ],
            [
                (
                    "Evacuations and nodes that the brake holds",
                    "short",
                    {
                        "wrappers": "max(appwrapper_evacuations_held)",
                        "nodes": "max(appwrapper_nodes_held)",
                    },
                ),
                ("Lateness (99 %)", "s", {"99 %": quantile(0.99, "appwrapper_lateness_seconds")}),
            ],
            [
                (
                    "Deletions",
                    "s",
                    {"forced: {{forced}}": quantile(0.99, "appwrapper_deletion_seconds", "forced")},
                ),
                (
                    "Deletions that even force does not end",
                    "short",
                    {"wrappers": "max(appwrapper_deletion_blocked)"},
                ),
            ],
            _service("preflight-appwrapper", "appwrapper_leader"),
        ],
    ),
}


def dashboard(uid: str, title: str, rows: list[list[Panel]]) -> dict[str, Any]:
    """Grafana's model of one dashboard, for any data source of the kind prometheus."""
    panels = []
    for y, row in enumerate(rows):
        for x, (name, unit, expressions) in enumerate(row):
            panels.append(
                {
                    "id": len(panels) + 1,
                    "title": name,
                    "type": "timeseries",
                    "datasource": {"type": "prometheus", "uid": "${source}"},
                    "gridPos": {
                        "h": HEIGHT,
                        "w": WIDTH // len(row),
                        "x": x * WIDTH // len(row),
                        "y": y * HEIGHT,
                    },
                    "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                    "targets": [
                        {"refId": chr(ord("A") + i), "expr": expr, "legendFormat": legend}
                        for i, (legend, expr) in enumerate(expressions.items())
                    ],
                }
            )
    source = {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": f"preflight-{uid}",
        "title": title,
        "tags": ["preflight"],
        "schemaVersion": 39,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source]},
        "panels": panels,
    }


if __name__ == "__main__":
    for place, (title, rows) in DASHBOARDS.items():
        chart, name = place.split("/")
        made = json.dumps(dashboard(name, title, rows), indent=1)
        file = CHARTS / chart / "dashboards" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{made}\n")
