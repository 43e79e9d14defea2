"""Objects that do not say a size: the gangs of others are told at once, and their own why."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from leading import leads
from played import Cluster
from preflight_kube.auth.connection import Connection
from preflight_testing.plugin import ApiFixture

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("spec", "why", "before"),
    [
        ({"schedulingPolicy": "two"}, "cannot be read: Expected `object`", True),
        ({"schedulingPolicy": None}, "has no spec.schedulingPolicy", False),
    ],
    ids=["a word, listed", "null, watched"],
)
async def test_an_object_that_says_no_size_holds_up_its_own_gang_alone_which_is_told_why(
    before: bool, spec: Any, why: str, api: ApiFixture, cluster: Cluster, target: Connection
) -> None:
    if api.kind == "real":
        pytest.skip(
            "it refuses such objects of this kind; those of others have definitions that do not"
        )
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{cluster.namespace}/podgroups"
    gang: dict[str, Any] = {"source": "schedulingGroup", "size": None}

    async def create(name: str, said: Any) -> None:
        await cluster.client.create(
            path, {"metadata": {"name": name}} | ({"spec": said} if said is not None else {})
        )

    await create("good", {"schedulingPolicy": {"gang": {"minCount": 2}}})
    if before:
        await create("evil", spec)
    async with leads(target):
        await cluster.admit("evil-0", gang="evil", about="evil", **gang)
        await cluster.address("evil-0", "10.0.8.8")
        await cluster.test("evil-0")
        if not before:
            await cluster.answered("wait", "evil-0")
            await create("evil", spec)
        await cluster.pair(gang="good", about="good", **gang)
        await cluster.answered("sealed", "pod-0", "pod-1")
        with anyio.fail_after(600):
            while why not in " ".join(
                published.missing if (published := cluster.published("evil-0")) is not None else ()
            ):
                await anyio.sleep(0.02)
        body = {
            "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}
        }  # its author has seen the reason
        await cluster.client.merge_patch(f"{path}/evil", body)
        await cluster.answered("skip", "evil-0")
