"""What a hostile caller sends to the webhook for pods, which is denied before it is looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from preflight_testing.attacks import ATTACKS, BEYOND, attack
from preflight_testing.reviews import EVERYTHING, NUMBER, realistic_review
from preflight_webhook.config.config import parse
from preflight_webhook.webhook.handler import PATH, Admission, ServingState

pytestmark = pytest.mark.anyio


def ordinary() -> Any:
    found = json.loads(json.dumps(realistic_review()).replace(NUMBER, "00000000"))
    del found["request"]["object"]["spec"]["resourceClaims"]  # there is no API server to ask
    return found


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_is_answered_and_costs_nothing(name: str) -> None:
    response = await attack(Admission(ServingState(parse(EVERYTHING))), PATH, ordinary(), name)
    if name in BEYOND:
        assert ATTACKS[name][1] in response["status"]["message"]
