"""`explain --live` against a real API server, logged in by a plug-in: the release's own
configuration is read, and said to be.
"""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import PARTS, REQUIRED, UMBRELLA, render
from said import Said, said
from served import api_server

JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "template": {
            "spec": {
                "restartPolicy": "Never",
                "containers": [
                    {"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
                ],
            }
        }
    },
}
HOOK = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingWebhookConfiguration",
    "metadata": {"name": "injector", "labels": {"app.kubernetes.io/name": "preflight-injector"}},
    "webhooks": [
        {
            "name": "listed.preflight.nvsentinel.nvidia.com",
            "clientConfig": {"service": {"name": "injector", "namespace": "home"}},
            "namespaceSelector": {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["ml"]},
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "NotIn",
                        "values": ["home", "kube-system"],
                    },
                ]
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                    "operations": ["CREATE"],
                }
            ],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
        }
    ],
}
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
CONFIG = "checks: [{name: dcgm-diag, image: d}, {name: mine, image: m}]\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with api_server(tmp_path_factory.mktemp("apiserver")) as server:
        for name in ("ml", "web", "home"):
            server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for name in ("ml", "web"):
            server.call("POST", f"/apis/batch/v1/namespaces/{name}/jobs", JOB)
        server.call(
            "POST",
            "/api/v1/namespaces/home/configmaps",
            {"metadata": {"name": "injector"}, "data": {"config.yaml": CONFIG}},
        )
        yield server


@pytest.fixture
def log_in(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kubeconfig, whose user a script logs in; in the list of KUBECONFIG behind one that is not
    there.
    """
    answer = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential"}
    script = tmp_path / "log-in"
    script.write_text(
        f"#!{sys.executable}\nprint({json.dumps({**answer, 'status': {'token': server.token}})!r})\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    kubeconfig = server.kubeconfig(tmp_path / "config")
    told: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    told["users"][0]["user"] = {
        "exec": {"apiVersion": answer["apiVersion"], "command": str(script)}
    }
    kubeconfig.write_text(yaml.safe_dump(told))
    monkeypatch.setenv("KUBECONFIG", f"/nowhere/config:{kubeconfig}")
    return kubeconfig


@pytest.fixture
def release(server: ApiServer) -> Iterator[None]:
    server.call("POST", HOOKS, HOOK)
    yield
    server.call("DELETE", f"{HOOKS}/injector")


def live(*arguments: str) -> Said:
    return said("explain", "--brief", "--live", *arguments)


@pytest.mark.usefixtures("log_in", "release")
def test_the_release_s_own_configuration_and_namespaces_are_explained_with() -> None:
    done = live("job/train", "-n", "ml")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith(
        "Job train: injected\n  opt-in: namespace ml is in `namespaces` of the chart\n"
    )
    assert "why: dcgm-diag, mine will test 8 nvidia.com/gpu" in done.out
    assert "configuration: ConfigMap injector in namespace home" in done.out
    assert live("Job/train", "-n", "web").out.startswith("Job train: not checked\n")


@pytest.fixture
def others(server: ApiServer) -> Iterator[list[str]]:
    """The webhook configurations of all the systems but the injector, as the umbrella has them."""
    values = {path.name: {"enabled": True, **REQUIRED.get(path, {})} for path in PARTS.iterdir()}
    del values["preflight-injector"]
    hooks = [one for one in render(UMBRELLA, values) if one["kind"] == HOOK["kind"]]
    for one in hooks:
        server.call("POST", HOOKS, one)
    names = [one["metadata"]["name"] for one in hooks]
    yield names
    for name in names:
        server.call("DELETE", f"{HOOKS}/{name}")


@pytest.mark.usefixtures("log_in", "release")
def test_beside_the_other_systems_the_injectors_own_configuration_is_read(
    others: list[str],
) -> None:
    assert len(others) > 2
    done = live("job/train", "-n", "ml")
    assert (done.status, done.err) == (0, "")
    assert "configuration: ConfigMap injector in namespace home" in done.out


@pytest.mark.usefixtures("log_in", "others")
def test_beside_the_other_systems_a_missing_injector_is_said_to_be_missing() -> None:
    done = live("job/train", "-n", "ml")
    assert (done.status, done.out) == (1, "")
    assert "no MutatingWebhookConfiguration of preflight-injector" in done.err


@pytest.mark.usefixtures("log_in")
def test_without_a_release_it_says_so_instead_of_guessing(tmp_path: Path) -> None:
    done = live("job/train", "-n", "ml")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(
        "the cluster has no MutatingWebhookConfiguration of preflight-injector; "
    )
    (tmp_path / "config.yaml").write_text(CONFIG)
    assert (
        "configuration: "
        in live("job/train", "-n", "ml", "--config", str(tmp_path / "config.yaml")).out
    )


@pytest.mark.usefixtures("log_in", "release")
def test_what_the_cluster_does_not_have_is_exit_1_and_what_is_no_kind_is_2() -> None:
    assert live("job/absent", "-n", "ml").status == 1
    assert live("job.batch.volcano.sh/train", "-n", "ml").status == 1
    assert live("service/train", "-n", "ml").status == 2


def test_an_api_server_that_does_not_answer_is_exit_1_and_a_bad_kubeconfig_2(
    server: ApiServer, log_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = log_in.read_text()
    log_in.write_text(text.replace(server.server, "https://127.0.0.1:1"))
    done = live("job/train")
    assert (done.status, "is it reachable?" in done.err, len(done.err.splitlines())) == (1, True, 1)
    log_in.write_text("a: [")
    done = live("job/train")
    assert (done.status, "is not YAML" in done.err, len(done.err.splitlines())) == (2, True, 1)
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", "/nowhere")
    done = live("job/train")
    assert (done.status, "there is no /nowhere/.kube/config" in done.err) == (2, True)
