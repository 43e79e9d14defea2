"""The real webhook behind real API servers: what they send for the native gang API, and what they
make of our answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import trustme
from preflight_proto.stamp import Stamp, configmap_name, decode_stamp, gang_hash
from preflight_testing.apiserver import GANG_APIS
from preflight_webhook.config.config import parse
from preflight_webhook.core.admit import decide
from served import Webhook, api_server, asking, client_of, entry, kube_apiserver
from served import webhook as serving

PREFIX = "preflight.nvsentinel.nvidia.com/"
CONFIG = """
checks: [{name: dcgm-diag, image: d}, {name: nccl-allreduce, image: a}]
nccl: {allreduceThresholdGBps: 5}
networkDetection: {resourceNames: [example.com/nic]}
"""
NAMESPACE = "default"
BY_VERSION: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "1.36": (
        {"schedulingGroup": {"podGroupName": "llm-workers"}},
        ("llm-workers", "schedulingGroup", "llm-workers"),
    ),
    "1.35": (
        {"workloadRef": {"name": "llm", "podGroup": "workers", "podGroupReplicaKey": "0"}},
        ("llm/workers/0", "workloadRef", "llm"),
    ),
}


@dataclass(frozen=True)
class Cluster:
    """An API server that asks the webhook about every pod."""

    api: httpx.Client
    version: str

    def create(
        self, spec: dict[str, Any], *, gpus: int = 8, dry_run: bool = False, **metadata: Any
    ) -> httpx.Response:
        amounts = (
            {"nvidia.com/gpu": str(gpus), "example.com/nic": "2", "cpu": "8", "memory": "64Gi"}
            if gpus
            else {}
        )
        container = {"name": "main", "image": "train", "resources": {"limits": amounts}}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "train-", **metadata},
            "spec": {"containers": [container], **spec},
        }
        path = f"/api/v1/namespaces/{NAMESPACE}/pods"
        return self.api.post(path, json=pod, params={"dryRun": "All"} if dry_run else {})


@pytest.fixture(scope="module")
def webhook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    with serving(tmp_path_factory.mktemp("webhook"), CONFIG, authority=trustme.CA()) as made:
        yield made


@pytest.fixture(scope="module", params=["1.36", "1.35"])
def cluster(
    request: pytest.FixtureRequest, webhook: Webhook, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    gates, groups = GANG_APIS[request.param]
    home, how = (
        tmp_path_factory.mktemp(f"apiserver-{request.param}"),
        {
            "feature_gates": gates,
            "runtime_config": groups,
            # It looks at our containers before we are asked again, and at the end.
            "more": ["--enable-admission-plugins=AlwaysPullImages"],
        },
    )
    with (
        api_server(home, kube_apiserver=kube_apiserver(request.param), **how) as server,
        client_of(server) as api,
    ):
        made = Cluster(api, request.param)
        mine = entry(
            {"url": webhook.url, "caBundle": webhook.bundle}, reinvocationPolicy="IfNeeded"
        )
        asking(api, [mine], lambda: made.create({}, dry_run=True))
        yield made


def created(answer: httpx.Response) -> dict[str, Any]:
    pod: dict[str, Any] = answer.json()
    assert answer.status_code == 201, pod
    return pod


def stamp_of(pod: dict[str, Any]) -> Stamp:
    return decode_stamp(pod["metadata"]["annotations"][PREFIX + "gang"])


def test_a_native_gangs_member_comes_back_stamped_and_equipped(cluster: Cluster) -> None:
    field, (raw_id, source, name) = BY_VERSION[cluster.version]
    pod = created(cluster.create(field))
    config_map = configmap_name(NAMESPACE, raw_id, source)
    assert stamp_of(pod) == Stamp(
        v=2, id=raw_id, source=source, config_map=config_map, takes_part=True, object=name
    )
    assert pod["metadata"]["labels"][PREFIX + "gang"] == gang_hash(NAMESPACE, raw_id, source)
    assert pod["metadata"]["annotations"][PREFIX + "roster"] == ""
    assert {key: pod["spec"].get(key) for key in field} == field
    volumes = {v["name"]: v for v in pod["spec"]["volumes"]}
    items = [
        {
            "path": file,
            "fieldRef": {
                "apiVersion": "v1",
                "fieldPath": f"metadata.annotations['{PREFIX}{file}']",
            },
        }
        for file in ("roster", "node-topology")
    ]
    assert volumes["preflight-gang-config"]["projected"]["sources"] == [
        {"configMap": {"name": config_map, "optional": True}},
        {"downwardAPI": {"items": items}},
    ]
    names = [container["name"] for container in pod["spec"]["initContainers"]]
    assert names == ["preflight-dcgm-diag", "preflight-nccl-allreduce"]


def test_what_the_server_has_defaulted_needs_no_second_patch(cluster: Cluster) -> None:
    field, _ = BY_VERSION[cluster.version]
    for gpus in (8, 0):
        pod = created(cluster.create(field, gpus=gpus))
        decision = decide(json.dumps(pod).encode(), NAMESPACE, parse(CONFIG))
        assert (decision.patch, decision.result) == ([], "unchanged")
