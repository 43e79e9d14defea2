"""Writes that need more than a body: deleting on conditions, the status alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from kube_world import Item, config_map, names
from preflight_kube.client.client import Client, Conflict, KubeError
from preflight_testing.plugin import ApiFixture

pytestmark = pytest.mark.anyio


@pytest.fixture
def real(api: ApiFixture) -> ApiFixture:
    if api.kind != "real":
        pytest.skip("the double knows no owners of fields")
    return api


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
    path, status = api.path("pods", "p"), {"status": {"podIP": "10.1.2.3"}}
    spec = {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}
    await client.create(api.path("pods"), {"metadata": {"name": "p"}, "spec": spec, **status})
    await client.merge_patch(path, status)
    found = await client.get(path, dict[str, Any])
    assert "podIP" not in found["status"], "a status is not written with its object"
    changed = {**found, "spec": {"containers": []}, "status": {"phase": "Running"}}
    await client.replace_status(path, changed)
    now = await client.get(path, dict[str, Any])
    assert now["status"]["phase"] == "Running"
    assert [one["name"] for one in now["spec"]["containers"]] == ["c"]
    with pytest.raises(Conflict):
        await client.replace_status(path, changed)
    for node, pods in (("n", ["p"]), ("other", [])):
        params = {"fieldSelector": f"spec.nodeName={node}"}
        async for items, _ in client.pages(api.path("pods"), Item, params=params):
            assert names(items) == pods
    await client.delete(path, grace=0)


class Reviewed(msgspec.Struct):
    status: dict[str, Any]


async def test_a_review_is_answered_although_nothing_is_stored(
    client: Client, real: ApiFixture
) -> None:
    asked = {"verb": "create", "resource": "pods", "namespace": "default"}
    head = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    spec = {"user": "admin", "resourceAttributes": asked}
    assert (await client.ask(path, {**head, "spec": spec}, Reviewed)).status["allowed"]
    with pytest.raises(KubeError):
        await client.ask(path, {**head, "spec": {}}, Reviewed)
