"""The real webhook behind a real API server that it asks about claims, and namespaces of every Pod
Security level.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
import yaml
from pods import GPU_POD
from preflight_proto import policy
from preflight_proto.devices import VERSIONS
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import GANG as GANG_CHART
from preflight_webhook.core.detect.devices import read_claim
from said import said
from served import Webhook, api_server, asking, client_of, entry
from served import webhook as serving

pytestmark = pytest.mark.timeout(180)  # the first of them starts an API server and two webhooks

CONFIG = """
checks: [{name: dcgm-diag, image: d}]
gpuDetection: {deviceClasses: [gpu.nvidia.com]}
onPodSecurityConflict: report-off
"""
LEVEL = "pod-security.kubernetes.io/enforce"
MEMBERS = 128


def lookups(webhook: Webhook, result: str) -> float:
    lines = httpx.get(f"{webhook.plain}/metrics", trust_env=False).text.splitlines()
    label = f'preflight_webhook_lookups_total{{result="{result}"}} '
    return sum(float(line.removeprefix(label)) for line in lines if line.startswith(label))


@dataclass(frozen=True)
class Cluster:
    api: httpx.Client
    webhook: Webhook
    kubeconfig: Path
    server: ApiServer
    audit: Path

    def asked(self) -> list[str]:
        """What the webhook has asked the API server for so far, as the API server's own audit log
        has it.
        """
        requests = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [
            one["requestURI"] for one in requests if one.get("userAgent") == "preflight-webhook"
        ]

    def at_once(self, bodies: list[dict[str, Any]]) -> list[httpx.Response]:
        with ThreadPoolExecutor(len(bodies)) as users:
            return list(users.map(lambda body: self.create("open", "pods", body), bodies))

    def create(
        self, namespace: str, plural: str, body: dict[str, Any], group: str = "/api/v1"
    ) -> httpx.Response:
        return self.api.post(f"{group}/namespaces/{namespace}/{plural}", json=body)

    def template(self, namespace: str, name: str, *requests: dict[str, Any]) -> None:
        body = {
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": list(requests)}}},
        }
        answer = self.create(namespace, "resourceclaimtemplates", body, "/apis/resource.k8s.io/v1")
        assert answer.status_code == 201, answer.text

    def pod(self, namespace: str, template: str, **metadata: Any) -> httpx.Response:
        return self.create(namespace, "pods", claiming(template, **metadata))


def claiming(template: str, **metadata: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "i", "resources": {"claims": [{"name": "gpus"}]}}
    spec = {
        "containers": [main],
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": template}],
    }
    return {"metadata": {"generateName": "p-", **metadata}, "spec": spec}


def for_pods(name: str, webhook: Webhook, path: str, *, confined: bool, of: str) -> dict[str, Any]:
    level = {
        "key": LEVEL,
        "operator": "In" if confined else "NotIn",
        "values": ["baseline", "restricted"],
    }
    mine = {"key": "webhook", "operator": "In", "values": [of]}
    client = {"url": webhook.url + path, "caBundle": webhook.bundle}
    return entry(client, name, namespaceSelector={"matchExpressions": [level, mine]})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home, authority = tmp_path_factory.mktemp("apiserver"), trustme.CA()
    rules = [{"level": "Metadata", "userGroups": ["system:masters"]}]
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    }
    (home / "audit.yaml").write_text(json.dumps(policy))
    more = [f"--audit-policy-file={home}/audit.yaml", f"--audit-log-path={home}/audit.log"]
    older = [f"resource.k8s.io/{version}=true" for version in ("v1beta1", "v1beta2")]
    with api_server(home, authorization="RBAC", runtime_config=older, more=more) as server:
        known = server.kubeconfig(home / "kubeconfig")
        stranger = home / "stranger"
        stranger.write_text(known.read_text().replace(server.token, "nobody"))
        folders = [tmp_path_factory.mktemp(name) for name in ("known", "stranger")]
        with (
            serving(folders[0], CONFIG, authority=authority, kubeconfig=known) as webhook,
            serving(folders[1], CONFIG, authority=authority, kubeconfig=stranger) as refused,
            client_of(server, connections=MEMBERS) as api,
        ):
            made = Cluster(api, webhook, known, server, home / "audit.log")
            entries = [
                for_pods("preflight", webhook, "", confined=False, of="known"),
                for_pods("confined", webhook, "/confined", confined=True, of="known"),
                for_pods("refused", refused, "", confined=False, of="refused"),
            ]
            for name, of, level in (
                ("open", "known", "privileged"),
                ("baseline", "known", "baseline"),
                ("restricted", "known", "restricted"),
                ("refused", "refused", "privileged"),
            ):
                labels = {
                    "webhook": of,
                    LEVEL: level,
                    "resource.kubernetes.io/admin-access": "true",
                }
                assert api.post(
                    "/api/v1/namespaces", json={"metadata": {"name": name, "labels": labels}}
                ).is_success
            made.template("open", "gpus", GPUS)
            asking(api, entries, lambda: made.pod("open", "gpus"))
            yield made


GPUS = {
    "name": "gpu",
    "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": 2},
}
ALTERNATIVES = {
    "name": "gpu",
    "firstAvailable": [
        {"name": "large", "deviceClassName": "gpu.nvidia.com", "count": 1},
        {"name": "small", "deviceClassName": "gpu.nvidia.com", "count": 2},
    ],
}
OTHER = {
    "name": "gpu",
    "firstAvailable": [*ALTERNATIVES["firstAvailable"], {"name": "f", "deviceClassName": "fpga"}],
}


def check(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 201, answer.text
    [one] = answer.json()["spec"]["initContainers"]
    assert isinstance(one, dict)
    return one


def expected(container: dict[str, Any]) -> str | None:
    return next((e["value"] for e in container["env"] if e["name"] == "EXPECTED_GPUS"), None)


def test_a_pod_with_a_gpu_claim_is_checked_with_that_claim(cluster: Cluster) -> None:
    one = check(cluster.pod("open", "gpus"))
    assert (one["resources"]["claims"], expected(one)) == ([{"name": "gpus"}], "2")


ADMIN = {
    "name": "look",
    "exactly": {"deviceClassName": "gpu.nvidia.com", "adminAccess": True, "allocationMode": "All"},
}


def test_a_claim_reads_alike_in_every_version_that_the_api_server_has(cluster: Cluster) -> None:
    cluster.template("open", "versions", GPUS, {**ALTERNATIVES, "name": "any"}, ADMIN)
    path = "namespaces/open/resourceclaimtemplates/versions"
    found = {
        version: cluster.api.get(f"/apis/resource.k8s.io/{version}/{path}").json()
        for version in VERSIONS
    }
    assert {one["apiVersion"] for one in found.values()} == {
        f"resource.k8s.io/{version}" for version in VERSIONS
    }
    newest, *others = [read_claim(one) for one in found.values()]
    assert newest.uid
    assert [(one.classes, one.amount, one.admin) for one in newest.requests] == [
        (("gpu.nvidia.com",), 2, False),
        (("gpu.nvidia.com", "gpu.nvidia.com"), None, False),
        (("gpu.nvidia.com",), None, True),
    ]
    assert others == [newest, newest]


def test_a_pods_account_of_its_claims_has_the_uid_that_the_api_server_gave(
    cluster: Cluster,
) -> None:
    cluster.template("open", "accounted", GPUS)
    found = cluster.api.get(
        "/apis/resource.k8s.io/v1/namespaces/open/resourceclaimtemplates/accounted"
    ).json()
    annotations = cluster.pod("open", "accounted").json()["metadata"]["annotations"]
    [account] = json.loads(annotations["preflight.nvsentinel.nvidia.com/claims"])["claims"].values()
    assert (account["uid"], account["gpu"]) == (found["metadata"]["uid"], True)


GANG = {"app.kubernetes.io/gang-id": "train", "app.kubernetes.io/gang-size": str(MEMBERS)}


def test_a_pod_that_comes_before_its_template_is_told_to_create_it_first(cluster: Cluster) -> None:
    answer = cluster.pod("open", "late")
    assert (answer.status_code, "create the claim first" in answer.text) == (403, True)
    cluster.template("open", "late", GPUS)
    end = time.monotonic() + 20
    while (
        cluster.pod("open", "late").status_code != 201
    ):  # that it is absent is remembered for a second
        assert time.monotonic() < end
        time.sleep(0.1)


def test_without_the_right_to_read_claims_the_failure_policy_decides(cluster: Cluster) -> None:
    answer = cluster.pod("refused", "any")
    assert answer.status_code == 500
    assert "cannot be looked up" in answer.text
    assert "answered 401" in answer.text


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_without_reports_a_checked_pod_passes_the_pod_security_level(
    cluster: Cluster, level: str
) -> None:
    security = {
        "allowPrivilegeEscalation": False,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
    }
    main = {
        "name": "main",
        "image": "i",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "securityContext": {**security, "seccompProfile": {"type": "RuntimeDefault"}},
    }
    answer = cluster.create(
        level, "pods", {"metadata": {"name": "gpu"}, "spec": {"containers": [main]}}
    )
    assert {"name": "PLATFORM_CONNECTOR_SOCKET", "value": "off"} in check(answer)["env"]
    assert "report nothing" in answer.headers["warning"]


def explained(cluster: Cluster, folder: Path, config: str, what: str) -> str:
    """What `explain --live` says of an object."""
    (folder / "config.yaml").write_text(config)
    more = ["-n", "open", "--config", str(folder / "config.yaml")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("KUBECONFIG", str(cluster.kubeconfig))
        done = said("explain", "--live", what, *more)
    assert done.status == 0, done.err
    return done.out


def test_a_live_pod_template_is_explained_with_its_claims(cluster: Cluster, tmp_path: Path) -> None:
    pod = cluster.pod("open", "gpus").json()
    spec = {key: pod["spec"][key] for key in ("containers", "resourceClaims")}
    template = {"spec": {"restartPolicy": "Never", **spec}}
    job = {"metadata": {"name": "train"}, "spec": {"template": template}}
    assert cluster.create("open", "jobs", job, "/apis/batch/v1").status_code == 201
    out = explained(cluster, tmp_path, CONFIG, "job/train")
    assert "Job train: injected" in out
    assert "reserves: 1 claim gpus" in out


def test_a_live_object_is_explained_with_its_namespaces_preflight_config(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Here nobody accepts it, as there is no gang controller."""
    cluster.server.define(
        next(yaml.safe_load_all((GANG_CHART / "generated" / "definitions.yaml").read_text()))
    )
    version = f"{policy.GROUP}/{policy.VERSION}"
    kind = {"apiVersion": version, "kind": policy.KIND}
    mine = {**kind, "metadata": {"name": "mine"}, "spec": {"enforcement": "observe"}}
    assert cluster.create("open", policy.PLURAL, mine, f"/apis/{version}").is_success
    body = {**GPU_POD, "metadata": {"name": "plain"}}
    assert cluster.create("open", "pods", body).is_success
    out = explained(cluster, tmp_path, "checks: [{name: dcgm-diag, image: d}]", "pod/plain")
    said_of = "mine (the gang controller has not looked at it yet)"
    assert f"no PreflightConfig is in force: {said_of}" in out
