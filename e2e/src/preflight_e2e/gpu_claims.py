"""GPUs by claims on a real cluster: the charts of GPU scheduler and injector installed on the lab's
fake nodes, and pods that say which GPUs they see.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kubernetes import client

from .images import FAKE_NODE
from .installed_release import Installed, UsersNamespace, until
from .kube_scheduler import IMAGE
from .lab import Lab

Json = dict[str, Any]
GROUP = "gpu.scheduling"
COUNT = f"{GROUP}/gpu"
LOCKS = "gpu-scheduler-leases"
LOCAL = "/etc/node-local"
STALE = 20
"""Seconds after which a node whose agent is silent takes no pods, instead of 90."""
LOOK, DCGM = CHECKS = ("preflight-look", "preflight-dcgm-diag")
_LOOK = f"""
import ctypes, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
nvml = ctypes.CDLL("{LOCAL}/libnvidia-ml.so.1")
nvml.nvmlInit_v2()
count, handle, text = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
seen = []
for index in range(count.value):
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    nvml.nvmlDeviceGetUUID(handle, text, 96)
    seen.append(text.value.decode())
names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
said = [sorted(filter(None, os.environ.get(name, "unset").split(","))) for name in names]
import json
print(json.dumps([*said, sorted(seen)]), flush=True)
"""
"""Print what each of the two variables names, and what NVML shows."""


class GpuClaimsRelease:
    """Both charts in one release, under names of its own, on nodes whose device plugins hand out
    nothing.
    """

    def __init__(self, lab: Lab, kubeconfig: Path) -> None:
        self.lab, self.nodes = lab, lab.nodes
        self.installed = Installed(kubeconfig)
        self.name = f"gs-{self.installed.name}"  # called before the injector, which begins with pf-
        self.api: Any = client.CoreV1Api()
        self.apps: Any = client.AppsV1Api()
        self.custom: Any = client.CustomObjectsApi()
        self.leases: Any = client.CoordinationV1Api()
        self.hooks: Any = client.AdmissionregistrationV1Api()

    def install(self) -> None:
        """Return once every node's GPUs are counted."""
        self.lab.become({"plugin": "absent"})
        for node in self.nodes:  # what checks of before have said of their GPUs
            for condition in self.api.read_node(node).status.conditions:
                if condition.status == "True" and condition.type != "Ready":
                    self.condition(node, condition.type, [])
        folder = {"name": "driver", "hostPath": {"path": LOCAL}}
        driver = {
            "extraVolumes": [folder],
            "extraVolumeMounts": [{"name": "driver", "mountPath": LOCAL}],
        }
        library = {"name": "LD_LIBRARY_PATH", "value": LOCAL}
        dcgm = {"name": "dcgm-diag", "image": "preflight-dcgm-diag:e2e", "env": [library], **driver}
        look = {
            "name": "look",
            "image": FAKE_NODE,
            "container": {"command": ["python3", "-c", _LOOK], "args": None},
            **driver,
        }
        injector = self.installed.with_values(
            checks=[look, dcgm],
            replicas=1,
            dcgm={"hostengineAddr": "$(NODE_IP):5555", "diagLevel": 2},
            gpuDetection={"resourceNames": ["nvidia.com/gpu", COUNT]},
            deviceVariables={"enabled": True},
        )
        scheduler = {
            "enabled": True,
            "fullnameOverride": self.name,
            "image": {"tag": "dev"},
            "replicas": 1,
            "kubeScheduler": {"image": IMAGE},
            "crd": {"keep": False},
            "staleAfter": f"{STALE}s",
            "heartbeat": "4s",
            "sweep": "5s",
        }
        whole = {**injector, "preflight-gpu-scheduler": scheduler}
        self.installed.release.install(whole, wait=False)
        self._bring_driver()
        until(self._ready, "scheduler, controller and webhooks are ready")
        until(self.installed.published, "the CA bundle")
        until(lambda: all(map(self._counted, self.nodes)), "the GPUs of every node are counted")

    def _bring_driver(self) -> None:
        """What a container runtime of NVIDIA's does for the agent, which asks for all devices."""
        library = {"name": "LD_LIBRARY_PATH", "value": LOCAL}
        mount = {"name": "driver", "mountPath": LOCAL, "readOnly": True}
        volume = {"name": "driver", "hostPath": {"path": LOCAL}}
        agent = {"name": "agent", "env": [library], "volumeMounts": [mount]}
        self._patch_agents({"containers": [agent], "volumes": [volume]})

    def _patch_agents(self, spec: Json) -> None:
        body = {"spec": {"template": {"spec": spec}}}
        self.apps.patch_namespaced_daemon_set(f"{self.name}-agent", self.installed.name, body)

    def agents_off(self, node: str | None) -> None:
        """Have no agent on ``node``; None: one on every node again."""
        elsewhere = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        self._patch_agents({"affinity": {"nodeAffinity": required} if node else None})

    def agent(self, node: str) -> str:
        """The name of the agent's pod on ``node`` that is not on its way out; empty:
        there is none.
        """
        selector = "app.kubernetes.io/component=agent"
        pods = self.api.list_namespaced_pod(self.installed.name, label_selector=selector).items
        names = [
            pod.metadata.name
            for pod in pods
            if pod.spec.node_name == node and not pod.metadata.deletion_timestamp
        ]
        return str(names[0]) if names else ""

    def _counted(self, node: str) -> bool:
        amount = (self.api.read_node(node).status.allocatable or {}).get(COUNT, "0")
        return int(amount) == len(self.devices(node)) == len(self.usable(node)) > 0

    def _ready(self) -> bool:
        deployments = self.apps.list_namespaced_deployment(self.installed.name).items
        return all(
            (deployment.status.ready_replicas or 0) >= deployment.spec.replicas
            for deployment in deployments
        )

    def devices(self, node: str) -> dict[str, Json]:
        """The devices of the node's GpuNodeStatus by UUID."""
        with suppress(client.ApiException):
            status = self.custom.get_cluster_custom_object(GROUP, "v1", "gpunodestatuses", node)
            return {
                device["uuid"]: device for device in status.get("status", {}).get("devices", [])
            }
        return {}

    def usable(self, node: str) -> list[str]:
        devices = self.devices(node)
        return [
            uuid for uuid, device in devices.items() if device.get("health", "Healthy") == "Healthy"
        ]

    def place(self) -> GpuPlace:
        """A new namespace, in which pods get the checks and the variables by now."""
        labels = {
            "preflight-e2e": self.installed.name,
            "nvsentinel.nvidia.com/preflight": "enabled",
        }
        place = GpuPlace(self, self.installed.namespace(**labels))
        place.claim("probe", 1)
        until(lambda: place.created() == list(CHECKS), f"both webhooks are called for {place}")
        return place

    # --- conditions, as a platform connector writes them

    def messages(self, node: str, kind: str) -> list[str]:
        """What the node's connector keeps as the messages of condition ``kind``."""
        lines = [line for line in self.lab.node_log(node) if line.get("condition") == kind]
        return list(lines[-1]["messages"]) if lines else []

    def condition(self, node: str, kind: str, messages: Sequence[str]) -> None:
        about = {
            "type": kind,
            "status": str(bool(messages)),
            "reason": f"{kind}Is{'Not' if messages else ''}Healthy",
            "message": ";".join(messages),
        }
        self.api.patch_node_status(node, {"status": {"conditions": [about]}})

    # --- the order of the webhooks

    @contextmanager
    def called_last(self) -> Iterator[None]:
        """Our webhook under a name that comes after the injector's, and under no other."""
        plain: Any = client.ApiClient()
        own = plain.sanitize_for_serialization(
            self.hooks.read_mutating_webhook_configuration(self.name)
        )
        [entry] = own["webhooks"]
        last, named = f"z-{self.name}", f"z-last.{GROUP}"
        there = {"metadata": {"name": last}, "webhooks": [{**entry, "name": named}]}
        self.hooks.create_mutating_webhook_configuration(there)
        try:
            self.hooks.delete_mutating_webhook_configuration(self.name)
            yield
        finally:
            metadata = {"name": self.name, "labels": own["metadata"]["labels"]}
            again = {"metadata": metadata, "webhooks": own["webhooks"]}
            self.hooks.create_mutating_webhook_configuration(again)
            self.hooks.delete_mutating_webhook_configuration(last)

    def remove(self) -> None:
        """Take away pods while their agents still work, then the release and its locks."""
        for name in self.installed.namespaces:
            with suppress(client.ApiException):
                self.api.delete_collection_namespaced_pod(name, grace_period_seconds=1)
        self.installed.remove()
        with suppress(client.ApiException):
            self.api.delete_namespace(LOCKS)
        path = f"/status/capacity/{COUNT.replace('/', '~1')}"
        for node in self.nodes:
            with suppress(client.ApiException):
                self.api.patch_node_status(node, [{"op": "remove", "path": path}])
        self.lab.become({})


