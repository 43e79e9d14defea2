"""A cluster in which all parts are installed and nothing is wrong, for a test to break."""

from __future__ import annotations

import base64
import copy
import gzip
import json
from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import trustme
import yaml
from preflight_cli.cluster import Installation, part_of
from preflight_proto import names
from preflight_testing.helm import PARTS, REQUIRED, UMBRELLA, render

NOW = datetime.now(UTC).replace(microsecond=0)
NODES = ("node-a", "node-b", "node-c")
Json = dict[str, Any]


def ago(**time: float) -> str:
    """The moment so long before now (RFC 3339)."""
    return (NOW - timedelta(**time)).isoformat().replace("+00:00", "Z")


class World:
    """``read``: objects by kind, to be changed at will."""

    def __init__(self) -> None:
        self.read: dict[str, list[Json]] = copy.deepcopy(_healthy())
        self.version: Json = {"major": "1", "minor": "36"}

    def cluster(self) -> Installation:
        return Installation(self.read, NOW, self.version)

    def one(self, kind: str, name: str) -> Json:
        """The object of that kind and name."""
        [found] = [item for item in self.read[kind] if item["metadata"]["name"] == name]
        return found

    def gone(self, kind: str, name: str) -> None:
        self.read[kind].remove(self.one(kind, name))

    def uninstalled(self, part: str) -> None:
        """As after an upgrade that has switched the part off."""
        for kind, items in self.read.items():
            if kind != "Secret":
                self.read[kind] = [item for item in items if part_of(item) != part]
        _released(self.read)

    def add(self, kind: str, name: str, namespace: str = "", **fields: Any) -> Json:
        metadata = {"name": name, **fields.pop("metadata", {})}
        if namespace:
            metadata["namespace"] = namespace
        made: Json = {"kind": kind, "metadata": metadata, **fields}
        self.read.setdefault(kind, []).append(made)
        return made

    def config(self, part: str, change: Any) -> None:
        """Change a part's configuration, in the cluster and in what Helm keeps."""
        item = self.one("ConfigMap", part)
        config = yaml.safe_load(item["data"]["config.yaml"])
        change(config)
        item["data"]["config.yaml"] = yaml.safe_dump(config)
        _released(self.read)


def checked(world: World, name: str, check: str, **status: Any) -> Json:
    """A pod of namespace ml with one check."""
    container = {"name": f"preflight-{check}", "image": f"preflight-{check}:0.1.0", **status}
    labels = {names.CHECKED_LABEL: names.CHECKED}
    made = world.add("CheckedPod", name, "ml", metadata={"labels": labels})
    made["status"] = {"initContainerStatuses": [container]}
    return made


def ended(outcome: str, code: str, check: str = "dcgm-diag") -> Json:
    """The state of a check that has ended so."""
    result = {"v": 1, "check": check, "outcome": outcome, "code": code, "gated": True}
    message = json.dumps({**result, "duration": 9.5, "reason": "why."})
    return {"terminated": {"exitCode": 0, "message": message}}


def kept(world: World, change: Callable[[str], str]) -> None:
    """Change the manifest that Helm keeps of the release."""
    secret = world.one("Secret", "sh.helm.release.v1.preflight.v3")
    manifest = json.loads(gzip.decompress(b64decode(b64decode(secret["data"]["release"]))))
    packed = gzip.compress(json.dumps({"manifest": change(manifest["manifest"])}).encode())
    secret["data"]["release"] = _base64(_base64(packed).encode())


def certificate(days: float = 365, ca: trustme.CA | None = None, age: float = 365) -> str:
    """A serving certificate, as a Secret has it."""
    since, until = NOW - timedelta(days=age), NOW + timedelta(days=days)
    made = (ca or _ca()).issue_cert("webhook", not_before=since, not_after=until)
    return _base64(made.cert_chain_pems[0].bytes())


@cache
def _ca() -> trustme.CA:
    return trustme.CA()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@cache
def _healthy() -> dict[str, list[Json]]:
    parts = (path for path in PARTS.iterdir() if path.name.startswith("preflight-"))
    values = {path.name: {"enabled": True, **REQUIRED.get(path, {})} for path in parts}
    read: dict[str, list[Json]] = {}
    for item in render(UMBRELLA, values):
        if not item["kind"].startswith(("Cluster", "Custom", "Validating", "Mutating", "DeviceC")):
            item["metadata"].setdefault("namespace", "preflight")
        read.setdefault(item["kind"], []).append(item)
    _released(read)
    notes = {f"meta.helm.sh/release-{key}": "preflight" for key in ("name", "namespace")}
    for kind, items in list(read.items()):
        for item in items:
            if kind != "Secret":
                item["metadata"].setdefault("annotations", {}).update(notes)
            if fill := _FILLED.get(kind):
                fill(item, read)
    for kind in ("Deployment", "DaemonSet"):
        for item in list(read[kind]):
            _pods(item, read)
    well = {"type": "NCCLLoopbackTest", "status": "False"}
    read |= {"Node": [], "Supplier": [], "SupplierPod": []}
    for node in NODES:
        status = {"capacity": {"nvidia.com/gpu": "8"}, **true("Ready")}
        status["conditions"].append(dict(well))
        read["Node"].append({"kind": "Node", "metadata": {"name": node}, "status": status})
    for name in ("platform-connectors", "nvidia-dcgm"):
        labels, where = {"app": name}, {"namespace": "nvidia"}
        spec, metadata = {"selector": {"matchLabels": labels}}, {"name": name, **where}
        read["Supplier"].append({"kind": "DaemonSet", "metadata": metadata, "spec": spec})
        for node in NODES:
            about = {"name": f"{name}-{node}", "labels": labels, **where}
            on = {"spec": {"nodeName": node}, "status": true("Ready")}
            read["SupplierPod"].append({"metadata": about, **on})
    labels = {names.NAMESPACE_LABEL: names.NAMESPACE_ENABLED}
    read["OptedIn"] = [{"kind": "Namespace", "metadata": {"name": "ml", "labels": labels}}]
    read |= {"CheckedPod": [], "PreflightConfig": [], "OwnKind": []}
    return read


