"""What the webhook may do under the rights that the chart gives: follow PreflightConfigs, and
nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from preflight_proto.policy import path
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import GANG as GANG_CHART
from preflight_testing.helm import INJECTOR, Release
from served import api_server
from test_policies import OBSERVE, Cluster, following, until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """With the chart installed; no kubelet is there to run its pods."""
    with api_server(tmp_path, authorization="RBAC") as made:
        made.define(
            next(yaml.safe_load_all((GANG_CHART / "generated" / "definitions.yaml").read_text()))
        )
        Release("preflight", made.kubeconfig(tmp_path / "admin"), chart=INJECTOR).install(
            {}, wait=False
        )
        yield made


def test_the_webhook_follows_them_and_may_not_write_them(server: ApiServer) -> None:
    cluster = Cluster(server.home / "admin", "default")
    cluster.accepted("one", OBSERVE)
    own = server.kubeconfig(server.home / "own", server.token_of("preflight", "preflight-injector"))

    async def story() -> None:
        async with following(own) as policies:
            await until(lambda: policies.of("default"), "it is seen")
            await asyncio.to_thread(cluster.delete, "one")
            await until(lambda: not policies.of("default"), "it is gone")

    asyncio.run(story())
    for method in ("POST", "DELETE"):
        with pytest.raises(AssertionError, match="Forbidden"):
            Cluster(own, "default").call(method, path("default"), {})
