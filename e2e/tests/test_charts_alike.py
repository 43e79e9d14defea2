"""What the library chart promises of all six charts alike."""

from __future__ import annotations

import filecmp
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import Chart
from preflight_e2e import kubernetes_schemas
from preflight_e2e.umbrella import ALL, named, of, templates
from preflight_testing.helm import (
    CHARTS,
    COMPUTEDOMAIN,
    GANG,
    INJECTOR,
    PARTS,
    REQUIRED,
    UMBRELLA,
    ChartError,
    Object,
    Values,
    problems,
    render,
)

LIBRARY = CHARTS / "preflight-common"
MORE: dict[str, Values] = {"preflight-appwrapper": {"labeler": {"enabled": True}}}
CERTIFIED = [
    "preflight-appwrapper",
    "preflight-gpu-scheduler",
    "preflight-injector",
    "preflight-mnnvl",
]
WITHOUT_COMPONENT = {  # of the whole chart, or of both of its programs
    "CustomResourceDefinition",
    "DeviceClass",
    "Namespace",
    ("Service", "preflight-computedomain"),
    ("NetworkPolicy", "preflight-computedomain"),
    ("NetworkPolicy", "preflight-injector-hostengine"),
    ("ValidatingAdmissionPolicy", "preflight-computedomain-allocation-mode"),
    ("ValidatingAdmissionPolicyBinding", "preflight-computedomain-allocation-mode"),
}
CHART = pytest.mark.parametrize("chart", ALL, ids=lambda chart: chart.name)


def made(chart: Path, **values: Any) -> list[Object]:
    return render(chart, REQUIRED.get(chart, {}) | MORE.get(chart.name, {}) | values)


def pods(objects: list[Object]) -> dict[str, Object]:
    """Specs of pods, by the kind and name of what makes them."""
    return {name: template["spec"] for name, template in templates(objects).items()}


@CHART
def test_each_chart_has_the_library_as_it_is_and_is_installed_by_its_folder_alone(
    chart: Path, tmp_path: Path
) -> None:
    copy = chart / "charts" / LIBRARY.name
    files = sorted(str(f.relative_to(LIBRARY)) for f in LIBRARY.rglob("*") if f.is_file())
    assert "Chart.yaml" in files
    assert files == sorted(str(f.relative_to(copy)) for f in copy.rglob("*") if f.is_file())
    assert filecmp.cmpfiles(LIBRARY, copy, files, shallow=False)[0] == files
    alone = shutil.copytree(chart, tmp_path / chart.name, symlinks=True)
    assert render(alone, REQUIRED.get(chart, {}) | MORE.get(chart.name, {})) == made(chart)


@CHART
def test_no_account_has_a_token_but_in_pods_that_ask_for_it(chart: Path) -> None:
    objects = made(chart)
    accounts = of("ServiceAccount", objects)
    assert {o["automountServiceAccountToken"] for o in accounts} == {False}
    assert all("automountServiceAccountToken" in pod for pod in pods(objects).values())


@CHART
def test_no_right_is_given_by_pattern(chart: Path) -> None:
    objects = made(chart)
    for role in [*of("ClusterRole", objects), *of("Role", objects)]:
        for rule in role["rules"]:
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}


@CHART
def test_every_policy_is_bound_and_denies_fails_closed_and_gives_reasons(chart: Path) -> None:
    objects = made(chart)
    policies = {name: o["spec"] for name, o in named("ValidatingAdmissionPolicy", objects).items()}
    bindings = [o["spec"] for o in of("ValidatingAdmissionPolicyBinding", objects)]
    assert sorted(binding["policyName"] for binding in bindings) == sorted(policies)
    warns = "preflight-computedomain-allocation-mode"  # and keeps nobody from anything
    for binding in bindings:
        assert ("Deny" in binding["validationActions"]) is (binding["policyName"] != warns)
    for name, policy in policies.items():
        assert policy["failurePolicy"] == ("Ignore" if name == warns else "Fail"), name
        for validation in policy["validations"]:
            assert validation["message"].endswith("."), name
            if chart in {GANG, INJECTOR}:  # and say of which object
                assert re.search(r"request\.\??name", validation["messageExpression"]), name


