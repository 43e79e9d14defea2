"""What a hostile caller sends to the webhook for PodCliques and their sets."""

from __future__ import annotations

from typing import Any

import pytest
from cliques import DRIVER, ON, clique, pcs, podclique
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


def review_of(found: Any) -> dict[str, Any]:
    about = {"group": "grove.io", "version": "v1alpha1"}
    request = {
        "uid": "1",
        "kind": {**about, "kind": found["kind"]},
        "resource": about,
        "operation": "CREATE",
        "namespace": "default",
        "name": found["metadata"]["name"],
        "object": found,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


@pytest.mark.parametrize("path", [PODCLIQUES, SETS])
@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_is_denied_with_its_limit_and_costs_nothing(name: str, path: str) -> None:
    async with hook(DRIVER) as (webhook, _):
        reviews = webhook.reviews(AdmissionMetrics("m", CollectorRegistry()), 10.0)
        response = await attack(reviews, path, review_of(ORDINARY[path]), name)
    if name in BEYOND:
        assert ATTACKS[name][1] in response["status"]["message"]
