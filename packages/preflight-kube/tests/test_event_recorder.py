"""An Event is written once, beside the work; and one answer to how it is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from kube_world import going
from preflight_kube.client.client import Client, Conflict, Fenced, KubeError
from preflight_kube.clock import Clock
from preflight_kube.errors import NotFound
from preflight_kube.runtime import event_recorder
from preflight_kube.runtime.event_recorder import MAX_TRIES, EventRecorder
from preflight_kube.runtime.events import Regarding
from preflight_kube.runtime.workqueue import Backoff
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

Answer = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "BACKOFF", Backoff(first=0.001, longest=0.001))


def pod(name: str) -> Regarding:
    return Regarding("v1", "Pod", name, f"uid-{name}", "ns")


class Events(Client):
    """Answers each create as ``answer`` does; ``written``: what it has taken."""

    def __init__(self, answer: Answer = lambda _: None) -> None:
        self.clock, self.answer = Clock(), answer
        self.tried: list[dict[str, Any]] = []
        self.written: list[dict[str, Any]] = []

    async def create(self, path: str, body: Any) -> bytes:
        assert path == f"/api/v1/namespaces/{body['metadata']['namespace']}/events"
        await anyio.sleep(0)
        self.tried.append(body)
        self.answer(body)
        self.written.append(body)
        return b"{}"


@asynccontextmanager
async def recording(
    client: Client,
) -> AsyncIterator[tuple[EventRecorder, Counter[str]]]:
    counted = Counter[str]()

    def count(result: str) -> None:
        counted[result] += 1

    recorder = EventRecorder(client, "tests", counted=count)
    async with going(recorder.run):
        yield recorder, counted


def failing(error: KubeError, times: int) -> Answer:
    left = [times]

    def answer(_: dict[str, Any]) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise error

    return answer


@pytest.mark.parametrize("exists", [False, True], ids=["written", "by an earlier leader"])
async def test_one_that_is_there_is_not_sent_again_and_counted_by_who_wrote_it(
    exists: bool,
) -> None:
    error = Conflict("exists", status=409, reason="AlreadyExists")
    client = Events(failing(error, int(exists)))
    async with recording(client) as (recorder, counted):
        assert recorder.event(pod("a"), reason="Moved", message="first", warning=True)
        await until(lambda: recorder._pending == {}, "it is there")
        assert not recorder.event(pod("a"), reason="Moved", message="again", warning=True)
        assert recorder.event(pod("b"), reason="Moved", message="other", warning=True)
        await until(lambda: recorder._pending == {}, "so is the other")
    assert [one["message"] for one in client.tried] == ["first", "other"]
    assert counted == {"written": 1 if exists else 2}


@pytest.mark.parametrize(
    "error",
    [
        KubeError("ns: namespace is being terminated", status=403),
        NotFound('namespaces "ns" not found', status=404),
    ],
    ids=["going", "gone"],
)
async def test_of_a_namespace_that_is_deleted_none_is_missed(error: KubeError) -> None:
    client = Events(failing(error, 9))
    async with recording(client) as (recorder, counted):
        recorder.event(pod("a"), reason="Moved", message="first", warning=True)
        await until(lambda: recorder._pending == {}, "it is given up")
    assert not counted


async def test_one_that_waits_is_written_once_with_its_last_words() -> None:
    client = Events()
    async with recording(client) as (recorder, counted):
        for message in ("first", "last"):
            recorder.event(pod("a"), reason="Moved", message=message, warning=True)
        recorder.event(pod("a"), reason="Moved", about="again", message="other", warning=False)
        await until(lambda: counted["written"] == 2, "both")
    assert [one["message"] for one in client.written] == ["last", "other"]
    assert [one["type"] for one in client.written] == ["Warning", "Normal"]


@pytest.mark.parametrize(("failures", "result"), [(MAX_TRIES - 1, "written"), (99, "failed")])
async def test_without_an_answer_it_is_tried_again_so_often_and_its_end_is_counted_once(
    failures: int, result: str
) -> None:
    client = Events(failing(KubeError("no answer", 503), failures))
    async with recording(client) as (recorder, counted):
        recorder.event(pod("a"), reason="Moved", message="m", warning=True)
        await until(lambda: counted.total() == 1, "an end")
    assert counted == {result: 1}
    assert len(client.tried) == MAX_TRIES


async def test_what_the_api_server_refuses_is_lost_at_once_and_holds_up_no_other() -> None:
    client = Events(failing(KubeError("the namespace is going", 403), 1))
    async with recording(client) as (recorder, counted):
        recorder.event(pod("a"), reason="Moved", message="m", warning=True)
        recorder.event(pod("b"), reason="Moved", message="m", warning=True)
        await until(lambda: counted.total() == 2, "both")
    assert counted == {"failed": 1, "written": 1}
    assert len(client.tried) == 2


async def test_of_more_than_may_wait_the_oldest_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_recorder, "MAX_PENDING", 2)
    client, counted = Events(), Counter[str]()
    recorder = EventRecorder(client, "tests", counted=lambda it: counted.update([it]))
    for name in "abc":
        recorder.event(pod(name), reason="Moved", message="m", warning=True)
    assert counted == {"failed": 1}
    async with going(recorder.run):
        await until(lambda: counted["written"] == 2, "two")
        for name in "de":  # what is written waits no longer
            recorder.event(pod(name), reason="Moved", message="m", warning=True)
        await until(lambda: counted["written"] == 4, "two more")
    assert [one["involvedObject"]["name"] for one in client.written] == [*"bcde"]
    assert counted["failed"] == 1


async def test_who_leads_no_longer_writes_none_and_counts_none() -> None:
    client = Events(failing(Fenced("the right had ended"), 99))
    async with recording(client) as (recorder, counted):
        recorder.event(pod("a"), reason="Moved", message="m", warning=True)
        await until(lambda: client.tried, "a try")
        await anyio.wait_all_tasks_blocked()
    assert not counted
    assert len(client.tried) == 1
