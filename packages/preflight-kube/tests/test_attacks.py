"""A webhook that does nothing but allow is protected by what it is built of."""

from __future__ import annotations

import json

import pytest
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.request_body import ReviewRefused
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Reviews
from preflight_testing.attacks import ATTACKS, BEYOND, attack, sent
from prometheus_client import CollectorRegistry
from test_review import review

pytestmark = pytest.mark.anyio
ORDINARY = review(
    operation="CREATE", object={"metadata": {"name": "a"}, "spec": {"x": [{"name": "y"}]}}
)


def webhook(seen: list[str], *, at_once: bool) -> Reviews:
    def decide(request: AdmissionRequest) -> Response:
        seen.append(request.uid)
        request.new(dict)
        return Response()

    async def answer(request: AdmissionRequest) -> Response:
        return decide(request)

    metrics = AdmissionMetrics("t", CollectorRegistry())
    return Reviews({"/x": answer}, metrics, at_once={"/x": decide} if at_once else {})


@pytest.mark.parametrize(
    ("name", "at_once"), [(name, bool(number % 2)) for number, name in enumerate(ATTACKS)]
)
async def test_no_application_sees_what_is_beyond_a_limit(name: str, at_once: bool) -> None:
    seen: list[str] = []
    response = await attack(webhook(seen, at_once=at_once), "/x", ORDINARY, name)
    if name in BEYOND:
        assert response["allowed"] is False
        assert ATTACKS[name][1] in response["status"]["message"]
        assert len(seen) == 2  # the ordinary one, before and after


async def test_an_application_may_refuse_a_review_and_say_what_its_answer_is_counted_as() -> None:
    async def answer(request: AdmissionRequest) -> Response:
        if request.operation == "DELETE":
            raise ReviewRefused(400, "this webhook is for what is made", request.uid)
        return Response(result="looked-at")

    registry = CollectorRegistry()
    reviews = Reviews({"/x": answer}, AdmissionMetrics("t", registry))
    bare = {"uid": "u", "kind": {"kind": "Pod"}, "object": {}}  # of a tool that says no more
    whole = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": bare}
    assert (await sent(reviews, "/x", json.dumps(whole).encode()))["allowed"] is True
    labels = {"path": "/x", "result": "looked-at"}
    assert registry.get_sample_value("t_admission_reviews_total", labels) == 1
    assert await sent(reviews, "/x", json.dumps(review(operation="DELETE")).encode()) == {}
    assert registry.get_sample_value("t_admission_refused_total", {"status": "400"}) == 1
