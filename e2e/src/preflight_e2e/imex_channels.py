"""IMEX channels on a real cluster: the chart of ComputeDomains installed, and on each node a driver
of files in NVIDIA's place.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from kubernetes import client, stream
from preflight_testing.helm import Release, Values

from .images import FAKE_NODE
from .installed_release import UsersNamespace, until

DRIVER = "compute-domain.nvidia.com"
CLASS = "compute-domain-default-channel.nvidia.com"
DEVICE = "/dev/nvidia-caps-imex-channels/channel0"
GROUP, VERSION, PLURAL = "resource.nvidia.com", "v1beta1", "computedomains"
RESOURCE = ("resource.k8s.io", "v1")
MAJOR = 235
"""One that no driver of these machines serves: opening the device fails with ENXIO."""
SEEN = f"{MAJOR:x}:0 666 No such device or address"
"""What a pod with the channel says: the device's major and minor, its mode, and ENXIO: no driver,
but permission.
"""
DRIVERS = "imex-drivers"
"""The DaemonSet that brings the driver's files, in the release's namespace; by its pods tests act
on a node.
"""
_ROOT, _DEVICES = "/etc/node-local/imex-driver", "/etc/node-local/imex-proc-devices"
GPU = {
    "uuid": "GPU-1",
    "name": "GB200",
    "pci": "00000000:01:00.0",
    "fabric_state": "3",
    "fabric_status": "0",
    "fabric_cluster": "000102030405060708090a0b0c0d0e0f",
    "fabric_clique": "7",
}
_BRING = f"""set -e
mkdir -p {_ROOT}/lib64
cp /opt/fake-node/libnvidia-ml.so.1 {_ROOT}/lib64/
printf '%s' '{json.dumps({"driver_version": "570.158.01", "gpus": [GPU]})}' > {_ROOT}/lib64/driver.json
printf 'Character devices:\\n  1 mem\\n{MAJOR} nvidia-caps-imex-channels\\n\\nBlock devices:\\n' > {_DEVICES}
touch /tmp/brought
exec sleep infinity
"""
_LOOK = f"""
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    found = os.stat("{DEVICE}")
    print("%x:%x %o" % (os.major(found.st_rdev), os.minor(found.st_rdev), found.st_mode & 0o7777), end=" ")
    os.open("{DEVICE}", os.O_RDWR)
    print("opened", flush=True)
except OSError as error:
    print(error.strerror, flush=True)
