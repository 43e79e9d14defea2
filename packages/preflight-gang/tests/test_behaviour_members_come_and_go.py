"""What ends a generation, and that nobody joins an old one."""

from __future__ import annotations

import pytest
from gangs import result_line
from leading import leads, settled
from played import Cluster, container
from preflight_kube.auth.connection import Connection
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


async def sealed_pair(cluster: Cluster) -> tuple[str, str]:
    uids = await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    return uids


def recorded(cluster: Cluster) -> list[int]:
    """The generations that the gang's ConfigMap has had."""
    return [
        int(one["data"]["generation"])
        for one in cluster.records
        if one["metadata"]["name"] == "preflight-job-1.labels"
    ]


@pytest.mark.parametrize("grace", [0, 30], ids=["at once", "gracefully"])
async def test_a_member_that_passed_and_went_keeps_the_verdict_for_those_who_have_still_to_read_it(
    grace: int, cluster: Cluster, target: Connection
) -> None:
    """Its pod was all that showed it: it is written down, and holds under the next leader, too."""
    async with leads(target) as leading:
        await sealed_pair(cluster)
        for name in ("pod-0", "pod-1"):
            await cluster.test(name)
        passed = container(
            "nccl-allreduce", "ended", message=result_line("nccl-allreduce", "passed", "OK")
        )
        await cluster.report("pod-0", container("dcgm-diag", "ended"), passed, phase="Running")
        await cluster.delete("pod-0", grace=grace)
        await until(
            lambda: (
                '"passed":true' in cluster.config_maps["preflight-job-1.labels"]["data"]["members"]
            ),
            "it is noted",
        )
        if grace:
            await cluster.delete("pod-0")
        await settled(cluster, leading)
        await until(
            lambda: leading.counted("preflight_gangs") == 1, "the sentinel's is counted no more"
        )
    async with leads(target, epoch=2) as another:
        await cluster.admit("pod-0")
        await cluster.address("pod-0", "10.0.0.9")
        await cluster.answered("skip", "pod-0")
        await settled(cluster, another)
    published = cluster.published("pod-1")
    assert published is not None
    assert (published.answer, published.generation) == ("sealed", 1)
    assert recorded(cluster) == [1, 1], "two writes of one generation"
