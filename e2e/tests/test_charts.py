"""The charts without a cluster: what Helm makes of them and whether Kubernetes would take it."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart
from preflight_e2e import kubernetes_schemas
from preflight_e2e.chart_schema import ALIKE
from preflight_testing.helm import (
    CHARTS,
    GANG,
    GPU_SCHEDULER,
    INJECTOR,
    REQUIRED,
    UMBRELLA,
    ChartError,
    Object,
    Values,
    only,
    render,
)

ADR: Values = yaml.safe_load((Path(__file__).parent / "data" / "adr-026-values.yaml").read_text())
ON: Values = {"preflight-injector": {"enabled": True}}
GANG_ON: Values = {"preflight-gang": {"enabled": True}}
SCHEDULER_ON: Values = {GPU_SCHEDULER.name: {"enabled": True, **REQUIRED[GPU_SCHEDULER]}}
PARTS = pytest.mark.parametrize(
    "part", [INJECTOR, GANG, GPU_SCHEDULER], ids=lambda chart: chart.name
)
NOTES = "preflight/templates/NOTES.txt"
KUBERNETES = ("1.34", "1.35", "1.36")
OF_THE_CLUSTER = {
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
}


def with_values(**values: Any) -> Values:
    return {"preflight-injector": {"enabled": True, **values}}


def entries(values: Values, namespace: str = "preflight") -> list[Object]:
    webhooks: list[Object] = only(
        render(UMBRELLA, values, namespace=namespace), "MutatingWebhookConfiguration"
    )["webhooks"]
    return webhooks


def selects(entry: Object, labels: dict[str, str]) -> bool:
    """What the API server makes of a namespaceSelector: all terms must hold."""
    for term in entry["namespaceSelector"]["matchExpressions"]:
        present = labels.get(term["key"])
        inside = present in term["values"]
        if inside != (term["operator"] == "In"):
            return False
    return True


def namespace(name: str, preflight: str | None = None, level: str | None = None) -> dict[str, str]:
    labels = {"kubernetes.io/metadata.name": name}
    labels |= {"pod-security.kubernetes.io/enforce": level} if level else {}
    return labels | ({"nvsentinel.nvidia.com/preflight": preflight} if preflight else {})


def test_nothing_is_installed_unless_switched_on() -> None:
    assert render(UMBRELLA) == []


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize(
    "values", [ON, ADR, GANG_ON, SCHEDULER_ON], ids=["defaults", "adr-026", "gang", "gpu scheduler"]
)
def test_kubernetes_takes_every_object(version: str, values: Values) -> None:
    for made in render(UMBRELLA, values):
        kubernetes_schemas.validate(made, version)


def test_the_values_of_adr_026_reach_the_webhook_as_they_are() -> None:
    config = yaml.safe_load(only(render(UMBRELLA, ADR), "ConfigMap")["data"]["config.yaml"])
    deployment = {"enabled", "namespaces", "excludeNamespaces", "webhook"}
    given = {
        key: value for key, value in ADR["preflight-injector"].items() if key not in deployment
    }
    assert holds(config, given)


def holds(whole: Any, part: Any) -> bool:
    """Whether ``part`` stands in ``whole`` as it is; a map may have further keys."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and holds(whole[key], value) for key, value in part.items())
    return bool(whole == part)


@PARTS
def test_every_value_there_is_stands_in_the_values_file(part: Path) -> None:
    schema = json.loads((part / "values.schema.json").read_text())
    values = yaml.safe_load((part / "values.yaml").read_text())
    assert {*schema["properties"]} - {"enabled", "global"} - ALIKE == {*values}


