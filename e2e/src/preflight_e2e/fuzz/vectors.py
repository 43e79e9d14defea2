"""Known attacks, each a function that makes its shots. They are the fuzzer's seeds: sent first, and
one by one.

``volume`` (0 to 1) scales those that attack by number or by size; 1 is what is known to have done
harm.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from preflight_e2e.bench.admission import pod as training_pod
from preflight_e2e.bench.cluster import PREFIX, member

from .shots import MERGE, Shot, deep, fields, nested, pod_path

OPTED_IN, STRAY = "fuzz", "stray"
"""A namespace that the webhook serves, and one that it does not."""
Vector = Callable[[float], Iterator[Shot]]
VECTORS: dict[str, Vector] = {}
_ENTRIES = 20_000
"""Of one list of a pod: with their managedFields the review of more than 25,000 is larger than
webhooks take (3 MiB).
"""
_NUMBERS = itertools.count(1)


class CustomKind(NamedTuple):
    """A kind that others define; ``label``: by which pods name an object of it."""

    api: str
    plural: str
    kind: str
    label: str = ""

    def path(self, namespace: str, name: str = "") -> str:
        """Of the collection, or of one object."""
        return f"/apis/{self.api}/namespaces/{namespace}/{self.plural}" + (name and f"/{name}")

    def created(self, namespace: str, meta: dict[str, Any], **parts: Any) -> Shot:
        """The request that creates an object; ``parts``: its spec, and what else it has."""
        body = {"apiVersion": self.api, "kind": self.kind, "metadata": meta, **parts}
        return Shot(self.kind, "POST", self.path(namespace), body)


POD_GROUP = CustomKind(
    "scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup", "scheduling.x-k8s.io/pod-group"
)
JOB_SET = CustomKind(
    "jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet", "jobset.sigs.k8s.io/jobset-name"
)
WORKLOADS = (
    POD_GROUP,
    CustomKind("scheduling.volcano.sh/v1beta1", "podgroups", "PodGroup"),
    CustomKind("scheduling.run.ai/v2alpha2", "podgroups", "PodGroup"),
    JOB_SET,
)
POLICY = CustomKind(
    "preflight.nvsentinel.nvidia.com/v1alpha1", "preflightconfigs", "PreflightConfig"
)


def vector(make: Vector) -> Vector:
    """Make it one of the known attacks, by its name."""
    VECTORS[make.__name__.replace("_", "-")] = make
    return make


def fresh(prefix: str) -> str:
    """A name that nothing has yet."""
    return f"{prefix}-{next(_NUMBERS)}"


def stray(prefix: str, gang: str = "", size: int = 2) -> dict[str, Any]:
    """A pod that looks injected and stamped, made where no webhook looks."""
    name = fresh(prefix)
    return member(STRAY, gang or name, size, name)


def created(what: str, pod: dict[str, Any]) -> Shot:
    """The request that creates a pod."""
    return Shot(what, "POST", pod_path(pod["metadata"]["namespace"]), pod)


def dry(pod: dict[str, Any]) -> Shot:
    """The request that asks what a pod would become, where the webhook is asked."""
    return Shot("dry run", "POST", pod_path(OPTED_IN, dry=True), pod)


def gang_of(pod: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The pod with these changes of its stamp."""
    annotations = pod["metadata"]["annotations"]
    stamp = json.loads(annotations[PREFIX + "gang"])
    annotations[PREFIX + "gang"] = json.dumps(stamp | changes)
    return pod


def patched(namespace: str, name: str, ip: str, **more: Any) -> Shot:
    """The kubelet's word: the pod waits, and has this address."""
    status = {"phase": "Pending", "podIP": ip, "podIPs": [{"ip": ip}], **more}
    path = pod_path(namespace, name) + "/status"
    return Shot("status", "PATCH", path, {"status": status}, MERGE)


