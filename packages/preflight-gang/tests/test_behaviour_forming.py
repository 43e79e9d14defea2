"""How a gang comes together: who is waited for, what is sealed, what it costs."""

from __future__ import annotations

import pytest
from leading import Leading, settled
from played import Cluster
from preflight_gang.core import plan as delivery
from preflight_gang.core import waiting
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


async def test_a_gang_is_sealed_when_its_last_member_gets_an_address(
    cluster: Cluster, leading: Leading
) -> None:
    pods = ("pod-0", "pod-1", "pod-2")
    for name in reversed(pods):
        await cluster.admit(name, size=3)
    await cluster.address("pod-2", "10.0.0.3")
    await cluster.address("pod-0", "10.0.0.1")
    for name in ("pod-0", "pod-2"):
        await cluster.test(name)
    await cluster.answered("wait", "pod-0", "pod-2")
    assert not cluster.records
    await cluster.address("pod-1", "10.0.0.2")
    rosters = await cluster.answered("sealed", *pods)
    assert [r.rank for r in rosters] == [0, 1, 2], "ranked by name"
    assert [r.pod_uid for r in rosters] == [cluster.pods[name]["metadata"]["uid"] for name in pods]
    assert {
        (r.generation, r.epoch, r.nnodes, r.master_addr, r.master_port, r.control_port)
        for r in rosters
    } == {(1, 1, 3, "10.0.0.1", 29500, 29501)}
    (token,) = {r.token for r in rosters}
    assert token is not None
    assert len(token) == 64


async def test_a_gang_that_arrives_within_a_second_costs_one_write_and_one_a_member(
    cluster: Cluster, leading: Leading
) -> None:
    pods = [f"pod-{i}" for i in range(8)]
    for name in pods:
        await cluster.admit(name, size=8)
    for i, name in enumerate(pods):
        await cluster.address(name, f"10.0.0.{i + 1}")
    await cluster.answered("sealed", *pods)
    for name in pods:  # what comes after must not be told either
        await cluster.test(name)
    await settled(cluster, leading)
    writes = [one for one in leading.wire.writes(cluster.namespace) if "/events" not in one.path]
    assert sum(one.is_record for one in writes) == 1
    assert sorted(one.path.rpartition("/")[2] for one in writes if one.is_roster) == pods
    assert len(writes) == 9, [(one.method, one.path) for one in writes]


async def test_who_waits_for_long_has_one_event_that_names_who_is_missing_and_why(
    cluster: Cluster, leading: Leading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE", 0.2)
    await cluster.admit("pod-0", size=3)
    await cluster.admit("pod-1", size=3, node="")
    await cluster.address("pod-0", "10.0.0.1")
    await cluster.test("pod-0")
    (roster,) = await cluster.answered("wait", "pod-0")

    def said() -> list[tuple[str, str]]:
        every = [e for e in cluster.events if e["reason"] == "PreflightWaiting"]
        return [(e["involvedObject"]["name"], e["message"]) for e in every]

    await until(said, "the Event")
    await settled(cluster, leading)
    assert said() == [("pod-0", f"gang job-1 waits: {'; '.join(roster.missing)}")]


async def test_a_member_that_does_not_ask_yet_is_not_told_to_wait(
    cluster: Cluster, leading: Leading
) -> None:
    for name in ("pod-0", "pod-1"):
        await cluster.admit(name, size=3)
        await cluster.address(name, "10.0.0.1")
    await cluster.test("pod-1")
    await cluster.answered("wait", "pod-1")
    assert cluster.published("pod-0") is None
    await cluster.test("pod-0")
    await cluster.answered("wait", "pod-0")


async def test_a_gang_too_large_to_be_recorded_is_not_tested_and_not_failed(
    cluster: Cluster,
    leading: Leading,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(delivery, "_ROOM", 100)
    await cluster.pair()
    rosters = await cluster.answered("skip", "pod-0", "pod-1")
    assert {r.reason for r in rosters} == {
        "the record of 2 members does not fit into a ConfigMap's 1 MiB"
    }
    await settled(cluster, leading)
    said = [one for one in caplog.records if one.message == "gang skipped: record too large"]
    assert len(said) == 1
    assert not any(one.is_record for one in leading.wire.sent)
