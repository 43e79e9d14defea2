"""Whatever happens to the objects and to the connection: the store becomes the cluster, and the
changes add up.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_world import Kept
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from preflight_kube.runtime.reflector import Change, Reflector
from preflight_testing.apidouble import ApiDouble
from preflight_testing.proxy import proxied
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(["put", "hide", "remove"]),
            st.sampled_from("abc"),
            st.sampled_from("12"),
        ),
        st.tuples(st.sampled_from(["cut", "forget", "breathe"])),
    ),
    max_size=20,
)


class Cluster:
    """Config maps of the double, changed without HTTP."""

    def __init__(self, double: ApiDouble) -> None:
        self.double = double
        self.resource = next(r for r in double.api.served if r.plural == "configmaps")

    def objects(self) -> dict[str, dict[str, Any]]:
        return {
            name: item
            for (_, name), item in self.double.store.objects.get(self.resource, {}).items()
        }

    def put(self, name: str, value: str, labels: dict[str, str]) -> None:
        body = {
            "metadata": {"name": name, "namespace": "default", "labels": labels},
            "data": {"k": value},
        }
        if (old := self.objects().get(name)) is None:
            self.double.create("configmaps", body)
        else:
            self.double.store.update(self.resource, old, body)

    def remove(self, name: str) -> None:
        if (old := self.objects().get(name)) is not None:
            self.double.store.delete(self.resource, old, {})

    def selected(self) -> dict[str, str]:
        return {
            item["metadata"]["uid"]: item["data"]["k"]
            for item in self.objects().values()
            if item["metadata"].get("labels")
        }


@given(STEPS)
@settings(max_examples=settings().max_examples // 2 or 1)
async def test_the_store_becomes_what_the_cluster_is(steps: list[tuple[str, ...]]) -> None:
    folded: dict[str, str] = {}

    def fold(change: Change[Kept]) -> None:
        assert (change.kind == "added") == (change.key not in folded)
        assert (change.before.data["k"] if change.before else None) == folded.get(change.key)
        if change.kind == "deleted":
            del folded[change.key]
        else:
            folded[change.key] = change.object.data["k"]

    async with ApiDouble() as double:
        cluster, direct = Cluster(double), Connection(double.url, ssl.create_default_context())
        async with (
            proxied(direct) as (proxy, through),
            Client(through, agent="tests") as client,
            anyio.create_task_group() as tasks,
        ):
            act: dict[str, Callable[..., None]] = {
                "put": lambda name, value: cluster.put(name, value, {"ours": "yes"}),
                "hide": lambda name, value: cluster.put(name, value, {}),
                "remove": lambda name, _: cluster.remove(name),
                "cut": proxy.cut,
                "forget": double.compact,
                "breathe": lambda: None,
            }
            params = {"labelSelector": "ours=yes"}
            reflector = Reflector(
                client,
                "/api/v1/configmaps",
                Kept,
                params=params,
                on_change=fold,
                limit=2,
                watch_seconds=5,
            )
            tasks.start_soon(reflector.run)
            await reflector.synced.wait()
            for what, *how in steps:
                act[what](*how)
                if what == "breathe":
                    await anyio.sleep(0.01)
            await until(
                lambda: folded == cluster.selected(),
                f"the store follows: {folded} {cluster.selected()}",
            )
            assert {key: item.data["k"] for key, item in reflector.store.items()} == folded
            tasks.cancel_scope.cancel()