@PARTS
def test_every_value_there_is_stands_in_the_manual(part: Path) -> None:
    manual = (
        (CHARTS / "README.md")
        .read_text()
        .partition(f"## Values of `{part.name}`")[2]
        .partition("\n## ")[0]
    )
    if part == GPU_SCHEDULER:  # its own page has them
        manual = (part / "README.md").read_text()
    values = yaml.safe_load((part / "values.yaml").read_text())
    assert [key for key in values if f"`{key}" not in manual] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"dcgm": {"diagLevel": "two"}},
        {"webhook": {"failurePolicy": "Maybe"}},
        {"webhook": {"timeoutSeconds": 31}},
        {"replicas": 0},
        {"certificates": {"lifetimeDays": 0}},
        {"certificates": {"selfManaged": False}},
        {"namespaces": "training"},
        {"checkTimeuot": "300s"},
        {"mirrorClaims": [""]},
        {"platformConnector": {"enabled": "no"}},
        {"dcgm": {"hostengineAddr": []}},
        {
            "checks": [
                {
                    "name": "a",
                    "image": "b",
                    "container": {"volumeMounts": [{"name": "data", "mountPath": "/d"}]},
                }
            ]
        },
        {
            "checks": [
                {
                    "name": "a",
                    "image": "b",
                    "extraVolumes": [{"name": "x", "configMap": {"name": "y"}}],
                }
            ]
        },
    ],
)
def test_a_wrong_value_stops_the_install(wrong: Values) -> None:
    with pytest.raises(ChartError, match=next(iter(wrong))):
        render(UMBRELLA, with_values(**wrong))


@pytest.mark.parametrize("values", [ON, ADR], ids=["defaults", "adr-026"])
def test_no_template_sets_a_ca_bundle(values: Values) -> None:
    assert all("caBundle" not in entry["clientConfig"] for entry in entries(values))


def test_an_empty_list_makes_no_entry_of_its_own() -> None:
    assert [entry["name"] for entry in entries(ON)] == [
        "preflight.nvsentinel.nvidia.com",
        "confined.preflight.nvsentinel.nvidia.com",
    ]


def test_labeled_and_listed_namespaces_are_selected_and_no_others() -> None:
    made = entries(with_values(namespaces=["training"]))
    chosen = {
        (name, label)
        for name, label in itertools.product(
            ["training", "web"], [None, "enabled", "disabled", "other"]
        )
        if any(selects(entry, namespace(name, label)) for entry in made)
    }
    assert chosen == {
        ("training", None),
        ("training", "other"),
        ("training", "enabled"),
        ("web", "enabled"),
    }


def test_no_namespace_is_selected_twice() -> None:
    made = entries(with_values(namespaces=["training"]))
    labels, levels = (
        [None, "enabled", "disabled", "other"],
        [None, "privileged", "baseline", "restricted"],
    )
    for name, label, level in itertools.product(["training", "web"], labels, levels):
        assert sum(selects(entry, namespace(name, label, level)) for entry in made) <= 1


@pytest.mark.parametrize(
    ("level", "path"),
    [
        (None, "/mutate-pod"),
        ("privileged", "/mutate-pod"),
        ("baseline", "/mutate-pod/confined"),
        ("restricted", "/mutate-pod/confined"),
    ],
)
@pytest.mark.parametrize("name", ["labelled", "training"])
def test_the_pod_security_level_tells_which_path_is_asked(
    name: str, level: str | None, path: str
) -> None:
    labels = namespace(name, "enabled" if name == "labelled" else None, level)
    made = entries(with_values(namespaces=["training"]))
    assert [
        entry["clientConfig"]["service"]["path"] for entry in made if selects(entry, labels)
    ] == [path]


@pytest.mark.parametrize(
    "name", ["kube-system", "nvsentinel", "the-releases-own", "listed-and-excluded"]
)
def test_an_excluded_namespace_is_never_selected(name: str) -> None:
    values = with_values(
        namespaces=["kube-system", "nvsentinel", "the-releases-own", "listed-and-excluded"],
        excludeNamespaces=["kube-system", "nvsentinel", "listed-and-excluded"],
    )
    made = entries(values, namespace="the-releases-own")
    assert not any(
        selects(entry, namespace(name, label)) for entry in made for label in (None, "enabled")
    )


def test_every_entry_is_reinvoked_without_side_effects_and_fails_closed() -> None:
    for entry in entries(ADR):
        assert entry["reinvocationPolicy"] == "IfNeeded"
        assert entry["sideEffects"] == "None"
        assert entry["failurePolicy"] == "Fail"
        assert entry["rules"] == [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["pods"],
                "operations": ["CREATE"],
                "scope": "Namespaced",
            }
        ]


