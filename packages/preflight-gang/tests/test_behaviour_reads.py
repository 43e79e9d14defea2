"""What no API server says to a read, and a proxy in front of one may: nothing ends, nothing is
forgotten, and it goes on by itself.
"""

from __future__ import annotations

import logging
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from leading import leads
from played import Cluster
from preflight_kube.auth.connection import Connection
from preflight_kube.runtime import reflector
from preflight_testing.plugin import ApiFixture
from preflight_testing.waiting import until
from wire import Sent, answer, refusal

pytestmark = pytest.mark.anyio

RECORDS = "/api/v1/configmaps"
"""One mirror follows them, and no other."""


ANSWERS = {
    "not found": answer(404, b"404 page not found\n", Content_Type="text/plain"),
    "half an object": answer(
        200, b'{"kind":"List","metadata":{"resourceVersion":"7"},"items":[{"meta'
    ),
    "an event of no kind": answer(
        200, b'{"type":"NEWS","object":{"metadata":{"resourceVersion":"1"}}}\n'
    ),
}
"""More of them are the client's to read: see the tests of preflight-kube."""


def told_behind(caplog: pytest.LogCaptureFixture) -> list[Any]:
    """The lines of the log that say so of the mirror of records."""
    return [
        one
        for one in caplog.records
        if one.message == "watch failed, mirror is behind the cluster"
        and one.__dict__["about"]["path"] == RECORDS
    ]


class Meanwhile:
    """Says it to every read, but says once that a watch is too old to go on."""

    def __init__(self, said: bytes) -> None:
        self.said, self.asked = said, Counter[str]()

    def __call__(self, sent: Sent) -> bytes | None:
        if sent.method != "GET":
            return None
        self.asked[path := sent.path.partition("?")[0]] += 1
        return refusal(410, "Expired") if self.asked[path] == 2 else self.said


@pytest.mark.parametrize("name", ANSWERS)
async def test_a_controller_that_follows_the_cluster_says_that_it_is_behind_and_goes_on_by_itself(
    name: str,
    api: ApiFixture,
    cluster: Cluster,
    target: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It meets the answer to watches and, when it has to, lists; then no more."""
    if api.kind == "real" and name != "half an object":
        pytest.skip("the server hears nothing of it: one of them is asked in front of it, too")
    said = ANSWERS[name]
    caplog.set_level(logging.INFO)
    async with leads(target) as leading:
        mirrors = leading.controller._client.mirrors
        await cluster.admit("pod-0")
        await cluster.address("pod-0", "10.0.0.1")
        await cluster.test("pod-0")
        await cluster.answered("wait", "pod-0")
        # On a busy machine a page may take a second: no watch counts as one by its time alone.
        monkeypatch.setattr(reflector, "STEADY", 60.0)
        leading.wire.answers = Meanwhile(said)
        leading.wire.cut()
        await until(lambda: len(told_behind(caplog)) >= 4, "it has met it several times")
        assert RECORDS in mirrors.trouble(0.0)
        assert (
            mirrors.behind()[RECORDS]
            >= told_behind(caplog)[3].created - told_behind(caplog)[1].created
        )
        assert leading.counted("preflight_gangs") >= 1, "what is known stays known"
        monkeypatch.undo()
        leading.wire.answers = lambda _: None
        await cluster.admit("pod-1")
        await cluster.address("pod-1", "10.0.0.2")
        await cluster.answered("sealed", "pod-0", "pod-1", generation=1, seconds=60)
        await until(lambda: mirrors.behind()[RECORDS] == 0.0, "it says so")
    lines = told_behind(caplog)
    for number, (one, next_) in enumerate(pairwise(lines)):
        assert next_.created - one.created >= 0.05 * 2**number * 0.9, (
            "it is not asked faster and faster"
        )
    assert not [one for one in caplog.records if one.levelno > logging.WARNING or one.exc_info]
