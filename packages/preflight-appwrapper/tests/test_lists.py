"""One list of labeled objects for many wrappers: who shares it, and that it is never one that began
before it was asked for.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pytest
from preflight_appwrapper.api.names import LABEL
from preflight_appwrapper.controller.labeled_lists import LabeledList, LabeledLists
from preflight_appwrapper.core.decode import PartialObject
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError

pytestmark = pytest.mark.anyio


def pod(name: str, of: str) -> PartialObject:
    metadata = {"name": name, "uid": f"uid-{name}", "namespace": "ns", "resourceVersion": "5"}
    raw = {"metadata": {**metadata, "labels": {LABEL: of}}, "spec": {}, "status": {}}
    return msgspec.json.decode(msgspec.json.encode(raw), type=PartialObject)


def whole(raw: PartialObject) -> PartialObject:
    return raw


class Slow(Client):
    """Lists wait until they are let through; ``asked``: the selectors of those that have begun."""

    def __init__(self) -> None:
        super().__init__(
            Connection("https://127.0.0.1:1", ssl.create_default_context()), agent="tests"
        )
        self.asked: list[str] = []
        self.pods: list[PartialObject] = []
        self.refuse: KubeError | None = None
        self.gate = anyio.Semaphore(0)

    async def pages(self, path: str, *_: Any, params: Any, **__: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        self.asked.append(params["labelSelector"])
        found = list(self.pods)
        await self.gate.acquire()
        if self.refuse is not None:
            raise self.refuse
        yield [one for one in found if one.metadata.labels[LABEL] in params["labelSelector"]], "7"


PODS = "/api/v1/namespaces/ns/pods"
Answers = dict[str, LabeledList | KubeError | None]


async def ask(lists: LabeledLists, name: str, into: Answers) -> None:
    try:
        into[name] = await lists.of(PODS, name, whole)
    except KubeError as error:
        into[name] = error


async def begun(client: Slow, count: int) -> None:
    with anyio.fail_after(600):
        while len(client.asked) < count:
            await anyio.sleep(0.001)


def names(one: LabeledList | KubeError | None) -> list[str]:
    assert isinstance(one, LabeledList)
    return [raw.metadata.name for raw in one.objects]


async def test_those_who_ask_while_a_list_is_under_way_share_the_next_one() -> None:
    client = Slow()
    first: Answers = {}
    later: Answers = {}
    lists = LabeledLists(client)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, lists, "a", first)
        await begun(client, 1)
        client.pods = [pod("a-0", "a"), pod("b-0", "b")]  # which the list under way does not have
        for name in ("b", "c", "a"):
            group.start_soon(ask, lists, name, later)
        await anyio.wait_all_tasks_blocked()
        client.gate.release()
        client.gate.release()
    assert client.asked == [f"{LABEL} in (a)", f"{LABEL} in (a,b,c)"]
    assert names(first["a"]) == []
    assert {name: names(one) for name, one in later.items()} == {
        "a": ["a-0"],
        "b": ["b-0"],
        "c": [],
    }
    assert isinstance(later["c"], LabeledList)
    assert later["c"].version == 7


async def test_a_list_that_is_refused_is_so_for_all_who_share_it_and_for_nobody_after_them() -> (
    None
):
    client = Slow()
    found: Answers = {}
    later: Answers = {}
    lists = LabeledLists(client)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, lists, "a", found)
        await begun(client, 1)
        group.start_soon(ask, lists, "b", found)
        group.start_soon(ask, lists, "c", found)
        await anyio.wait_all_tasks_blocked()
        client.gate.release()
        await begun(client, 2)
        client.refuse = KubeError("no", 500)
        client.gate.release()
    client.refuse = None
    client.gate.release()
    await ask(lists, "b", later)
    assert isinstance(found["a"], LabeledList)
    assert found["b"] is found["c"]
    assert isinstance(found["b"], KubeError)
    assert isinstance(later["b"], LabeledList)


async def test_one_list_has_a_bounded_number_of_names_and_namespaces_do_not_wait_for_each_other() -> (
    None
):
    client = Slow()
    found: Answers = {}
    lists = LabeledLists(client)
    async with anyio.create_task_group() as group:
        group.start_soon(ask, lists, "first", found)
        await begun(client, 1)
        group.start_soon(lists.of, "/api/v1/namespaces/another/pods", "x", whole)
        await begun(client, 2)
        for i in range(70):
            group.start_soon(ask, lists, f"w-{i:02}", found)
        await anyio.wait_all_tasks_blocked()
        for _ in range(10):
            client.gate.release()
    assert len(found) == 71
    sizes = [one.count(",") + 1 for one in client.asked[2:]]
    assert sizes == [32, 32, 6]


async def test_a_name_that_no_label_can_have_is_not_asked_for() -> None:
    client = Slow()
    assert await LabeledLists(client).of(PODS, "n" * 64, whole) == LabeledList(0)
    assert not client.asked


async def test_a_list_that_too_few_share_is_not_read_and_holds_nobody_up() -> None:
    client = Slow()
    lists = LabeledLists(client)
    assert await lists.of(PODS, "a", whole, least=2) is None
    assert not client.asked
    client.gate.release()
    assert await lists.of(PODS, "a", whole) == LabeledList(7)
