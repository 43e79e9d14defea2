"""An API server that refuses, hurries or goes away: nothing is lost, nothing is joined twice, and
it is not pressed.
"""

from __future__ import annotations

import anyio
import pytest
from gangs import result_line
from leading import Leading, settled
from played import Cluster, container
from preflight_proto import names
from preflight_testing.plugin import ApiFixture
from preflight_testing.waiting import until
from wire import Sent, answer, refusal

pytestmark = pytest.mark.anyio

PODS = ("pod-0", "pod-1", "pod-2")


async def three_members(cluster: Cluster) -> None:
    for i, name in enumerate(PODS):
        await cluster.admit(name, size=3)
        await cluster.address(name, f"10.0.0.{i + 1}")


def each_told_once(cluster: Cluster) -> None:
    """Ranks 0…2 of generation 1, which was written once."""
    said = {name: cluster.rosters[cluster.pods[name]["metadata"]["uid"]] for name in PODS}
    assert [[(r.generation, r.rank) for r in one] for one in said.values()] == [
        [(1, 0)],
        [(1, 1)],
        [(1, 2)],
    ]
    assert [
        one["data"]["generation"] for one in cluster.records if "generation" in one.get("data", {})
    ] == ["1"]


class Once:
    """Refuses every write the first time that it comes."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.refused = answer, set[tuple[str, str]]()

    def __call__(self, sent: Sent) -> bytes | None:
        what = (sent.method, sent.path)
        if sent.method == "GET" or what in self.refused:
            return None
        self.refused.add(what)
        return self.answer


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(refusal(409, "Conflict"), id="conflict"),
        pytest.param(refusal(500, "InternalError"), id="internal error"),
        pytest.param(answer(200, b"<html><body>Please log in</body></html>"), id="a page"),
        pytest.param(answer(302, b"", Location="https://elsewhere.example.com/"), id="elsewhere"),
    ],
)
async def test_every_write_that_is_refused_once_is_made_once(
    said: bytes, cluster: Cluster, leading: Leading, api: ApiFixture
) -> None:
    leading.wire.answers = once = Once(said)
    sick = result_line("dcgm-diag", "passed", "OK")
    await three_members(cluster)
    done = container("dcgm-diag", "ended", message=sick, runs=cluster.namespace)
    await cluster.report("pod-0", done, container("nccl-allreduce", "waiting"))
    await cluster.answered("sealed", *PODS, generation=1)
    await until(lambda: cluster.events, "the Event about the check that ended")
    each_told_once(cluster)
    if api.kind == "double":  # of the other's node there may be nothing new to write
        await until(lambda: "nodehealths" in str(once.refused), "the node's record is refused")
    refused = {path.rpartition("/")[2] for _, path in once.refused}
    assert refused >= {*PODS, "configmaps", "events"}
    await settled(cluster, leading)  # and it goes on


async def test_a_record_that_somebody_touches_while_it_is_replaced_is_read_again_and_replaced(
    cluster: Cluster, leading: Leading
) -> None:
    await three_members(cluster)
    await cluster.answered("sealed", *PODS, generation=1)
    leading.wire.holds = lambda sent: sent.is_record
    await cluster.delete("pod-2")
    await cluster.admit("pod-2", size=3)
    await cluster.address("pod-2", "10.0.0.4")
    await until(lambda: leading.wire.held, "the next generation is on the wire")
    touch = {"metadata": {"labels": {"somebody": "was-here"}}}
    await cluster.client.merge_patch(
        f"/api/v1/namespaces/{cluster.namespace}/configmaps/preflight-job-1.labels", touch
    )
    leading.wire.release()
    rosters = await cluster.answered("sealed", *PODS, generation=2)
    assert [r.rank for r in rosters] == [0, 1, 2]
    await leading.wire.answered(cluster.namespace)
    assert [one.status for one in leading.wire.writes(cluster.namespace) if one.is_record] == [
        201,
        409,
        200,
    ]


async def test_a_member_that_somebody_told_something_meanwhile_is_told_anew(
    cluster: Cluster, leading: Leading
) -> None:
    leading.wire.holds = lambda sent: sent.path.endswith("/pod-1")
    await three_members(cluster)
    await until(lambda: leading.wire.held, "its telling is on the wire")
    forged = {"metadata": {"annotations": {names.ROSTER_ANNOTATION: "mine"}}}
    await cluster.client.merge_patch(f"/api/v1/namespaces/{cluster.namespace}/pods/pod-1", forged)
    leading.wire.release()
    await cluster.answered("sealed", *PODS, generation=1)
    await leading.wire.answered(cluster.namespace)
    published = [
        one.status
        for one in leading.wire.writes(cluster.namespace)
        if one.path.endswith("/pod-1")
        and any(step["path"].endswith("~1roster") for step in one.json())  # not about its node
    ]
    assert published == [422, 200]


@pytest.mark.parametrize("what", ["record", "roster"])
@pytest.mark.parametrize("fault", ["restart", "forget"])
async def test_an_api_server_that_goes_away_in_the_midst_of_sealing_loses_nothing(
    fault: str, what: str, cluster: Cluster, leading: Leading, api: ApiFixture
) -> None:
    """`forget` closes the watches with 410, too: all that was ever written has been
    compacted away.
    """
    leading.wire.holds = lambda sent: sent.is_record if what == "record" else sent.is_roster
    await three_members(cluster)
    await until(
        lambda: len(leading.wire.held) == (1 if what == "record" else 3), "it is on the wire"
    )
    await anyio.to_thread.run_sync(getattr(api, fault))
    leading.wire.release()
    rosters = await cluster.answered("sealed", *PODS, generation=1, seconds=40)
    assert [r.rank for r in rosters] == [0, 1, 2]
    assert len({r.token for r in rosters}) == 1


async def test_a_record_whose_answer_never_comes_is_found_and_told(
    cluster: Cluster, leading: Leading, api: ApiFixture
) -> None:
    leading.wire.swallows = lambda sent: sent.is_record
    await three_members(cluster)
    await until(lambda: leading.wire.swallowed, "it is written")
    await anyio.to_thread.run_sync(
        api.restart
    )  # the connection breaks on which the answer would have come
    await cluster.answered("sealed", *PODS, generation=1, seconds=40)
    assert len({r.token for rosters in cluster.rosters.values() for r in rosters}) == 1


async def test_a_namespace_alone_has_all_the_writes_that_may_be_under_way_and_no_more(
    cluster: Cluster, leading: Leading
) -> None:
    pods = [f"pod-{i:02}" for i in range(40)]
    leading.wire.holds = lambda sent: sent.is_roster
    for name in pods:
        await cluster.admit(name, size=40)
    for i, name in enumerate(pods):
        await cluster.address(name, f"10.0.1.{i}")
    await until(lambda: len(leading.wire.held) == 32, "all of the 32 are on the wire")
    leading.wire.release()
    await cluster.answered("sealed", *pods)
    assert leading.wire.most_under_way == 32
