"""How the charts' own pods are run and reached, and what they can be set to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from preflight_e2e import kubernetes_schemas
from preflight_e2e.umbrella import ALL, gang, injector, named, of, rendered, templates
from preflight_testing.helm import (
    GANG,
    GPU_SCHEDULER,
    INJECTOR,
    REQUIRED,
    UMBRELLA,
    ChartError,
    Object,
    only,
    render,
    version,
)

STOCK = REQUIRED[GPU_SCHEDULER]["kubeScheduler"]["image"]
PART = pytest.mark.parametrize("part", [INJECTOR, GANG, GPU_SCHEDULER], ids=lambda p: p.name)


# --- who may connect


def network(part: Path, **values: Any) -> dict[str, Object]:
    found = named("NetworkPolicy", rendered(part, **values))
    for one in found.values():
        kubernetes_schemas.validate(one, "1.36")
    return {name: o["spec"] for name, o in found.items()}


@PART
def test_every_pod_of_ours_is_selected_by_one_policy_for_incoming_connections(part: Path) -> None:
    policies = network(part)
    for template in templates(rendered(part)).values():
        labels = template["metadata"]["labels"].items()
        [one] = [p for p in policies.values() if p["podSelector"]["matchLabels"].items() <= labels]
        assert one["policyTypes"] == ["Ingress"]


def test_admission_is_open_to_all_and_metrics_to_those_that_are_chosen() -> None:
    monitoring = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    rules = network(INJECTOR, networkPolicy={"metricsFrom": monitoring})["preflight-injector"][
        "ingress"
    ]
    assert rules == [
        {"ports": [{"port": "admission", "protocol": "TCP"}]},
        {"from": monitoring, "ports": [{"port": "plain", "protocol": "TCP"}]},
    ]
    [rule] = network(GANG, networkPolicy={"metricsFrom": monitoring})["preflight-gang"]["ingress"]
    assert rule == {"from": monitoring, "ports": [{"port": "metrics", "protocol": "TCP"}]}


@PART
def test_nobody_reads_metrics_where_nobody_is_chosen(part: Path) -> None:
    """A rule without `from` would let everybody."""
    policies = network(part, networkPolicy={"metricsFrom": []}).values()
    rules = [rule for one in policies for rule in one.get("ingress", [])]
    assert [port["port"] for rule in rules for port in rule["ports"]] == (
        [] if part == GANG else ["admission"]
    )


def test_nobody_calls_the_job_that_keeps_the_certificate() -> None:
    assert "ingress" not in network(INJECTOR)["preflight-injector-certs"]


@PART
def test_network_policies_can_be_left_to_somebody_else(part: Path) -> None:
    assert network(part, networkPolicy={"enabled": False}) == {}


def test_the_hostengine_is_reached_from_checked_namespaces_where_it_is_named() -> None:
    exporter = {"podSelector": {"matchLabels": {"app": "dcgm-exporter"}}}
    engine = {"namespace": "gpu", "podLabels": {"app": "hostengine"}, "from": [exporter]}
    objects = rendered(INJECTOR, namespaces=["a"], networkPolicy={"hostengine": engine})
    [one] = [o for o in of("NetworkPolicy", objects) if o["metadata"]["namespace"] == "gpu"]
    kubernetes_schemas.validate(one, "1.36")
    assert one["spec"]["podSelector"] == {"matchLabels": {"app": "hostengine"}}
    [rule] = one["spec"]["ingress"]
    assert rule["ports"] == [{"port": 5555, "protocol": "TCP"}]
    assert rule["from"] == [
        {"namespaceSelector": {"matchLabels": {"nvsentinel.nvidia.com/preflight": "enabled"}}},
        {
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a"]}
                ]
            }
        },
        exporter,
    ]


# --- how they run


@PART
def test_ids_can_be_left_to_the_cluster(part: Path) -> None:
    """OpenShift's restricted-v2 refuses a pod that chooses its own."""
    none = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    for template in templates(rendered(part, podSecurityContext=none)).values():
        security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert template["spec"]["securityContext"] == security


@pytest.mark.parametrize("chart", [INJECTOR, GANG], ids=lambda chart: chart.name)
def test_ids_can_be_left_to_the_cluster_by_a_part_alone(chart: Any) -> None:
    for template in templates(render(chart, {"podSecurityContext": {"runAsUser": None}})).values():
        assert "runAsUser" not in template["spec"]["securityContext"]


@PART
def test_what_is_said_of_a_container_is_added(part: Path) -> None:
    for template in templates(rendered(part, securityContext={"runAsUser": 1000})).values():
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["runAsUser"] == 1000
            assert container["securityContext"]["allowPrivilegeEscalation"] is False


@PART
def test_no_container_fills_a_nodes_disk(part: Path) -> None:
    for template in templates(rendered(part)).values():
        for container in template["spec"]["containers"]:
            assert "ephemeral-storage" in container["resources"]["limits"]
            assert "ephemeral-storage" in container["resources"]["requests"]


