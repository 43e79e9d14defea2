"""AppWrappers on the lab's fake GPU nodes: a release of the charts, workloads in it, and what the
platform connector writes on nodes.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from kubernetes import client

from .lab import BASE_VALUES, GANG_VALUES, Lab, until

LABEL = "preflight.nvsentinel.nvidia.com/gpu-health"
WRAPPED = "workload.codeflare.dev/appwrapper"
IMAGE = "preflight-webhook:dev"
GROUP, VERSION, PLURAL = "workload.codeflare.dev", "v1beta2", "appwrappers"
PREFIX = "workload.codeflare.dev.appwrapper/"
ALL_REDUCE = {
    "name": "nccl-allreduce",
    "image": "preflight-nccl-allreduce:e2e",
    "env": [{"name": "NCCL_ALLREDUCE_BACKEND", "value": "gloo"}],
}
VALUES: dict[str, Any] = {
    "preflight-injector": {**BASE_VALUES, "checks": [*BASE_VALUES["checks"], ALL_REDUCE]},
    "preflight-gang": GANG_VALUES,
    "preflight-appwrapper": {
        "enabled": True,
        "image": {"repository": "preflight-appwrapper", "tag": "dev"},
        "replicas": 1,
        "leaseDuration": "3s",
        "labeler": {"enabled": True},
        "crd": {"keep": False},
        # Of four nodes the brake lets one go in ten minutes, and each test here makes one sick.
        "evacuationBrake": {"percent": 100},
        "faultTolerance": {
            "failureGracePeriod": "1s",
            "retryPausePeriod": "2s",
            "forcefulDeletionGracePeriod": "20s",
        },
    },
}

Json = dict[str, Any]


class WrappedRelease:
    """A release of the charts on the lab, and a namespace in which pods are checked."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.namespace = lab, ""
        self.custom: Any = client.CustomObjectsApi()
        self.leases: Any = client.CoordinationV1Api()

    def wrap(
        self, name: str, spec: Json, pods: int = 1, *, gang: bool = False, **annotations: str
    ) -> None:
        """``gang``: its pods say that they are one."""
        labels = {"app.kubernetes.io/gang-id": name, "app.kubernetes.io/gang-size": str(pods)}
        template = {
            "metadata": {"labels": labels if gang else {}},
            "spec": {"restartPolicy": "Never", **spec},
        }
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}}
        job["spec"] = {
            "parallelism": pods,
            "completions": pods,
            "backoffLimit": 20,
            "template": template,
        }
        self.create(name, job, **annotations)

    def create(self, name: str, template: Json, **annotations: str) -> None:
        """An AppWrapper of one component."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "AppWrapper",
            "metadata": {
                "name": name,
                "annotations": {PREFIX + key: value for key, value in annotations.items()},
            },
            "spec": {"components": [{"template": template}]},
        }
        self.custom.create_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, body)

    def status(self, name: str) -> Json:
        wrapper = self.custom.get_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, name
        )
        return dict(wrapper.get("status", {}))

    def condition(self, name: str, type_: str) -> str:
        conditions = [
            condition
            for condition in self.status(name).get("conditions", [])
            if condition["type"] == type_
        ]
        return str(conditions[0]["status"]) if conditions else ""

    def pods(self, name: str) -> list[Any]:
        return list(
            self.lab.api.list_namespaced_pod(
                self.namespace, label_selector=f"{WRAPPED}={name}"
            ).items
        )

    def running(self, name: str) -> list[Any]:
        return [
            pod
            for pod in self.pods(name)
            if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        ]

    def remove(self, name: str) -> None:
        """Returns when nothing of it is left."""
        self.custom.delete_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL, name)

        def gone() -> bool:
            try:
                self.status(name)
            except client.ApiException as error:
                return bool(error.status == 404)
            return False

        until(f"the end of {name}", gone)
        assert not self.pods(name)

    def label(self, node: str) -> str:
        return str((self.lab.api.read_node(node).metadata.labels or {}).get(LABEL, ""))

    def leader_of_labels(self) -> str:
        return str(
            self.leases.read_namespaced_lease(
                "preflight-appwrapper-labeler", "preflight"
            ).spec.holder_identity
        )


def asks(gpus: int, **spec: Any) -> Json:
    """Pods that ask for so many GPUs, and then run until they are ended."""
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    container = {"name": "main", "image": IMAGE, "command": ["sleep", "3600"], "resources": limits}
    return {"terminationGracePeriodSeconds": 1, "containers": [container], **spec}


def prefers(node: str) -> Json:
    term = {
        "matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]
    }
    return {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": term}]
        }
    }


@contextmanager
def connector(lab: Lab) -> Iterator[None]:
    """What the platform connector makes of its conditions: one of the node each, True while it has
    messages.
    """
    over = threading.Event()
    reported: dict[tuple[str, str], bool] = {}

    def follow() -> None:
        while not over.wait(0.5):
            for node in lab.nodes:
                by_condition: dict[str, list[str]] = {}
                with suppress(client.ApiException, IndexError):
                    by_condition = {
                        entry["condition"]: entry["messages"]
                        for entry in lab.node_log(node)
                        if "condition" in entry
                    }
                for name, messages in by_condition.items():
                    if reported.get((node, name)) != bool(messages):
                        reported[node, name] = bool(messages)
                        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                        condition = {
                            "type": name,
                            "status": str(bool(messages)),
                            "message": ";".join(messages),
                        }
                        condition |= {
                            "reason": f"{name}Is{'Not' if messages else ''}Healthy",
                            "lastTransitionTime": now,
                        }
                        lab.api.patch_node_status(node, {"status": {"conditions": [condition]}})

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def wrapped(lab: Lab, values: dict[str, Any]) -> Iterator[WrappedRelease]:
    """The charts with ``values`` on new fake nodes, and a namespace for AppWrappers; it leaves
    nothing.
    """
    release = WrappedRelease(lab)
    lab.release.uninstall()
    lab.fake_nodes()  # new ones: a sickness that a node has had already is not told again
    lab.release.install(values)
    try:
        release.namespace = lab.namespace(f"aw-{uuid.uuid4().hex[:6]}")
        until("AppWrappers are judged", lambda: judged(release))
        with connector(lab):
            yield release
    finally:
        for node in lab.nodes:
            lab.api.patch_node(node, {"metadata": {"labels": {LABEL: None}}})
            calm = [
                {"type": condition.type, "status": "False", "reason": "Tested"}
                for condition in lab.api.read_node(node).status.conditions
                if condition.status == "True" and condition.type != "Ready"
            ]
            if calm:
                lab.api.patch_node_status(node, {"status": {"conditions": calm}})
        if release.namespace:
            left = release.custom.list_namespaced_custom_object(
                GROUP, VERSION, release.namespace, PLURAL
            )["items"]
            for wrapper in left:
                release.remove(wrapper["metadata"]["name"])
            lab.remove_namespace(release.namespace)
        lab.without_chart()


def judged(world: WrappedRelease) -> bool:
    """The webhooks are called: a wrapper without pods is denied, and by them."""
    body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "AppWrapper", "metadata": {"name": "probe"}}
    body["spec"] = {"components": []}
    try:
        world.custom.create_namespaced_custom_object(
            GROUP, VERSION, world.namespace, PLURAL, body, dry_run="All"
        )
    except client.ApiException as error:
        return error.status == 403 and "denied the request" in str(error.body)
    return False


def verdict(
    world: WrappedRelease, name: str, node: str, check: str = "dcgm-diag"
) -> Callable[[], float]:
    """Seconds since the epoch at which this check of the wrapper has failed on the node; 0 so
    far.
    """

    def found() -> float:
        for pod in world.pods(name):
            for status in pod.status.init_container_statuses or []:
                ended = status.state.terminated
                if (
                    status.name == f"preflight-{check}"
                    and ended
                    and ended.exit_code
                    and pod.spec.node_name == node
                ):
                    return float(ended.finished_at.timestamp())
        return 0.0

    return found
