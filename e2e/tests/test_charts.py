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
from preflight_e2e.chart_schema import ALIKE
from preflight_e2e.umbrella import (
    ADR,
    ALL,
    SOURCE,
    configs,
    gang,
    injector,
    mnnvl,
    named,
    notes,
    of,
    on,
    scheduler,
    shared,
    wrapper,
)
from preflight_testing.helm import (
    CHARTS,
    COMPUTEDOMAIN,
    GANG,
    GPU_SCHEDULER,
    INJECTOR,
    PARTS,
    REQUIRED,
    UMBRELLA,
    ChartError,
    Object,
    Values,
    only,
    render,
)

PART = pytest.mark.parametrize("part", ALL, ids=lambda chart: chart.name)
OF_THE_CLUSTER = {
    "MutatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
}


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


@pytest.mark.parametrize("part", sorted(PARTS.iterdir()), ids=lambda part: part.name)
def test_a_part_whose_lines_are_all_comments_is_refused_and_not_installed(part: Path) -> None:
    said = "kubeScheduler.image|HostManagedIMEX" if part in REQUIRED else f"{part.name} is null"
    with pytest.raises(ChartError, match=said):
        render(UMBRELLA, {part.name: None})


def test_the_values_of_adr_026_reach_the_webhook_as_they_are() -> None:
    config = configs(ADR)["preflight-injector"]
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


@PART
def test_every_value_there_is_stands_in_the_values_file(part: Path) -> None:
    schema = json.loads((part / "values.schema.json").read_text())
    values = yaml.safe_load((part / "values.yaml").read_text())
    theirs = {"logVerbosity"} if part == COMPUTEDOMAIN else set()  # as NVIDIA's chart has it
    assert {*schema["properties"]} - {"enabled", "global"} - ALIKE - theirs == {*values}


@PART
def test_every_value_there_is_stands_in_the_manual(part: Path) -> None:
    page = (CHARTS / "README.md").read_text()
    section = page.partition(f"## Values of `{part.name}`")[2].partition("\n## ")[0]
    manual = section or (part / "README.md").read_text()  # a page of its own has them
    values = yaml.safe_load((part / "values.yaml").read_text())
    assert [key for key in values if f"`{key}" not in manual] == []


@pytest.mark.parametrize("values", [injector(), ADR], ids=["defaults", "adr-026"])
def test_no_template_sets_a_ca_bundle(values: Values) -> None:
    assert all("caBundle" not in entry["clientConfig"] for entry in entries(values))


def test_an_empty_list_makes_no_entry_of_its_own() -> None:
    assert [entry["name"] for entry in entries(injector())] == [
        "preflight.nvsentinel.nvidia.com",
        "confined.preflight.nvsentinel.nvidia.com",
    ]


def test_labeled_and_listed_namespaces_are_selected_and_no_others() -> None:
    made = entries(injector(namespaces=["training"]))
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
    made = entries(injector(namespaces=["training"]))
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
    made = entries(injector(namespaces=["training"]))
    assert [
        entry["clientConfig"]["service"]["path"] for entry in made if selects(entry, labels)
    ] == [path]


