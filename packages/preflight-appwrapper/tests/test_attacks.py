"""What a hostile caller sends to the webhook for AppWrappers."""

from __future__ import annotations

from typing import Any

import pytest
from player import job
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.webhook.handler import MUTATE, VALIDATE, Reviewer
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.reviews import Reviews
from preflight_testing.attacks import ATTACKS, BEYOND, attack
from prometheus_client import CollectorRegistry
from test_limits_of_reviews import Counting

pytestmark = pytest.mark.anyio


def review_of(raw: dict[str, Any]) -> dict[str, Any]:
    group = {"group": "workload.codeflare.dev", "version": "v1beta2"}
    request = {
        "uid": "1",
        "kind": {**group, "kind": "AppWrapper"},
        "resource": {**group, "resource": "appwrappers"},
        "operation": "CREATE",
        "namespace": "ns",
        "userInfo": {"username": "anna"},
        "object": raw,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


@pytest.mark.parametrize("path", [MUTATE, VALIDATE])
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_is_denied_with_its_limit_and_costs_nothing(name: str, path: str) -> None:
    api = Counting()
    reviewer = Reviewer(api, WrapperRules())  # type: ignore[arg-type]
    reviews = Reviews(reviewer.applications, AdmissionMetrics("a", CollectorRegistry()))
    ordinary = {"metadata": {"name": "w"}, "spec": {"components": [{"template": job()}]}}
    response = await attack(reviews, path, review_of(ordinary), name)
    if name in BEYOND:
        assert ATTACKS[name][1] in response["status"]["message"]
        assert len(api.asked) in {0, 3}  # for the ordinary one; its kind is known then
