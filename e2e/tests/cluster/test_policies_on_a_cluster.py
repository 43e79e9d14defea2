"""The injector's policies where pods run: nobody enters, joins or swaps a check; the ordinary life
of pods goes on.

Needs KUBECONFIG and the webhook's image (PREFLIGHT_WEBHOOK_IMAGE, `preflight-webhook:dev` unless
set), which plays the check here, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from kubernetes import client, stream
from preflight_e2e.impersonation import error_of
from preflight_e2e.installed_release import Installed, until

pytestmark = pytest.mark.timeout(300)

GPU = "door.example.com/gpu"
IMAGE = os.environ.get("PREFLIGHT_WEBHOOK_IMAGE", "preflight-webhook:dev")
CHECK = "preflight-dcgm-diag"
SLOW = ["sleep", "3600"]


@pytest.fixture
def devices(fresh: Installed) -> Iterator[None]:
    """Every node has four GPUs of a kind of its own, of which no device plugin knows."""
    api: Any = client.CoreV1Api(client.ApiClient())
    path = {"path": "/status/capacity/" + GPU.replace("/", "~1")}
    nodes = [node.metadata.name for node in api.list_node().items]
    for node in nodes:
        api.patch_node_status(node, [{"op": "add", "value": "4", **path}])
    yield
    for node in nodes:
        api.patch_node_status(node, [{"op": "remove", **path}])


def with_check(made: Installed, command: list[str], **values: Any) -> str:
    """The injector alone, with a check that does nothing but ``command``; the name of an opted-in
    namespace.
    """
    check = {"name": "dcgm-diag", "image": IMAGE, "container": {"command": command, "args": None}}
    detection = {"resourceNames": [GPU]}
    made.release.install(
        made.with_values(checks=[check], gpuDetection=detection, replicas=1, **values)
    )
    until(made.published, "the CA bundle")
    name = made.namespace(
        **{"preflight-e2e": made.name, "nvsentinel.nvidia.com/preflight": "enabled"}
    )
    until(lambda: injected(made, name), f"injection in {name}")
    find = made.api.read_namespaced_service_account
    until(lambda: error_of(lambda: find("default", name)) == "", "the default account")
    return name


def pod(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    container = {
        "name": "train",
        "image": IMAGE,
        "command": command,
        "resources": {"limits": {GPU: "1"}},
    }
    body = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        **spec,
    }
    return {"metadata": {"name": name}, "spec": body}


def injected(made: Installed, namespace: str) -> bool:
    try:
        found = made.api.create_namespaced_pod(namespace, pod("probe", SLOW), dry_run="All")
    except client.ApiException:
        return False
    return [one.name for one in found.spec.init_containers or []] == [CHECK]


def running(made: Installed, namespace: str, name: str) -> bool:
    """Whether its check runs."""
    statuses = made.api.read_namespaced_pod(name, namespace).status.init_container_statuses or []
    return any(one.name == CHECK and one.state.running for one in statuses)


def enter(namespace: str, name: str, container: str, verb: str) -> str:
    """What the API server has against an exec or attach; empty where somebody gets in."""
    api: Any = client.CoreV1Api(client.ApiClient())
    connect = getattr(api, f"connect_get_namespaced_pod_{verb}")
    command = {"command": ["true"]} if verb == "exec" else {}
    run: Any = stream.stream
    try:
        answer = run(
            connect,
            name,
            namespace,
            container=container,
            stdout=True,
            _preload_content=False,
            **command,
        )
    except client.ApiException as error:
        return f"{error.status} {error.reason}"
    answer.close()
    return ""


def test_nobody_enters_joins_or_swaps_a_running_check(fresh: Installed, devices: None) -> None:
    namespace = with_check(fresh, SLOW)
    fresh.api.create_namespaced_pod(namespace, pod("one", SLOW, shareProcessNamespace=True))
    until(lambda: running(fresh, namespace, "one"), "the check runs")
    for verb in ("exec", "attach"):
        answer = enter(namespace, "one", CHECK, verb)
        assert "403" in answer, answer
    image = {"spec": {"initContainers": [{"name": CHECK, "image": "busybox"}]}}
    answer = error_of(lambda: fresh.api.patch_namespaced_pod("one", namespace, image))
    assert "a preflight check cannot be changed" in answer
    for container, why in (
        ({}, f"would see the processes of {CHECK}"),
        ({"targetContainerName": CHECK}, "target a preflight check"),
    ):
        body = {"spec": {"ephemeralContainers": [{"name": "debug", "image": IMAGE, **container}]}}
        debug = fresh.api.patch_namespaced_pod_ephemeralcontainers
        assert why in error_of(lambda body=body, debug=debug: debug("one", namespace, body))  # type: ignore[misc]
    host = {"name": "host", "hostPath": {"path": "/var/run"}}
    leading = pod("two", SLOW, volumes=[host])
    assert "leads to /var/run/nvsentinel" in error_of(
        lambda: fresh.api.create_namespaced_pod(namespace, leading)
    )


def ready(apps: Any, namespace: str, replicas: int) -> bool:
    return bool(apps.read_namespaced_deployment("web", namespace).status.ready_replicas == replicas)


def test_pods_that_have_passed_are_entered_evicted_scaled_and_cleaned_up(
    fresh: Installed, devices: None
) -> None:
    namespace = with_check(fresh, ["true"])
    api, batch, apps = fresh.api, fresh.batch, client.AppsV1Api()

    fresh.api.create_namespaced_pod(namespace, pod("one", SLOW))
    until(
        lambda: api.read_namespaced_pod("one", namespace).status.phase == "Running",
        "the workload runs",
    )
    assert enter(namespace, "one", "train", "exec") == ""
    evicted = {"metadata": {"name": "one"}}
    api.create_namespaced_pod_eviction("one", namespace, evicted)
    until(
        lambda: error_of(lambda: api.read_namespaced_pod("one", namespace)) != "",
        "the evicted pod is gone",
    )

    template = {"spec": pod("", ["true"])["spec"]}
    batch.create_namespaced_job(
        namespace, {"metadata": {"name": "job"}, "spec": {"template": template}}
    )
    until(
        lambda: bool(batch.read_namespaced_job("job", namespace).status.succeeded),
        "the job succeeds",
    )
    batch.delete_namespaced_job("job", namespace, propagation_policy="Foreground")
    until(
        lambda: error_of(lambda: batch.read_namespaced_job("job", namespace)) != "",
        "the job and its pods are gone",
    )

    labels = {"app": "web"}
    container = {"name": "web", "image": IMAGE, "command": SLOW}
    wanted = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
        },
    }
    every: Any = apps
    every.create_namespaced_deployment(namespace, {"metadata": {"name": "web"}, "spec": wanted})
    for replicas in (3, 1):
        every.patch_namespaced_deployment_scale("web", namespace, {"spec": {"replicas": replicas}})
        until(partial(ready, every, namespace, replicas), f"{replicas} replicas")
    api.delete_namespace(namespace)
    until(lambda: error_of(lambda: api.read_namespace(namespace)) != "", "the namespace is gone")


def test_the_policies_pass_the_api_servers_type_check(fresh: Installed) -> None:
    with_check(fresh, ["true"])
    suffixes = (
        "stamps",
        "reserved",
        "exec",
        "sidecars",
        "connector-folder",
        "certs-mutatingwebhookconfigurations",
        "certs-secrets",
    )
    for suffix in suffixes:

        def checked(policy: str = f"{fresh.name}-{suffix}") -> Any:
            return fresh.admission.read_validating_admission_policy(policy).status.type_checking

        until(lambda checked=checked: checked() is not None, "type check")  # type: ignore[misc]
        assert checked().expression_warnings is None, checked()