def test_a_budget_in_which_no_pod_may_be_away_stays_one() -> None:
    budget = with_values(podDisruptionBudget={"maxUnavailable": 0})
    assert only(render(UMBRELLA, budget), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 0


def test_the_longest_name_that_a_chart_takes_is_none_too_long_for_a_cronjob() -> None:
    """To which Kubernetes adds eleven characters for its Jobs."""
    objects = render(UMBRELLA, with_values(fullnameOverride="x" * 48))
    assert len(only(objects, "CronJob")["metadata"]["name"]) <= 52


def test_the_failure_policy_is_a_value() -> None:
    assert {
        e["failurePolicy"] for e in entries(with_values(webhook={"failurePolicy": "Ignore"}))
    } == {"Ignore"}


def rights_of_the_webhook(**values: Any) -> list[Object]:
    """The rules of its own account, which has a token exactly where there are any."""
    made = render(UMBRELLA, with_values(**values))
    pod = only(made, "Deployment")["spec"]["template"]["spec"]
    bound = [
        o["roleRef"]["name"]
        for o in made
        if o["kind"].endswith("RoleBinding")
        and o["subjects"][0]["name"] == pod["serviceAccountName"]
    ]
    roles = [
        o["rules"] for o in made if o["kind"] == "ClusterRole" and o["metadata"]["name"] in bound
    ]
    rules = [rule for role in roles for rule in role]
    assert pod["automountServiceAccountToken"] is bool(rules)
    assert all(roles)
    return rules


CONFIGS = {
    "apiGroups": ["preflight.nvsentinel.nvidia.com"],
    "resources": ["preflightconfigs"],
    "verbs": ["list", "watch"],
}
CLAIMS = {
    "apiGroups": ["resource.k8s.io"],
    "resources": ["resourceclaims", "resourceclaimtemplates"],
    "verbs": ["get"],
}


def test_the_webhook_may_follow_what_namespaces_set_for_themselves_and_nothing_else() -> None:
    assert rights_of_the_webhook(mirrorClaims=[]) == [CONFIGS]


def test_a_webhook_that_asks_for_nothing_has_no_rights_and_no_token() -> None:
    assert rights_of_the_webhook(preflightConfigs={"enabled": False}, mirrorClaims=[]) == []


@pytest.mark.parametrize("where", ["gpuDetection", "networkDetection"])
@pytest.mark.parametrize("configs", [True, False])
def test_with_device_classes_it_may_read_claims(where: str, configs: bool) -> None:
    values = {
        where: {"deviceClasses": ["gpu.nvidia.com"]},
        "preflightConfigs": {"enabled": configs},
    }
    assert rights_of_the_webhook(**values, mirrorClaims=[]) == [
        *([CONFIGS] if configs else []),
        CLAIMS,
    ]


def test_by_default_it_may_read_the_claims_that_checks_get_as_the_workload_does() -> None:
    assert rights_of_the_webhook() == [CONFIGS, CLAIMS]


def test_the_certs_account_may_touch_one_secret_and_one_configuration() -> None:
    made = render(UMBRELLA, ON)
    roles = [
        o
        for o in made
        if o["kind"] in {"Role", "ClusterRole"} and o["metadata"]["name"].endswith("-certs")
    ]
    rules = [rule for role in roles for rule in role["rules"]]
    unnamed = [rule["verbs"] for rule in rules if "resourceNames" not in rule]
    assert unnamed == [["create"]]
    assert {name for rule in rules for name in rule.get("resourceNames", [])} == {
        "preflight-injector-tls",
        "preflight-injector",
    }
    assert {verb for rule in rules for verb in rule["verbs"]} == {
        "get",
        "update",
        "patch",
        "create",
    }


def test_a_client_authority_reaches_the_webhook() -> None:
    made = render(UMBRELLA, with_values(webhook={"clientCAConfigMap": "theirs"}))
    pod = only(made, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "client-ca", "configMap": {"name": "theirs"}} in pod["volumes"]
    assert "--client-ca=/etc/preflight-webhook/client-ca/ca.crt" in pod["containers"][0]["args"]
    for one in made:
        kubernetes_schemas.validate(one, KUBERNETES[-1])


def test_the_service_selects_the_webhooks_pods_and_not_those_of_the_certs_job() -> None:
    made = render(UMBRELLA, ON)
    selector = only(made, "Service")["spec"]["selector"].items()
    assert selector <= only(made, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert not selector <= only(made, "Job")["spec"]["template"]["metadata"]["labels"].items()


def test_each_revision_has_a_certs_job_of_its_own() -> None:
    names = {only(render(UMBRELLA, ON, revision=n), "Job")["metadata"]["name"] for n in (1, 2)}
    assert len(names) == 2


def test_each_version_of_the_chart_has_one_too_where_nobody_counts_revisions(
    tmp_path: Path,
) -> None:
    newer = shutil.copytree(INJECTOR, tmp_path / INJECTOR.name)
    about = newer / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^appVersion: .*$", "appVersion: 9.9.9", about.read_text()))
    names = {only(render(chart, {}), "Job")["metadata"]["name"] for chart in (INJECTOR, newer)}
    assert len(names) == 2


def test_certificates_of_somebody_else_leave_no_job_and_no_rights() -> None:
    values = with_values(
        certificates={"selfManaged": False, "secretName": "theirs"},
        preflightConfigs={"enabled": False},
        mirrorClaims=[],
    )
    made = render(UMBRELLA, values)
    assert {o["kind"] for o in made}.isdisjoint({"Job", "CronJob", "Role", "ClusterRole"})
    volumes = only(made, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if "secret" in v] == ["theirs"]


def test_every_namespaced_object_stands_in_the_releases_namespace() -> None:
    counted = {
        "preflight-gang": {
            "enabled": True,
            "checks": [one["name"] for one in ADR["preflight-injector"]["checks"]],
        }
    }
    for made in render(UMBRELLA, {**ADR, **counted}, namespace="elsewhere"):
        expected = None if made["kind"] in OF_THE_CLUSTER else "elsewhere"
        assert made["metadata"].get("namespace") == expected


@PARTS
def test_the_subchart_alone_makes_what_the_umbrella_makes(part: Path) -> None:
    def by_name(chart: Path, values: Values | None) -> list[Object]:
        made = [
            o for o in render(chart, values) if o["kind"] != "Job"
        ]  # its name is a hash of all values
        return sorted(made, key=lambda o: (o["kind"], o["metadata"]["name"]))

    required = REQUIRED.get(part, {})
    assert by_name(part, required) == by_name(UMBRELLA, {part.name: {"enabled": True, **required}})


def test_all_parts_together_share_no_name() -> None:
    whole = {**ON, **GANG_ON, **SCHEDULER_ON}
    names = [
        (o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"])
        for o in render(UMBRELLA, whole)
    ]
    assert len(names) == len({*names})


def test_the_check_that_no_values_name_has_the_version_of_its_member() -> None:
    packages = CHARTS.parent / "packages"
    check = tomllib.loads((packages / "check-dcgm/pyproject.toml").read_text())["project"][
        "version"
    ]
    assert configs(ON)["preflight-injector"]["checks"] == [
        {"name": "dcgm-diag", "image": f"preflight-dcgm-diag:{check}"}
    ]


SOURCE = {
    "name": "ours",
    "group": "scheduling.example.com",
    "resource": "podgroups",
    "kind": "PodGroup",
    "size": "spec.minMember",
    "podLabel": "scheduling.example.com/pod-group",
}


def configs(values: Values) -> dict[str, Any]:
    """What each part is configured with, by the name of its ConfigMap."""
    made = [
        o
        for o in render(UMBRELLA, values)
        if o["kind"] == "ConfigMap" and "config.yaml" in o["data"]
    ]
    return {o["metadata"]["name"]: yaml.safe_load(o["data"]["config.yaml"]) for o in made}


def test_a_source_of_gangs_is_written_once_for_all_parts() -> None:
    values = {**ON, **GANG_ON, "global": {"preflight": {"gangSources": [SOURCE]}}}
    made = configs(values)
    assert made["preflight-gang"]["sources"] == [SOURCE]
    assert made["preflight-injector"]["gangDiscovery"]["sources"] == [SOURCE]
    role = next(
        o
        for o in render(UMBRELLA, values)
        if o["kind"] == "ClusterRole" and o["metadata"]["name"] == "preflight-gang"
    )
    rule = {"apiGroups": [SOURCE["group"]], "resources": ["podgroups"], "verbs": ["list", "watch"]}
    assert rule in role["rules"]


def test_shared_sources_come_beside_those_of_each_part() -> None:
    mine = {**SOURCE, "name": "mine"}
    values = {
        "preflight-injector": {"enabled": True, "gangDiscovery": {"sources": [mine]}},
        "preflight-gang": {"enabled": True, "sources": [mine]},
        "global": {"preflight": {"gangSources": [SOURCE]}},
    }
    made = configs(values)
    assert made["preflight-gang"]["sources"] == [mine, SOURCE]
    assert made["preflight-injector"]["gangDiscovery"]["sources"] == [mine, SOURCE]


MAPPED = {"instanceTypeLabel": "example.com/sku", "instanceTypeMapping": {"ours": "azure-ndv5.xml"}}


def test_the_label_of_the_instance_type_is_written_once_for_all_parts() -> None:
    made = configs(
        {**ON, **GANG_ON, "global": {"preflight": {"instanceTypeLabel": "example.com/sku"}}}
    )
    assert made["preflight-gang"]["instanceTypeLabel"] == "example.com/sku"
    assert made["preflight-injector"]["ncclTopology"]["instanceTypeLabel"] == "example.com/sku"


def test_what_is_no_gpu_is_the_services_own_and_the_same_for_both() -> None:
    made = configs({**ON, **GANG_ON})
    own = json.loads((GANG / "values.schema.json").read_text())
    default = own["properties"]["otherResourceNames"]["default"]
    assert made["preflight-gang"]["otherResourceNames"] == default
    assert made["preflight-injector"]["gpuDetection"]["otherResourceNames"] == default


def test_parts_that_look_at_different_labels_stop_the_install() -> None:
    with pytest.raises(ChartError, match=r"set it once, as global\.preflight\.instanceTypeLabel"):
        render(UMBRELLA, {**with_values(ncclTopology=MAPPED), **GANG_ON})
    alike = {"preflight-gang": {"enabled": True, "instanceTypeLabel": "example.com/sku"}}
    assert configs({**with_values(ncclTopology=MAPPED), **alike}).keys() == {
        "preflight-injector",
        "preflight-gang",
    }
    assert configs(with_values(ncclTopology=MAPPED)).keys() == {"preflight-injector"}


def notes(values: Values) -> str:
    """What Helm prints after an install."""
    with Chart.load(UMBRELLA) as chart:
        return str(chart.render(values, name="preflight", namespace="preflight", revision=1)[NOTES])


@pytest.mark.parametrize(
    ("injectors", "told", "gangs"),
    [
        (
            {"namespaces": ["a", "b"]},
            "injector.namespaces is [a, b] and preflight-gang.namespaces is []",
            {"namespaces": ["b", "a"]},
        ),
        (
            {"excludeNamespaces": ["x"]},
            "injector.excludeNamespaces is [x] and",
            {"excludeNamespaces": ["x"]},
        ),
        (
            {"gpuDetection": {"resourceNames": ["amd.com/gpu"]}},
            "injector.gpuDetection.resourceNames is [amd.com/gpu] and preflight-gang.gpuResourceNames is [nvidia.com/gpu]",
            {"gpuResourceNames": ["amd.com/gpu"]},
        ),
        (
            {"gpuDetection": {"otherResourceNames": ["nvidia.com/dpu"]}},
            "injector.gpuDetection.otherResourceNames is [nvidia.com/dpu] and preflight-gang.otherResourceNames is [nvidia.com/*rdma*, ",
            {"otherResourceNames": ["nvidia.com/dpu"]},
        ),
    ],
    ids=["namespaces", "excludeNamespaces", "gpuResourceNames", "otherResourceNames"],
)
def test_an_install_says_where_its_parts_look_for_gpu_pods_in_different_places(
    injectors: dict[str, Any], told: str, gangs: dict[str, Any]
) -> None:
    [warning] = [
        line
        for line in notes({**with_values(**injectors), **GANG_ON}).splitlines()
        if "WARNING" in line
    ]
    assert told in warning
    assert warning.endswith("set both alike.")
    assert "WARNING" not in notes(
        {**with_values(**injectors), "preflight-gang": {"enabled": True, **gangs}}
    )
    assert "WARNING" not in notes(with_values(**injectors))


BY_CLAIM = "gpu.scheduling/gpu"


@pytest.mark.parametrize(
    ("injector", "names"),
    [
        ({}, ["nvidia.com/gpu", BY_CLAIM]),
        ({"gpuDetection": {"resourceNames": ["a.com/b"]}}, ["a.com/b", BY_CLAIM]),
        (
            {
                "gpuDetection": {"resourceNames": ["nvidia.com/gpu", BY_CLAIM]},
                "deviceVariables": {"enabled": True},
            },
            ["nvidia.com/gpu", BY_CLAIM],
        ),
    ],
    ids=["defaults", "own-names", "all-said"],
)
def test_the_pods_of_the_gpu_scheduler_are_gpu_pods_to_all_parts(
    injector: dict[str, Any], names: list[str]
) -> None:
    own = {"enabled": True, "gpuResourceNames": names[:-1]}
    values = {**with_values(**injector), "preflight-gang": own, **SCHEDULER_ON}
    made = configs(values)
    assert made["preflight-injector"]["gpuDetection"]["resourceNames"] == names
    assert made["preflight-injector"]["deviceVariables"] == {
        "enabled": True,
        "resourceName": BY_CLAIM,
    }
    assert made["preflight-gang"]["gpuClaims"] is True
    assert BY_CLAIM in made["preflight-gang"]["gpuResourceNames"]
    assert "WARNING: preflight-injector.gpuDetection" not in notes(values)


@pytest.mark.parametrize("own", [{}, {"gpuResources": ["nvidia.com/gpu"]}])
def test_multi_node_nvlink_knows_the_gpus_of_the_gpu_scheduler(own: dict[str, Any]) -> None:
    made = configs({"preflight-mnnvl": {"enabled": True, **own}, **SCHEDULER_ON})
    assert made["preflight-mnnvl"]["gpuResources"] == ["nvidia.com/gpu", BY_CLAIM]


def test_without_the_gpu_scheduler_none_of_it_is_there() -> None:
    made = configs({**ON, **GANG_ON})
    assert made["preflight-injector"]["gpuDetection"]["resourceNames"] == ["nvidia.com/gpu"]
    assert not made["preflight-injector"].get("deviceVariables")
    assert made["preflight-gang"]["gpuResourceNames"] == ["nvidia.com/gpu"]
    assert made["preflight-gang"]["gpuClaims"] is False


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            with_values(deviceVariables={"enabled": False}),
            "preflight-injector.deviceVariables.enabled is false, and preflight-gpu-scheduler",
        ),
        (
            with_values(deviceVariables={"resourceName": "a.com/b"}),
            "preflight-injector.deviceVariables.resourceName is a.com/b, and",
        ),
        (
            {
                **ON,
                GPU_SCHEDULER.name: {
                    **SCHEDULER_ON[GPU_SCHEDULER.name],
                    "countResource": "a.com/b",
                },
            },
            "set global.preflight.gpuClaimResource=a.com/b.",
        ),
    ],
    ids=["off", "another-name", "counted-otherwise"],
)
def test_an_install_stops_where_pods_of_the_gpu_scheduler_would_not_be_checked(
    values: Values, told: str
) -> None:
    with pytest.raises(ChartError) as refused:
        render(UMBRELLA, {**SCHEDULER_ON, **values})
    assert told in str(refused.value)