@pytest.mark.parametrize(
    "chart",
    [chart for chart in ALL if (chart / "generated").is_dir()],
    ids=lambda chart: chart.name,
)
def test_definitions_are_what_the_program_prints_and_outlive_the_release_unless_told(
    chart: Path,
) -> None:
    [file] = (chart / "generated").glob("*.yaml")
    printed = {o["metadata"]["name"]: o["spec"] for o in yaml.safe_load_all(file.read_text())}
    for values, notes in (({}, {"helm.sh/resource-policy": "keep"}), ({"keep": False}, {})):
        shown = named("CustomResourceDefinition", made(chart, crd=values))
        assert {name: o["spec"] for name, o in shown.items()} == printed
        for o in shown.values():
            assert o["metadata"].get("annotations", {}) == notes
    switch = "enabled" if chart == COMPUTEDOMAIN else "install"
    assert not of("CustomResourceDefinition", made(chart, crd={switch: False}))


@pytest.mark.parametrize("chart", [UMBRELLA, *ALL], ids=lambda chart: chart.name)
def test_helm_lint_finds_nothing(chart: Path) -> None:
    assert problems(chart, REQUIRED.get(chart)) == []


@CHART
def test_every_container_of_ours_is_restricted(chart: Path) -> None:
    for name, pod in pods(made(chart)).items():
        if name == "DaemonSet/preflight-computedomain-kubelet-plugin":
            continue  # its own page says why it is privileged
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
        if name.startswith("Deployment"):
            assert pod["securityContext"]["runAsNonRoot"] is True, name


@pytest.mark.parametrize(
    "chart", [one for one in ALL if one != COMPUTEDOMAIN], ids=lambda chart: chart.name
)
def test_another_configuration_rolls_the_pods_and_nothing_else_does(chart: Path) -> None:
    def checksums(**values: Any) -> set[str]:
        templates = [one["spec"]["template"] for one in of("Deployment", made(chart, **values))]
        return {one["metadata"]["annotations"]["checksum/config"] for one in templates}

    changed = {"checkTimeout": "301s"} if chart == INJECTOR else {"logLevel": "debug"}
    assert checksums() == checksums(networkPolicy={"enabled": False})
    assert not checksums() & checksums(**changed)


@CHART
def test_no_replica_goes_before_its_successor_is_ready(chart: Path) -> None:
    objects = made(chart)
    for one in of("Deployment", objects):
        name, spec = one["metadata"]["name"], one["spec"]
        assert spec["replicas"] == 2
        assert spec["strategy"] == {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}, name
        spread = spec["template"]["spec"]["topologySpreadConstraints"]
        assert [term["topologyKey"] for term in spread] == [
            "kubernetes.io/hostname",
            "topology.kubernetes.io/zone",
        ]
        [budget] = [
            o["spec"]
            for o in of("PodDisruptionBudget", objects)
            if o["spec"]["selector"] == spec["selector"]
        ]
        assert budget["maxUnavailable"] == 1


@CHART
def test_on_the_nodes_network_a_rollout_needs_no_node_without_a_replica(chart: Path) -> None:
    for one in of("Deployment", made(chart, hostNetwork=True)):
        on_host = one["spec"]["template"]["spec"].get("hostNetwork", False)
        rolling = one["spec"]["strategy"]["rollingUpdate"]
        assert rolling == {"maxUnavailable": int(on_host), "maxSurge": 1}, one["metadata"]["name"]


@CHART
def test_no_pod_keeps_its_node_from_the_cluster_autoscaler(chart: Path) -> None:
    """By a volume on the node, but in memory; those of a DaemonSet keep none."""
    for name, pod in pods(made(chart)).items():
        if name.startswith("Deployment/"):
            volumes = pod.get("volumes", [])
            assert not [one["name"] for one in volumes if "hostPath" in one], name
            media = [one["emptyDir"].get("medium") for one in volumes if "emptyDir" in one]
            assert set(media) <= {"Memory"}, name


