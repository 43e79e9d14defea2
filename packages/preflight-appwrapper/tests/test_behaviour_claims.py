"""Pods whose GPUs come by a claim, on API servers that serve claims in an older version alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import Lab, lab
from leading import leads
from player import bare_pod
from preflight_appwrapper.api.crd import crd
from preflight_appwrapper.api.names import CLAIMED
from preflight_proto.devices import GROUP, VERSIONS, request_in
from preflight_testing.apiserver import ASSETS, ApiServer, assets

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]

ASSETS_135 = "PREFLIGHT_KUBEBUILDER_ASSETS_135"
"""Names a folder with a kube-apiserver of 1.35."""


@pytest.fixture(scope="module", params=VERSIONS[1:])
def older(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, ApiServer]]:
    """The version in which it serves claims, and a kube-apiserver 1.35."""
    folder, binaries = assets(), os.environ.get(ASSETS_135)
    if not binaries or folder is None:
        pytest.skip(f"{ASSETS_135} or {ASSETS} is not set: no kube-apiserver 1.35")
    served = [f"{GROUP}/{one}={str(one == request.param).lower()}" for one in VERSIONS]
    home, binary = tmp_path_factory.mktemp("older"), Path(binaries) / "kube-apiserver"
    with ApiServer(home, folder, kube_apiserver=binary, runtime_config=served) as server:
        server.define(crd())
        yield request.param, server


@pytest.fixture
async def place(older: tuple[str, ApiServer], tmp_path: Path) -> AsyncIterator[tuple[str, Lab]]:
    async with lab(older[1], tmp_path) as made:
        yield older[0], made


async def test_gpus_by_a_claim_of_an_older_version_keep_a_pod_off_marked_nodes(
    place: tuple[str, Lab],
) -> None:
    version, lab = place
    request = request_in(version, "g", {"deviceClassName": "gpu.nvidia.com"})
    await lab.client.create(
        lab.path(f"{GROUP}/{version}", "resourceclaimtemplates"),
        {"metadata": {"name": "gpus"}, "spec": {"spec": {"devices": {"requests": [request]}}}},
    )
    pod: dict[str, Any] = bare_pod()
    pod["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": "gpus"}]
    async with leads(lab.target, lab.namespace):
        await lab.wrap(pod)
        (made,) = await lab.running(1)
        assert made["metadata"]["annotations"][CLAIMED] == "gpu.nvidia.com"
        assert "nodeAffinity" in made["spec"]["affinity"]