def test_what_the_gpu_scheduler_counts_by_is_said_once() -> None:
    counted = {**SCHEDULER_ON[GPU_SCHEDULER.name], "countResource": "a.com/b"}
    shared = {"global": {"preflight": {"gpuClaimResource": "a.com/b"}}}
    made = configs({**ON, **GANG_ON, GPU_SCHEDULER.name: counted, **shared})
    assert made["preflight-injector"]["gpuDetection"]["resourceNames"] == [
        "nvidia.com/gpu",
        "a.com/b",
    ]
    assert made["preflight-injector"]["deviceVariables"]["resourceName"] == "a.com/b"
    assert made["preflight-gang"]["gpuResourceNames"] == ["nvidia.com/gpu", "a.com/b"]


@pytest.mark.parametrize("labeler", [False, True])
def test_appwrapper_keeps_the_pods_of_the_gpu_scheduler_off_the_same_nodes(labeler: bool) -> None:
    def taints(others: Values) -> dict[str, Any]:
        own = {"preflight-appwrapper": {"enabled": True, "labeler": {"enabled": labeler}}}
        for one in render(UMBRELLA, {**own, **others}):
            if (one["kind"], one["metadata"]["name"]) == ("ConfigMap", "preflight-appwrapper"):
                config = yaml.safe_load(one["data"]["config.yaml"])
                return dict(config["autopilot"]["resourceTaints"])
        raise AssertionError

    alone, beside = taints({}), taints(SCHEDULER_ON)
    assert alone.keys() == {"nvidia.com/gpu", "gpu.nvidia.com"}
    assert beside == {**alone, BY_CLAIM: alone["nvidia.com/gpu"]}


