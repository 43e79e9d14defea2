"""What ends a generation, and that nobody joins an old one."""

from __future__ import annotations

import pytest
from leading import Leading, leads, settled
from played import Cluster, container, result_line
from preflight_kube.auth.connection import Connection
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


async def sealed_pair(cluster: Cluster) -> tuple[str, str]:
    uids = await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)
    return uids


def generations(cluster: Cluster, uid: str) -> list[int]:
    """Those that a pod was sealed in, in the order of being told."""
    return [r.generation for r in cluster.rosters.get(uid, []) if r.answer == "sealed"]


def recorded(cluster: Cluster) -> list[int]:
    """The generations that the gang's ConfigMap has had."""
    return [
        int(one["data"]["generation"])
        for one in cluster.records
        if one["metadata"]["name"] == "preflight-job-1.labels"
    ]


async def test_a_replaced_member_makes_the_next_generation(
    cluster: Cluster, leading: Leading
) -> None:
    first, old = await sealed_pair(cluster)
    await cluster.delete("pod-1")
    new = await cluster.admit("pod-1")
    assert new != old
    await cluster.address("pod-1", "10.0.0.2")  # even at the old one's address
    rosters = await cluster.answered("sealed", "pod-0", "pod-1", generation=2)
    assert [r.rank for r in rosters] == [0, 1]
    assert generations(cluster, first) == [1, 2]
    assert generations(cluster, new) == [2]
    assert recorded(cluster) == [1, 2]
    assert len({r.token for r in cluster.rosters[first] if r.answer == "sealed"}) == 2


async def test_a_gang_whose_last_member_has_gone_is_counted_no_more(
    cluster: Cluster, leading: Leading
) -> None:
    await sealed_pair(cluster)
    await until(lambda: leading.counted("preflight_gangs") == 1, "it is counted")
    await cluster.delete("pod-0")
    await cluster.delete("pod-1")
    await until(lambda: leading.counted("preflight_gangs") == 0, "it is counted no more")


async def test_a_member_restarted_in_place_ends_the_generation_and_is_never_given_it_again(
    cluster: Cluster, leading: Leading
) -> None:
    first, second = await sealed_pair(cluster)
    for name in ("pod-0", "pod-1"):
        await cluster.test(name)
    await cluster.test("pod-1", restarts=1)
    (roster,) = await cluster.answered("fail", "pod-0", generation=1)
    assert roster.reason == "pod-1 was restarted"
    await cluster.answered("wait", "pod-1", generation=2)
    await cluster.test(
        "pod-0", restarts=1
    )  # it ends with the cause, and the kubelet starts it again
    rosters = await cluster.answered("sealed", "pod-0", "pod-1", generation=2)
    assert [r.rank for r in rosters] == [0, 1]
    assert generations(cluster, first) == [1, 2]
    assert generations(cluster, second) == [1, 2]
    assert recorded(cluster) == [1, 2]


async def test_a_check_that_fails_after_sealing_ends_the_others_within_two_seconds(
    cluster: Cluster, leading: Leading
) -> None:
    await sealed_pair(cluster)
    await cluster.test("pod-0")
    message = result_line("dcgm-diag", "failed", "DCGM_FR_FAULTY_MEMORY")
    sick = container("dcgm-diag", "backoff", code=1, message=message)
    await cluster.report("pod-1", sick, container("nccl-allreduce", "waiting"))
    (roster,) = await cluster.answered("fail", "pod-0", seconds=2, generation=1)
    assert roster.reason == "pod-1 on node-a failed dcgm-diag with DCGM_FR_FAULTY_MEMORY"


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
    async with leads(target, epoch=2) as another:
        await cluster.admit("pod-0")
        await cluster.address("pod-0", "10.0.0.9")
        await cluster.answered("skip", "pod-0")
        await settled(cluster, another)
    published = cluster.published("pod-1")
    assert published is not None
    assert (published.answer, published.generation) == ("sealed", 1)
    assert recorded(cluster) == [1, 1], "two writes of one generation"
