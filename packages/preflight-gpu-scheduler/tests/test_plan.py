"""Gangs: size, completeness, one plan for all or none, whose turn it is; and gates, capacity,
nudges, status.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.allocation import GangStart, Reserved, written
from preflight_gpu_scheduler.api.gpu_node_status import Device, Inventory
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.controller.apply import pod_patch
from preflight_gpu_scheduler.core.desired import (
    capacity,
    capacity_patch,
    could_ever,
    opens,
    status,
    wake_unschedulable,
)
from preflight_gpu_scheduler.core.gangs import (
    Assignment,
    Gang,
    Member,
    gather,
    place,
    plan_name,
    start,
)
from shapes import claim, lease, node, pod, view

JOB = claim(1, gang="job")
replace = msgspec.structs.replace
RECLAIMED = {names.RECLAIMED_ANNOTATION: "999999998"}


def gang(
    count: int, each: int = 1, *, size: int | None = None, name: str = "job", owner: str = "job-uid"
) -> Gang:
    want = claim(each, gang=name)
    members = tuple(Member(pod=pod(f"{name}-{n}", gated=True), claim=want) for n in range(count))
    key = ("team", name, owner)
    return Gang(key=key, size=count if size is None else size, members=members)


def placed(
    found: Gang, *free: int, on: frozenset[str] | None = None
) -> dict[str, tuple[str, tuple[int, ...]]] | str:
    views = {f"n{n}": view(mask) for n, mask in enumerate(free)}
    among = frozenset(views) if on is None else on
    candidates = dict.fromkeys((one.pod.metadata.uid for one in found.members), among)
    return place(found.members, candidates, views, found.size or 0)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 8))
def test_a_plan_gives_every_member_its_count_of_free_gpus_and_none_twice_or_is_none(
    free: list[int], members: int, each: int
) -> None:
    found = placed(gang(members, each), *free)
    if isinstance(found, str):
        assert members * each > 0
        fits = sum(mask.bit_count() // each for mask in free)
        assert fits < members, "equal members fit wherever there is room"
        return
    given_ = [(where, gpu) for where, ids in found.values() for gpu in ids]
    assert len(set(given_)) == len(given_) == members * each
    assert all(free[int(where[1:])] >> gpu & 1 for where, gpu in given_)


def test_members_go_only_to_nodes_that_the_scheduler_would_have_them_on() -> None:
    found = placed(gang(2), 0xFF, 0xFF, 0xFF, on=frozenset({"n1"}))
    assert isinstance(found, dict)
    assert {where for where, _ in found.values()} == {"n1"}
    assert isinstance(placed(gang(2), 0xFF, on=frozenset()), str)


def test_of_more_members_than_are_needed_as_many_as_are_needed_are_placed() -> None:
    found = placed(gang(6, size=4), 0b111, 0b1)
    assert isinstance(found, dict)
    assert len(found) == 4
    assert isinstance(placed(gang(6, size=4), 0b111), str)


def test_a_gangs_size_is_the_annotations_then_the_pod_groups_and_members_that_disagree_say_none() -> (
    None
):
    def sizes(*said: str, group: int | None = None) -> int | None:
        pods = [
            pod(f"p{n}", annotations={names.GANG_SIZE_ANNOTATION: one} if one else None)
            for n, one in enumerate(said)
        ]
        return gather(pods, {("team", "two"): JOB}, {("team", "job"): group} if group else {})[
            "team", "job", ""
        ].size

    assert sizes("3", "") == 3
    assert sizes("", group=4) == 4
    assert sizes("3", "4", group=4) is None
    assert sizes("0", "-1", "x") is None


def test_ended_members_and_pods_without_a_gang_are_no_members() -> None:
    pods = [
        pod("a"),
        pod("b", phase="Failed"),
        pod("c", annotations={names.CLAIM_ANNOTATION: "solo"}),
    ]
    found = gather(pods, {("team", "two"): JOB, ("team", "solo"): claim()}, {})
    assert [one.pod.metadata.name for one in found["team", "job", ""].members] == ["a"]


def stamped(member: Member, start: str, need: int, **spec: Any) -> Member:
    text = written(GangStart(start=start, need=need))
    name = member.pod.metadata.name
    return Member(
        pod=pod(name, annotations={names.RESERVED_ANNOTATION: text}, **spec), claim=member.claim
    )


def more(found: Gang, *members: Member) -> Gang:
    return replace(found, members=(*found.members, *members))


def test_what_a_gang_waits_for_is_said() -> None:
    assert isinstance(start(gang(2)), GangStart)
    assert start(gang(2, size=3)) == "1 of 3 members are missing"
    unknown = Gang(key=("team", "job", ""), size=None, members=gang(2).members)
    assert "not known" in str(start(unknown))


def test_those_that_start_together_are_one_start_however_often_one_looks() -> None:
    whole = gang(3)
    first = start(whole)
    assert isinstance(first, GangStart)
    assert first.need == 3
    again = replace(whole, members=tuple(stamped(one, first.start, 3) for one in whole.members))
    assert start(again) == first
    late = Member(pod=pod("job-9"), claim=JOB)
    assert start(more(again, late)) == first, "who comes later joins"
    lost = replace(again, members=again.members[1:])
    other = start(more(lost, late))
    assert isinstance(other, GangStart)
    assert other.start != first.start, "one of them has gone: the others start anew"


def test_who_runs_counts_for_a_replacement_of_the_same_owner_only() -> None:
    running = [stamped(one, "x", 3, node_name="n0") for one in gang(2).members]
    fresh = Member(pod=pod("job-9"), claim=JOB)
    owned = Gang(key=("team", "job", "uid"), size=3, members=(*running, fresh))
    assert start(owned) == GangStart(start="x", need=1)
    nobodys = Gang(key=("team", "job", ""), size=3, members=(*running, fresh))
    assert start(nobodys) == "2 of 3 members are missing"
    extra = stamped(fresh, "x", 2)
    elastic = Gang(key=("team", "job", ""), size=2, members=(*running, extra))
    assert start(elastic) == GangStart(start="x", need=1), "it was there when they started"


def test_two_owners_never_share_a_gang_and_many_controllers_of_one_job_set_do() -> None:
    def owned(name: str, uid: str) -> Pod:
        made = pod(name)
        raw = {
            "metadata": {"ownerReferences": [{"uid": "other"}, {"uid": uid, "controller": True}]}
        }
        about = msgspec.convert(raw, Pod).metadata
        owners = about.owner_references
        return replace(made, metadata=replace(made.metadata, owner_references=owners))

    pods = [owned("a", "1"), owned("b", "2"), owned("c", "2")]
    found = gather(pods, {("team", "two"): JOB}, {})
    assert {key[2]: len(one.members) for key, one in found.items()} == {"1": 1, "2": 2}
    sets = [
        replace(one, metadata=replace(one.metadata, labels={"jobset.sigs.k8s.io/jobset-uid": "s"}))
        for one in pods
    ]
    (together,) = gather(sets, {("team", "two"): JOB}, {}).values()
    assert len(together.members) == 3


def test_members_that_end_are_nobodys() -> None:
    ending = pod("a")
    ending = replace(ending, metadata=replace(ending.metadata, deletion_timestamp="now"))
    assert gather([ending], {("team", "two"): JOB}, {}) == {}


def test_the_longest_names_and_most_gpus_are_read_as_they_were_written() -> None:
    reserved = Reserved(
        number=999_999_999,
        node="n" * 253,
        ids=tuple(range(1023 - 63, 1024)),
        plan="f" * 16,
        members=4096,
        first="p" * 253,
        first_uid="u" * 36,
        start="e" * 16,
        need=4096,
    )
    found = pod(annotations={names.RESERVED_ANNOTATION: written(reserved), **RECLAIMED})
    assert found.reserved == reserved
    assert found.start == GangStart(start=reserved.start, need=reserved.need)


def test_plans_are_named_by_what_they_give() -> None:
    one, other = (Assignment(pod=pod(), node="n", ids=ids) for ids in ((0, 1), (0, 2)))
    assert plan_name([one]) == plan_name([one]) != plan_name([other])


def test_the_gate_goes_when_the_claim_is_there_and_a_gangs_when_it_may_start() -> None:
    assert not opens(pod(), claim())
    assert not opens(pod(gated=True), None)
    assert opens(pod(gated=True), claim())
    assert not opens(pod(gated=True), JOB)
    patch = pod_patch(pod(gated=True), {}, ungate=True)
    assert patch["spec"] == {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}


def test_every_write_on_a_pod_is_refused_on_another_version_of_it() -> None:
    about = pod_patch(pod(), {names.NUDGED_ANNOTATION: "1"})["metadata"]
    assert (about["uid"], about["resourceVersion"]) == ("uid-p", "7")
    assert about["annotations"] == {names.NUDGED_ANNOTATION: "1"}


def test_capacity_counts_usable_gpus_and_sick_ones_whose_pod_still_runs() -> None:
    devices = (
        Device(id=0),
        Device(id=1, health="Unhealthy"),
        Device(id=2, health="Unhealthy"),
        Device(id=3, mig=True),
    )
    assert capacity(Inventory(node="n", devices=devices), {1}) == 2
    shared = Inventory(node="n", devices=devices, conflicts=("device-plugin",))
    assert capacity(shared, {1}, given=False) == 1
    assert capacity(shared, {1}) == 2
    assert (
        capacity_patch(node(allocatable={"gpu.scheduling/gpu": "2"}), "gpu.scheduling/gpu", 2)
        is None
    )
    assert capacity_patch(node(), "", 2) is None
    assert capacity_patch(node(), "gpu.scheduling/gpu", 2) is None
    assert capacity_patch(node(allocatable={}), "gpu.scheduling/gpu", 2) == {
        "status": {"capacity": {"gpu.scheduling/gpu": "2"}}
    }


def test_the_oldest_pods_that_fit_are_woken_and_no_more_than_fit() -> None:
    waiting = [
        (pod(n, created=when), claim(count))
        for n, when, count in (("c", "3", 2), ("a", "1", 8), ("b", "2", 2), ("d", "4", 2))
    ]
    assert [one.metadata.name for one in wake_unschedulable(waiting, {"n": 4})] == ["b", "c"]
    assert (
        wake_unschedulable(
            [(pod(gated=True), claim()), (pod("g"), JOB), (pod("r", node_name="n"), claim())],
            {"n": 8},
        )
        == ()
    )


def test_a_second_nudge_goes_to_who_waited_longest_for_one_each_as_if_it_were_alone() -> None:
    said = {
        "a": "2026-01-01T00:00:02",
        "b": "2026-01-01T00:00:01",
        "c": "",
        "d": "2026-01-01T00:00:03",
    }
    waiting = [
        (pod(n, created="1", annotations={names.NUDGED_ANNOTATION: when} if when else {}), claim(2))
        for n, when in said.items()
    ]
    found = wake_unschedulable(waiting, {"n": 2}, most=3, again=True)
    assert [one.metadata.name for one in found] == ["c", "b", "a"]
    assert wake_unschedulable(waiting, {"n": 1}, again=True) == ()


def holding(*leases: Lease) -> Callable[[str], list[Lease]]:
    return lambda uid: [held for held in leases if held.holder == uid]


def test_a_claims_status_says_what_its_pods_have() -> None:
    here = pod(
        "a", annotations={names.ALLOCATED_ANNOTATION: "n:0,1"}, node_name="n", phase="Running"
    )
    one = status(claim(), [here], holding())
    told = ("Bound", "n", [0, 1], "n:0,1")
    assert (one["phase"], one["nodeName"], one["gpuIds"], one["allocated"]) == told
    reserved = status(claim(), [here, pod("p")], holding(lease("n", 3), lease("n", 2)))
    assert (reserved["phase"], reserved["message"]) == ("Reserved", "1 of 2 pods are bound")
    about = {"pod": "p", "podUID": "uid-p", "nodeName": "n"}
    assert reserved["allocations"][1] == {**about, "gpuIds": [2, 3], "phase": "Reserved"}
    assert "allocated" not in reserved
    assert status(claim(), [], holding())["phase"] == "Pending"
    assert status(claim(), [pod()], holding(), possible=False)["phase"] == "Failed"
    said = {names.ALLOCATED_ANNOTATION: "n:0"}
    many = [pod(f"p{n}", annotations=said, node_name="n") for n in range(150)]
    assert len(status(claim(), many, holding())["allocations"]) == 100


def test_whether_any_node_could_ever_do_asks_for_size_island_and_labels() -> None:
    assert could_ever(claim(8), [view()])
    assert not could_ever(claim(9), [view()])
    assert not could_ever(claim(8, mode="Required"), [view()])
    assert not could_ever(claim(1, labels={"a": "b"}), [view()])
