"""Whoever would look into a check, or take its way to the platform connector, before a real API
server.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from preflight_e2e.admission_policies import (
    LISTED,
    OFF,
    SYSTEM,
    TRAINING,
    WEB,
    PolicyServer,
    checked_pod,
    mounting,
    plain_pod,
)
from preflight_testing.helm import Object

pytest_plugins = ["preflight_e2e.admission_policy_fixtures"]
pytestmark = pytest.mark.timeout(180)
POLICY = "ValidatingAdmissionPolicy"


# --- whoever would look into a check


@pytest.mark.parametrize("verb", ["exec", "attach"])
@pytest.mark.parametrize("namespace", [TRAINING, LISTED])
def test_nobody_enters_a_check(policies: PolicyServer, verb: str, namespace: str) -> None:
    path = policies.stored(namespace)
    said = policies.enter(path, verb, container="preflight-dcgm-diag")
    assert (
        f"Pod {namespace}/{path.rpartition('/')[2]}: container preflight-dcgm-diag is a preflight check"
        in said
    )
    assert "kubectl logs" in said


@pytest.mark.parametrize("verb", ["exec", "attach"])
def test_everybody_enters_his_own_containers(policies: PolicyServer, verb: str) -> None:
    for query in ({"container": "train"}, {"container": "fetch"}, {}):
        assert POLICY not in policies.enter(policies.stored(), verb, **query)


def test_a_strangers_container_is_entered_under_any_name_where_nothing_is_reserved(
    policies: PolicyServer,
) -> None:
    path = policies.stored(WEB, plain_pod(initContainers=[{"name": "preflight-x", "image": "x"}]))
    assert POLICY not in policies.enter(path, container="preflight-x")


def test_ports_are_forwarded(policies: PolicyServer) -> None:
    assert POLICY not in policies.enter(policies.stored(), "portforward", ports="8080")


@pytest.mark.parametrize(
    "container",
    [
        {"volumeMounts": [{"name": "preflight-connector-socket", "mountPath": "/s"}]},
        {"targetContainerName": "preflight-dcgm-diag"},
    ],
    ids=["mount", "target"],
)
def test_an_ephemeral_container_looks_into_no_check(
    policies: PolicyServer, container: Object
) -> None:
    said = policies.debug(policies.stored(), container)
    assert (
        "ephemeral container debug can neither mount a volume preflight-* nor target a preflight check"
        in said
    )


@pytest.mark.parametrize(
    "container",
    [
        {"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
        {"targetContainerName": "train"},
        {},
    ],
    ids=["mount", "target", "neither"],
)
def test_a_tenant_debugs_what_is_his_when_the_checks_have_passed(
    policies: PolicyServer, container: Object
) -> None:
    path = policies.stored()
    said = policies.debug(path, container)
    assert "ephemeral container debug would share the network of preflight-dcgm-diag" in said
    assert "add it when the checks have passed" in said
    assert policies.patch(f"{path}/status", ended(0), user="system:node:one") == ""
    assert policies.debug(path, container) == ""


def resources(cpu: str) -> Object:
    return {side: {"cpu": cpu, "memory": "1Gi"} for side in ("requests", "limits")}


def test_nobody_takes_the_cpu_from_a_check_and_the_workloads_is_its_own(
    policies: PolicyServer,
) -> None:
    made = checked_pod()
    for container in [*made["spec"]["initContainers"], *made["spec"]["containers"]]:
        container["resources"] = resources("2")
    path = policies.stored(TRAINING, made)
    check = {"name": "preflight-dcgm-diag", "resources": resources("10m")}
    said = policies.patch(f"{path}/resize", {"spec": {"initContainers": [check]}})
    by_itself = "resources for non-sidecar init containers are immutable" in said  # Kubernetes 1.35
    assert by_itself or "a preflight check cannot be changed" in said
    own = {"name": made["spec"]["containers"][0]["name"], "resources": resources("10m")}
    assert policies.patch(f"{path}/resize", {"spec": {"containers": [own]}}) == ""


def test_nobody_debugs_or_resizes_a_pod_whose_checks_may_run_again(
    policies: PolicyServer,
) -> None:
    made, ends = checked_pod(resources=resources("2")), {"operator": "In", "values": [42]}
    rule = {"action": "RestartAllContainers", "exitCodes": ends}
    made["spec"]["containers"][0] |= {"restartPolicy": "Always", "restartPolicyRules": [rule]}
    try:
        path = policies.stored(TRAINING, made)
    except AssertionError as refused:
        assert 'supported values: "Restart"' in str(refused)  # Kubernetes 1.35
        return
    assert policies.patch(f"{path}/status", ended(0), user="system:node:one") == ""
    said = policies.debug(path, {})
    assert "ephemeral container debug would share the network of preflight-dcgm-diag" in said
    assert "debug a copy of it" in said
    said = policies.patch(f"{path}/resize", {"spec": {"resources": resources("10m")}})
    assert "its own resources (spec.resources) hold for preflight-dcgm-diag" in said
    assert "the checks with them: create it anew" in said
    assert policies.patch(path, {"metadata": {"labels": {"own": "x"}}}) == ""


def test_nobody_looks_through_more_than_a_hundred_containers_for_one_that_restarts_all(
    policies: PolicyServer,
) -> None:
    made = checked_pod(resources=resources("2"))
    made["spec"]["containers"] += [{"name": f"c{i}", "image": "x"} for i in range(100)]
    path = policies.stored(TRAINING, made)
    assert policies.patch(f"{path}/status", ended(0), user="system:node:one") == ""
    why = "it has more than 100 containers, which preflight does not look through for one that restarts all of them"
    said = policies.debug(path, {})
    assert "ephemeral container debug would share the network of preflight-dcgm-diag" in said
    assert f"{why} (restartPolicyRules): debug a copy of it." in said
    said = policies.patch(f"{path}/resize", {"spec": {"resources": resources("10m")}})
    by_itself = "resize of pods with pod-level resources is forbidden" in said  # Kubernetes 1.35
    assert by_itself or f"{why} (restartPolicyRules): create it anew." in said
    assert policies.patch(path, {"metadata": {"labels": {"own": "x"}}}) == ""


def test_a_pods_own_resources_are_resized_when_its_checks_have_passed(
    policies: PolicyServer,
) -> None:
    path = policies.stored(TRAINING, checked_pod(resources=resources("2")))
    less = {"spec": {"resources": resources("10m")}}
    said = policies.patch(f"{path}/resize", less)
    by_itself = "resize of pods with pod-level resources is forbidden" in said  # Kubernetes 1.35
    assert by_itself or "hold for preflight-dcgm-diag, too; resize it when the checks" in said
    assert policies.patch(f"{path}/status", ended(0), user="system:node:one") == ""
    assert by_itself or policies.patch(f"{path}/resize", less) == ""


SHARING = [{"shareProcessNamespace": True}, {"hostPID": True}]


def ended(status: int, name: str = "preflight-dcgm-diag") -> Object:
    state = {"terminated": {"exitCode": status, "reason": "Completed"}}
    one = {
        "name": name,
        "state": state,
        "image": "x",
        "imageID": "x",
        "ready": True,
        "restartCount": 0,
    }
    return {"status": {"initContainerStatuses": [one]}}


@pytest.mark.parametrize("sharing", SHARING, ids=["shareProcessNamespace", "hostPID"])
@pytest.mark.parametrize("status", [None, ended(1)], ids=["not run yet", "failed"])
def test_no_ephemeral_container_comes_into_shared_processes_before_the_checks_have_passed(
    policies: PolicyServer, sharing: Object, status: Object | None
) -> None:
    path = policies.stored(TRAINING, checked_pod(**sharing))
    if status:
        assert policies.patch(f"{path}/status", status, user="system:node:one") == ""
    said = policies.debug(path, {})
    assert "ephemeral container debug would see the processes of preflight-dcgm-diag" in said
    assert "add it when the checks have passed" in said


@pytest.mark.parametrize("sharing", SHARING, ids=["shareProcessNamespace", "hostPID"])
def test_shared_processes_can_be_debugged_when_the_checks_have_passed(
    policies: PolicyServer, sharing: Object
) -> None:
    path = policies.stored(TRAINING, checked_pod(**sharing))
    assert policies.patch(f"{path}/status", ended(0), user="system:node:one") == ""
    assert policies.debug(path, {}) == ""


def ordered(*names: str, **spec: Any) -> Object:
    """A pod whose init containers run in this order; `side` is a sidecar."""
    made = [
        {"name": n, "image": "x"} | ({"restartPolicy": "Always"} if n == "side" else {})
        for n in names
    ]
    return checked_pod(initContainers=made, **spec)


@pytest.mark.parametrize("sharing", SHARING, ids=["shareProcessNamespace", "hostPID"])
def test_no_sidecar_runs_beside_a_check_whose_processes_it_would_see(
    policies: PolicyServer, sharing: Object
) -> None:
    said = policies.create(TRAINING, ordered("fetch", "side", "preflight-dcgm-diag", **sharing))
    assert "a sidecar that starts before a preflight check would see the check" in said
    assert (
        policies.create(TRAINING, ordered("fetch", "preflight-dcgm-diag", "side", **sharing)) == ""
    )
    assert policies.create(TRAINING, ordered("fetch", "preflight-dcgm-diag", **sharing)) == ""


def test_a_sidecar_before_the_checks_passes_where_no_processes_are_shared(
    policies: PolicyServer,
) -> None:
    assert policies.create(TRAINING, ordered("side", "preflight-dcgm-diag")) == ""


# --- the platform connector's folder

LEADING = [
    "/",
    "//",
    "/.",
    "/var",
    "/var/",
    "/var/run",
    "/var//run/.",
    "/run",
    "/./run//",
    "/run/nvsentinel",
    "/var/run/nvsentinel",
    "/var/run/nvsentinel/nvsentinel.sock",
    "/var/./run/nvsentinel/",
    "var/run",
    "/proc/1/root",
    "/proc/self/root/var/run",
    "/proc/1/task/1/cwd",
    "/proc",
    "/proc/1",
    "/proc//./1/fd/5",
    "/proc/thread-self/map_files",
    "/dev/fd/7",
    "/dev/./stdin",
    "/" + "a/" * 4_000,
]
OTHER = [
    "/data",
    "/var/lib/data",
    "/var/running",
    "/run/udev",
    "/var/run/nvsentinel2",
    "/runs",
    "/proc/driver/nvidia",
    "/proc/sys/net",
    "/dev/shm",
    "/.run",
    "/a/run",
]


@pytest.mark.parametrize("path", LEADING, ids=lambda path: path[:40])
def test_no_volume_of_a_tenant_leads_to_the_connector(policies: PolicyServer, path: str) -> None:
    said = policies.create(TRAINING, mounting(path))
    assert f"Pod {TRAINING}/mounts: hostPath volume host leads to /var/run/nvsentinel" in said
    assert "mount a folder that does not contain it" in said


@pytest.mark.parametrize("path", OTHER)
def test_other_folders_of_the_node_can_be_mounted(policies: PolicyServer, path: str) -> None:
    assert policies.create(TRAINING, mounting(path)) == ""


def test_a_path_with_steps_back_is_refused_by_kubernetes_or_by_us(policies: PolicyServer) -> None:
    assert policies.create(TRAINING, mounting("/data/../run")) != ""


@pytest.mark.parametrize("namespace", [WEB, OFF, SYSTEM, "preflight"])
def test_operators_mount_what_they_need_in_namespaces_that_are_not_checked(
    policies: PolicyServer, namespace: str
) -> None:
    for path in ("/", "/var/run/nvsentinel"):
        assert policies.create(namespace, mounting(path)) == ""


def test_the_checks_own_volume_is_theirs_alone(policies: PolicyServer) -> None:
    assert policies.create(TRAINING, checked_pod()) == ""
    own = {"name": "preflight-connector-socket", "hostPath": {"path": "/var/run/nvsentinel"}}
    assert POLICY in policies.create(
        TRAINING, plain_pod(volumes=[own])
    )  # the webhook has injected nothing
    other = {**own, "hostPath": {"path": "/var/run"}}
    assert POLICY in policies.create(TRAINING, checked_pod(volumes=[other]))


def test_a_nodes_mirror_of_a_static_pod_passes_and_nobody_elses(policies: PolicyServer) -> None:
    mirror = mounting("/run", annotations={"kubernetes.io/config.mirror": "x"})
    mirror["spec"]["nodeName"] = "one"
    said = policies.create(TRAINING, mirror, user="system:node:one", groups=("system:nodes",))
    assert said == ""
    assert POLICY in policies.create(TRAINING, mirror)


def test_a_pod_with_more_volumes_than_are_looked_through_is_refused_where_pods_are_checked_and_nowhere_else(
    policies: PolicyServer,
) -> None:
    many = plain_pod(volumes=[{"name": f"v{n}", "emptyDir": {}} for n in range(1_001)])
    assert "has more than 1,000 volumes" in policies.create(TRAINING, many)
    assert policies.create(WEB, many) == ""


def test_a_thousand_long_paths_are_judged_in_time(policies: PolicyServer, *, timed: bool) -> None:
    path = "/data" + "/./" * 1_300
    begun = time.monotonic()
    policies.create(
        TRAINING,
        plain_pod(volumes=[{"name": f"v{n}", "hostPath": {"path": path}} for n in range(600)]),
    )
    if timed:
        assert time.monotonic() - begun < 8
