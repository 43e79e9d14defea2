"""The same strange reviews sent to the real server over TLS: it answers all of them, at once, and
grows by none.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path

import pytest
import trustme
from hypothesis import settings
from served import Webhook, webhook
from test_fuzz import CONFIG, REVIEW, mutated

COUNT = 100 * settings().max_examples
KEPT = 1_500
"""Pods unlike each other after which everything that is kept is kept: the caches of decisions and
containers hold 1,024.
"""
MOST_GROWTH = 3 << 20
"""Bytes: of 10,000 reviews 300 each, a tenth of what one of them has."""
PATIENCE = 20.0
NO_CLAIMS = "mirrorClaims: []\n" + CONFIG.replace("[gpu.nvidia.com]", "[]")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Webhook]:
    with webhook(tmp_path, NO_CLAIMS, "--linger", "0", authority=trustme.CA()) as made:
        yield made


def unlike(number: int) -> bytes:
    """A good review of a pod like no other."""
    review = copy.deepcopy(REVIEW)
    review["request"]["object"]["metadata"]["labels"]["app.kubernetes.io/gang-id"] = f"g-{number}"
    review["request"]["object"]["spec"].pop("schedulingGroup")
    review["request"]["object"]["spec"]["containers"][0]["env"] = [
        {"name": "NCCL_ALGO", "value": str(number)}
    ]
    return json.dumps(review).encode()


@pytest.mark.timeout(300)
def test_strange_reviews_are_answered_at_once_and_keep_no_memory(
    server: Webhook,
) -> None:
    connection = HTTPSConnection("localhost", server.port, context=server.trust, timeout=PATIENCE)
    seen: Counter[int] = Counter()

    def post(body: bytes, path: str = "/mutate-pod") -> None:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status in {200, 400}, (body, text)
        if answer.status == 200:
            assert json.loads(text)["response"]["allowed"] in {True, False}
        seen[answer.status] += 1

    for number in range(KEPT):
        post(unlike(number))
    assert seen.pop(200) == KEPT
    chance, before = random.Random(20261121), server.memory()
    for number in range(COUNT):
        post(mutated(chance), "/mutate-pod/confined" if number % 10 == 0 else "/mutate-pod")
    assert seen.keys() == {200, 400}
    assert seen.total() == COUNT
    assert server.memory() - before < MOST_GROWTH
    connection.close()
    assert server.process.poll() is None
