"""The fake controller of ComputeDomains over an API server that is a dictionary."""

from __future__ import annotations

import copy
import importlib
import urllib.error
from email.message import Message
from typing import Any

import pytest
from preflight_e2e.images import ROOT

Json = dict[str, Any]
DOMAINS = "/apis/resource.nvidia.com/v1beta1/computedomains"
ONE = "/apis/resource.nvidia.com/v1beta1/namespaces/ml/computedomains/t-0-cd"
TEMPLATE = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaimtemplates/t-0-claim"
FINALIZER = "resource.nvidia.com/computeDomain"


class Api:
    """Objects by path; ``writes``: how many were made."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.claims: list[Json] = []
        self.writes = 0

    def call(self, method: str, path: str, body: Json | None = None, kind: str = "") -> Json:
        if method == "GET" and path.endswith("/resourceclaims"):
            return {"items": self.claims}
        self.writes += 1
        if method == "POST":
            assert body is not None
            if (path := f"{path}/{body['metadata']['name']}") in self.objects:
                raise urllib.error.HTTPError(path, 409, "exists", Message(), None)
            self.objects[path] = copy.deepcopy(body)
        elif method == "DELETE":
            del self.objects[path]
        else:
            assert body is not None
            assert kind == "application/merge-patch+json"
            found = self.objects[path.removesuffix("/status")]
            if path.endswith("/status"):
                found["status"] = body["status"]
            else:
                assert (
                    body["metadata"].pop("resourceVersion") == found["metadata"]["resourceVersion"]
                )
                found["metadata"] |= body["metadata"]
                if (
                    found["metadata"].get("deletionTimestamp")
                    and not found["metadata"]["finalizers"]
                ):
                    del self.objects[path]
        return {}

    def found(self, path: str) -> Json | None:
        if path == DOMAINS:
            return {
                "items": copy.deepcopy(
                    [one for name, one in self.objects.items() if "/computedomains/" in name]
                )
            }
        return copy.deepcopy(self.objects.get(path))


@pytest.fixture
def api() -> Api:
    made = Api()
    meta = {"name": "t-0-cd", "namespace": "ml", "uid": "u-1", "resourceVersion": "1"}
    made.objects[ONE] = {
        "metadata": meta,
        "spec": {"channel": {"resourceClaimTemplate": {"name": "t-0-claim"}}},
    }
    return made


@pytest.fixture
def controller(api: Api, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "e2e/fakes/node")
    return importlib.import_module("compute_domains").Controller(
        api.call, api.found, lambda **said: None
    )


def test_a_domain_gets_a_finalizer_and_a_template_that_names_it_and_then_nothing_more(
    api: Api, controller: Any
) -> None:
    controller.turn()
    assert api.objects[ONE]["metadata"]["finalizers"] == [FINALIZER]
    made = api.objects[TEMPLATE]
    assert made["metadata"]["labels"][FINALIZER] == "u-1"
    [config] = made["spec"]["spec"]["devices"]["config"]
    assert config["opaque"]["parameters"]["domainID"] == "u-1"
    controller.turn()
    writes = api.writes
    controller.turn()
    assert api.writes == writes


def test_the_nodes_of_allocated_claims_have_joined(api: Api, controller: Any) -> None:
    for node, domain in (("b", "u-1"), ("a", "u-1"), ("c", "u-2")):
        opaque = {"driver": "compute-domain.nvidia.com", "parameters": {"domainID": domain}}
        results = [{"driver": "compute-domain.nvidia.com", "pool": node}]
        devices = {"config": [{"opaque": opaque}], "results": results}
        api.claims.append({"status": {"allocation": {"devices": devices}}})
    api.claims.append({"status": {}})
    controller.turn()
    controller.turn()
    status = api.objects[ONE]["status"]
    assert (status["status"], [one["name"] for one in status["nodes"]]) == ("Ready", ["a", "b"])


def test_a_domain_that_ends_takes_its_template_along(api: Api, controller: Any) -> None:
    controller.turn()
    api.objects[ONE]["metadata"]["deletionTimestamp"] = "now"
    controller.turn()
    assert api.objects == {}


def test_a_template_of_somebody_else_is_left_alone_and_its_domain_is_not_ready(
    api: Api, controller: Any
) -> None:
    theirs = {"metadata": {"name": "t-0-claim"}, "spec": {}}
    api.objects[TEMPLATE] = copy.deepcopy(theirs)
    controller.turn()
    api.objects[ONE]["metadata"]["deletionTimestamp"] = "now"
    assert "status" not in api.objects[ONE]
    controller.turn()
    assert api.objects == {TEMPLATE: theirs}
