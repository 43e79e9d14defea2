"""What a review costs: nothing is asked for and nothing taken apart beyond a limit."""

from __future__ import annotations

import json
from typing import Any, cast

import anyio
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.webhook.handler import Webhook
from preflight_kube.admission import review
from preflight_kube.admission.review import Response
from preflight_kube.client.client import Client

MINE = {names.CLAIM_ANNOTATION: "two"}


class Counting:
    """A client that finds nothing, and counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def clock(self) -> float:
        return 0.0

    async def get_or_none(self, path: str, _: type) -> None:
        self.asked.append(path)


def review_of(pod: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "u",
            "kind": {"version": "v1", "kind": "Pod"},
            "resource": {"version": "v1", "resource": "pods"},
            "operation": "CREATE",
            "namespace": "team",
            "object": pod,
        },
    }


def answered(pod: dict[str, Any], **config: Any) -> tuple[Response, list[str]]:
    client = Counting()
    webhook = Webhook(cast(Client, client), Config(**config))
    request = review.decode(json.dumps(review_of(pod)).encode())
    return anyio.run(webhook, request), client.asked


def pod(annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {"containers": [{"name": "c"}], **spec},
    }


def claims(number: int) -> list[dict[str, str]]:
    return [{"name": f"c{n}", "resourceClaimName": f"claim-{n}"} for n in range(number)]


def test_a_pod_with_more_claims_than_are_looked_up_is_denied_and_nothing_is_asked() -> None:
    response, asked = answered(pod(MINE, resourceClaims=claims(16)), guard_others=True)
    assert (response.allowed, asked) == (False, [])
    assert response.message == (
        "spec.resourceClaims: has 16 entries, more than the 15 that a webhook goes through; use fewer."
    )


def test_a_review_takes_sixteen_requests_at_most() -> None:
    both = [{**one, "resourceClaimTemplateName": "t"} for one in claims(15)]
    response, asked = answered(pod(MINE, resourceClaims=both))
    assert response.allowed
    assert len(asked) == 16


def test_the_claims_of_a_pod_that_nothing_is_asked_about_may_be_many() -> None:
    response, asked = answered(pod({}, resourceClaims=claims(100)), guard_others=True)
    assert (response.allowed, asked) == (True, [])
    assert response.patch
