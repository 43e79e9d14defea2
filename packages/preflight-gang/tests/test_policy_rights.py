"""PreflightConfigs under the rights that the chart gives: a real API server that asks RBAC, and the
controller's own token.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from leading import leads
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, KubeError
from preflight_proto.policy import GROUP, KIND, VERSION, path
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.helm import GANG, Release
from test_behaviour_policies import OBSERVE, Configs

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(180)]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """With the chart installed; no kubelet is there to run its pods."""
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path, folder, authorization="RBAC") as made:
        release = Release("preflight", made.kubeconfig(tmp_path / "admin"), chart=GANG)
        release.install({"replicas": 0}, wait=False)
        made.served(path())
        yield made


def reached(server: ApiServer, token: str | None = None) -> Connection:
    return connection({"KUBECONFIG": str(server.kubeconfig(server.home / "kubeconfig", token))})


async def test_the_controller_judges_and_changes_nothing_else(server: ApiServer) -> None:
    own = reached(server, server.token_of("preflight", "preflight-gang"))
    async with (
        Client(reached(server), agent="tests") as admin,
        Client(own, agent="tests") as controller,
        leads(own),
    ):
        configs = Configs(admin, "default")
        await configs.create("one", OBSERVE)
        await configs.judged("one", "InForce")
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": "one", "resourceVersion": await configs.version("one")},
            "spec": {"enforcement": "enforce"},
        }
        for write in (
            controller.replace(path("default", "one"), body),
            controller.create(path("default"), body),
            controller.delete(path("default", "one")),
        ):
            with pytest.raises(KubeError, match="403"):
                await write
