"""What objects of others weigh: the controller's memory stays within its bound, and it goes on
leading.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hostile import bomb, gang_map
from played import Cluster, played
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client
from preflight_proto import names
from preflight_proto.stamp import configmap_name
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.waiting import until
from replica import Replica, replica

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

BOUND = 160
"""MiB: a third of the chart's limit, and not enough for half of what is written here."""
MEGABYTE = "x" * 1_000_000
NAMESPACE = "others"


def _maps() -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(75):
        raw = f"evil-{number}"
        for name in (f"x-{number}", configmap_name(NAMESPACE, raw, "labels")):
            yield "configmaps", gang_map(NAMESPACE, raw, name=name, data={"members": MEGABYTE})


def _pods(number: int, env: int, *keys: str) -> Iterator[tuple[str, dict[str, Any]]]:
    variables = [{"name": f"N{i}", "value": "v"} for i in range(env)]
    for one in range(number):
        metadata = {
            "name": f"p-{one}",
            "labels": {names.CHECKED_LABEL: "true"},
            "annotations": dict.fromkeys(keys, "x" * 125_000),
        }
        containers = [{"name": "a", "image": "x", "env": variables}]
        yield "pods", {"metadata": metadata, "spec": {"containers": containers}}


HEAVY = {
    "150 ConfigMaps of 1 MB, half of them by gangs' names": _maps,
    "100 pods of 1.4 MB": lambda: _pods(100, 50_000),
    "600 pods with 125 KB in an annotation of theirs and of ours": lambda: _pods(
        600, 0, "note", names.ROSTER_ANNOTATION
    ),
}


@pytest.fixture
async def double() -> AsyncIterator[ApiDouble]:
    with ApiDouble() as double:
        for name in (NAMESPACE, "good"):
            double.within(
                lambda name=name: double.create("namespaces", {"metadata": {"name": name}})  # type: ignore[misc]
            )
        yield double


def _put(double: ApiDouble, objects: Iterator[tuple[str, dict[str, Any]]]) -> None:
    """Without copies: the same text in each of them weighs nothing here."""
    served = {r.plural: r for r in double.api.served if r.group_version == "v1"}

    def put() -> None:
        for number, (plural, body) in enumerate(objects):
            about = {"namespace": NAMESPACE, "uid": f"uid-{plural}-{number}", **body["metadata"]}
            double.store._write(served[plural], None, body | {"metadata": about})

    double.within(put)


async def _tells(cluster: Cluster, one: Replica) -> None:
    await until(lambda: one.leads, "it leads")
    await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1")


@pytest.mark.parametrize("heavy", HEAVY.values(), ids=HEAVY.keys())
async def test_its_memory_does_not_follow_what_others_write(
    heavy: Callable[[], Iterator[tuple[str, dict[str, Any]]]], double: ApiDouble, tmp_path: Path
) -> None:
    target = connection({"KUBECONFIG": str(write_kubeconfig(tmp_path / "kubeconfig", double.url))})
    await anyio.to_thread.run_sync(_put, double, heavy())
    async with (
        Client(target, agent="tests") as client,
        played(client, "good") as cluster,
        replica(target, "good", tmp_path / "one", patience=600, lease=60) as one,
    ):
        await _tells(cluster, one)
        print(f"{one.peak_mib():.0f} MiB")
        assert one.peak_mib() < BOUND


async def test_a_packed_record_that_changes_all_the_time_costs_neither_memory_nor_the_lease(
    double: ApiDouble, tmp_path: Path
) -> None:
    target = connection({"KUBECONFIG": str(write_kubeconfig(tmp_path / "kubeconfig", double.url))})
    async with (
        Client(target, agent="tests") as client,
        played(client, "good") as cluster,
        played(client, NAMESPACE) as others,
        replica(target, "good", tmp_path / "one", patience=600, lease=60) as one,
    ):
        await until(lambda: one.leads, "it leads")
        await others.admit("evil", gang="evil")
        body = gang_map(
            NAMESPACE, "evil", data={"generation": "1"}, binaryData={"members": bomb(64 << 20)}
        )
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        await client.create(path, body)
        for number in range(20):
            change = {"data": {"generation": str(number)}}
            await client.merge_patch(f"{path}/{body['metadata']['name']}", change)
            await anyio.sleep(0.1)
        began = time.monotonic()
        await cluster.pair()
        await cluster.answered("sealed", "pod-0", "pod-1")
        print(f"{one.peak_mib():.0f} MiB, told after {time.monotonic() - began:.2f} s")
        assert one.peak_mib() < BOUND
        assert len(one.said("leading")) == 1
        assert not one.said("no longer leading")