"""
"""Say what the device is, and what opening it comes to."""


class Channels:
    """A release of the chart under names of its own, on every node that takes pods."""

    def __init__(self, kubeconfig: Path) -> None:
        self.name = f"cd-{uuid.uuid4().hex[:6]}"
        self.release = Release(self.name, kubeconfig, name=self.name)
        # The client's stubs know no plain dicts as bodies.
        self.api: Any = client.CoreV1Api()
        self.apps: Any = client.AppsV1Api()
        self.custom: Any = client.CustomObjectsApi()
        self.places: list[ChannelNamespace] = []
        nodes: list[Any] = self.api.list_node().items
        self.nodes: list[str] = [
            node.metadata.name
            for node in nodes
            if not any(taint.effect == "NoSchedule" for taint in node.spec.taints or [])
        ]

    def values(self, **values: Any) -> Values:
        own = {
            "enabled": True,
            "fullnameOverride": self.name,
            "featureGates": {"HostManagedIMEX": True},
            "image": {"tag": "dev"},
            "crd": {"keep": False},
            "nvidiaDriverRoot": _ROOT,
            "altProcDevices": _DEVICES,
            "cdiRoot": "/etc/cdi",
            "kubeletPlugin": {"privileged": False, "affinity": None},
        }
        return {"preflight-computedomain": {**own, **values}}

    def install(self) -> None:
        """Return once every node's slice is there."""
        self.api.create_namespace({"metadata": {"name": self.name}})
        self.apps.create_namespaced_daemon_set(self.name, _drivers())
        until(lambda: self._brought() == len(self.nodes), "a driver on every node")
        self.release.install(self.values())
        until(lambda: self.published() == sorted(self.nodes), "the slice of every node")

    def _brought(self) -> int:
        return int(
            self.apps.read_namespaced_daemon_set(DRIVERS, self.name).status.number_ready or 0
        )

    def slices(self) -> list[dict[str, Any]]:
        slices = self.custom.list_cluster_custom_object(*RESOURCE, "resourceslices")["items"]
        return [
            resource_slice
            for resource_slice in slices
            if resource_slice["spec"]["driver"] == DRIVER
        ]

    def published(self) -> list[str]:
        """Nodes whose slice has exactly channel 0."""
        return sorted(
            resource_slice["spec"]["nodeName"]
            for resource_slice in self.slices()
            if [d["name"] for d in resource_slice["spec"].get("devices", [])] == ["channel-0"]
        )

    def of(self, component: str) -> list[Any]:
        """The release's pods of ``controller`` or ``kubelet-plugin``."""
        selector = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        return list(self.api.list_namespaced_pod(self.name, label_selector=selector).items)

    def plugin(self, node: str) -> Any:
        """The pod of the node's plugin that is not on its way out."""
        pods = [pod for pod in self.of("kubelet-plugin") if pod.spec.node_name == node]
        return next(pod for pod in pods if not pod.metadata.deletion_timestamp)

    def on(self, node: str, *words: str) -> str:
        """Run ``words`` where the node's folders are mounted; what they print."""
        pods = self.api.list_namespaced_pod(self.name, label_selector=f"app={DRIVERS}").items
        [pod] = [pod.metadata.name for pod in pods if pod.spec.node_name == node]
        outputs: list[str] = []

        def ran() -> bool:
            with suppress(client.ApiException):  # a kubelet that has just started knows no pod yet
                outputs.append(run_in(self.name, pod, *words))
            return bool(outputs)

        until(ran, f"{words[0]} on {node}")
        return outputs[0]

    def cdi_files(self, node: str) -> list[str]:
        """The driver's CDI files on ``node``."""
        return self.on(
            node, "sh", "-c", f"ls /etc/cdi/k8s.{DRIVER}-claim_*.json 2>/dev/null || true"
        ).split()

    def metrics(self, node: str) -> str:
        """What the plugin of ``node`` counts; nothing while it does not answer."""
        read = self.api.connect_get_namespaced_pod_proxy_with_path
        with suppress(client.ApiException):
            name = f"{self.plugin(node).metadata.name}:8080"
            return str(read(name, self.name, "metrics", _preload_content=False).data.decode())
        return ""

    def place(self) -> ChannelNamespace:
        """A new namespace for users."""
        place = ChannelNamespace(self, f"{self.name}-{len(self.places)}")
        self.api.create_namespace({"metadata": {"name": place.namespace}})
        until(place.has_account, "the default account")
        self.places.append(place)
        return place

    def remove(self) -> None:
        """Take away users' objects while controller and plugins still work, then the release."""
        for place in self.places:
            place.leave()
        for place in self.places:
            with suppress(client.ApiException):
                self.api.delete_namespace(place.namespace)
        self.release.uninstall(wait=False)
        with suppress(client.ApiException):
            self.api.delete_namespace(self.name)
        for (
            resource_slice
        ) in self.slices():  # the plugins leave them, as pods are scheduled while they are updated
            with suppress(client.ApiException):
                self.custom.delete_cluster_custom_object(
                    *RESOURCE, "resourceslices", resource_slice["metadata"]["name"]
                )