def user(prefix: str, **spec: Any) -> dict[str, Any]:
    """A GPU pod as a user writes it."""
    pod: dict[str, Any] = copy.deepcopy(training_pod(fresh(prefix)))
    pod["metadata"]["namespace"] = OPTED_IN
    pod["spec"] |= spec
    return pod


def status(
    name: str, message: str, *, namespace: str = STRAY, check: str = "nccl-allreduce", code: int = 1
) -> Shot:
    """The kubelet's word: the check has ended with this termination message."""
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"  # what ended long ago is not counted
    ended = {
        "exitCode": code,
        "message": message,
        "reason": "Error",
        "containerID": f"containerd://{name}",
        "startedAt": now,
        "finishedAt": now,
    }
    container: dict[str, Any] = {
        "name": f"preflight-{check}",
        "state": {"terminated": ended},
        **{"image": "x", "imageID": "x", "ready": False, "restartCount": 0},
    }
    return patched(namespace, name, "10.9.9.9", initContainerStatuses=[container])


def record(name: str, *, data: Any = None, binary: Any = None, more: Any = None) -> Shot:
    """A ConfigMap that looks like a gang\'s record."""
    meta = {
        "name": name,
        "namespace": STRAY,
        "labels": {"app.kubernetes.io/managed-by": "preflight-gang"},
        "annotations": {
            PREFIX + "gang-id": name,
            PREFIX + "generation": "1",
            PREFIX + "epoch": "1",
        },
    }
    body = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta,
        "data": data or {},
        "binaryData": binary or {},
    }
    return Shot("ConfigMap", "POST", f"/api/v1/namespaces/{STRAY}/configmaps", body | (more or {}))


@vector
def stamp_nested(volume: float) -> Iterator[Shot]:
    for levels in (1_100, 100_000):
        pod = stray("stamp")
        pod["metadata"]["annotations"][PREFIX + "gang"] = nested(levels, '{"v":1,"x":', "}")
        yield created("stamp", pod)


@vector
def roster_nested(volume: float) -> Iterator[Shot]:
    pod = stray("roster")
    pod["metadata"]["annotations"][PREFIX + "roster"] = nested(1_100, '{"v":1,"x":', "}")
    yield created("roster", pod)


@vector
def termination_message_nested(volume: float) -> Iterator[Shot]:
    pod = stray("ended")
    yield created("pod", pod)
    yield status(pod["metadata"]["name"], nested(1_100, '{"v":1,"x":', "}"))


@vector
def record_nested(volume: float) -> Iterator[Shot]:
    yield record(fresh("x"), data={"members": nested(1_100, '{"v":1,"x":', "}"), "generation": "1"})


@vector
def managed_fields_nested(volume: float) -> Iterator[Shot]:
    pod = stray("managed")
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    pod["metadata"]["managedFields"] = [entry | {"fieldsV1": fields(1_500)}]
    yield created("pod", pod)


@vector
def projected_without_sources(volume: float) -> Iterator[Shot]:
    pod = stray("projected")
    pod["spec"]["volumes"].append({"name": "v", "projected": {}})
    yield created("pod", pod)


@vector
def workloads_without_spec(volume: float) -> Iterator[Shot]:
    wrong = {"minMember": "many", "replicatedJobs": {"a": 1}}
    parts: tuple[dict[str, Any], ...] = ({}, {"spec": None}, {"spec": wrong}, {"spec": []})
    for kind, spec in itertools.product(WORKLOADS, parts):
        meta = {"name": fresh("empty"), "namespace": OPTED_IN}
        yield kind.created(OPTED_IN, meta, **spec)
        if kind.label:
            pod = user("of-empty")
            pod["metadata"].setdefault("labels", {})[kind.label] = meta["name"]
            yield created("pod", pod)