@CHART
def test_probes_ask_every_service_alike(chart: Path) -> None:
    probes = {
        probe: {key: value for key, value in asked.items() if key != "timeoutSeconds"}
        | {"httpGet": asked["httpGet"]["path"]}
        for pod in pods(made(chart)).values()
        for container in pod["containers"]
        if container["name"] not in {"certs", "kube-scheduler"}
        for probe, asked in container.items()
        if probe.endswith("Probe")
    }
    assert probes == {
        "startupProbe": {"httpGet": "/healthz", "periodSeconds": 1, "failureThreshold": 60},
        "livenessProbe": {"httpGet": "/healthz", "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {"httpGet": "/readyz", "periodSeconds": 2, "failureThreshold": 2},
    }


@CHART
def test_whoever_is_asked_by_the_api_server_has_time_to_end_what_is_under_way(chart: Path) -> None:
    for name, pod in pods(made(chart)).items():
        ports = [port["name"] for c in pod["containers"] for port in c.get("ports", [])]
        assert pod["terminationGracePeriodSeconds"] == (45 if "admission" in ports else 30), name


@CHART
def test_every_object_of_a_component_says_so(chart: Path) -> None:
    for one in made(chart):
        kind, name = one["kind"], one["metadata"]["name"]
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/part-of"] == "preflight"
        without = bool(WITHOUT_COMPONENT & {kind, (kind, name)})
        assert ("app.kubernetes.io/component" in labels) is not without, (kind, name)


@pytest.mark.parametrize("name", CERTIFIED)
def test_a_certificate_is_kept_alike_and_no_pod_sees_the_key_of_its_authority(name: str) -> None:
    objects = made(PARTS / name)
    [cron] = of("CronJob", objects)
    assert cron["spec"]["schedule"].endswith(" */6 * * *")
    for key, pod in pods(objects).items():
        for volume in (v["secret"] for v in pod.get("volumes", []) if "secret" in v):
            assert volume["defaultMode"] == 0o440, key
            assert {"ca.key"}.isdisjoint(item["key"] for item in volume["items"]), key
        if "Job/" in key:
            [container] = pod["containers"]
            assert container["resources"]["limits"] == {
                "memory": "128Mi",
                "ephemeral-storage": "256Mi",
            }
            assert pod["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize("name", ["preflight-appwrapper", "preflight-injector", "preflight-mnnvl"])
def test_a_certificate_that_could_end_before_anybody_looks_is_refused(name: str) -> None:
    with pytest.raises(ChartError, match=r"may leave 7 days between two runs"):
        made(PARTS / name, certificates={"lifetimeDays": 2, "schedule": "@weekly"})


@CHART
def test_whoever_takes_the_list_of_those_who_read_metrics_away_gets_the_default(
    chart: Path,
) -> None:
    unset = of("NetworkPolicy", made(chart, networkPolicy={"metricsFrom": None}))
    assert unset == of("NetworkPolicy", made(chart))


# --- what operators' platforms need, in every chart alike

REGISTRY = "mirror.example:5000"
PLATFORM: Values = {
    "hostNetwork": True,
    "metricsPort": 18080,
    "bindAddress": "::",
    "service": {
        "annotations": {"example.com/of": "service"},
        "ipFamilyPolicy": "PreferDualStack",
        "ipFamilies": ["IPv6", "IPv4"],
    },
    "serviceAccount": {"annotations": {"example.com/role": "ours"}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}],
    "topologySpreadConstraints": [{"topologyKey": "example.com/rack", "maxSkew": 2}],
    "podDisruptionBudget": {"minAvailable": "50%"},
    "commonLabels": {"example.com/team": "gpu"},
    "monitor": {"enabled": True, "labels": {"release": "ours"}, "interval": "15s"},
    "global": {"imageRegistry": REGISTRY},
}
WEBHOOK: Values = {
    "port": 10250,
    "objectSelector": {"matchExpressions": [{"key": "example.com/exempt", "operator": "DoesNotExist"}]},
    "annotations": {"cert-manager.io/inject-ca-from": "preflight/ours"},
}  # fmt: skip


def platform(chart: Path) -> list[Object]:
    certified = chart.name in CERTIFIED
    values = PLATFORM | ({"webhook": WEBHOOK} if certified else {})
    objects = made(chart, **values)
    for one in objects:
        if one["apiVersion"].partition("/")[0] not in {"monitoring.coreos.com"}:
            kubernetes_schemas.validate(one, "1.36")
    return objects


def webhooks(objects: list[Object]) -> list[Object]:
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return [one for kind in kinds for one in of(kind, objects)]


@CHART
def test_what_listens_is_where_the_values_say(chart: Path) -> None:
    objects = platform(chart)
    on_host = set()
    for name, pod in pods(objects).items():
        for container in pod["containers"]:
            ports = {p["name"]: p["containerPort"] for p in container.get("ports", [])}
            if not ports:
                continue
            env = {e["name"]: e.get("value") for e in container["env"]}
            assert env["LISTEN_HOST"] == "::", name
            assert env["LISTEN_PLAIN"] == "18080", name
            assert ports.pop("metrics", ports.pop("plain", None)) == 18080, name
            assert not [word for word in container.get("args", []) if "8080" in word], name
            if "admission" in ports:
                assert (ports["admission"], env["LISTEN_TLS"]) == (10250, "10250")
        if pod.get("hostNetwork"):
            assert pod["dnsPolicy"] == "ClusterFirstWithHostNet"
            on_host.add(name)
    wanted = {
        f"Deployment/{o['metadata']['name']}"
        for o in of("Deployment", objects)
        if chart.name not in CERTIFIED
        or o["metadata"]["labels"]["app.kubernetes.io/component"] == "webhook"
    }
    assert on_host == wanted


@CHART
def test_every_image_comes_from_the_registry_of_all(chart: Path) -> None:
    objects = platform(chart)
    images = {
        container["image"]
        for pod in pods(objects).values()
        for container in [*pod["containers"], *pod.get("initContainers", [])]
    }
    images |= {
        check["image"]
        for one in of("ConfigMap", objects)
        for check in yaml.safe_load(one["data"].get("config.yaml", "")) .get("checks", [])
        if isinstance(check, dict)
    }  # fmt: skip
    assert images
    for image in images:
        assert image.startswith(f"{REGISTRY}/"), image
        assert "." not in image.removeprefix(f"{REGISTRY}/").partition("/")[0].partition(":")[0]


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ("preflight-gang", "preflight-gang"),
        ("team/preflight-gang", "team/preflight-gang"),
        ("registry.example/team/preflight-gang", "team/preflight-gang"),
        ("localhost/preflight-gang", "preflight-gang"),
        ("registry.example:5000/preflight-gang", "preflight-gang"),
    ],
)
def test_a_registry_of_all_takes_the_place_of_an_images_own(image: str, pulled: str) -> None:
    objects = made(PARTS / "preflight-gang", image={"repository": image, "tag": "1"}, **{"global": PLATFORM["global"]})  # fmt: skip
    [spec] = pods(objects).values()
    assert spec["containers"][0]["image"] == f"{REGISTRY}/{pulled}:1"


