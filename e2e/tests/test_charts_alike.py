"""What the library chart promises of all six charts alike."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.helm import CHARTS, PARTS, REQUIRED, ChartError, Object, Values, render

LIBRARY = CHARTS / "preflight-common"
PARTS_OF_ALL = sorted(PARTS.iterdir())
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
CHART = pytest.mark.parametrize("chart", PARTS_OF_ALL, ids=lambda chart: chart.name)


def made(chart: Path, **values: Any) -> list[Object]:
    return render(chart, REQUIRED.get(chart, {}) | MORE.get(chart.name, {}) | values)


def pods(objects: list[Object]) -> dict[str, Object]:
    """Specs of pods, by the kind and name of what makes them."""
    found = {f"{o['kind']}/{o['metadata']['name']}": o["spec"] for o in objects if "spec" in o}
    return {
        name: spec.get("jobTemplate", {"spec": spec})["spec"]["template"]["spec"]
        for name, spec in found.items()
        if name.partition("/")[0] in {"Deployment", "DaemonSet", "Job", "CronJob"}
    }


def of(kind: str, objects: list[Object]) -> list[Object]:
    return [o for o in objects if o["kind"] == kind]


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