@vector
def long_names_at_dry_run(volume: float) -> Iterator[Shot]:
    # The API server writes a name again into the defaulted requests and into managedFields: this is
    # the most that reaches a webhook.
    count, size = max(40, int(240 * volume)), 600_000
    for i in range(count):
        long = f"{i:06}" + "x" * size
        limits = {"limits": {"nvidia.com/gpu": "8"}}
        places: list[dict[str, Any]] = [
            {"resources": {"limits": {f"example.com/{long}": "1"}}},
            {"resources": limits, "env": [{"name": "NCCL_X", "value": long}]},
            {"resources": limits, "env": [{"name": f"NCCL_{long}", "value": "1"}]},
            {
                "resources": limits,
                "volumeMounts": [{"name": "s", "mountPath": "/dev/shm", "subPath": long}],
            },
        ]
        container = {"name": "train", "image": "x"} | places[i % len(places)]
        pod = user(
            "long",
            containers=[container],
            volumes=[{"name": "s", "emptyDir": {"medium": "Memory"}}],
        )
        yield dry(pod)


@vector
def many_variables(volume: float) -> Iterator[Shot]:
    for forged in (False, True):
        for _ in range(max(4, int(8 * volume))):
            pod = user("variables")
            pod["spec"]["containers"][0]["env"] = [
                {"name": f"NCCL_{i}", "value": "$(A)"} for i in range(_ENTRIES)
            ]
            if forged:
                pod["metadata"].setdefault("labels", {})[PREFIX + "checked"] = "true"
            yield dry(pod)


@vector
def many_claims(volume: float) -> Iterator[Shot]:
    pod = user("claims")
    pod["spec"]["resourceClaims"] = [
        {"name": f"c{i}", "resourceClaimTemplateName": f"t{i}"} for i in range(_ENTRIES // 2)
    ]
    for _ in range(max(1, int(4 * volume))):
        yield dry(pod)


@vector
def libraries_by_topology_file(volume: float) -> Iterator[Shot]:
    for path in (
        "/etc/ld.so.preload",
        "/etc/nccl.conf",
        "/opt/conda/lib/python3.11/site-packages/torch/x",
        "/etc/hosts",
    ):
        pod = user("topology", volumes=[{"name": "a", "configMap": {"name": "a"}}])
        main = pod["spec"]["containers"][0]
        main["env"] = [{"name": "NCCL_TOPO_FILE", "value": path}]
        main["volumeMounts"] = [
            {"name": "a", "mountPath": path, "subPath": "x"},
            {"name": "a", "mountPath": "/dev/shm"},
        ]
        yield created("pod", pod)


@vector
def large_records(volume: float) -> Iterator[Shot]:
    for _ in range(max(20, int(300 * volume))):
        yield record(fresh("large"), data={"members": "x" * 1_000_000})


@vector
def large_annotations(volume: float) -> Iterator[Shot]:
    for _ in range(max(100, int(1_500 * volume))):
        pod = stray("annotated")
        pod["metadata"]["annotations"]["example.com/a"] = "x" * 250_000
        yield created("pod", pod)


@vector
def large_environments(volume: float) -> Iterator[Shot]:
    for _ in range(max(40, int(400 * volume))):
        pod = stray("large")
        pod["spec"]["containers"][0]["env"] = [{"name": "A", "value": "x" * 1_300_000}]
        yield created("pod", pod)


@vector
def records_that_unpack_to_64_mib(volume: float) -> Iterator[Shot]:
    seats = b",".join(
        b'{"uid":"u%d","name":"n","ip":"10.0.0.1","node":"n","attempt":0}' % i
        for i in range(808_000)
    )
    head = b'{"v":1,"token":"t","master_port":29500,"control_port":29501,"members":['
    packed = base64.b64encode(zlib.compress(head + seats + b"]}", 9)).decode()
    name = fresh("packed")
    yield record(name, binary={"members": packed}, data={"generation": "1"})
    path = f"/api/v1/namespaces/{STRAY}/configmaps/{name}"
    for i in range(max(10, int(75 * volume))):
        changed = {"metadata": {"annotations": {"example.com/n": str(i)}}}
        yield Shot("ConfigMap", "PATCH", path, changed, MERGE)


@vector
def gangs_whose_record_is_refused(volume: float) -> Iterator[Shot]:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "none", "namespace": "refused"},
        "spec": {"hard": {"count/configmaps": "0"}},
    }
    path = "/api/v1/namespaces/refused/resourcequotas"
    yield Shot("ResourceQuota", "POST", path, quota)
    held = {"status": {"hard": {"count/configmaps": "0"}, "used": {"count/configmaps": "0"}}}
    yield Shot("ResourceQuota", "PATCH", f"{path}/none/status", held, MERGE)
    for _ in range(max(50, int(300 * volume))):
        gang = fresh("refused")
        for i in range(2):
            pod = member("refused", gang, 2, f"{gang}-{i}")
            yield created("pod", pod)
            yield patched("refused", f"{gang}-{i}", f"10.8.0.{i + 1}")


