"""The record of a generation, from two members to more than a ConfigMap can hold."""

from __future__ import annotations

import json
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gangs import a_member, checking, gang, passed, sealed_roster, waiting
from gangs import record as record_of_members
from preflight_gang.api.types import ConfigMap
from preflight_gang.core import plan
from preflight_gang.core.plan import TooLarge, config_map, record_of, roster_write
from preflight_gang.core.reconcile import MemberAnswer, decide
from preflight_gang.core.snapshot import RankAssignment, Record
from preflight_kube.client.client import Client
from preflight_proto.roster import decode_roster
from preflight_testing.plugin import ApiFixture

ROOM = 1024 * 1024


@cache
def record(members: int) -> Record:
    """Names as Jobs and clouds give them."""
    assignments = tuple(
        RankAssignment(
            uid=str(uuid.uuid5(uuid.NAMESPACE_DNS, str(i))),
            name=f"llm-pretraining-worker-{i}-{uuid.uuid5(uuid.NAMESPACE_URL, str(i)).hex[:5]}",
            ip=f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}",
            node=f"ip-10-0-{i >> 8 & 255}-{i & 255}.eu-central-1.compute.internal",
            attempt=i % 3,
        )
        for i in range(members)
    )
    return Record(
        generation=3, assignments=assignments, token="t" * 64, master_port=29500, control_port=29501
    )


@cache
def recorded(members: int) -> dict[str, Any]:
    """The ConfigMap; to pack one of thousands takes seconds."""
    return config_map(gang(), record(members), "")


def as_read(body: dict[str, Any]) -> ConfigMap:
    """As it comes back from the API server."""
    return msgspec.json.decode(msgspec.json.encode(body), type=ConfigMap)


def size(body: dict[str, Any]) -> int:
    return sum(map(len, [*body["data"].values(), *body.get("binaryData", {}).values()]))


@pytest.mark.parametrize(
    "members", [2, 4_000, 6_000, pytest.param(20_000, marks=pytest.mark.component)]
)
def test_a_record_fits_and_is_read_as_it_was_written(members: int) -> None:
    body = recorded(members)
    assert size(body) <= ROOM
    assert record_of(as_read(body)) == record(members)
    assert body["data"]["expected_count"] == str(members)


def test_the_record_of_an_earlier_release_is_read_and_still_written_alike() -> None:
    golden = json.loads((Path(__file__).parent / "golden/v1/configmap.json").read_text())
    members = (a_member("a", ip="10.0.0.1"), a_member("b", ip="10.0.0.2"))
    known = record_of_members(*members)
    assert record_of(as_read(golden)) == known
    assert config_map(gang(), known, "") == golden


def test_a_record_belongs_to_the_members_where_nothing_controls_them_all() -> None:
    members = (checking("pod-0", "10.0.0.1"), checking("pod-1", "fd00::2"))
    body = config_map(gang(*members), record_of_members(*members), "")
    owners = body["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in owners] == ["uid-pod-0", "uid-pod-1"]
    assert not any(owner["blockOwnerDeletion"] for owner in owners)
    assert body["data"]["peers"] == "pod-0:10.0.0.1\npod-1:fd00::2\n"


def test_a_pass_that_is_noted_when_all_who_had_it_have_gone_leaves_the_record_its_owner() -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "job"}
    of_it: Any = {"ownerReferences": [{**owner, "controller": True}]}
    first, second = waiting("pod-0", "10.0.0.1", **of_it), waiting("pod-1", "10.0.0.2", **of_it)
    new = checking("pod-1", "10.0.0.3", uid="uid-new", **of_it)
    sealed = record_of_members(first, second)
    now = gang(new, record=sealed, departed=(passed("pod-0", "10.0.0.1", **of_it),))
    assert decide(now).note_pass
    for members in (gang(first, second), now):
        (found,) = config_map(members, sealed, "")["metadata"]["ownerReferences"]
        assert found == {**owner, "blockOwnerDeletion": False}


def test_rank_0_is_followed_by_four_members_each_on_a_node_of_its_own() -> None:
    nodes = ["a", "a", "b", "a", "b", "c", "d", "e", "f"]
    members = [
        waiting(f"pod-{rank}", f"10.0.0.{rank}", node=node) for rank, node in enumerate(nodes)
    ]
    answer = MemberAnswer(answer="sealed", generation=1, rank=3)
    write = roster_write(members[3], answer, record_of_members(*members), epoch=1)
    assert write is not None
    published = decode_roster(write.patch()[-1]["value"])
    assert published.successors == (
        (2, "10.0.0.2"),
        (5, "10.0.0.5"),
        (6, "10.0.0.6"),
        (7, "10.0.0.7"),
    )


def test_what_was_told_without_successors_is_not_told_again_and_false_ones_are_mended() -> None:
    before = sealed_roster("uid-pod-0", 0)
    other = waiting("pod-1", "10.0.0.2", node="node-b")
    record = record_of_members(waiting("pod-0", "10.0.0.1"), other)
    answer = MemberAnswer(answer="sealed", generation=1, rank=0)
    assert (
        roster_write(waiting("pod-0", "10.0.0.1", roster=before), answer, record, epoch=2) is None
    )
    false = before[:-1] + ',"successors":[[1,"10.9.9.9"]]}'
    write = roster_write(waiting("pod-0", "10.0.0.1", roster=false), answer, record, epoch=2)
    assert write is not None
    assert decode_roster(write.patch()[-1]["value"]).successors == ((1, "10.0.0.2"),)


@pytest.mark.component  # computes for half a second
def test_what_can_be_read_by_people_is_as_long_as_it_fits() -> None:
    small, large, huge = (recorded(members)["data"] for members in (4_000, 6_000, 20_000))
    assert "note" not in small
    assert small["members"].startswith("{")
    assert large["note"] == (
        "members is packed (JSON, zlib) under binaryData: with 6000 members it would not fit into a ConfigMap's 1 MiB."
    )
    assert len(large["peers"].splitlines()) == 6_000
    assert "peers is left out" in huge["note"]
    assert "peers" not in huge


def test_a_generation_that_no_config_map_can_hold_is_said_to_be_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a twentieth of the room and of the members, as to pack 60,000 takes seconds."""
    monkeypatch.setattr(plan, "_ROOM", ROOM // 20)
    with pytest.raises(TooLarge, match="3000 members"):
        config_map(gang(), record(3_000), "")


def test_a_packed_record_that_a_hand_made_unreadable_is_none() -> None:
    body = recorded(6_000) | {"binaryData": {"members": b"x"}}
    assert record_of(as_read(body)) is None


@pytest.mark.anyio
@pytest.mark.parametrize("members", [4_000, 20_000])
async def test_an_api_server_takes_it(members: int, client: Client, api: ApiFixture) -> None:
    body = recorded(members)
    about = body["metadata"] | {"namespace": api.namespace, "ownerReferences": []}
    body = body | {"metadata": about}
    written = await client.create(api.path("configmaps"), body)
    assert record_of(msgspec.json.decode(written, type=ConfigMap)) == record(members)
    await client.delete(api.path("configmaps", body["metadata"]["name"]))
