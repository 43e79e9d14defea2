"""What a hostile caller sends to the webhook for PodCliques and their sets."""

from __future__ import annotations

import pytest
from cliques import DRIVER, ON, clique, pcs, podclique, review_of
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_mnnvl.webhook.handler import PODCLIQUES, SETS
from preflight_testing.attacks import ATTACKS, BEYOND, attack
from prometheus_client import CollectorRegistry
from test_webhook_asked import hook

pytestmark = pytest.mark.anyio
ORDINARY = {
    PODCLIQUES: podclique("t-0-w", "t", annotations=ON),
    SETS: pcs("t", [clique("w")], annotations=ON),
}


@pytest.mark.parametrize("path", [PODCLIQUES, SETS])
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_is_denied_with_its_limit_and_costs_nothing(name: str, path: str) -> None:
    async with hook(DRIVER) as (webhook, _):
        reviews = webhook.reviews(AdmissionMetrics("m", CollectorRegistry()), 10.0)
        response = await attack(reviews, path, review_of(ORDINARY[path]), name)
    if name in BEYOND:
        assert ATTACKS[name][1] in response["status"]["message"]
