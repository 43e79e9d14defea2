"""`preflight doctor install` on a real API server, by Helm's own install, and on a double."""

from __future__ import annotations

import gzip
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_cli import cli
from preflight_kube.cli import commands
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.apidouble.http import ApiAnswer, ApiRequest
from preflight_testing.apidouble.store import RESOURCES, Resource
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import COMPUTEDOMAIN, PARTS, REQUIRED, UMBRELLA, Release
from preflight_testing.plugin import real_api_server

__all__ = ["real_api_server"]

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def kubeconfig(
    real_api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Of a cluster with everything installed, and nobody who starts pods."""
    path = real_api_server.kubeconfig(tmp_path_factory.mktemp("installed") / "kubeconfig")
    parts = (part for part in PARTS.iterdir() if part.name.startswith("preflight-"))
    values = {part.name: {"enabled": True, **REQUIRED.get(part, {})} for part in parts}
    values[COMPUTEDOMAIN.name]["kubeletPlugin"] = {"privileged": False}  # no such pods here
    release = Release("preflight", path, chart=UMBRELLA)
    release.install(values, wait=False)
    yield path
    release.uninstall(wait=False)


def doctor(monkeypatch: pytest.MonkeyPatch, kubeconfig: Path, *options: str) -> int:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    monkeypatch.setattr(sys, "argv", ["preflight", "doctor", "install", *options])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert isinstance(end.value.code, int)
    return end.value.code


Ask = Callable[[ApiDouble], dict[str, Any]]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """What the program says of a double."""

    def told(double: ApiDouble) -> dict[str, Any]:
        doctor(monkeypatch, write_kubeconfig(tmp_path / "config", double.url), "-o", "json")
        said: dict[str, Any] = json.loads(capsys.readouterr().out)
        return said

    return told


def test_what_helm_installs_is_as_its_release_has_it_and_what_does_not_run_is_told(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, kubeconfig, "-o", "json") == commands.FAILED
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert told["unread"] == []
    # No controllers: no pod, leader, certificate or endpoint; and nobody has opted in.
    causes = [
        *("pods ready", "no replica leads", "no caBundle", "no pod is ready", "no new pod of"),
        "no namespace is opted in",
    ]
    others = [
        one
        for one in told["problems"]
        if not any(cause in one["what"] for cause in causes)
        and one["where"].partition(" ")[0] != "DaemonSet"
    ]
    assert others == []
    wheres = {one["where"] for one in told["problems"]}
    assert "Deployment preflight/preflight-injector" in wheres
    assert "MutatingWebhookConfiguration preflight-mnnvl" in wheres


def _mounts(namespace: str, secret: str) -> dict[str, Any]:
    """A webhook of ours that mounts a Secret."""
    labels = {"app.kubernetes.io/part-of": "preflight", "app.kubernetes.io/name": namespace}
    notes = {f"meta.helm.sh/release-{key}": namespace for key in ("name", "namespace")}
    volumes = [{"name": "tls", "secret": {"secretName": secret}}]
    return {
        "metadata": {"name": "w", "namespace": namespace, "labels": labels, "annotations": notes},
        "spec": {"replicas": 0, "template": {"spec": {"containers": [], "volumes": volumes}}},
    }


def test_a_secret_of_any_type_is_there_and_one_that_may_not_be_read_is_not_missed(ask: Ask) -> None:
    double = ApiDouble([*RESOURCES, Resource("apps/v1", "deployments", "Deployment")])

    def fault(request: ApiRequest) -> ApiAnswer | None:
        if request.path == "/version":
            return ApiAnswer(200, {"major": "1", "minor": "36"})
        if request.path == "/api/v1/namespaces/b/secrets":
            return ApiAnswer(403, {"kind": "Status", "message": "no", "code": 403})
        return None

    with double:
        for namespace, secret in (("a", "own"), ("b", "hidden")):
            double.create("namespaces", {"metadata": {"name": namespace}})
            double.create("deployments", _mounts(namespace, secret))
        metadata = {"name": "own", "namespace": "a"}
        double.create("secrets", {"metadata": metadata, "type": "Opaque", "data": {}})
        double.fault = fault
        told = ask(double)
    assert [problem for problem in told["problems"] if "Secret" in problem["where"]] == []
    assert any("namespaces/b/secrets" in sentence for sentence in told["unread"])


def _known() -> ApiDouble:
    """A cluster in which cluster roles and webhooks may be listed."""
    rbac, admission = "rbac.authorization.k8s.io/v1", "admissionregistration.k8s.io/v1"
    webhooks = "mutatingwebhookconfigurations", "MutatingWebhookConfiguration"
    double = ApiDouble(
        [
            *(*RESOURCES, Resource(rbac, "roles", "Role")),
            Resource("apps/v1", "deployments", "Deployment"),
            Resource("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
            Resource(rbac, "clusterroles", "ClusterRole", namespaced=False),
            Resource(rbac, "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
            Resource(admission, *webhooks, namespaced=False),
        ]
    )
    version = ApiAnswer(200, {"major": "1", "minor": "36"})
    double.fault = lambda request: version if request.path == "/version" else None
    return double


def _cluster_wide(namespace: str) -> dict[str, Any]:
    """The metadata of what a release of that namespace has made in none."""
    metadata = _mounts(namespace, "tls")["metadata"]
    return {key: of for key, of in metadata.items() if key != "namespace"} | {"name": namespace}


BOUND = {
    "metadata": _cluster_wide("preflight"),
    "subjects": [{"kind": "ServiceAccount", "name": "w", "namespace": "preflight"}],
}


def test_a_release_whose_binding_is_gone_is_read_beside_another_that_has_its(ask: Ask) -> None:
    with _known() as double:
        for namespace in ("preflight", "gang"):
            double.create("deployments", _mounts(namespace, "tls"))
            double.create("clusterroles", {"metadata": _cluster_wide(namespace)})
        double.create("clusterrolebindings", BOUND)
        told = ask(double)["problems"]
    assert {"Secret gang/tls", "Secret preflight/tls"} <= {one["where"] for one in told}


def test_a_network_policy_of_ours_in_the_hostengines_namespace_is_there(ask: Ask) -> None:
    ours = _mounts("preflight", "tls")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": ours["metadata"] | {"name": "hostengine", "namespace": "gpu-operator"},
    }
    gone = policy | {"metadata": policy["metadata"] | {"name": "gone"}}
    manifest = json.dumps({"manifest": f"---\n{json.dumps(policy)}\n---\n{json.dumps(gone)}\n"})
    packed = b64encode(b64encode(gzip.compress(manifest.encode()))).decode()
    labels = {"owner": "helm", "name": "preflight", "status": "deployed", "version": "1"}
    kept = {"name": "kept", "namespace": "preflight", "labels": labels}
    with _known() as double:
        double.create("deployments", ours)
        double.create("clusterrolebindings", BOUND)
        double.create("networkpolicies", policy)
        secret = {"metadata": kept, "type": "helm.sh/release.v1", "data": {"release": packed}}
        double.create("secrets", secret)
        told = ask(double)["problems"]
    wheres = [one["where"] for one in told if one["where"].startswith("NetworkPolicy")]
    assert wheres == ["NetworkPolicy gpu-operator/gone"]


def test_what_a_tenant_labels_as_ours_changes_no_answer(ask: Ask) -> None:
    double = _known()
    ours, theirs = _mounts("preflight", "tls"), _mounts("team", "$(curl evil)")
    bomb = "a: &a [x, x]\nchecks: [{name: [*a, *a]}]"
    kept = {"name": "kept", "namespace": "team", "labels": {"owner": "helm", "name": "team"}}
    with double:
        double.create("deployments", ours)
        double.create("clusterrolebindings", BOUND)
        before = ask(double)
        double.create("deployments", theirs)
        double.create("roles", {"metadata": theirs["metadata"]})
        double.create("configmaps", {**theirs, "data": {"config.yaml": bomb}})
        double.create("secrets", {"metadata": kept, "type": "helm.sh/release.v1"})
        double.requests.clear()
        assert ask(double) == before
    assert "preflight/w" in str(before)
    assert [sent.path for sent in double.requests if "/team/" in sent.path] == []