class ChannelNamespace(UsersNamespace):
    """A namespace in which somebody uses channels."""

    def __init__(self, channels: Channels, namespace: str) -> None:
        super().__init__(channels.api, namespace)
        self.channels = channels

    def has_account(self) -> bool:
        with suppress(client.ApiException):
            return bool(self.api.read_namespaced_service_account("default", self.namespace))
        return False

    # --- ComputeDomains and templates

    def domain(
        self, name: str = "train", wants: str = "", nodes: int = 0, mode: str = "Single"
    ) -> dict[str, Any]:
        channel = {
            "resourceClaimTemplate": {"name": wants or f"{name}-channel"},
            "allocationMode": mode,
        }
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": "ComputeDomain",
            "metadata": {"name": name},
            "spec": {"numNodes": nodes, "channel": channel},
        }
        created: dict[str, Any] = self.channels.custom.create_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, body
        )
        return created

    def status(self, name: str = "train") -> str:
        """Ready, NotReady, or nothing where there is no such ComputeDomain."""
        with suppress(client.ApiException):
            domain = self.channels.custom.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name
            )
            return str(domain.get("status", {}).get("status", "NotReady"))
        return ""

    def ready(self, name: str = "train", **spec: Any) -> dict[str, Any]:
        """Make a ComputeDomain, and wait until it is Ready."""
        domain = self.domain(name, **spec)
        until(lambda: self.status(name) == "Ready", f"ComputeDomain {name} is Ready")
        return domain

    def end_domain(self, name: str = "train") -> None:
        self.channels.custom.delete_namespaced_custom_object(
            GROUP, VERSION, self.namespace, PLURAL, name
        )

    def listed(self, plural: str) -> list[dict[str, Any]]:
        """ResourceClaims or ResourceClaimTemplates of this namespace."""
        return list(
            self.channels.custom.list_namespaced_custom_object(*RESOURCE, self.namespace, plural)[
                "items"
            ]
        )

    def template(self, name: str, parameters: dict[str, Any]) -> None:
        """A template of the user's own, with a configuration of his own."""
        body = {"metadata": {"name": name}, "spec": {"spec": {"devices": _devices(parameters)}}}
        self.create("ResourceClaimTemplate", "resourceclaimtemplates", body)

    def allocated(self, name: str, domain: str, node: str) -> dict[str, Any]:
        """A claim whose channel on ``node`` somebody has written by hand, past the scheduler."""
        parameters = config(domain)
        created = self.create(
            "ResourceClaim",
            "resourceclaims",
            {"metadata": {"name": name}, "spec": {"devices": _devices(parameters)}},
        )
        result = {"request": "channel", "driver": DRIVER, "pool": node, "device": "channel-0"}
        [opaque] = _devices(parameters)["config"]
        devices = {"results": [result], "config": [{**opaque, "source": "FromClaim"}]}
        self.patch_status(name, {"allocation": {"devices": devices}})
        return created

    def reserve(self, name: str, pod: Any) -> None:
        self.patch_status(
            name,
            {
                "reservedFor": [
                    {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}
                ]
            },
        )

    def create(self, kind: str, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        created: dict[str, Any] = self.channels.custom.create_namespaced_custom_object(
            *RESOURCE,
            self.namespace,
            plural,
            {"apiVersion": "/".join(RESOURCE), "kind": kind, **body},
        )
        return created

    def patch_status(self, name: str, status: dict[str, Any]) -> None:
        self.channels.custom.patch_namespaced_custom_object_status(
            *RESOURCE, self.namespace, "resourceclaims", name, {"status": status}
        )

    # --- pods

    def pod(
        self,
        name: str,
        node: str,
        template: str = "",
        *,
        claim: str = "",
        unbound: bool = False,
        claims: Mapping[str, str] | None = None,
        **spec: Any,
    ) -> Any:
        """A pod that says what it sees of the channel, also in an init container, and stays.

        ``claims``: names in the pod and their templates, where it has others than ``template``'s.
        ``unbound``: no scheduler looks at it until :meth:`bind`.
        """
        templates = claims or ({"channel": template} if template else {})
        claimed = [
            {"name": name, "resourceClaimTemplateName": template_name}
            for name, template_name in templates.items()
        ]
        if claim:
            claimed = [{"name": "channel", "resourceClaimName": claim}]
        look = {
            "image": FAKE_NODE,
            "imagePullPolicy": "IfNotPresent",
            "resources": {"claims": [{"name": entry["name"]} for entry in claimed]}
            if claimed
            else {},
        }
        stays = {"name": "train", "command": ["python3", "-c", _LOOK + "time.sleep(10**6)"], **look}
        before = {"name": "preflight-look", "command": ["python3", "-c", _LOOK], **look}
        where = (
            {"schedulerName": "by-hand"}
            if unbound
            else {"nodeSelector": {"kubernetes.io/hostname": node}}
        )
        body = {
            "terminationGracePeriodSeconds": 5,
            "automountServiceAccountToken": False,
            "resourceClaims": claimed,
            "initContainers": [before],
            "containers": [stays],
            **where,
            **spec,
        }
        pod = {"metadata": {"name": name}, "spec": body}
        return self.api.create_namespaced_pod(self.namespace, pod)

    def container(self, name: str) -> str:
        """The id of the pod's container."""
        return str(self.read(name).status.container_statuses[0].container_id)

    def restarts(self, name: str) -> int:
        statuses = self.read(name).status.container_statuses or []
        return sum(status.restart_count for status in statuses if status.state.running)

    def sees(self, name: str, container: str = "train") -> str:
        """What the pod has said of the channel; a container that has only just begun has said
        nothing yet.
        """
        output = ""

        def holds() -> bool:
            nonlocal output
            read = self.api.read_namespaced_pod_log
            output = str(read(name, self.namespace, container=container)).strip()
            return bool(output)

        until(holds, f"{self.namespace}/{name} says what it sees")
        return output

    def run_in(self, name: str, *words: str) -> str:
        return run_in(self.namespace, name, *words)

    def await_event(self, of: str, words: str) -> None:
        """Wait for an Event of ``of`` with ``words``."""
        until(
            lambda: any(words in (event.message or "") for event in self.events(of)),
            f"an Event of {of}: {words}",
        )

    def leave(self) -> None:
        """Delete pods, ComputeDomains and claims, so that every channel is free."""
        self.delete(*(pod.metadata.name for pod in self.pods()))
        custom = self.channels.custom
        for item in custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL)[
            "items"
        ]:
            with suppress(client.ApiException):
                self.end_domain(item["metadata"]["name"])
        for item in self.listed("resourceclaims"):
            with suppress(client.ApiException):
                custom.delete_namespaced_custom_object(
                    *RESOURCE, self.namespace, "resourceclaims", item["metadata"]["name"]
                )
        until(
            lambda: not self.listed("resourceclaims"), f"the end of the claims of {self.namespace}"
        )

        def gone() -> bool:
            return not custom.list_namespaced_custom_object(GROUP, VERSION, self.namespace, PLURAL)[
                "items"
            ]

        until(gone, f"the end of the ComputeDomains of {self.namespace}")