def _released(read: dict[str, list[Json]]) -> None:
    """What Helm keeps of the release, made of what is there."""
    of_chart = [item for kind, items in read.items() if kind not in _NOT_OF_HELM for item in items]
    manifest = "".join(
        f"---\n# Source: preflight/charts/{part_of(item)}/templates/x.yaml\n{yaml.safe_dump(item)}"
        for item in of_chart
    )
    packed = _base64(_base64(gzip.compress(json.dumps({"manifest": manifest}).encode())).encode())
    others = [item for item in read.get("Secret", []) if item["type"] != "helm.sh/release.v1"]
    labels = {"name": "preflight", "status": "deployed", "version": "3"}
    about = {**_placed("sh.helm.release.v1.preflight.v3"), "labels": labels}
    kept = {"kind": "Secret", "type": "helm.sh/release.v1", "metadata": about}
    read["Secret"] = [*others, {**kept, "data": {"release": packed}}]


def _placed(name: str) -> Json:
    return {"name": name, "namespace": "preflight"}


def true(*types: str) -> Json:
    """A status in which these conditions are True."""
    return {"conditions": [{"type": type_, "status": "True"} for type_ in types]}


_NOT_OF_HELM = {
    *("Secret", "Pod", "EndpointSlice", "Node", "Supplier", "CheckedPod", "OwnKind"),
    *("PreflightConfig", "OptedIn", "SupplierPod"),
}


def _workload(item: Json, read: dict[str, list[Json]]) -> None:
    replicas = item["spec"].get("replicas", 1)
    item["status"] = {"readyReplicas": replicas, "replicas": replicas}
    for volume in item["spec"]["template"]["spec"].get("volumes", []):
        if (secret := volume.get("secret", {}).get("secretName", "")).endswith("-tls"):
            made = {"kind": "Secret", "type": "kubernetes.io/tls", "metadata": _placed(secret)}
            made["data"] = {"tls.crt": certificate()}
            if not any(s["metadata"]["name"] == secret for s in read["Secret"]):
                read["Secret"].append(made)


def _pods(item: Json, read: dict[str, list[Json]]) -> None:
    template = item["spec"]["template"]["metadata"]
    number = 3 if item["kind"] == "DaemonSet" else item["spec"].get("replicas", 1)
    for i in range(number):
        about = {**_placed(f"{item['metadata']['name']}-{i}"), "labels": template["labels"]}
        made = {"kind": "Pod", "metadata": about, "status": true("Ready")}
        read.setdefault("Pod", []).append(made)


def _service(item: Json, read: dict[str, list[Json]]) -> None:
    name = item["metadata"]["name"]
    about = {**_placed(f"{name}-x"), "labels": {"kubernetes.io/service-name": name}}
    made = {"metadata": about, "endpoints": [{"conditions": {"ready": True}}]}
    read.setdefault("EndpointSlice", []).append(made)


def _webhook(item: Json, _: dict[str, list[Json]]) -> None:
    for webhook in item["webhooks"]:
        webhook["clientConfig"]["caBundle"] = _base64(_ca().cert_pem.bytes())


def _lease(item: Json, _: dict[str, list[Json]]) -> None:
    item["spec"] = {"holderIdentity": "a-pod", "renewTime": ago(), "leaseDurationSeconds": 15}


def _daemons(item: Json, read: dict[str, list[Json]]) -> None:
    _workload(item, read)
    item["status"] = {"numberReady": 3, "desiredNumberScheduled": 3}


def _cron(item: Json, _: dict[str, list[Json]]) -> None:
    item["status"] = {"lastSuccessfulTime": ago(hours=5)}


def _definition(item: Json, _: dict[str, list[Json]]) -> None:
    item["status"] = true("NamesAccepted", "Established")


_FILLED = {
    "Deployment": _workload,
    "DaemonSet": _daemons,
    "Service": _service,
    "MutatingWebhookConfiguration": _webhook,
    "ValidatingWebhookConfiguration": _webhook,
    "Lease": _lease,
    "CronJob": _cron,
    "CustomResourceDefinition": _definition,
}
