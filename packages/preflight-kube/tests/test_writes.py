"""Writes that need more than a body: deleting on conditions, the status alone."""

from __future__ import annotations

from typing import Any

import pytest
from kube_world import Item, config_map
from preflight_kube.client.client import Client, Conflict, NotFound
from preflight_testing.plugin import ApiFixture

pytestmark = pytest.mark.anyio


@pytest.fixture
def real(api: ApiFixture) -> ApiFixture:
    if api.kind != "real":
        pytest.skip("the double knows no owners of fields")
    return api


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
