"""What the soak says of memory and of requests that it has seen."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from preflight_e2e.bench.soak import growth, needless, requests

LEASE = "update /apis/coordination.k8s.io/v1/namespaces/preflight/leases/preflight-gang"
GANG = "system:serviceaccount:preflight:preflight-gang"


def line(verb: str, uri: str, at: str, *, user: str = GANG, stage: str = "ResponseComplete") -> str:
    event = {"verb": verb, "requestURI": uri, "stage": stage, "user": {"username": user}}
    return json.dumps(event | {"requestReceivedTimestamp": at}) + "\n"


@pytest.mark.parametrize(
    ("seen", "medians"),
    [
        ([90.0, 99.0, *[50.0] * 8], (50.0, 50.0)),
        ([40.0, 40.0, 50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 56.0, 57.0], (50.5, 56.5)),
        ([50.0], (50.0, 50.0)),
    ],
    ids=["what is new at first does not count", "growth", "one round"],
)
def test_the_growth_is_from_the_first_quarter_after_the_start_to_the_last(
    seen: list[float], medians: tuple[float, float]
) -> None:
    assert growth(seen) == medians


def test_requests_are_those_of_our_accounts_that_were_made_in_the_time() -> None:
    log = [
        line("list", "/api/v1/pods?limit=100&labelSelector=a%3Db", "2026-01-01T00:00:05.0Z"),
        line("list", "/api/v1/pods", "2026-01-01T00:00:01.0Z"),
        line("list", "/api/v1/pods", "2026-01-01T00:00:05.0Z", user="system:apiserver"),
        '{"verb": "li',
    ]
    found = requests(log, "2026-01-01T00:00:02.0Z", "2026-01-01T00:00:09.0Z")
    assert found == {"preflight-gang": {"list /api/v1/pods?labelSelector=a%3Db": 1}}


def test_a_watch_counts_once_when_it_is_opened() -> None:
    at = "2026-01-01T00:00:05.0Z"
    log = [
        line("watch", "/api/v1/nodes?watch=true&resourceVersion=7", at, stage=stage)
        for stage in ("ResponseStarted", "ResponseComplete")
    ]
    found = requests(log, "2026-01-01T00:00:02.0Z", "2026-01-01T00:00:09.0Z")
    assert found == {"preflight-gang": {"watch /api/v1/nodes": 1}}


def test_renewals_in_their_time_are_needed_and_all_else_is_named_with_its_path() -> None:
    asked = Counter({LEASE: 60, "watch /api/v1/pods": 1})
    assert needless("preflight-gang", asked, 60.0) == []
    more = {"get /api/v1/nodes/n1": 1, "watch /api/v1/pods": 9}
    assert needless("preflight-gang", asked | Counter(more), 60.0) == [
        "1 x get /api/v1/nodes/n1",
        "9 x watch /api/v1/pods",
    ]
