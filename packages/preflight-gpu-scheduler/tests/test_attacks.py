"""What a hostile caller sends to the webhook for pods."""

from __future__ import annotations

import pytest
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.webhook.handler import MUTATE, Webhook
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.reviews import Reviews
from preflight_testing.attacks import ATTACKS, BEYOND, attack
from prometheus_client import CollectorRegistry
from test_webhook import MINE, Counting, pod, review_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_is_denied_with_its_limit_and_costs_nothing(name: str) -> None:
    client = Counting()
    metrics = AdmissionMetrics("gpu_scheduler", CollectorRegistry())
    reviews = Reviews({MUTATE: Webhook(client, Config(guard_others=True))}, metrics)  # type: ignore[arg-type]
    response = await attack(reviews, MUTATE, review_of(pod(MINE)), name)
    if name in BEYOND:
        assert ATTACKS[name][1] in response["status"]["message"]
        assert len(client.asked) == 2  # for the ordinary pod, before and after
