"""The client's behaviour, the same against the double and a real kube-apiserver."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import msgspec
import pytest
from kube_world import Item, config_map, names
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import (
    Client,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    PreconditionFailed,
    WatchEvent,
)
from preflight_testing.plugin import ApiFixture
from preflight_testing.proxy import proxied

pytestmark = pytest.mark.anyio


async def make(client: Client, api: ApiFixture, *wanted: str, **labels: str) -> list[Item]:
    made = [
        await client.create(api.path("configmaps"), config_map(name, labels)) for name in wanted
    ]
    return [msgspec.json.decode(one, type=Item) for one in made]


async def listed(client: Client, path: str, **params: str) -> list[str]:
    return [
        name async for items, _ in client.pages(path, Item, params=params) for name in names(items)
    ]


async def version_of(client: Client, path: str) -> str:
    return [version async for _, version in client.pages(path, Item)][-1]


async def events_of(
    client: Client, path: str, version: str, count: int, **params: str
) -> list[WatchEvent[Item]]:
    seen: list[WatchEvent[Item]] = []
    async with client.watch(path, Item, resource_version=version, params=params) as events:
        async for event in events:
            if event.type != "BOOKMARK":
                seen.append(event)
            if len(seen) == count:
                break
    return seen


async def test_an_object_is_read_as_it_was_created(client: Client, api: ApiFixture) -> None:
    (made,) = await make(client, api, "one", a="b")
    assert await client.get(api.path("configmaps", "one"), Item) == made


@pytest.mark.parametrize("path", ["/apis/absent.example.com/v1/things", ""])
async def test_what_is_not_there_is_not_found(client: Client, api: ApiFixture, path: str) -> None:
    with pytest.raises(NotFound) as caught:
        await client.get(path or api.path("configmaps", "none"), Item)
    assert caught.value.status == 404


async def test_a_name_is_made_from_generate_name(client: Client, api: ApiFixture) -> None:
    made = await client.create(api.path("configmaps"), {"metadata": {"generateName": "gen-"}})
    name = msgspec.json.decode(made, type=Item).metadata.name
    assert name.startswith("gen-")
    assert len(name) == len("gen-") + 5


async def test_pages_hold_every_object_once_at_one_version(client: Client, api: ApiFixture) -> None:
    made = await make(client, api, *(f"cm-{i}" for i in range(7)), page="yes")
    params = {
        "labelSelector": "page=yes"
    }  # a real server puts objects of its own into each namespace
    pages = [
        page async for page in client.pages(api.path("configmaps"), Item, params=params, limit=3)
    ]
    assert [len(items) for items, _ in pages] == [3, 3, 1]
    assert [item for items, _ in pages for item in items] == made
    assert len({version for _, version in pages}) == 1


async def test_pages_show_the_moment_of_the_first(client: Client, api: ApiFixture) -> None:
    await make(client, api, *(f"cm-{i}" for i in range(4)), page="yes")
    pages = client.pages(
        api.path("configmaps"), Item, params={"labelSelector": "page=yes"}, limit=2
    )
    seen = names((await anext(pages))[0])
    await client.delete(api.path("configmaps", "cm-3"))
    await make(client, api, "cm-9", page="yes")
    seen += [name async for items, _ in pages for name in names(items)]
    assert seen == ["cm-0", "cm-1", "cm-2", "cm-3"]


async def test_a_list_that_grew_too_old_between_pages_is_gone(
    client: Client, api: ApiFixture
) -> None:
    await make(client, api, "a", "b", "c", page="yes")
    pages = client.pages(
        api.path("configmaps"), Item, params={"labelSelector": "page=yes"}, limit=1
    )
    await anext(pages)
    await make(client, api, "d")
    await anyio.to_thread.run_sync(api.forget)
    with pytest.raises(Gone):
        await anext(pages)


SELECTED = {
    "color=red": ["a"],
    "color==red,size": ["a"],
    "color!=red": ["b", "c"],
    "color in (red, blue)": ["a", "b"],
    "color notin (red)": ["b", "c"],
    "!color": ["c"],
    "color": ["a", "b"],
    "example.com/on=true": ["c"],
}


async def test_selectors_select(client: Client, api: ApiFixture) -> None:
    await make(client, api, "a", color="red", size="1", set="x")
    await make(client, api, "b", color="blue", set="x")
    await make(client, api, "c", **{"example.com/on": "true"}, set="x")
    path = api.path("configmaps")
    assert {
        selector: await listed(client, path, labelSelector=f"set=x,{selector}")
        for selector in SELECTED
    } == SELECTED
    assert await listed(client, path, fieldSelector="metadata.name=b") == ["b"]


async def test_a_watch_tells_what_happened_after_its_version(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps")
    await make(client, api, "before")
    version = await version_of(client, path)
    (made,) = await make(client, api, "one")
    await client.merge_patch(f"{path}/one", {"data": {"k": "v"}})
    await client.delete(f"{path}/one")
    seen = await events_of(client, path, version, 3)
    assert [(e.type, e.object.metadata.name) for e in seen if e.object] == [
        ("ADDED", "one"),
        ("MODIFIED", "one"),
        ("DELETED", "one"),
    ]
    assert seen[0].object == made
    assert seen[2].object is not None
    assert seen[2].object.data == {"k": "v"}
    assert all(int(a.resource_version) < int(b.resource_version) for a, b in pairwise(seen))


async def test_an_object_that_leaves_the_selection_is_deleted_for_the_watch(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps")
    version = await version_of(client, path)
    await make(client, api, "one", on="yes")
    await client.merge_patch(f"{path}/one", {"metadata": {"labels": {"on": "no"}}})
    await client.merge_patch(f"{path}/one", {"metadata": {"labels": {"on": "yes"}}})
    seen = await events_of(client, path, version, 3, labelSelector="on=yes")
    assert [(e.type, e.object.metadata.labels["on"]) for e in seen if e.object] == [
        ("ADDED", "yes"),
        ("DELETED", "yes"),
        ("ADDED", "yes"),
    ]


async def test_a_bookmark_moves_the_version_of_a_watch_that_has_nothing_to_tell(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps")
    version = await version_of(client, path)
    params = {"labelSelector": "never=selected"}
    async with client.watch(
        path, Item, resource_version=version, params=params, seconds=6
    ) as events:
        (made,) = await make(client, api, "other")
        event = await anext(events)  # sent shortly before the watch ends
    assert (event.type, event.object) == ("BOOKMARK", None)
    assert int(event.resource_version) >= int(made.metadata.resource_version)


async def test_a_watch_in_which_nothing_happens_ends_without_a_word(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("secrets")
    version = await version_of(client, path)
    async with client.watch(path, Item, resource_version=version, seconds=3) as events:
        assert [event async for event in events] == []


async def test_a_watch_from_a_version_that_was_compacted_is_gone(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps")
    version = await version_of(client, path)
    await make(client, api, "one")
    await anyio.to_thread.run_sync(api.forget)
    with pytest.raises(Gone):
        await events_of(client, path, version, 1)


async def test_a_cut_connection_ends_a_watch_with_an_error(
    target: Connection, api: ApiFixture
) -> None:
    path = api.path("configmaps")
    async with proxied(target) as (proxy, through), Client(through, agent="tests") as client:
        version = await version_of(client, path)
        async with client.watch(path, Item, resource_version=version) as events:
            proxy.cut()
            with pytest.raises(KubeError, match="no answer to watch"):
                await anext(events)


async def test_a_read_survives_a_server_that_is_away_for_a_moment(
    target: Connection, api: ApiFixture
) -> None:
    async with (
        proxied(target) as (proxy, through),
        Client(through, agent="tests") as client,
        anyio.create_task_group() as tasks,
    ):
        await make(client, api, "one")
        proxy.cut(refuse=True)

        async def mend() -> None:
            await anyio.sleep(0.3)
            proxy.restore()

        tasks.start_soon(mend)
        assert (await client.get(api.path("configmaps", "one"), Item)).metadata.name == "one"


async def test_a_write_is_not_repeated(target: Connection, api: ApiFixture) -> None:
    async with proxied(target) as (proxy, through), Client(through, agent="tests") as client:
        await make(client, api, "one")
        proxy.cut(refuse=True)
        with pytest.raises(KubeError) as caught:
            await make(client, api, "two")
        assert caught.value.status == 0
        assert client.requests.count["create"] == 2


async def test_a_write_that_changes_nothing_makes_no_new_version(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps", "one")
    (made,) = await make(client, api, "one", a="b")
    await client.merge_patch(path, {"metadata": {"labels": {"a": "b", "none": None}}})
    assert (
        await client.get(path, Item)
    ).metadata.resource_version == made.metadata.resource_version


APPLIES: list[tuple[str, list[dict[str, Any]], bool]] = [
    ("test that holds", [{"op": "test", "path": "/data/k", "value": "v"}], True),
    ("test that does not", [{"op": "test", "path": "/data/k", "value": "w"}], False),
    ("test of what is missing", [{"op": "test", "path": "/data/none", "value": "w"}], False),
    ("null of what is missing", [{"op": "test", "path": "/data/none", "value": None}], True),
    ("null of a missing parent", [{"op": "test", "path": "/metadata/labels", "value": None}], True),
    (
        "null below a missing parent",
        [{"op": "test", "path": "/metadata/labels/a", "value": None}],
        False,
    ),
    ("null of what is there", [{"op": "test", "path": "/data/k", "value": None}], False),
    ("empty of an empty string", [{"op": "test", "path": "/data/empty", "value": ""}], True),
    ("escaped path", [{"op": "test", "path": "/metadata/annotations/a.b~1c", "value": "x"}], True),
    ("add", [{"op": "add", "path": "/data/new", "value": "1"}], True),
    (
        "add below a missing parent",
        [{"op": "add", "path": "/metadata/labels/a", "value": "b"}],
        False,
    ),
    ("replace", [{"op": "replace", "path": "/data/k", "value": "1"}], True),
    ("replace of what is missing", [{"op": "replace", "path": "/data/none", "value": "1"}], True),
    ("remove", [{"op": "remove", "path": "/data/k"}], True),
    ("remove of what is missing", [{"op": "remove", "path": "/data/none"}], False),
    ("move", [{"op": "move", "from": "/data/k", "path": "/data/moved"}], True),
    ("copy", [{"op": "copy", "from": "/data/k", "path": "/data/copied"}], True),
    ("unknown", [{"op": "put", "path": "/data/k", "value": "1"}], False),
]


async def test_a_json_patch_applies_whole_or_not_at_all(client: Client, api: ApiFixture) -> None:
    about = {"generateName": "one-", "annotations": {"a.b/c": "x"}}
    body = {"metadata": about, "data": {"k": "v", "empty": ""}}
    mark = {"op": "add", "path": "/data/mark", "value": "1"}
    applied: dict[str, tuple[bool, bool]] = {}
    for name, operations, _ in APPLIES:
        made = msgspec.json.decode(await client.create(api.path("configmaps"), body), type=Item)
        path, taken = api.path("configmaps", made.metadata.name), True
        try:
            await client.json_patch(path, [mark, *operations])
        except PreconditionFailed as error:
            taken = False
            assert (error.status, error.reason) == (422, "Invalid")
        applied[name] = (taken, "mark" in (await client.get(path, Item)).data)
    assert applied == {name: (applies, applies) for name, _, applies in APPLIES}


async def test_a_change_of_uid_is_invalid_not_a_failed_precondition(
    client: Client, api: ApiFixture
) -> None:
    await make(client, api, "one")
    operations = [{"op": "replace", "path": "/metadata/uid", "value": "another"}]
    with pytest.raises(Invalid):
        await client.json_patch(api.path("configmaps", "one"), operations)


async def test_an_object_with_a_finalizer_goes_when_the_finalizer_does(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps", "one")
    body = {"metadata": {"name": "one", "finalizers": ["example.com/hold"]}}
    await client.create(api.path("configmaps"), body)
    await client.delete(path)
    await client.get(path, Item)
    await client.merge_patch(path, {"metadata": {"finalizers": None}})
    with pytest.raises(NotFound):
        await client.get(path, Item)


async def test_requests_are_counted_by_verb(client: Client, api: ApiFixture) -> None:
    path = api.path("configmaps")
    await make(client, api, "one")
    await client.get(f"{path}/one", Item)
    await client.merge_patch(f"{path}/one", {"data": {"k": "v"}})
    await client.delete(f"{path}/one")
    assert client.requests.count == {"create": 1, "get": 1, "patch": 1, "delete": 1}
    assert client.requests.bytes["patch"] == len(b'{"data":{"k":"v"}}')
