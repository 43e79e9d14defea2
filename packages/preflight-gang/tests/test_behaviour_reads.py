"""What no API server says to a read, and a proxy in front of one may: nothing ends, nothing is
forgotten, and it goes on by itself.
"""

from __future__ import annotations

import gzip
import logging
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from leading import leads
from played import Cluster
from preflight_kube.auth.connection import Connection
from preflight_kube.client.decoding import MOST_BYTES
from preflight_kube.runtime import reflector
from preflight_testing.plugin import ApiFixture
from preflight_testing.waiting import until
from replica import Replica, replica
from wire import Sent, refusal

pytestmark = pytest.mark.anyio

RECORDS = "/api/v1/configmaps"
"""One mirror follows them, and no other."""
PAGE = b"<html><head><style>b {color: red}</style></head>\n<body>Please log in</body></html>\n"


def answer(status: int, body: bytes, **headers: str) -> bytes:
    said = {"Content-Type": "text/html", "Content-Length": str(len(body)), **headers}
    lines = "".join(f"{key.replace('_', '-')}: {value}\r\n" for key, value in said.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode() + body


def packed(size: int) -> bytes:
    """Some ``size`` bytes of blanks in an object, sent as a thousandth of that."""
    return answer(
        200,
        gzip.compress(b"{" + b" " * size + b"}"),
        Content_Type="application/json",
        Content_Encoding="gzip",
    )


ANSWERS = {
    "elsewhere": answer(302, b"", Location="https://elsewhere.example.com/"),
    "a page": answer(200, PAGE),
    "not found": answer(404, b"404 page not found\n", Content_Type="text/plain"),
    "half an object": answer(
        200, b'{"kind":"List","metadata":{"resourceVersion":"7"},"items":[{"meta'
    ),
    "a bomb": packed(64 << 20),
}
"""More of them are the client's to read: see the tests of preflight-kube."""
EVENTS = {
    "an event of no kind": answer(
        200, b'{"type":"NEWS","object":{"metadata":{"resourceVersion":"1"}}}\n'
    ),
    "a long line that is not an event": answer(200, b'{"x":"' + b"x" * (MOST_BYTES + 1) + b'"}\n'),
}
BOTH = {"elsewhere", "half an object"}
AT_THE_START = {"half an object", "not found", "a bomb"}


@pytest.fixture(params=list(ANSWERS.items()), ids=list(ANSWERS))
def strange(request: pytest.FixtureRequest, api: ApiFixture) -> bytes:
    name, said = request.param
    if api.kind == "real" and name not in BOTH:
        pytest.skip(
            "the server hears nothing of it: a few of them are asked in front of the real one, too"
        )
    assert isinstance(said, bytes)
    return said


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


async def _goes_on(
    said: bytes,
    cluster: Cluster,
    target: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A controller that follows meets ``said`` in answer to watches and, when it has to, lists;
    then no more.
    """
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


async def test_a_controller_that_follows_the_cluster_says_that_it_is_behind_and_goes_on_by_itself(
    strange: bytes,
    cluster: Cluster,
    target: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await _goes_on(strange, cluster, target, monkeypatch, caplog)


@pytest.mark.parametrize("said", EVENTS.values(), ids=EVENTS.keys())
async def test_a_watch_that_tells_no_events_is_no_watch(
    said: bytes,
    cluster: Cluster,
    target: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await _goes_on(said, cluster, target, monkeypatch, caplog)


class Begin:
    """Says it to every read, until it is mended."""

    def __init__(self, said: bytes) -> None:
        self.said, self.mended = said, False

    def __call__(self, sent: Sent) -> bytes | None:
        if self.mended or sent.method != "GET":
            return None
        return self.said


@pytest.mark.parametrize(
    "strange", [ANSWERS[name] for name in sorted(AT_THE_START)], ids=sorted(AT_THE_START)
)
async def test_a_replica_that_starts_so_is_not_ready_says_why_and_leads_as_soon_as_it_is_over(
    strange: bytes, api: ApiFixture, cluster: Cluster, target: Connection, tmp_path: Path
) -> None:
    if api.kind == "real" and strange not in {ANSWERS[name] for name in BOTH}:
        pytest.skip(
            "the server hears nothing of it: a few of them are asked in front of the real one, too"
        )
    begin = Begin(strange)

    async def not_ready(one: Replica) -> None:
        await until(
            lambda: len(one.said("watch failed, mirror is behind the cluster")) >= 4,
            "it tries again",
            40,
        )
        said = await one.get("/readyz")
        assert (said.status_code, (await one.get("/healthz")).status_code) == (503, 200)
        assert "has been behind the cluster for" in said.text
        if strange != ANSWERS["not found"]:  # then there is a lease to be had
            assert (one.leads, len(one.said("cannot acquire the lease"))) == (False, 1)
        begin.mended = True

    async with replica(
        target, cluster.namespace, tmp_path / "one", patience=600, answers=begin, before=not_ready
    ) as one:
        await until(lambda: one.leads, "it leads")
        await cluster.pair()
        await cluster.answered("sealed", "pod-0", "pod-1", seconds=40)
        assert one.peak_mib() < 160
        assert one.process.returncode is None


async def test_a_lease_that_is_another_s_or_none_is_not_believed(
    cluster: Cluster, target: Connection, tmp_path: Path
) -> None:
    """A leader whose renewals are answered so ends its leadership in time, and takes it up again
    when it is over.
    """
    async with replica(target, cluster.namespace, tmp_path / "one", lease=2) as one:
        await until(lambda: one.leads, "it leads")
        lease = b'{"metadata":{"name":"preflight-gang","resourceVersion":"9"},"spec":%s}'
        for spec in (
            b'{"holderIdentity":"else","leaseTransitions":1}',
            b'"none"',
            b'{"leaseTransitions":"many"}',
        ):
            said = answer(200, lease % spec, Content_Type="application/json")
            one.wire.answers = lambda sent, said=said: said if "/leases" in sent.path else None  # type: ignore[misc]
            await until(lambda: not one.leads, "it does not lead any more")
            one.wire.answers = lambda _: None
            await until(lambda: one.leads, "it leads again")
        await cluster.pair()
        await cluster.answered("sealed", "pod-0", "pod-1")
