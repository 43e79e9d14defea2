"""Objects that mean no good: whatever they hold, the gangs of others are told at once, and they are
named and counted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from hostile import DEEP, gang_map, giant_record
from leading import leads
from played import Cluster, container
from preflight_kube.auth.connection import Connection
from preflight_proto import names
from preflight_testing.plugin import ApiFixture

pytestmark = pytest.mark.anyio

Attack = Callable[[Cluster], Awaitable[object]]


async def _deep_stamp(cluster: Cluster) -> None:
    await cluster.admit("evil", stamp=DEEP)


async def _deep_roster(cluster: Cluster) -> None:
    await cluster.admit("evil", gang="evil")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/evil"
    await cluster.client.merge_patch(
        path, {"metadata": {"annotations": {names.ROSTER_ANNOTATION: DEEP}}}
    )


async def _deep_result(cluster: Cluster) -> None:
    await cluster.admit("evil", gang="evil")
    ended = container("nccl-allreduce", "ended", message=DEEP)
    await cluster.address("evil", "10.0.8.8", container("dcgm-diag", "ended", message=DEEP), ended)


async def _deep_record(cluster: Cluster) -> None:
    await cluster.admit("evil", gang="evil")
    for name in ("", "x"):
        body = gang_map(cluster.namespace, "evil", name=name, data={"members": DEEP})
        await cluster.client.create(f"/api/v1/namespaces/{cluster.namespace}/configmaps", body)


async def _empty_projection(cluster: Cluster) -> None:
    volumes = [
        {"name": names.NODE_VOLUME, "projected": {"sources": None}},
        {"name": "v", "projected": {}},
    ]
    await cluster.admit("evil", gang="evil", spec={"volumes": volumes, "initContainers": []})


async def _packed_record(cluster: Cluster) -> None:
    await cluster.admit("evil", gang="evil")
    body = giant_record(cluster.namespace, "evil")
    await cluster.client.create(f"/api/v1/namespaces/{cluster.namespace}/configmaps", body)


ATTACKS: dict[str, Attack] = {
    "a stamp nested deeply": _deep_stamp,
    "a roster nested deeply": _deep_roster,
    "a result nested deeply": _deep_result,
    "a record nested deeply": _deep_record,
    "a projected volume without sources": _empty_projection,
    "a record that unpacks to 64 MiB": _packed_record,
}


async def _told_at_once(cluster: Cluster) -> None:
    await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1", seconds=60)


@pytest.mark.parametrize(
    ("attack", "before"),
    [
        pytest.param(
            attack, bool(number % 2), id=f"{name}, {'listed' if number % 2 else 'watched'}"
        )
        for number, (name, attack) in enumerate(ATTACKS.items())
    ],
)
async def test_beside_it_a_gang_is_told_at_once(
    before: bool, attack: Attack, cluster: Cluster, target: Connection
) -> None:
    if before:
        await attack(cluster)
    async with leads(target) as leading:
        if not before:
            await attack(cluster)
        await _told_at_once(cluster)
        assert set(leading.controller._client.mirrors.behind().values()) == {0.0}


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
