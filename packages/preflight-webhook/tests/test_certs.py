"""`certs` as the chart runs it; what it does is the Kubernetes layer's, and tested there."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_kube import logs
from preflight_testing.apidouble import RESOURCES, ApiDouble, Resource, write_kubeconfig
from said import said

HOOKS = Resource(
    "admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
ENTRY = {
    "name": "one.example.com",
    "clientConfig": {"service": {"name": "preflight-injector", "namespace": "default"}},
}


@pytest.fixture(autouse=True)
def pytests_own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "set_up", lambda *_: None)


@pytest.fixture
def double(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiDouble]:
    with ApiDouble([*RESOURCES, HOOKS]) as made:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", made.url)))
        yield made


def of(double: ApiDouble, plural: str, namespace: str, name: str) -> dict[str, Any]:
    resource = next(one for one in double.api.served if one.plural == plural)
    return double.within(lambda: double.store.get(resource, namespace, name))


@pytest.mark.parametrize("more", [[], ["--mutating=preflight-injector"]])
def test_without_names_they_are_those_of_the_chart(double: ApiDouble, more: list[str]) -> None:
    configuration = {"metadata": {"name": "preflight-injector"}, "webhooks": [ENTRY]}
    double.within(lambda: double.create("mutatingwebhookconfigurations", configuration))
    assert said("certs", "--namespace", "default", *more) == (0, "", "")
    secret = of(double, "secrets", "default", "preflight-injector-tls")
    hook = of(double, "mutatingwebhookconfigurations", "", "preflight-injector")
    assert secret["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "preflight-webhook-certs"
    }
    assert hook["webhooks"][0]["clientConfig"]["caBundle"] == secret["data"]["ca.crt"]
    assert base64.b64decode(secret["data"]["tls.crt"]).startswith(b"-----BEGIN CERTIFICATE-----")