@vector
def gangs_that_cannot_start(volume: float) -> Iterator[Shot]:
    gang = fresh("crowd")
    for i in range(max(200, int(3_000 * volume))):
        pod = member(STRAY, f"{gang}-{i}", 1, fresh("crowd"))
        del pod["spec"]["nodeName"]
        yield created("pod", pod)


@vector
def whole_and_sliced_gpus(volume: float) -> Iterator[Shot]:
    for more in (
        {"nvidia.com/mig-1g.10gb": "1"},
        {"nvidia.com/gpu.shared": "1"},
        {"deviceclass.resource.kubernetes.io/a": "8"},
    ):
        pod = user("mixed")
        resources = pod["spec"]["containers"][0].setdefault("resources", {})
        for side in ("limits", "requests"):
            resources.setdefault(side, {}).update(more)
        yield created("pod", pod)


@vector
def redirected_names(volume: float) -> Iterator[Shot]:
    aliases = [{"ip": "127.0.0.1", "hostnames": ["nvidia-dcgm.gpu-operator.svc"]}]
    yield created("pod", user("alias", hostAliases=aliases))
    servers = {"nameservers": ["192.0.2.1"], "searches": ["a.b"]}
    yield created("pod", user("dns", dnsPolicy="None", dnsConfig=servers))


@vector
def forged_results(volume: float) -> Iterator[Shot]:
    for i in range(max(50, int(2_100 * volume))):
        pod = stray("forged")
        pod["spec"]["nodeName"] = f"node-{i % 50}"
        yield created("pod", pod)
        result = {
            "v": 1,
            "check": "dcgm-diag",
            "outcome": "failed",
            "code": f"CODE_{i}",
            "gated": True,
        }
        number = ("1e308", "1e999", "-1", "NaN")[i % 4]
        text = (
            json.dumps(result | {"duration": 0, "measured": 1})[:-1]
            + f',"duration":{number},"measured":{number}}}'
        )
        yield status(pod["metadata"]["name"], text, check="dcgm-diag")


@vector
def separators_in_a_policy(volume: float) -> Iterator[Shot]:
    meta: dict[str, Any] = {"name": fresh("policy"), "namespace": OPTED_IN}
    meta["annotations"] = {"a": "one\u0085two\u2028three\u2029four\u000bfive"}
    yield POLICY.created(OPTED_IN, meta, spec={"enforcement": "observe"})
    yield Shot("PreflightConfig", "DELETE", POLICY.path(OPTED_IN, meta["name"]))


@vector
def unbounded_words(volume: float) -> Iterator[Shot]:
    pod = user("annotation")
    pod["metadata"].setdefault("annotations", {})["nvsentinel.nvidia.com/preflight-checks"] = (
        "x" * 250_000
    )
    yield dry(pod)
    pod = user("quantity")
    pod["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "9" * 20_000}}
    yield dry(pod)
    pod = user("angles")
    pod["metadata"].setdefault("annotations", {})["a"] = "<" * 240_000
    pod["spec"]["containers"][0]["env"] = [{"name": "A", "value": "<" * 400_000}]
    yield dry(pod)


@vector
def pod_nested(volume: float) -> Iterator[Shot]:
    pod = user("nested")
    pod["spec"]["containers"][0]["x"] = deep(2_000)
    yield dry(pod)
