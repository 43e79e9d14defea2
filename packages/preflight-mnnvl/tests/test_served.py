"""What a cluster serves: no ComputeDomains at all, then those of an older driver beside claims of
an older version, on an API server of one's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cliques import DRIVER, LITERAL, clique, pcs, podclique
from live import api_server, fixture, leading, space_of
from preflight_kube.client import KubeError
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove_kinds import GROVE, compute_domains
from registered import registered

pytestmark = pytest.mark.anyio

ON = {"grove.io/mnnvl-enabled": "true"}


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


async def test_where_that_is_ignored_who_asks_is_admitted_as_he_came(
    older: ApiServer, tmp_path: Path
) -> None:
    config = Config(on_unsupported="ignore")
    async with (
        space_of(older, tmp_path, config, webhook=True) as space,
        registered(space, config, tmp_path / "tls") as hook,
    ):
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.grove.turn()
        (stored,) = (await space.grove.all("podcliques")).values()
        assert "resourceClaims" not in stored["spec"]["podSpec"]
        assert hook.counted("PodClique", "unsupported") >= 1


async def test_in_literal_mode_claims_and_domains_have_the_shape_of_the_versions_that_are_served(
    older: ApiServer, tmp_path: Path
) -> None:
    older.define(compute_domains(literal=True))
    async with space_of(older, tmp_path, LITERAL, webhook=True) as space:
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
