"""What a hostile caller sends to the webhook for pods: most of it is in no field that is read, and
costs nothing.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from preflight_testing.attacks import ATTACKS, attack
from preflight_testing.reviews import EVERYTHING, NUMBER, realistic_review
from preflight_webhook.config.config import parse
from preflight_webhook.webhook.handler import PATH, Admission, ServingState

pytestmark = pytest.mark.anyio
DENIED = {
    "levels without end": "",
    "containers": "2000 containers and init containers are more than the 1024",
    "bytes": "larger than the 3145728 bytes that are read",
}


def ordinary() -> Any:
    found = json.loads(json.dumps(realistic_review()).replace(NUMBER, "00000000"))
    del found["request"]["object"]["spec"]["resourceClaims"]  # there is no API server to ask
    return found


@pytest.mark.parametrize("name", ATTACKS)
async def test_an_attack_is_answered_and_costs_nothing(name: str) -> None:
    response = await attack(Admission(ServingState(parse(EVERYTHING))), PATH, ordinary(), name)
    if sentence := DENIED.get(name):
        assert sentence in response["status"]["message"]