@pytest.mark.parametrize(
    "name", ["kube-system", "nvsentinel", "the-releases-own", "listed-and-excluded"]
)
def test_an_excluded_namespace_is_never_selected(name: str) -> None:
    values = injector(
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
    budget = injector(podDisruptionBudget={"maxUnavailable": 0})
    assert only(render(UMBRELLA, budget), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 0


def test_the_longest_name_that_a_chart_takes_is_none_too_long_for_a_cronjob() -> None:
    """To which Kubernetes adds eleven characters for its Jobs."""
    objects = render(UMBRELLA, injector(fullnameOverride="x" * 48))
    assert len(only(objects, "CronJob")["metadata"]["name"]) <= 52


def test_the_failure_policy_is_a_value() -> None:
    assert {e["failurePolicy"] for e in entries(injector(webhook={"failurePolicy": "Ignore"}))} == {
        "Ignore"
    }


def rights_of_the_webhook(**values: Any) -> list[Object]:
    """The rules of its own account, which has a token exactly where there are any."""
    made = render(UMBRELLA, injector(**values))
    pod = only(made, "Deployment")["spec"]["template"]["spec"]
    bound = [
        o["roleRef"]["name"]
        for o in made
        if o["kind"].endswith("RoleBinding")
        and o["subjects"][0]["name"] == pod["serviceAccountName"]
    ]
    roles = [role["rules"] for name, role in named("ClusterRole", made).items() if name in bound]
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
    made = render(UMBRELLA, injector())
    roles = [*of("Role", made), *of("ClusterRole", made)]
    rules = [rule for o in roles if o["metadata"]["name"].endswith("-certs") for rule in o["rules"]]
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
    made = render(UMBRELLA, injector(webhook={"clientCAConfigMap": "theirs"}))
    pod = only(made, "Deployment")["spec"]["template"]["spec"]
    assert {"name": "client-ca", "configMap": {"name": "theirs"}} in pod["volumes"]
    assert "--client-ca=/etc/preflight-webhook/client-ca/ca.crt" in pod["containers"][0]["args"]


def test_the_service_selects_the_webhooks_pods_and_not_those_of_the_certs_job() -> None:
    made = render(UMBRELLA, injector())
    selector = only(made, "Service")["spec"]["selector"].items()
    assert selector <= only(made, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert not selector <= only(made, "Job")["spec"]["template"]["metadata"]["labels"].items()


def test_each_revision_has_a_certs_job_of_its_own() -> None:
    names = {
        only(render(UMBRELLA, injector(), revision=n), "Job")["metadata"]["name"] for n in (1, 2)
    }
    assert len(names) == 2


def test_each_version_of_the_chart_has_one_too_where_nobody_counts_revisions(
    tmp_path: Path,
) -> None:
    newer = shutil.copytree(INJECTOR, tmp_path / INJECTOR.name)
    about = newer / "Chart.yaml"
    about.write_text(re.sub(r"(?m)^appVersion: .*$", "appVersion: 9.9.9", about.read_text()))
    names = {only(render(chart, {}), "Job")["metadata"]["name"] for chart in (INJECTOR, newer)}
    assert len(names) == 2


def test_every_namespaced_object_stands_in_the_releases_namespace() -> None:
    counted = [one["name"] for one in ADR["preflight-injector"]["checks"]]
    for made in render(UMBRELLA, {**ADR, **gang(checks=counted)}, namespace="elsewhere"):
        expected = None if made["kind"] in OF_THE_CLUSTER else "elsewhere"
        assert made["metadata"].get("namespace") == expected


@PART
def test_the_subchart_alone_makes_what_the_umbrella_makes(part: Path) -> None:
    def by_name(chart: Path, values: Values | None) -> list[Object]:
        made = [
            o for o in render(chart, values) if o["kind"] != "Job"
        ]  # its name is a hash of all values
        return sorted(made, key=lambda o: (o["kind"], o["metadata"]["name"]))

    assert by_name(part, REQUIRED.get(part)) == by_name(UMBRELLA, on(part))


def test_the_check_that_no_values_name_has_the_version_of_its_member() -> None:
    packages = CHARTS.parent / "packages"
    check = tomllib.loads((packages / "check-dcgm/pyproject.toml").read_text())["project"][
        "version"
    ]
    assert configs(injector())["preflight-injector"]["checks"] == [
        {"name": "dcgm-diag", "image": f"preflight-dcgm-diag:{check}"}
    ]


def test_a_source_of_gangs_is_written_once_for_all_parts() -> None:
    values = shared(gangSources=[SOURCE])
    made = configs(values)
    assert made["preflight-gang"]["sources"] == [SOURCE]
    assert made["preflight-injector"]["gangDiscovery"]["sources"] == [SOURCE]
    role = named("ClusterRole", render(UMBRELLA, values))["preflight-gang"]
    rule = {"apiGroups": [SOURCE["group"]], "resources": ["podgroups"], "verbs": ["list", "watch"]}
    assert rule in role["rules"]


def test_shared_sources_come_beside_those_of_each_part() -> None:
    mine = {**SOURCE, "name": "mine"}
    parts = {**injector(gangDiscovery={"sources": [mine]}), **gang(sources=[mine])}
    made = configs({**shared(gangSources=[SOURCE]), **parts})
    assert made["preflight-gang"]["sources"] == [mine, SOURCE]
    assert made["preflight-injector"]["gangDiscovery"]["sources"] == [mine, SOURCE]


def test_the_label_of_the_instance_type_is_written_once_for_all_parts() -> None:
    made = configs(shared(instanceTypeLabel="example.com/sku"))
    assert made["preflight-gang"]["instanceTypeLabel"] == "example.com/sku"
    assert made["preflight-injector"]["ncclTopology"]["instanceTypeLabel"] == "example.com/sku"


def test_what_is_no_gpu_is_the_services_own_and_the_same_for_both() -> None:
    made = configs({**injector(), **gang()})
    own = json.loads((GANG / "values.schema.json").read_text())
    default = own["properties"]["otherResourceNames"]["default"]
    assert made["preflight-gang"]["otherResourceNames"] == default
    assert made["preflight-injector"]["gpuDetection"]["otherResourceNames"] == default


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
    lines = notes({**injector(**injectors), **gang()}).splitlines()
    [warning] = [line for line in lines if "WARNING" in line]
    assert told in warning
    assert warning.endswith("set both alike.")
    assert "WARNING" not in notes({**injector(**injectors), **gang(**gangs)})
    assert "WARNING" not in notes(injector(**injectors))


def test_an_install_says_what_is_needed_and_how_to_see_that_it_works() -> None:
    said = notes(
        {
            **injector(
                dcgm={"hostengineAddr": "dcgm.gpu.svc:5555"},
                gpuDetection={"resourceNames": ["a.com/gpu"]},
            ),
            **gang(),
        }
    )
    assert "platform connector, with its socket in /var/run/nvsentinel" in said
    assert "hostengine that answers at dcgm.gpu.svc:5555" in said
    assert "--dry-run=server" in said
    assert '"a.com/gpu":"1"' in said
    assert "get lease preflight-gang" in said
    assert "hostengine" not in notes(
        injector(checks=[{"name": "nccl-loopback", "image": "registry.example/loopback:1"}])
    )
    assert "its socket in" not in notes(injector(platformConnector={"enabled": False}))


def test_an_install_without_the_controller_says_that_nothing_counts_results() -> None:
    assert "not in metrics or Events. Set preflight-gang.enabled=true" in notes(injector())
    assert "not in metrics or Events" not in notes({**injector(), **gang()})
    assert "not in metrics or Events" not in notes(injector(gangController="external"))


BY_CLAIM = "gpu.scheduling/gpu"


@pytest.mark.parametrize(
    ("own", "names"),
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
    own: dict[str, Any], names: list[str]
) -> None:
    values = {**injector(**own), **gang(gpuResourceNames=names[:-1]), **scheduler()}
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
    made = configs({**mnnvl(**own), **scheduler()})
    assert made["preflight-mnnvl"]["gpuResources"] == ["nvidia.com/gpu", BY_CLAIM]


def test_without_the_gpu_scheduler_none_of_it_is_there() -> None:
    made = configs({**injector(), **gang()})
    assert made["preflight-injector"]["gpuDetection"]["resourceNames"] == ["nvidia.com/gpu"]
    assert not made["preflight-injector"].get("deviceVariables")
    assert made["preflight-gang"]["gpuResourceNames"] == ["nvidia.com/gpu"]
    assert made["preflight-gang"]["gpuClaims"] is False


@pytest.mark.parametrize(
    ("values", "told"),
    [
        (
            injector(deviceVariables={"enabled": False}),
            "preflight-injector.deviceVariables.enabled is false, and preflight-gpu-scheduler",
        ),
        (
            injector(deviceVariables={"resourceName": "a.com/b"}),
            "preflight-injector.deviceVariables.resourceName is a.com/b, and",
        ),
        (
            {**injector(), **scheduler(countResource="a.com/b")},
            "set global.preflight.gpuClaimResource=a.com/b.",
        ),
    ],
    ids=["off", "another-name", "counted-otherwise"],
)
def test_an_install_stops_where_pods_of_the_gpu_scheduler_would_not_be_checked(
    values: Values, told: str
) -> None:
    with pytest.raises(ChartError) as refused:
        render(UMBRELLA, {**scheduler(), **values})
    assert told in str(refused.value)


def test_what_the_gpu_scheduler_counts_by_is_said_once() -> None:
    counted = scheduler(countResource="a.com/b")
    made = configs({**shared(gpuClaimResource="a.com/b"), **counted})
    assert made["preflight-injector"]["gpuDetection"]["resourceNames"] == [
        "nvidia.com/gpu",
        "a.com/b",
    ]
    assert made["preflight-injector"]["deviceVariables"]["resourceName"] == "a.com/b"
    assert made["preflight-gang"]["gpuResourceNames"] == ["nvidia.com/gpu", "a.com/b"]


@pytest.mark.parametrize("labeler", [False, True])
def test_appwrapper_keeps_the_pods_of_the_gpu_scheduler_off_the_same_nodes(labeler: bool) -> None:
    def taints(others: Values) -> dict[str, Any]:
        made = configs({**wrapper(labeler={"enabled": labeler}), **others})
        return dict(made["preflight-appwrapper"]["autopilot"]["resourceTaints"])

    alone, beside = taints({}), taints(scheduler())
    assert alone.keys() == {"nvidia.com/gpu", "gpu.nvidia.com"}
    assert beside == {**alone, BY_CLAIM: alone["nvidia.com/gpu"]}


LABELER_ON = wrapper(labeler={"enabled": True})


def sick(values: Values) -> list[list[str]]:
    """Which node conditions the GPU scheduler, the gang controller and the labeler look for."""
    made = configs({**values, **gang()})
    return [
        made[GPU_SCHEDULER.name]["nodeConditions"],
        made[GANG.name]["nodeConditions"],
        made["preflight-appwrapper"]["nodeHealth"]["conditions"],
    ]


def test_the_conditions_of_a_sick_node_are_the_services_own_and_the_same_for_all() -> None:
    own = json.loads((GPU_SCHEDULER / "values.schema.json").read_text())
    default = own["properties"]["nodeConditions"]["default"]
    assert "DcgmDiagnostic*" in default
    assert sick({**scheduler(), **LABELER_ON}) == [default] * 3


@pytest.mark.parametrize("conditions", [["Ours*"], []])
def test_the_conditions_of_a_sick_node_are_written_once_for_all(conditions: list[str]) -> None:
    written = {"global": {"preflight": {"sickNodeConditions": conditions}}}
    assert sick({**scheduler(), **LABELER_ON, **written}) == [conditions] * 3


@pytest.mark.parametrize("conditions", [["DcgmDiagnostic*"], [], None])
def test_parts_to_which_other_conditions_are_sick_stop_the_install(
    conditions: list[str] | None,
) -> None:
    other = scheduler(nodeConditions=conditions)
    both = {**LABELER_ON, **other}
    with pytest.raises(ChartError, match=r"set them once, as global\.preflight\.sickNodeCond"):
        render(UMBRELLA, both)
    with pytest.raises(ChartError, match=r"preflight-gang\.nodeConditions is "):
        render(UMBRELLA, {**other, **gang()})
    # Nobody looks at those of an AppWrapper without a labeler.
    assert GPU_SCHEDULER.name in configs({**both, **wrapper()})


@pytest.mark.parametrize("part", [scheduler(), LABELER_ON, gang()])
def test_shared_conditions_of_another_type_stop_the_install(part: Values) -> None:
    with pytest.raises(ChartError, match="sickNodeConditions"):
        render(UMBRELLA, {**part, "global": {"preflight": {"sickNodeConditions": [7]}}})


def test_no_link_stands_in_the_charts_for_every_helm_command_would_speak_of_it() -> None:
    assert [str(path) for path in CHARTS.rglob("*") if path.is_symlink()] == []
