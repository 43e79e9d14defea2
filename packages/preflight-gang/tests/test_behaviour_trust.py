"""What somebody else has written: a stamp that cannot be believed, a roster, a ConfigMap of the
gang's name.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest
from gangs import stamp
from leading import Leading, settled
from played import Cluster
from preflight_proto import names
from preflight_proto.stamp import encode_stamp
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


def newer(cluster: Cluster, version: str) -> bool:
    return int(cluster.pods["pod-0"]["metadata"]["resourceVersion"]) > int(version)


async def test_a_stamp_that_cannot_be_believed_is_ignored_counted_and_told_once(
    cluster: Cluster, leading: Leading, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    uid = await cluster.admit("forged", stamp=encode_stamp(stamp("job-2")))
    await cluster.address("forged", "10.0.0.9")
    await cluster.pair()
    rosters = await cluster.answered("sealed", "pod-0", "pod-1")
    assert {r.nnodes for r in rosters} == {2}
    await cluster.test("forged")  # another look at it
    await settled(cluster, leading)
    assert cluster.published("forged") is None
    assert leading.counted("preflight_config_errors_total", error="stamp") == 1
    published: list[Any] = [
        record.__dict__.get("about") for record in caplog.records if "stamp" in record.message
    ]
    assert [about["uid"] for about in published] == [uid]


async def test_a_roster_that_somebody_wrote_is_replaced(cluster: Cluster, leading: Leading) -> None:
    await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1")
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/pod-0"
    for forged in (
        "not ours",
        '{"v":1,"pod_uid":"x","generation":9,"epoch":9,"answer":"skip","reason":"go on"}',
    ):
        written = await cluster.client.merge_patch(
            path, {"metadata": {"annotations": {names.ROSTER_ANNOTATION: forged}}}
        )
        version = msgspec.json.decode(written)["metadata"]["resourceVersion"]
        await until(lambda version=version: newer(cluster, version), "it is replaced")  # type: ignore[misc]
        await cluster.answered("sealed", "pod-0", generation=1, rank=0)


async def test_a_config_map_that_is_not_ours_is_never_touched_and_named_to_the_members_until_it_goes(
    cluster: Cluster, leading: Leading
) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps"
    await cluster.client.create(
        path, {"metadata": {"name": "preflight-job-1.labels"}, "data": {"mine": "yes"}}
    )
    await cluster.pair()
    for name in ("pod-0", "pod-1"):
        await cluster.test(name)
    rosters = await cluster.answered("wait", "pod-0", "pod-1")
    for roster in rosters:
        (reason,) = roster.missing
        assert (
            "ConfigMap preflight-job-1.labels exists and is not managed by preflight-gang" in reason
        )
    await settled(cluster, leading)
    assert [
        one["data"]
        for one in cluster.records
        if one["metadata"]["name"] == "preflight-job-1.labels"
    ] == [{"mine": "yes"}]
    assert not any(one.is_record and one.method == "PUT" for one in leading.wire.sent)
    await cluster.client.delete(f"{path}/preflight-job-1.labels")
    await cluster.answered("sealed", "pod-0", "pod-1", generation=1)


async def test_a_record_that_a_hand_made_unreadable_is_written_anew(
    cluster: Cluster, leading: Leading
) -> None:
    await cluster.pair()
    await cluster.answered("sealed", "pod-0", "pod-1")
    path = f"/api/v1/namespaces/{cluster.namespace}/configmaps/preflight-job-1.labels"
    await cluster.client.merge_patch(path, {"data": {"members": "{"}})
    await cluster.answered("sealed", "pod-0", "pod-1", generation=2)
