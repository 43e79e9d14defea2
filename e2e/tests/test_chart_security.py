"""How the charts' own pods are run and reached, and what they can be set to."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_e2e import kubernetes_schemas
from preflight_testing.helm import (
    GANG,
    INJECTOR,
    UMBRELLA,
    ChartError,
    Object,
    Values,
    only,
    render,
    version,
)

PARTS = ["preflight-injector", "preflight-gang"]
BOTH: Values = {part: {"enabled": True} for part in PARTS}
SCHEDULER = "preflight-gpu-scheduler"
STOCK = "registry.example/kube-scheduler:v1.36.3"
NEEDED: dict[str, Values] = {SCHEDULER: {"kubeScheduler": {"image": STOCK}}}
WITH_SCHEDULER = [*PARTS, SCHEDULER]


def made(part: str, **values: Any) -> list[Object]:
    return render(UMBRELLA, {part: {"enabled": True, **NEEDED.get(part, {}), **values}})


def templates(objects: list[Object]) -> list[Object]:
    """What pods are made of."""
    kinds = {"Deployment", "DaemonSet", "Job"}
    found = [o["spec"]["template"] for o in objects if o["kind"] in kinds]
    return found + [
        o["spec"]["jobTemplate"]["spec"]["template"] for o in objects if o["kind"] == "CronJob"
    ]


# --- who may connect


def network(part: str, **values: Any) -> dict[str, Object]:
    found = [o for o in made(part, **values) if o["kind"] == "NetworkPolicy"]
    for one in found:
        kubernetes_schemas.validate(one, "1.36")
    return {o["metadata"]["name"]: o["spec"] for o in found}


@pytest.mark.parametrize("part", WITH_SCHEDULER)
def test_every_pod_of_ours_is_selected_by_one_policy_for_incoming_connections(part: str) -> None:
    policies = network(part)
    for template in templates(made(part)):
        labels = template["metadata"]["labels"].items()
        [one] = [p for p in policies.values() if p["podSelector"]["matchLabels"].items() <= labels]
        assert one["policyTypes"] == ["Ingress"]


def test_admission_is_open_to_all_and_metrics_to_those_that_are_chosen() -> None:
    monitoring = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    rules = network("preflight-injector", networkPolicy={"metricsFrom": monitoring})[
        "preflight-injector"
    ]["ingress"]
    assert rules == [
        {"ports": [{"port": "admission", "protocol": "TCP"}]},
        {"from": monitoring, "ports": [{"port": "plain", "protocol": "TCP"}]},
    ]
    [rule] = network("preflight-gang", networkPolicy={"metricsFrom": monitoring})["preflight-gang"][
        "ingress"
    ]
    assert rule == {"from": monitoring, "ports": [{"port": "metrics", "protocol": "TCP"}]}


@pytest.mark.parametrize("part", PARTS)
def test_nobody_reads_metrics_where_nobody_is_chosen(part: str) -> None:
    """A rule without `from` would let everybody."""
    rules = network(part, networkPolicy={"metricsFrom": []})[part].get("ingress", [])
    assert [port["port"] for rule in rules for port in rule["ports"]] == (
        ["admission"] if part == "preflight-injector" else []
    )


def test_nobody_reads_metrics_of_the_gpu_scheduler_where_nobody_is_chosen() -> None:
    policies = network(SCHEDULER, networkPolicy={"metricsFrom": []})
    ports = {
        name: [port["port"] for rule in one.get("ingress", []) for port in rule["ports"]]
        for name, one in policies.items()
    }
    parts = ("agent", "certs", "controller", "scheduler")
    wanted = {f"{SCHEDULER}-{part}": list[str]() for part in parts}
    assert ports == {**wanted, f"{SCHEDULER}-webhook": ["admission"]}


def test_nobody_calls_the_job_that_keeps_the_certificate() -> None:
    assert "ingress" not in network("preflight-injector")["preflight-injector-certs"]


@pytest.mark.parametrize("part", WITH_SCHEDULER)
def test_network_policies_can_be_left_to_somebody_else(part: str) -> None:
    assert network(part, networkPolicy={"enabled": False}) == {}


def test_the_hostengine_is_reached_from_checked_namespaces_where_it_is_named() -> None:
    exporter = {"podSelector": {"matchLabels": {"app": "dcgm-exporter"}}}
    named = {"namespace": "gpu", "podLabels": {"app": "hostengine"}, "from": [exporter]}
    found = made("preflight-injector", namespaces=["a"], networkPolicy={"hostengine": named})
    [one] = [
        o for o in found if o["kind"] == "NetworkPolicy" and o["metadata"]["namespace"] == "gpu"
    ]
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


def test_a_hostengine_without_labels_stops_the_install() -> None:
    with pytest.raises(ChartError, match="give the labels of the hostengine's pods"):
        made("preflight-injector", networkPolicy={"hostengine": {"namespace": "gpu"}})


# --- how they run


@pytest.mark.parametrize("part", WITH_SCHEDULER)
def test_ids_can_be_left_to_the_cluster(part: str) -> None:
    """OpenShift's restricted-v2 refuses a pod that chooses its own."""
    none = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    for template in templates(made(part, podSecurityContext=none)):
        security = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert template["spec"]["securityContext"] == security