@PART
def test_an_image_is_named_by_its_digest_where_there_is_one(part: Path) -> None:
    digest = "sha256:" + "a1" * 32
    image = {"repository": "mine/it", "tag": "dev"}
    for values, wanted in (
        ({**image, "digest": digest}, f"mine/it@{digest}"),
        (image, "mine/it:dev"),
        ({**image, "tag": ""}, f"mine/it:{version(part)}"),
    ):
        for template in templates(rendered(part, image=values)).values():
            images = [c["image"] for c in template["spec"]["containers"]]
            assert [one for one in images if one != STOCK] == [wanted]


def test_a_finished_certs_job_goes_after_a_day() -> None:
    assert only(rendered(INJECTOR), "Job")["spec"]["ttlSecondsAfterFinished"] == 86_400


# --- where


@pytest.mark.parametrize("excluded", [[], None, ["other"]], ids=str)
def test_the_cluster_and_we_ourselves_recover_whatever_is_excluded(excluded: Any) -> None:
    values = {"excludeNamespaces": excluded}
    objects = render(UMBRELLA, {**injector(**values), **gang(**values)})
    for entry in only(objects, "MutatingWebhookConfiguration")["webhooks"]:
        terms = entry["namespaceSelector"]["matchExpressions"]
        out = [
            t["values"]
            for t in terms
            if (t["key"], t["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        ]
        assert out == [sorted({"kube-system", "preflight", *(excluded or [])})]
    config = named("ConfigMap", objects)["preflight-gang"]
    assert all(
        f"- {name}\n" in config["data"]["config.yaml"] for name in ("kube-system", "preflight")
    )


# --- when the certificate is looked after


@pytest.mark.parametrize(
    ("days", "schedule"),
    [
        (90, "23 */6 * * *"),
        (1, "23 */6 * * *"),
        (1, "@hourly"),
        (3, "0 4 * * *"),
        (3, "0 4,16 * * *"),
        (21, "0 4 * * 1"),
        (93, "0 4 1 * *"),
        (15, "0 4 */5 * *"),
        (1_098, "0 4 1 1 *"),
    ],
)
def test_a_certificate_that_is_looked_after_in_time_passes(days: int, schedule: str) -> None:
    assert rendered(INJECTOR, certificates={"lifetimeDays": days, "schedule": schedule})


@pytest.mark.parametrize(
    ("days", "schedule", "between"),
    [
        (1, "23 4 * * *", "1 days"),
        (2, "@daily", "1 days"),
        (20, "0 4 * * 1", "7 days"),
        (90, "0 4 1 * *", "31 days"),
        (1, "0 4 1 1 *", "366 days"),
        (14, "0 4 */5 * *", "5 days"),
        (1_000, "@yearly", "366 days"),
    ],
)
def test_a_certificate_that_could_end_before_anybody_looks_stops_the_install(
    days: int, schedule: str, between: str
) -> None:
    with pytest.raises(
        ChartError, match=rf"{between} between two runs, and certificates\.lifetimeDays is {days}:"
    ):
        rendered(INJECTOR, certificates={"lifetimeDays": days, "schedule": schedule})


# --- what people may do

PEOPLE = {
    "gpuclaims": {"view", "edit", "admin"},
    "gpunodestatuses": {"view", "edit", "admin"},
    "appwrappers": {"view", "edit", "admin"},
    "computedomains": {"view", "edit", "admin"},
    "preflightconfigs": {"view"},  # who writes one decides whether checks hold pods back
    "nodehealths": {"view"},  # the gang controller alone writes them
}
WRITTEN_BY_AGENTS = {"gpunodestatuses"}
READS = {"get", "list", "watch"}
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def test_every_kind_of_ours_is_in_the_clusters_own_roles_for_people_and_nothing_else_is() -> None:
    objects = [one for part in ALL for one in rendered(part)]
    definitions = [one["spec"] for one in of("CustomResourceDefinition", objects)]
    kinds = {spec["names"]["plural"]: spec["group"] for spec in definitions}
    assert set(kinds) == set(PEOPLE)
    found: dict[str, dict[str, set[str]]] = {kind: {} for kind in kinds}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    for role in of("ClusterRole", objects):
        gathered = [key.removeprefix(prefix) for key in role["metadata"]["labels"] if prefix in key]
        for rule in role["rules"] if gathered else ():
            for kind in rule["resources"]:  # a subresource or a kind of others is a KeyError
                assert rule["apiGroups"] == [kinds[kind]]
                found[kind] |= {name: set(rule["verbs"]) for name in gathered}
    for kind, verbs in found.items():
        assert set(verbs) == PEOPLE[kind]
        for name, given in verbs.items():
            writes = name != "view" and kind not in WRITTEN_BY_AGENTS
            assert given == (READS | WRITES if writes else READS), (kind, name)