LABELER_ON: Values = {"preflight-appwrapper": {"enabled": True, "labeler": {"enabled": True}}}


def sick(values: Values) -> list[list[str]]:
    """Which node conditions the GPU scheduler, the gang controller and the labeler look for."""
    made = configs({**values, GANG.name: {"enabled": True}})
    return [
        made[GPU_SCHEDULER.name]["nodeConditions"],
        made[GANG.name]["nodeConditions"],
        made["preflight-appwrapper"]["nodeHealth"]["conditions"],
    ]


def test_the_conditions_of_a_sick_node_are_the_services_own_and_the_same_for_all() -> None:
    own = json.loads((GPU_SCHEDULER / "values.schema.json").read_text())
    default = own["properties"]["nodeConditions"]["default"]
    assert "DcgmDiagnostic*" in default
    assert sick({**SCHEDULER_ON, **LABELER_ON}) == [default] * 3


@pytest.mark.parametrize("conditions", [["Ours*"], []])
def test_the_conditions_of_a_sick_node_are_written_once_for_all(conditions: list[str]) -> None:
    shared = {"global": {"preflight": {"sickNodeConditions": conditions}}}
    assert sick({**SCHEDULER_ON, **LABELER_ON, **shared}) == [conditions] * 3


@pytest.mark.parametrize("conditions", [["DcgmDiagnostic*"], [], None])
def test_parts_to_which_other_conditions_are_sick_stop_the_install(
    conditions: list[str] | None,
) -> None:
    other = {**SCHEDULER_ON[GPU_SCHEDULER.name], "nodeConditions": conditions}
    both = {**LABELER_ON, GPU_SCHEDULER.name: other}
    with pytest.raises(ChartError, match=r"set them once, as global\.preflight\.sickNodeCond"):
        render(UMBRELLA, both)
    with pytest.raises(ChartError, match=r"preflight-gang\.nodeConditions is "):
        render(UMBRELLA, {GPU_SCHEDULER.name: other, GANG.name: {"enabled": True}})
    unused = {"preflight-appwrapper": {"enabled": True}}  # nobody looks at its conditions
    assert GPU_SCHEDULER.name in configs({**both, **unused})


@pytest.mark.parametrize("part", [SCHEDULER_ON, LABELER_ON, {GANG.name: {"enabled": True}}])
def test_shared_conditions_of_another_type_stop_the_install(part: Values) -> None:
    with pytest.raises(ChartError, match="sickNodeConditions"):
        render(UMBRELLA, {**part, "global": {"preflight": {"sickNodeConditions": [7]}}})


def test_an_unknown_shared_value_stops_the_install() -> None:
    with pytest.raises(ChartError, match="gangSource"):
        render(UMBRELLA, {**ON, "global": {"preflight": {"gangSource": [SOURCE]}}})


def test_no_link_stands_in_the_charts_for_every_helm_command_would_speak_of_it() -> None:
    assert [str(path) for path in CHARTS.rglob("*") if path.is_symlink()] == []
