"""Writes that need more than a body: applying, deleting on conditions, the status alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kube_world import Item, config_map
from preflight_kube.client.client import Client, Conflict, Invalid, KubeError, NotFound
from preflight_testing.plugin import ApiFixture

pytestmark = pytest.mark.anyio


@pytest.fixture
def real(api: ApiFixture) -> ApiFixture:
    if api.kind != "real":
        pytest.skip("the double knows no owners of fields")
    return api


def applied(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_what_is_applied_is_made_and_what_is_left_out_later_goes(
    client: Client, real: ApiFixture
) -> None:
    path = real.path("configmaps", "one")
    await client.apply(path, applied("one", a="1", b="2"))
    await client.merge_patch(path, {"data": {"others": "3"}})
    await client.apply(path, applied("one", a="9"))
    assert (await client.get(path, Item)).data == {"a": "9", "others": "3"}


async def test_fields_of_others_are_a_conflict_unless_they_are_taken(
    client: Client, real: ApiFixture
) -> None:
    path = real.path("configmaps", "two")
    await client.apply(path, applied("two", a="1"), manager="first")
    with pytest.raises(Conflict, match="first"):
        await client.apply(path, applied("two", a="2"), manager="second")
    assert (await client.get(path, Item)).data == {"a": "1"}
    written = await client.apply(path, applied("two", a="2"), manager="second", force=True)
    assert msgspec.json.decode(written, type=Item).data == {"a": "2"}


async def test_without_a_manager_the_agent_owns_what_it_applies(
    client: Client, real: ApiFixture
) -> None:
    path = real.path("configmaps", "three")
    await client.apply(path, applied("three", a="1"))
    found = await client.get(path, dict[str, Any])
    [owner] = found["metadata"]["managedFields"]
    assert (owner["manager"], owner["operation"]) == ("tests", "Apply")


async def test_applying_what_is_no_object_is_refused(client: Client, real: ApiFixture) -> None:
    with pytest.raises(KubeError):
        await client.apply(real.path("configmaps", "four"), {"metadata": {"name": "four"}})
    with pytest.raises((Invalid, KubeError)):
        await client.apply(
            real.path("configmaps", "four"), {**applied("four"), "data": {"not a key": "1"}}
        )
    assert await client.get_or_none(real.path("configmaps", "four"), Item) is None


async def test_an_object_that_is_not_there_is_none_and_other_refusals_are_errors(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps", "maybe")
    assert await client.get_or_none(path, Item) is None
    await client.create(api.path("configmaps"), config_map("maybe", a="1"))
    found = await client.get_or_none(path, Item)
    assert found is not None
    assert found.data == {"a": "1"}


async def test_a_delete_takes_only_the_object_that_was_meant(
    client: Client, api: ApiFixture
) -> None:
    path = api.path("configmaps", "victim")
    await client.create(api.path("configmaps"), config_map("victim", a="1"))
    before = (await client.get(path, Item)).metadata
    with pytest.raises(Conflict):
        await client.delete(path, uid="another")
    await client.merge_patch(path, {"data": {"a": "2"}})
    with pytest.raises(Conflict):
        await client.delete(path, uid=before.uid, resource_version=before.resource_version)
    now = (await client.get(path, Item)).metadata
    await client.delete(
        path, uid=now.uid, resource_version=now.resource_version, grace=0, propagation="Background"
    )
    with pytest.raises(NotFound):
        await client.delete(path)


async def test_what_a_deleted_object_owns_may_be_left(client: Client, real: ApiFixture) -> None:
    """Foreground and Orphan leave a finalizer, for the garbage collector that is to come."""
    for policy, finalizer in (("Foreground", "foregroundDeletion"), ("Orphan", "orphan")):
        path = real.path("configmaps", policy.lower())
        await client.create(real.path("configmaps"), config_map(policy.lower()))
        await client.delete(path, propagation=policy)  # type: ignore[arg-type]
        found = await client.get(path, dict[str, Any])
        assert found["metadata"]["finalizers"] == [finalizer]
        await client.merge_patch(path, {"metadata": {"finalizers": None}})
    await client.create(real.path("configmaps"), config_map("gone"))
    await client.delete(real.path("configmaps", "gone"), propagation="Background")
    assert await client.get_or_none(real.path("configmaps", "gone"), Item) is None


async def test_a_status_is_written_alone(client: Client, api: ApiFixture) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await client.create(api.path("pods"), pod)
    path = api.path("pods", "p")
    found = await client.get(path, dict[str, Any])
    changed = {**found, "spec": {"containers": []}, "status": {"phase": "Running"}}
    await client.replace_status(path, changed)
    now = await client.get(path, dict[str, Any])
    assert now["status"]["phase"] == "Running"
    assert [one["name"] for one in now["spec"]["containers"]] == ["c"]
    with pytest.raises(Conflict):
        await client.replace_status(path, changed)
    await client.delete(path, grace=0)
