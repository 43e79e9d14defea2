"""What a cluster serves: no ComputeDomains at all, then those of an older driver beside claims of
an older version, on an API server of one's own.
"""

from __future__ import annotations

import json
import time
import urllib.error
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, LITERAL, ON, clique, pcs, podclique
from live import api_server, fixture, leading, space_of
from preflight_kube.client.client import KubeError
from preflight_mnnvl.controller import informers
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove_kinds import GROVE, compute_domains
from registered import Registered, registered

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """Claims of v1beta1 and no others; no ComputeDomains yet."""
    served = ["resource.k8s.io/v1beta1=true", "resource.k8s.io/v1=false"]
    with api_server(tmp_path_factory.mktemp("older"), kinds=GROVE, runtime_config=served) as server:
        yield server


async def test_without_computedomains_who_asks_is_refused_in_a_sentence_and_nobody_else(
    older: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(older, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        sentence = "MNNVL cannot be had: this cluster serves no computedomains.resource.nvidia.com"
        with pytest.raises(KubeError, match=sentence):
            await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        asks = podclique("t-0-w", "t", annotations=ON)
        asks["metadata"]["namespace"] = space.namespace
        with pytest.raises(KubeError, match=sentence):
            await space.client.create(space.grove.path("podcliques"), asks)
        await space.grove.apply(pcs("u", [clique("w")]))
        await space.grove.turn()
        assert set(await space.grove.all("podcliques")) == {"u-0-w"}


@asynccontextmanager
async def defined(server: ApiServer, kind: dict[str, Any]) -> AsyncIterator[Callable[[], None]]:
    """A kind that is served meanwhile, and no longer at the end; what is yielded removes it."""
    group, names = kind["spec"]["group"], kind["spec"]["names"]
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    path = f"/apis/{group}/{kind['spec']['versions'][0]['name']}/{names['plural']}"

    def status(method: str, at: str) -> int:
        try:
            server.call(method, at)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        return 200

    def remove() -> None:
        status("DELETE", f"{definitions}/{kind['metadata']['name']}")
        end = time.monotonic() + 60
        while {status("GET", path), status("GET", f"{definitions}/{kind['metadata']['name']}")} != {
            404
        }:
            assert time.monotonic() < end, f"{path} is served for ever"
            time.sleep(0.05)

    await anyio.to_thread.run_sync(server.define, kind)
    try:
        yield remove
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove)


async def test_once_computedomains_are_removed_who_asks_is_refused_and_what_is_stored_stays_as_it_is(
    older: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(informers, "ABSENT_RETRY", 0.2)
    sentence = "MNNVL cannot be had: this cluster serves no computedomains.resource.nvidia.com"
    async with (
        defined(older, compute_domains()) as remove,
        space_of(older, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls") as hook,
    ):
        await space.happens(lambda: _is(hook, supported=True), "it is seen that they are served")
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.turned(1)
        before = await space.grove.all("podcliques")
        assert "resourceClaims" in before["t-0-w"]["spec"]["podSpec"]
        await anyio.to_thread.run_sync(remove)
        await space.happens(lambda: _is(hook, supported=False), "it is seen that they are not")
        assert all(one.synced.is_set() for one in hook.informers.reflectors)  # as ready as before
        with pytest.raises(KubeError, match=sentence):
            await space.grove.apply(pcs("u", [clique("w")], annotations=ON))
        asks = podclique("t-0-x", "t", annotations=ON)
        asks["metadata"]["namespace"] = space.namespace
        with pytest.raises(KubeError, match=sentence):
            await space.client.create(space.grove.path("podcliques"), asks)
        assert await space.grove.turn() == 0  # the template again: the claim stays
        assert await space.grove.all("podcliques") == before
        await space.client.merge_patch(
            space.grove.path("podcliquesets", "t"), {"metadata": {"labels": {"a": "b"}}}
        )
        await anyio.to_thread.run_sync(older.define, compute_domains())
        await space.happens(lambda: _is(hook, supported=True), "it is seen that they are again")
        await space.client.create(space.grove.path("podcliques"), asks)


async def _is(hook: Registered, *, supported: bool) -> bool:
    return hook.informers.support.ok is supported


async def test_in_literal_mode_claims_and_domains_have_the_shape_of_the_versions_that_are_served(
    older: ApiServer, tmp_path: Path
) -> None:
    async with (
        defined(older, compute_domains(literal=True)),
        space_of(older, tmp_path, LITERAL, webhook=True) as space,
    ):
        space.version = "v1alpha1"
        async with leading(space.target, LITERAL), registered(space, LITERAL, tmp_path / "tls"):
            await space.grove.apply(fixture("e1-distributed-training"))
            await space.turned(4)
            names = [f"distributed-training-{i}" for i in (0, 1)]
            await space.settled(space.owners, {f"{name}-cd": [("PodGang", name)] for name in names})
            path = f"/apis/resource.k8s.io/v1beta1/namespaces/{space.namespace}/resourceclaims"
            claims = await space.all(path)
            assert set(claims) == {f"{name}-mnnvl-claim" for name in names}
            for name in names:
                (request,) = claims[f"{name}-mnnvl-claim"]["spec"]["devices"]["requests"]
                assert (request["name"], request["deviceClassName"]) == (
                    "mnnvl",
                    "compute-domain.nvidia.com",
                )
                assert "exactly" not in request
                assert f'.name == "{name}-cd"' in json.dumps(request["selectors"]).replace(
                    '\\"', '"'
                )
            assert [one["spec"] for one in (await space.domains()).values()] == [
                {"numNodes": 0}
            ] * 2
