"""Objects that cannot be read, in lists and watches: the others are, and it is known which one it
was.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from preflight_kube.client.decoding import (
    MOST_BYTES,
    Identity,
    Undecodable,
    decode,
    metadata_of,
    unreadable,
)
from preflight_kube.client.paging import Page, TooMuch, next_limit, read_page
from preflight_kube.client.watching import WatchEvent, events
from preflight_kube.errors import KubeError

pytestmark = pytest.mark.anyio


class Metadata(msgspec.Struct):
    name: str
    uid: str
    namespace: str = ""


class Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""
    init_containers: list[Any] = []


class Pod(msgspec.Struct):
    """Of a pod, two fields that may be of the wrong type."""

    metadata: Metadata
    spec: Spec = msgspec.field(default_factory=Spec)


POD = msgspec.json.Decoder(Pod)


def deep(levels: int) -> str:
    return '{"v":1,"x":' + "[" * levels + "]" * levels + "}"


def pod(name: str, **more: Any) -> str:
    about = {"name": name, "namespace": "n", "uid": f"uid-{name}", "resourceVersion": "7"}
    return json.dumps({"metadata": about, **more})


def nested(name: str, levels: int = 1500, *, last: bool = False) -> str:
    """``last``: its identity comes behind what is nested, as in custom resources, whose keys are
    sorted.
    """
    fields = f'"managedFields":[{{"fieldsV1":{deep(levels)}}}]'
    identity = f'"name":"{name}","namespace":"n","resourceVersion":"7","uid":"uid-{name}"'
    return '{"metadata":{' + (f"{fields},{identity}" if last else f"{identity},{fields}") + "}}"


def long(name: str) -> str:
    return pod(name, spec={"x": ['a"{[' * 10] * (MOST_BYTES // 40)})


def page_of(*items: str) -> str:
    return (
        '{"kind":"PodList","metadata":{"resourceVersion":"9","continue":"t\\"k"},"items":['
        + ",".join(items)
        + "]}"
    )


async def pieces(text: str, size: int) -> AsyncIterator[bytes]:
    data = text.encode()
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def read(text: str, *, alone: bool = False, size: int = 65536) -> Page[Pod]:
    return await read_page(pieces(text, size), POD, "/api/v1/pods", alone=alone)


async def seen(*lines: str, size: int = 65536) -> list[WatchEvent[Pod]]:
    text = "".join(line + "\n" for line in lines)
    return [event async for event in events(pieces(text, size), POD, "/api/v1/pods")]


def event(item: str, kind: str = "MODIFIED") -> str:
    return f'{{"type":"{kind}","object":{item}}}'


UNREADABLE = {
    "nested deeply": nested("evil"),
    "nested deeply, its name last": nested("evil", last=True),
    "nested 100,000 deep": nested("evil", 100_000, last=True),
    "a word for a list": pod("evil", spec={"initContainers": "none"}),
    "a number for a name": pod("evil", spec={"nodeName": 7}),
}


@pytest.mark.parametrize("evil", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_the_others_of_a_page_are_read_and_it_is_named(evil: str) -> None:
    text = page_of(pod("a"), evil, pod("b", spec={"nodeName": 'x"},{'}))
    try:
        page = await read(text)
    except TooMuch:  # each is asked for by itself then
        assert "[[[" in evil
        parts = [await read(page_of(one), alone=True) for one in (pod("a"), evil, pod("b"))]
        page = Page(
            [item for part in parts for item in part.items],
            [one for part in parts for one in part.unreadable],
            parts[1].version,
            parts[1].token,
        )
    assert [item.metadata.name for item in page.items] == ["a", "b"]
    assert [one.metadata.uid for one in page.unreadable] == ["uid-evil"]
    assert (page.version, page.token) == ("9", 't"k')


@pytest.mark.parametrize("evil", UNREADABLE.values(), ids=UNREADABLE.keys())
async def test_the_other_events_of_a_watch_are_read_and_it_is_named(evil: str) -> None:
    first, middle, last = await seen(
        event(pod("a")), event(evil, "DELETED"), event(pod("b")), size=1000
    )
    assert first.object is not None
    assert last.object is not None
    assert middle.unreadable is not None
    assert (middle.type, middle.object, middle.resource_version) == ("DELETED", None, "7")
    assert (middle.unreadable.metadata.name, middle.unreadable.metadata.uid) == ("evil", "uid-evil")


@pytest.mark.parametrize(
    "line",
    ["\x00garbage", event(pod("one"), "NEWS"), '{"type":"ADDED","object":{"metadata":{'],
    ids=["garbage", "of no kind", "one that breaks off"],
)
async def test_a_line_that_is_no_event_is_an_error_of_the_server(line: str) -> None:
    with pytest.raises(KubeError):
        await seen(line)


async def test_a_line_without_end_is_not_kept_but_named() -> None:
    first, last = await seen(event(long("evil")), event(pod("b")))
    assert first.unreadable is not None
    assert (first.unreadable.metadata.uid, first.resource_version) == ("uid-evil", "7")
    assert "bytes" in first.unreadable.why
    assert last.object is not None


async def test_a_page_that_is_too_long_is_asked_for_again_with_fewer_and_the_one_object_is_passed_over() -> (
    None
):
    text = page_of(long("evil"))
    with pytest.raises(TooMuch):
        await read(text)
    page = await read(text, alone=True)
    assert [one.metadata.uid for one in page.unreadable] == ["uid-evil"]
    assert (page.items, page.version) == ([], "9")


def test_pages_shrink_at_once_and_grow_slowly_within_their_aim() -> None:
    assert next_limit(100, None, 500) == 12
    assert next_limit(1, None, 500) == 1
    small: Page[Pod] = Page(items=[POD.decode(pod("a"))] * 100, size=100 * 1000)
    assert next_limit(100, small, 500) == 200
    assert next_limit(400, small, 500) == 500
    large: Page[Pod] = Page(items=[POD.decode(pod("a"))], size=MOST_BYTES // 4)
    assert next_limit(1, large, 500) == 2


async def test_beside_what_cannot_be_read_no_page_is_asked_for_twice() -> None:
    page = await read(page_of(nested("evil")), alone=True)
    assert next_limit(1, page, 500) == 1


@pytest.mark.parametrize(
    "text", ["<html>", '{"metadata":{},"items":[{', '{"items":{}}', "", "[" * 5000]
)
async def test_what_is_no_list_is_an_error_of_the_server(text: str) -> None:
    try:
        page = await read(text)
    except KubeError:
        return
    assert not page.items  # nothing could be made of it


NULLS = [
    {"spec": {"initContainers": None, "nodeName": None, "unread": None}},
    {"spec": None, "status": None},
    {"spec": {"initContainers": [{"name": "a", "volumeMounts": None}, None]}},
]


@pytest.mark.parametrize("fields", NULLS)
def test_a_null_is_as_if_it_were_not_there(fields: dict[str, Any]) -> None:
    assert decode(POD, pod("a", **fields).encode()).metadata.name == "a"


def test_a_null_where_something_is_needed_makes_it_unreadable() -> None:
    with pytest.raises(Undecodable):
        decode(POD, b'{"metadata":{"name":null}}')


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"metadata":{"name":"a"},"x":1}', {"name": "a"}),
        ('{"x":{"metadata":{"name":"b"}}, "metadata" : {"name":"a"}}', {"name": "a"}),
        ('{"kind":"metadata","x":{"name":"b"},"metadata":{"name":"a"}}', {"name": "a"}),
        ('{"x\\"metadata":{"name":"b"},"metadata":{"name":"a"}}', {"name": "a"}),
        ('{"metadata":{"l":{"name":"b"},"name":"a}]","n":7}}', {"name": "a}]"}),
        ('{"metadata":{"l":{},"name":"a\\"b\\\\"}}', {"name": 'a"b\\'}),
        (nested("a"), {"name": "a", "namespace": "n", "resourceVersion": "7", "uid": "uid-a"}),
        ('{"metadata":{"name":"a","spec":', {}),
        ('{"metadata":"name"}', {}),
        ("[" * 5000, {}),
        ("", {}),
    ],
)
def test_an_object_s_own_metadata_is_found_in_any_text(
    text: str, found: dict[str, str], depth: int
) -> None:
    assert metadata_of(("[[" * (depth // 4) + text).encode(), depth) == found


async def test_a_page_without_end_is_no_list() -> None:
    with pytest.raises(KubeError, match="is not a list"):
        await read(page_of(pod("a", x="y" * 33 * 1024 * 1024)), alone=True)


def test_a_name_of_kilobytes_is_not_remembered() -> None:
    assert unreadable(pod("n" * 5000).encode(), "why").metadata == Identity("", "n", "")