@pytest.mark.parametrize("chart", [INJECTOR, GANG], ids=lambda chart: chart.name)
def test_ids_can_be_left_to_the_cluster_by_a_part_alone(chart: Any) -> None:
    for template in templates(render(chart, {"podSecurityContext": {"runAsUser": None}})):
        assert "runAsUser" not in template["spec"]["securityContext"]


@pytest.mark.parametrize("part", WITH_SCHEDULER)
def test_what_is_said_of_a_container_is_added(part: str) -> None:
    for template in templates(made(part, securityContext={"runAsUser": 1000})):
        for container in template["spec"]["containers"]:
            assert container["securityContext"]["runAsUser"] == 1000
            assert container["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize("part", WITH_SCHEDULER)
def test_no_container_fills_a_nodes_disk(part: str) -> None:
    for template in templates(made(part)):
        for container in template["spec"]["containers"]:
            assert "ephemeral-storage" in container["resources"]["limits"]
            assert "ephemeral-storage" in container["resources"]["requests"]


@pytest.mark.parametrize("part", WITH_SCHEDULER)
def test_an_image_is_named_by_its_digest_where_there_is_one(part: str) -> None:
    digest = "sha256:" + "a1" * 32
    image = {"repository": "mine/it", "tag": "dev"}
    for values, wanted in (
        ({**image, "digest": digest}, f"mine/it@{digest}"),
        (image, "mine/it:dev"),
        ({**image, "tag": ""}, f"mine/it:{version(UMBRELLA / 'charts' / part)}"),
    ):
        for template in templates(made(part, image=values)):
            images = [c["image"] for c in template["spec"]["containers"]]
            assert [one for one in images if one != STOCK] == [wanted]
    with pytest.raises(ChartError, match="digest"):
        made(part, image={"digest": "latest"})


def test_a_finished_certs_job_goes_after_a_day() -> None:
    assert only(made("preflight-injector"), "Job")["spec"]["ttlSecondsAfterFinished"] == 86_400


# --- where


@pytest.mark.parametrize("excluded", [[], None, ["other"]], ids=str)
def test_the_cluster_and_we_ourselves_recover_whatever_is_excluded(excluded: Any) -> None:
    objects = render(
        UMBRELLA, {part: {"enabled": True, "excludeNamespaces": excluded} for part in PARTS}
    )
    for entry in only(objects, "MutatingWebhookConfiguration")["webhooks"]:
        terms = entry["namespaceSelector"]["matchExpressions"]
        out = [
            t["values"]
            for t in terms
            if (t["key"], t["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
        ]
        assert out == [sorted({"kube-system", "preflight", *(excluded or [])})]
    config = next(
        o for o in objects if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "preflight-gang"
    )
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
    assert made("preflight-injector", certificates={"lifetimeDays": days, "schedule": schedule})


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
        made("preflight-injector", certificates={"lifetimeDays": days, "schedule": schedule})


def test_a_schedule_that_is_none_stops_the_install() -> None:
    with pytest.raises(ChartError, match="write five fields"):
        made("preflight-injector", certificates={"schedule": "daily"})


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
MORE: dict[str, Values] = {"preflight-computedomain": {"featureGates": {"HostManagedIMEX": True}}}
READS = {"get", "list", "watch"}
WRITES = {"create", "update", "patch", "delete", "deletecollection"}


def test_every_kind_of_ours_is_in_the_clusters_own_roles_for_people_and_nothing_else_is() -> None:
    objects = [
        one
        for part in (*WITH_SCHEDULER, "preflight-appwrapper", "preflight-computedomain")
        for one in made(part, **MORE.get(part, {}))
    ]
    kinds = {
        one["spec"]["names"]["plural"]: one["spec"]["group"]
        for one in objects
        if one["kind"] == "CustomResourceDefinition"
    }
    assert set(kinds) == set(PEOPLE)
    found: dict[str, dict[str, set[str]]] = {kind: {} for kind in kinds}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    for role in (one for one in objects if one["kind"] == "ClusterRole"):
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