class GpuPlace(UsersNamespace):
    """A namespace in which somebody uses GPUs by claims."""

    grace = 1

    def __init__(self, claims: GpuClaimsRelease, namespace: str) -> None:
        super().__init__(claims.api, namespace)
        self.claims = claims

    def __str__(self) -> str:
        return self.namespace

    def claim(self, name: str, count: int, **spec: Any) -> None:
        body = {
            "apiVersion": f"{GROUP}/v1",
            "kind": "GpuClaim",
            "metadata": {"name": name},
            "spec": {**spec, "devices": {"count": count, **spec.get("devices", {})}},
        }
        self.claims.custom.create_namespaced_custom_object(
            GROUP, "v1", self.namespace, "gpuclaims", body
        )

    def pod(self, name: str, claim: str, node: str = "", **more: Any) -> Any:
        return self.api.create_namespaced_pod(self.namespace, self.body(name, claim, node, **more))

    def body(self, name: str, claim: str, node: str = "", **more: Any) -> Json:
        """A pod of an init container, a sidecar and two containers,
        each of which says what it sees.
        """
        look = {
            "image": FAKE_NODE,
            "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "local", "mountPath": LOCAL, "readOnly": True}],
        }
        stays = {"command": ["python3", "-c", f"{_LOOK}time.sleep(10**6)"], **look}
        ends = {"command": ["python3", "-c", _LOOK], **look}
        spec = {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "nodeSelector": {"kubernetes.io/hostname": node} if node else {},
            "initContainers": [
                {"name": "prepare", **ends},
                {"name": "sidecar", "restartPolicy": "Always", **stays},
            ],
            "containers": [{"name": "train", **stays}, {"name": "beside", **stays}],
            "volumes": [{"name": "local", "hostPath": {"path": LOCAL}}],
            **more,
        }
        notes = {f"{GROUP}/claim": claim} if claim else {}
        return {"metadata": {"name": name, "annotations": notes}, "spec": spec}

    def created(self) -> list[str] | str:
        """Names of the checks that a pod would get, or why it is refused."""
        try:
            body = self.body("probe", "probe")
            pod = self.api.create_namespaced_pod(self.namespace, body, dry_run="All")
        except client.ApiException as error:
            return str(json.loads(error.body or "{}").get("message"))
        names = [container.name for container in pod.spec.init_containers]
        return [name for name in names if name.startswith("preflight-")]

    def refused_by(self) -> str:
        """What is said to a pod that asks the device plugin, too."""
        body = self.body("probe", "probe")
        body["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
        try:
            self.api.create_namespaced_pod(self.namespace, body, dry_run="All")
        except client.ApiException as error:
            return str(json.loads(error.body or "{}").get("message"))
        return ""

    def why(self, name: str) -> str:
        """What the scheduler says of a pod that it cannot place."""
        messages = [
            str(condition.message)
            for condition in self.read(name).status.conditions or []
            if (condition.type, condition.status) == ("PodScheduled", "False")
        ]
        return "".join(messages)

    def waits(self, name: str, words: str) -> None:
        until(lambda: words in self.why(name), f"pod {name} waits: {words}")

    def locked(self, name: str) -> list[str]:
        """UUIDs of the GPUs whose Leases the pod holds."""
        uid = self.read(name).metadata.uid
        leases = self.claims.leases.list_namespaced_lease(LOCKS).items
        return sorted(
            lease.metadata.annotations[f"{GROUP}/uuid"]
            for lease in leases
            if lease.spec.holder_identity == uid
        )

    def gpus_by_container(self, name: str) -> dict[str, list[list[str]]]:
        """By container, what it names and sees; waits until each has said it."""
        spec = self.read(name).spec
        containers = [container.name for container in [*spec.init_containers, *spec.containers]]
        # dcgm-diag says what it finds in words of its own.
        return {
            container: self.sees(name, container) for container in containers if container != DCGM
        }

    def sees(self, name: str, container: str) -> list[list[str]]:
        """What the two variables name there, and what NVML shows; waits until it has said it."""
        log = self.claims.lab.log
        until(
            lambda: log(self.namespace, name, container).endswith("\n"),
            f"{name}/{container} says what it sees",
        )
        rows: list[list[str]] = json.loads(log(self.namespace, name, container))
        return rows

    def await_event(self, name: str, reason: str) -> None:
        until(
            lambda: any(event.reason == reason for event in self.events(name)),
            f"Event {reason} of pod {name}",
        )

    def leave(self) -> None:
        self.delete(*(pod.metadata.name for pod in self.pods()))
