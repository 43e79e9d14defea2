"""Whatever pod a real API server takes, it takes with our checks in it too, at the same cost and
with nothing left to patch.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx
import jsonpatch
import pytest
import trustme
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pods import cost, pods
from preflight_webhook.config.config import parse
from preflight_webhook.core.admit import decide
from served import Webhook, api_server, asking, client_of, entry, kube_apiserver
from served import webhook as serving

CONFIG = """
checks:
  - {name: dcgm-diag, image: d}
  - name: nccl-loopback
    image: l
    extraVolumes: [{name: work, emptyDir: {medium: Memory}}]
    extraVolumeMounts: [{name: work, mountPath: /usr/local/nvidia}]
  - name: late
    image: m
    placement: last
    resources: {requests: {cpu: 2500m, memory: 16Gi}, limits: {cpu: 16, memory: 100Gi}}
skipNcclWithoutNetwork: false
ncclMountPatterns: [/dev/shm, /data*]
ncclTopology: {instanceTypeMapping: {p5.48xlarge: p5.xml}}
checkImagePullSecrets: [ours]
onPodSecurityConflict: report-off
"""
LEVEL = "pod-security.kubernetes.io/enforce"
KINDS = ("bare", "limits", "quota", "baseline", "restricted")
"""Of namespaces: each stands there twice, once without the webhook."""
GPU = "requests.nvidia.com/gpu"
HARD = {"requests.cpu": "1k", "requests.memory": "1Ti", GPU: "1k", "pods": "1k"}


@dataclass(frozen=True)
class Cluster:
    api: httpx.Client

    def create(
        self, namespace: str, pod: dict[str, Any], *, dry_run: bool = True
    ) -> httpx.Response:
        query = {"dryRun": "All"} if dry_run else {}
        return self.api.post(f"/api/v1/namespaces/{namespace}/pods", json=pod, params=query)

    def make(self, namespace: str, plural: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.api.post(f"/api/v1/namespaces/{namespace}/{plural}", json=body)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()
        return made

    def prepare(self) -> None:
        for kind in KINDS:
            for checked in (True, False):
                name = f"{kind}-{'checked' if checked else 'plain'}"
                labels = {
                    "preflight": str(checked).lower(),
                    LEVEL: kind if kind in KINDS[3:] else "privileged",
                }
                body = {"metadata": {"name": name, "labels": labels}}
                assert self.api.post("/api/v1/namespaces", json=body).is_success
                if kind == "limits":
                    limit = {"type": "Container", "default": {"cpu": "2", "memory": "1Gi"}}
                    limit |= {"defaultRequest": {"cpu": "100m", "memory": "64Mi"}}
                    limit |= {"max": {"ephemeral-storage": "8Gi"}}  # of it a default, too
                    self.make(
                        name,
                        "limitranges",
                        {"metadata": {"name": "l"}, "spec": {"limits": [limit]}},
                    )
                if kind == "quota":
                    quota = self.make(
                        name, "resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": HARD}}
                    )
                    # What the quota controller would do, which does not run here.
                    quota["status"] = {"hard": HARD, "used": dict.fromkeys(HARD, "0")}
                    path = f"/api/v1/namespaces/{name}/resourcequotas/q/status"
                    assert self.api.put(path, json=quota).is_success


def for_pods(webhook: Webhook, *, confined: bool) -> dict[str, Any]:
    level = {
        "key": LEVEL,
        "operator": "In" if confined else "NotIn",
        "values": ["baseline", "restricted"],
    }
    mine = {"key": "preflight", "operator": "In", "values": ["true"]}
    client = {"url": webhook.url + ("/confined" if confined else ""), "caBundle": webhook.bundle}
    selector = {"matchExpressions": [level, mine]}
    name = "confined" if confined else "open"
    return entry(client, name, namespaceSelector=selector, reinvocationPolicy="IfNeeded")


@pytest.fixture(scope="module", params=["1.36", "1.35"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    homes = [tmp_path_factory.mktemp(name) for name in ("webhook", "apiserver")]
    with (
        api_server(homes[1], kube_apiserver=kube_apiserver(request.param)) as server,
        serving(homes[0], CONFIG, authority=trustme.CA()) as webhook,
        client_of(server) as api,
    ):
        made = Cluster(api)
        made.prepare()
        entries = [for_pods(webhook, confined=confined) for confined in (False, True)]
        asking(api, entries, lambda: made.create("bare-checked", gpu_pod()))
        yield made


def gpu_pod(**metadata: Any) -> dict[str, Any]:
    amounts = {"nvidia.com/gpu": "8", "cpu": "4", "memory": "1Gi"}
    main = {"name": "main", "image": "i", "resources": {"limits": amounts}}
    return {"metadata": {"generateName": "p-", **metadata}, "spec": {"containers": [main]}}


@st.composite
def crowded(draw: st.DrawFn) -> dict[str, Any]:
    """A pod as in the other tests, with variables and mounts that are likely to collide with ours,
    and restricted.
    """
    pod = copy.deepcopy(draw(pods()))
    pod["metadata"] = {"name": "p", **({"labels": {"a/b": "c"}} if draw(st.booleans()) else {})}
    complete = draw(st.booleans())  # as a quota wants it
    names = st.sampled_from(
        ["NCCL_ALGO", "NCCL_TOPO_FILE", "UCX_TLS", "GATE", "NODE_IP", "PATH", "NCCL_COMM_ID"]
    )
    values = st.sampled_from(["x", "/data/topo.xml", "$(NCCL_ALGO)"])
    shm, pull = draw(st.booleans()), draw(st.sampled_from([None, "ours", "theirs"]))
    for container in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]:
        container["env"] = [
            {"name": n, "value": v} for n, v in draw(st.lists(st.tuples(names, values), max_size=4))
        ]
        container["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        }
        if complete:
            amounts = container.setdefault("resources", {})
            for name, value in (("cpu", "100m"), ("memory", "32Mi")):
                if name not in amounts.get("requests", {}) and name not in amounts.get(
                    "limits", {}
                ):
                    amounts.setdefault("requests", {})[name] = value
        if shm:
            mount = {
                "name": "dev-shm",
                "mountPath": draw(st.sampled_from(["/dev/shm", "/dev/shm/"])),
            }
            container["volumeMounts"] = [*container.get("volumeMounts", []), mount]
    if shm:
        volume = {"name": "dev-shm", "emptyDir": {"medium": "Memory"}}
        pod["spec"]["volumes"] = [*pod["spec"].get("volumes", []), volume]
    if pull:
        pod["spec"]["imagePullSecrets"] = [{"name": pull}]
    pod["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    pod["spec"].pop("schedulingGroup", None)  # alpha: the server under test drops them
    pod["spec"].pop("workloadRef", None)
    return pod


@pytest.mark.parametrize("kind", KINDS)
@settings(suppress_health_check=list(HealthCheck))
@given(pod=crowded())
def test_what_is_taken_without_us_is_taken_with_us(
    cluster: Cluster, kind: str, pod: dict[str, Any]
) -> None:
    plain = cluster.create(f"{kind}-plain", pod)
    checked = cluster.create(f"{kind}-checked", pod)
    if plain.status_code != 201:
        assert checked.status_code != 201
        return
    assert checked.status_code == 201, checked.text
    before, after = plain.json(), checked.json()
    assert after["status"]["qosClass"] == before["status"]["qosClass"]
    for name in ("cpu", "memory", "nvidia.com/gpu"):
        assert cost(after, "requests", name) == cost(before, "requests", name), name
    again = decide(
        json.dumps(after).encode(), f"{kind}-checked", parse(CONFIG), confined=kind in KINDS[3:]
    )
    assert again.patch == []


def test_a_thousand_pods_of_sixty_four_writers_are_all_checked(cluster: Cluster) -> None:
    def write(_: int) -> bool:
        answer = cluster.create("bare-checked", gpu_pod(), dry_run=False)
        return answer.status_code == 201 and len(answer.json()["spec"]["initContainers"]) == 3

    with ThreadPoolExecutor(64) as writers:
        assert all(writers.map(write, range(1000)))


def realistic(chance: random.Random) -> dict[str, Any]:
    """A GPU pod as training jobs write it: up to 4 Ti, any QoS class, sidecars, resources of its
    own, NCCL's variables, shared memory.
    """
    memory = chance.choice(
        [
            "1Mi",
            "512Mi",
            "8Gi",
            "9Gi",
            "64Gi",
            "100G",
            "800Gi",
            "1Ti",
            "2000Gi",
            "4Ti",
            "1099511627776",
        ]
    )
    cpu = chance.choice(["1", "500m", "7500m", "32", "96", "191"])
    gpus = {"nvidia.com/gpu": str(chance.choice([1, 2, 4, 8]))}
    given_ = {"cpu": cpu, "memory": memory}
    made = chance.choice(
        [
            {"limits": given_ | gpus},
            {"requests": given_, "limits": gpus},
            {"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": given_ | gpus},
            {"limits": gpus},
        ]
    )
    env = [
        {"name": "NCCL_IB_HCA", "value": "mlx5"},
        {"name": "NCCL_TOPO_FILE", "value": "/etc/topo/t.xml"},
    ]
    mounts = [
        {"name": "shm", "mountPath": "/dev/shm"},
        {"name": "topo", "mountPath": "/etc/topo", "readOnly": True},
    ]
    main = {"name": "main", "image": "i", "resources": made, "env": env, "volumeMounts": mounts}
    containers = [main]
    if chance.random() < 0.3:
        containers.append(
            {
                "name": "side",
                "image": "i",
                "resources": {"limits": {"cpu": "250m", "memory": "333Mi"}},
            }
        )
    spec: dict[str, Any] = {
        "containers": containers,
        "volumes": [
            {
                "name": "shm",
                "emptyDir": {"medium": "Memory", "sizeLimit": chance.choice(["64Gi", "1Ti"])},
            },
            {"name": "topo", "configMap": {"name": "topo", "optional": True}},
        ],
    }
    if chance.random() < 0.3:
        spec["initContainers"] = [
            {"name": "fetch", "image": "i", "resources": {"limits": {"memory": "1536Mi"}}}
        ]
    if made.keys() == {"limits"} and made["limits"].keys() == gpus.keys() and chance.random() < 0.5:
        own = {"limits": {"cpu": "96", "memory": chance.choice(["9Gi", "1Ti", "4Ti"])}}
        spec["resources"] = chance.choice([own, {**own, "requests": {"cpu": "3", "memory": "8Gi"}}])
    return {"metadata": {"generateName": "p-"}, "spec": spec}


def test_a_folder_of_the_node_comes_back_as_it_was_injected(cluster: Cluster) -> None:
    config = parse(
        "checks: [{name: mine, image: m, extraVolumes: [{name: efa, hostPath: {path: /opt/amazon}}],"
        " extraVolumeMounts: [{name: efa, mountPath: /opt/amazon}, {name: efa, mountPath: /x, subPath: y, readOnly: false}]}]"
    )
    pod = gpu_pod()
    pod = jsonpatch.apply_patch(pod, decide(json.dumps(pod).encode(), "bare-plain", config).patch)
    answer = cluster.create("bare-plain", pod)
    assert answer.status_code == 201, answer.text
    assert decide(answer.content, "bare-plain", config).result == "unchanged"


def test_the_api_server_warns_of_nothing_that_we_inject_in_five_hundred_real_pods(
    cluster: Cluster,
) -> None:
    chance, warned, seen = random.Random(11), set(), set()
    for number in range(500):
        pod = realistic(chance)
        plain, checked = cluster.create("bare-plain", pod), cluster.create("bare-checked", pod)
        assert (plain.status_code, checked.status_code) == (201, 201), (number, checked.text)
        before, after = plain.json(), checked.json()
        assert len(after["spec"]["initContainers"]) >= 3
        warned |= {*checked.headers.get_list("warning")} - {*plain.headers.get_list("warning")}
        assert after["status"]["qosClass"] == before["status"]["qosClass"]
        for name in ("cpu", "memory", "nvidia.com/gpu"):
            assert cost(after, "requests", name) == cost(before, "requests", name), (number, name)
        seen.add(after["status"]["qosClass"])
    assert warned == set()
    assert seen == {"Guaranteed", "Burstable", "BestEffort"}