def config(domain: str, **changed: Any) -> dict[str, Any]:
    """Parameters of a channel's claim."""
    defaults = {
        "allocationMode": "Single",
        "apiVersion": f"{GROUP}/{VERSION}",
        "domainID": domain,
        "kind": "ComputeDomainChannelConfig",
    }
    return {**defaults, **changed}


def _devices(parameters: dict[str, Any]) -> dict[str, Any]:
    opaque = {"driver": DRIVER, "parameters": parameters}
    return {
        "requests": [{"name": "channel", "exactly": {"deviceClassName": CLASS}}],
        "config": [{"requests": ["channel"], "opaque": opaque}],
    }


def _drivers() -> dict[str, Any]:
    labels = {"app": DRIVERS}
    folders = {"local": "/etc/node-local", "cdi": "/etc/cdi", "kubelet": "/var/lib/kubelet"}
    container = {
        "name": "files",
        "image": FAKE_NODE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", _BRING],
        "readinessProbe": {"exec": {"command": ["test", "-f", "/tmp/brought"]}, "periodSeconds": 1},
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in folders.items()],
    }
    spec = {
        "terminationGracePeriodSeconds": 1,
        "containers": [container],
        "volumes": [
            {"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
            for name, path in folders.items()
        ],
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "metadata": {"name": DRIVERS},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


def run_in(namespace: str, pod: str, *words: str) -> str:
    # A client of its own: `stream` turns the client it is given into one for websockets.
    client_class: Any = client.ApiClient
    api: Any = client.CoreV1Api(client_class())
    run: Any = stream.stream
    answer = run(
        api.connect_get_namespaced_pod_exec,
        pod,
        namespace,
        command=list(words),
        stdout=True,
        stderr=True,
        _preload_content=False,
    )
    try:
        answer.run_forever(timeout=60)
        return str(answer.read_all())
    finally:
        answer.close()
        answer.sock.shutdown()  # which close() leaves out where the other side was first
