"""Reviews, which an API server answers at once and does not store;
and how far a mirror has come.
"""

from __future__ import annotations

from pathlib import Path

import anyio
import msgspec
import pytest
from kube_world import Item
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime.reflector import Reflector
from preflight_testing.apiserver import ApiServer

pytestmark = pytest.mark.anyio

REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class Status(msgspec.Struct):
    allowed: bool


class Review(msgspec.Struct):
    status: Status


async def test_a_review_is_answered_although_nothing_is_stored(
    real_api_server: ApiServer, tmp_path: Path
) -> None:
    target = connection({"KUBECONFIG": str(real_api_server.kubeconfig(tmp_path / "kubeconfig"))})
    spec = {
        "user": "admin",
        "resourceAttributes": {"verb": "create", "resource": "pods", "namespace": "default"},
    }
    async with Client(target, agent="tests") as client:
        asked = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec,
        }
        assert (await client.ask(REVIEWS, asked, Review)).status.allowed
        with pytest.raises(KubeError):
            await client.ask(REVIEWS, {**asked, "spec": {}}, Review)


async def test_a_mirror_has_come_at_least_as_far_as_what_it_has(
    real_api_server: ApiServer, tmp_path: Path
) -> None:
    target = connection({"KUBECONFIG": str(real_api_server.kubeconfig(tmp_path / "kubeconfig"))})
    async with Client(target, agent="tests") as client:
        mirror = Reflector(client, "/api/v1/namespaces", Item)
        assert mirror.version == ""
        async with anyio.create_task_group() as group:
            group.start_soon(mirror.run)
            await mirror.wait_synced()
            newest = max(int(one.metadata.resource_version) for one in mirror.store.values())
            assert int(mirror.version) >= newest
            group.cancel_scope.cancel()