@CHART
def test_services_accounts_and_budgets_are_as_the_values_say(chart: Path) -> None:
    objects = platform(chart)
    for service in of("Service", objects):
        assert service["metadata"]["annotations"] == {"example.com/of": "service"}
        assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack"
        assert service["spec"]["ipFamilies"] == ["IPv6", "IPv4"]
    for account in of("ServiceAccount", objects):
        assert account["metadata"]["annotations"] == {"example.com/role": "ours"}, account
    for budget in of("PodDisruptionBudget", objects):
        assert budget["spec"]["minAvailable"] == "50%"
        assert "maxUnavailable" not in budget["spec"]
    assert not of("PodDisruptionBudget", made(chart, podDisruptionBudget={"enabled": False}))
    if chart == COMPUTEDOMAIN:
        return  # one controller, as NVIDIA's chart has it
    alone = made(chart, replicas=1)
    assert {one["spec"]["replicas"] for one in of("Deployment", alone)} == {1}
    assert not of("PodDisruptionBudget", alone)


@CHART
def test_pods_are_spread_and_our_containers_see_variables_as_the_values_say(chart: Path) -> None:
    objects = platform(chart)
    for one in of("Deployment", objects):
        [spread] = one["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert (spread["topologyKey"], spread["maxSkew"]) == ("example.com/rack", 2)
        assert spread["labelSelector"]["matchLabels"].items() <= one["spec"]["template"]["metadata"]["labels"].items()  # fmt: skip
    for name, pod in pods(objects).items():
        for container in pod["containers"]:
            if container["name"] != "kube-scheduler":
                assert PLATFORM["extraEnv"][0] in container["env"], name
    for one in of("Deployment", made(chart, topologySpreadConstraints=[])):
        assert "topologySpreadConstraints" not in one["spec"]["template"]["spec"]


@CHART
def test_labels_and_names_of_all_objects_are_as_the_values_say(chart: Path) -> None:
    for one in platform(chart):
        assert one["metadata"]["labels"]["example.com/team"] == "gpu", one["metadata"]["name"]
        template = one.get("spec", {}).get("template")
        if one["kind"] in {"Deployment", "DaemonSet", "Job"}:
            assert template["metadata"]["labels"]["example.com/team"] == "gpu"
            assert "example.com/team" not in one["spec"].get("selector", {}).get("matchLabels", {})
    named = made(chart, nameOverride="ours")
    assert all(o["metadata"]["name"].startswith("ours") for o in of("Deployment", named))
    with pytest.raises(ChartError, match=r"app\.kubernetes\.io/name"):
        made(chart, commonLabels={"app.kubernetes.io/name": "theirs"})

    labels = {"podLabels": {"app.kubernetes.io/component": "theirs"}}
    own = {"controller": labels} if chart == COMPUTEDOMAIN else labels
    with pytest.raises(ChartError, match=r"app\.kubernetes\.io/component|'podLabels' not allowed"):
        made(chart, **own)


@CHART
def test_a_namespace_and_a_release_may_be_called_by_what_yaml_takes_for_a_number(
    chart: Path,
) -> None:
    values = {**REQUIRED.get(chart, {}), **MORE.get(chart.name, {})}
    with Chart.load(chart) as loaded:
        files = loaded.render(values, name="0123", namespace="1e5", revision=1)
    for path, text in files.items():
        for item in yaml.safe_load_all(text) if path.endswith(".yaml") else ():
            if item:
                metadata = item["metadata"]
                assert {type(text) for text in metadata["labels"].values()} == {str}
                places = [metadata.get("namespace", ""), *_all(item, "namespace")]
                assert {type(place) for place in places} == {str}, (path, places)


def _all(item: Any, key: str) -> Iterator[Any]:
    """Whatever stands at ``key``, wherever that is."""
    for name, value in item.items() if isinstance(item, dict) else enumerate(item):
        if name == key:
            yield value
        elif isinstance(value, dict | list):
            yield from _all(value, key)


@CHART
def test_a_monitor_can_be_had_without_alerts(chart: Path) -> None:
    objects = platform(chart)
    [monitor] = of("PodMonitor", objects)
    assert monitor["metadata"]["labels"]["release"] == "ours"
    assert monitor["spec"]["podMetricsEndpoints"][0]["interval"] == "15s"
    assert not of("PrometheusRule", objects)
    assert not of("PodMonitor", made(chart))


@pytest.mark.parametrize("name", CERTIFIED)
def test_who_keeps_certificates_elsewhere_says_so_to_every_webhook(name: str) -> None:
    own = {"certificates": {"selfManaged": False, "secretName": "theirs"}, "webhook": WEBHOOK}
    objects = made(PARTS / name, **own)
    assert not [o["metadata"]["name"] for o in objects if "-certs" in o["metadata"]["name"]]
    for one in webhooks(objects):
        assert one["metadata"]["annotations"] == WEBHOOK["annotations"]
        for webhook in one["webhooks"]:
            assert webhook["objectSelector"] == WEBHOOK["objectSelector"]
    secrets = {
        volume["secret"]["secretName"]: [item["key"] for item in volume["secret"]["items"]]
        for pod in pods(objects).values()
        for volume in pod.get("volumes", [])
        if "secret" in volume
    }
    marks = {o["metadata"]["name"]: [*o["data"]] for o in of("Secret", objects)}
    assert {"tls.crt", "tls.key"} <= {*secrets.pop("theirs")}
    assert secrets == marks  # AppWrapper's key, which no authority makes


@CHART
def test_a_digest_that_is_none_stops_the_install(chart: Path) -> None:
    with pytest.raises(ChartError, match="digest"):
        made(chart, image={"digest": "latest"})
