"""What each kind of object says about a gang's size, and what the controller makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gangs import NS, a_member, checking, passed, stamp, waiting
from preflight_gang.api.sources import BUILT_IN
from preflight_gang.api.types import OwnerReference
from preflight_gang.core.membership import GangMember
from preflight_gang.core.participants import GangSize, size
from preflight_kube.api.workloads.sizes import SizedObject

META = {"metadata": {"name": "it", "namespace": NS, "uid": "u"}}


def read(source: str, spec: dict[str, Any], kind: int = 0) -> SizedObject:
    return msgspec.convert({**META, "spec": spec}, BUILT_IN[source][kind].type)


def sized(source: str, found: SizedObject | str, raw: str = "it", *, without: int = 0) -> GangSize:
    members = [a_member("pod-0", stamped=stamp(raw, size=None, source=source, object="it"))]
    for i in range(without):
        left_out = stamp(raw, size=None, source=source, object="it", takes_part=False)
        members.append(a_member(f"cpu-{i}", stamped=left_out))
    return size(NS, raw, members, lambda *_: found)


GANG = {"gang": {"minCount": 4}}
JOBSET: dict[str, Any] = {
    "replicatedJobs": [
        {"name": "driver", "template": {"spec": {"parallelism": 2}}},
        {"name": "reader", "groupName": "default", "template": {"spec": {}}},
        {
            "name": "worker",
            "groupName": "b",
            "replicas": 2,
            "template": {"spec": {"parallelism": 4, "completions": 4}},
        },
    ]
}
LWS: dict[str, Any] = {"leaderWorkerTemplate": {"size": 4}}


@pytest.mark.parametrize(
    ("source", "spec", "raw", "count"),
    [
        ("schedulingGroup", {"schedulingPolicy": GANG}, "it", 4),
        (
            "workloadRef",
            {"podGroups": [{"name": "a", "policy": {"basic": {}}}, {"name": "b", "policy": GANG}]},
            "it/b",
            4,
        ),
        ("workloadRef", {"podGroups": [{"name": "b", "policy": GANG}]}, "it/b/replica-1", 4),
        ("volcano", {"minMember": 4}, "it", 4),
        ("coscheduling", {"minMember": 4}, "it", 4),
        ("kai", {"minMember": 4}, "it", 4),
        ("osmo", {"minMember": 4}, "it", 4),
        ("kueue", {"podSets": [{"name": "main", "count": 4}]}, "it", 4),
        (
            "kueueWorkload",
            {"podSets": [{"name": "a", "count": 3}, {"name": "b", "count": 2}]},
            "it",
            5,
        ),
        ("grove", {"podgroups": [{"minReplicas": 1}, {"minReplicas": 3}]}, "it", 4),
        ("job", {"parallelism": 8, "completions": 4, "completionMode": "Indexed"}, "it", 4),
        ("job", {"parallelism": 4}, "it", 4),
        ("jobset", JOBSET, "it", 3),
        ("jobset", JOBSET, "it/b", 8),
        ("lws", LWS, "it/0", 4),
        ("kubeflow", {"trainer": {"numNodes": 4}}, "it", 4),
    ],
)
def test_each_kind_of_object_says_its_size(
    source: str, spec: dict[str, Any], raw: str, count: int
) -> None:
    assert sized(source, read(source, spec), raw) == GangSize(participants=count)


TREE = [
    {"name": "workers"},
    *({"name": f"w-{n}", "parent": "workers", "minMember": 4} for n in range(2)),
    {"name": "drivers", "minSubGroup": 1},
    *({"name": f"d-{n}", "parent": "drivers", "minMember": n + 1} for n in range(2)),
]
CHAIN = [
    {"name": "0"},
    *({"name": f"{n}", "parent": f"{n - 1}"} for n in range(1, 4000)),
    {"name": "leaf", "parent": "3999", "minMember": 2},
]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ({"subGroups": TREE}, 9),
        ({"minSubGroup": 2, "subGroups": TREE}, 9),
        ({"minSubGroup": 1, "subGroups": TREE[:3]}, 8),
        ({"minMember": 5, "subGroups": TREE}, 5),
        ({"subGroups": [{"name": "a", "minMember": 2}, {"name": "b", "parent": "b"}]}, 2),
        ({"subGroups": CHAIN}, 2),
        ({"subGroups": [{"name": "a"}, {"name": "a", "parent": "a", "minMember": 3}]}, 3),
    ],
)
def test_a_pod_group_of_kai_needs_what_its_groups_need(spec: dict[str, Any], count: int) -> None:
    assert sized("kai", read("kai", spec)) == GangSize(participants=count)


@pytest.mark.parametrize("spec", [{"minMember": 0}, {"minSubGroup": 0, "subGroups": TREE}])
def test_a_pod_group_of_kai_that_needs_nobody_is_no_gang(spec: dict[str, Any]) -> None:
    assert "not started together" in sized("kai", read("kai", spec)).skip


def test_a_training_job_counts_its_roles_without_the_launcher() -> None:
    pytorch = read(
        "kubeflow",
        {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}},
        kind=1,
    )
    mpi = read(
        "kubeflow",
        {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 4}}},
        kind=2,
    )
    assert sized("kubeflow", pytorch) == sized("kubeflow", mpi) == GangSize(participants=4)


def test_an_elastic_job_waits_for_as_many_workers_as_it_begins_with_and_for_who_can_start() -> None:
    spec = {
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 8},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 4}},
    }
    there = [worker("kubeflow", n) for n in range(3)]
    no_room = msgspec.structs.replace(worker("kubeflow", 3), node="", can_start=False)
    found = read("kubeflow", spec, kind=1)
    assert size(NS, "it", [*there, no_room], lambda *_: found) == GangSize(participants=3)
    assert sized("kubeflow", found) == GangSize(participants=2)
    exact = read("kubeflow", {**spec, "elasticPolicy": {}}, kind=1)
    assert size(NS, "it", there, lambda *_: exact) == GangSize(participants=4)


@pytest.mark.parametrize(
    ("source", "spec", "raw", "reason"),
    [
        ("schedulingGroup", {"schedulingPolicy": {"basic": {}}}, "it", "policy basic"),
        (
            "workloadRef",
            {"podGroups": [{"name": "b", "policy": {"basic": {}}}]},
            "it/b",
            "policy basic",
        ),
        ("jobset", {**JOBSET, "startupPolicy": {"startupPolicyOrder": "InOrder"}}, "it", "InOrder"),
        (
            "jobset",
            {"replicatedJobs": [{"name": "w", "dependsOn": [{"name": "x"}]}]},
            "it",
            "depend on others",
        ),
        ("lws", {**LWS, "startupPolicy": "LeaderReady"}, "it/0", "LeaderReady"),
        ("volcano", {"minMember": 1}, "it", "a fabric test needs two"),
    ],
)
def test_what_does_not_start_together_is_skipped_with_the_reason(
    source: str, spec: dict[str, Any], raw: str, reason: str
) -> None:
    assert reason in sized(source, read(source, spec), raw).skip


@pytest.mark.parametrize(
    ("source", "spec", "missing"),
    [
        ("schedulingGroup", {}, "spec.schedulingPolicy"),
        ("schedulingGroup", {"schedulingPolicy": {"gang": {}}}, "minCount"),
        ("workloadRef", {"podGroups": []}, "no pod group"),
        ("volcano", {}, "spec.minMember"),
        ("kueue", {"podSets": []}, "podSets"),
        ("kubeflow", {"trainer": {}}, "numNodes"),
    ],
)
def test_an_object_that_does_not_say_it_means_unknown_never_a_guess(
    source: str, spec: dict[str, Any], missing: str
) -> None:
    published = sized(source, read(source, spec))
    assert published.participants is None
    assert missing in published.unknown


def test_an_object_that_is_not_there_is_named() -> None:
    published = sized("schedulingGroup", "does not exist yet")
    assert published.unknown == "the size is not known: PodGroup it does not exist yet"


def test_members_without_gpus_come_off_the_size() -> None:
    found = read("volcano", {"minMember": 4})
    assert sized("volcano", found, without=1) == GangSize(participants=3)
    exact = read("jobset", {"replicatedJobs": [{"template": {"spec": {"parallelism": 4}}}]})
    assert sized("jobset", exact, without=1) == GangSize(participants=3)
    assert "of which 3 without the check" in sized("jobset", exact, without=3).skip


def test_a_master_that_fails_again_and_again_is_one_member() -> None:
    of_it = stamp("it", size=None, source="jobset", object="it")
    master = stamp("it", size=None, source="jobset", object="it", takes_part=False)
    workers = [waiting(f"gpu-{n}", f"10.0.0.{n}", stamped=of_it) for n in range(3)]
    tries = [a_member(f"cpu-{n}", stamped=master, phase="Failed") for n in "abc"]
    leaving = a_member("cpu-d", stamped=master, deletionTimestamp="2026-11-21T08:00:00Z")
    now = a_member("cpu-e", stamped=master, phase="Running")
    found = read("jobset", {"replicatedJobs": [{"template": {"spec": {"parallelism": 5}}}]})
    members = [*workers, *tries, leaving, now]
    assert size(NS, "it", members, lambda *_: found) == GangSize(participants=4)
    done = a_member("cpu-e", stamped=master, phase="Succeeded")
    assert size(NS, "it", [*workers, done], lambda *_: found) == GangSize(participants=4)


def test_a_master_of_an_earlier_run_takes_no_worker_s_place() -> None:
    of_it = stamp(size=4)
    master = stamp(size=4, takes_part=False)
    before = a_member("run-1-cpu", stamped=master, phase="Succeeded")
    now = a_member("run-2-cpu", stamped=master, phase="Running")
    workers = [waiting(f"run-2-{n}", f"10.0.0.{n}", stamped=of_it) for n in range(3)]
    assert size(NS, "job-1", [before, now, *workers], lambda *_: "") == GangSize(participants=3)
    over = msgspec.structs.replace(now, terminal=True, succeeded=True)
    assert size(NS, "job-1", [over, *workers], lambda *_: "") == GangSize(participants=3)


def test_of_a_driver_s_indexes_those_that_are_done_take_no_worker_s_place() -> None:
    of_it = stamp("it", size=None, source="jobset", object="it")
    driver = stamp("it", size=None, source="jobset", object="it", takes_part=False)
    done = [a_member(f"cpu-{n}", stamped=driver, phase="Succeeded") for n in range(2)]
    now = a_member("cpu-2", stamped=driver, phase="Running")
    workers = [waiting(f"gpu-{n}", f"10.0.0.{n}", stamped=of_it) for n in range(4)]
    jobs = [{"parallelism": 1, "completions": 3}, {"parallelism": 4, "completions": 4}]
    found = read("jobset", {"replicatedJobs": [{"template": {"spec": one}} for one in jobs]})
    members = [*done, now, *workers]
    assert size(NS, "it", members, lambda *_: found) == GangSize(participants=4)


def test_a_ray_job_s_submitter_takes_no_worker_s_place_when_the_workers_are_made_anew() -> None:
    def by(kind: str, name: str, *, gpu: bool = True) -> GangMember:
        of_it = stamp("it", size=None, source="kueueWorkload", object="it", takes_part=gpu)
        made = checking(name, "10.0.0.1", stamped=of_it)
        owner = OwnerReference(api_version="v1", kind=kind, name="it", uid=kind)
        return msgspec.structs.replace(made, owner=owner)

    workers = [by("RayCluster", f"gpu-{n}") for n in range(3)]
    head = by("RayCluster", "head", gpu=False)
    found = read("kueueWorkload", {"podSets": [{"name": "head", "count": 1}, {"count": 4}]})
    members = [head, by("Job", "submitter", gpu=False), *workers]
    assert size(NS, "it", members, lambda *_: found) == GangSize(participants=4)


LEAST: dict[str, dict[str, Any]] = {
    "volcano": {"minMember": 2},
    "coscheduling": {"minMember": 2},
    "kai": {"minMember": 2},
    "grove": {"podgroups": [{"minReplicas": 2}]},
    "schedulingGroup": {"schedulingPolicy": {"gang": {"minCount": 2}}},
}


def of(source: str, *members: GangMember) -> GangSize:
    return size(NS, "it", members, lambda *_: read(source, LEAST[source]))


def worker(source: str, number: int, **fields: Any) -> GangMember:
    return checking(
        f"gpu-{number}",
        f"10.0.0.{number}",
        stamped=stamp("it", size=None, source=source, object="it"),
        **fields,
    )


def master(source: str) -> GangMember:
    return a_member(
        "cpu", stamped=stamp("it", size=None, source=source, object="it", takes_part=False)
    )


@pytest.mark.parametrize("source", LEAST)
def test_all_who_can_start_take_part_where_the_size_is_the_least_that_must_be_there(
    source: str,
) -> None:
    assert of(source, *(worker(source, n) for n in range(4))) == GangSize(participants=4)
    assert of(source, worker(source, 0)) == GangSize(participants=2)


@pytest.mark.parametrize("source", LEAST)
def test_a_master_without_gpus_takes_no_test_from_the_workers(source: str) -> None:
    workers = [worker(source, n) for n in range(4)]
    assert of(source, master(source), *workers) == GangSize(participants=4)
    assert "more may come" in of(source, master(source), workers[0]).unknown
    alone = waiting("gpu-0", "10.0.0.0", stamped=stamp("it", size=None, source=source, object="it"))
    assert "a fabric test needs two" in of(source, master(source), alone).skip


def test_who_has_no_room_in_the_cluster_is_not_waited_for_beyond_the_least() -> None:
    there = [worker("volcano", n) for n in range(3)]
    no_room = msgspec.structs.replace(worker("volcano", 3), node="", can_start=False)
    assert of("volcano", *there, no_room) == GangSize(participants=3)
    assert of("volcano", no_room) == GangSize(participants=2)


def test_a_workload_that_kueue_admitted_in_part_has_as_many_pods_as_were_admitted() -> None:
    body = {
        **META,
        "spec": {"podSets": [{"count": 8}]},
        "status": {"admission": {"podSetAssignments": [{"count": 5}]}},
    }
    assert sized("kueue", msgspec.convert(body, BUILT_IN["kueue"][0].type)) == GangSize(
        participants=5
    )


def test_a_ray_job_that_kueue_admitted_waits_for_no_submitter() -> None:
    sets = [{"name": "head", "count": 1}, {"name": "gpu", "count": 4}]
    sets.append({"name": "submitter", "count": 1})
    for kind, pods in (("RayJob", 5), ("JobSet", 6)):
        about = {**META["metadata"], "ownerReferences": [{"kind": kind, "name": "it"}]}
        body: dict[str, Any] = {"metadata": about, "spec": {"podSets": sets}}
        for status in ({}, {"admission": {"podSetAssignments": sets}}):
            found = msgspec.convert({**body, "status": status}, BUILT_IN["kueueWorkload"][0].type)
            assert sized("kueueWorkload", found) == GangSize(participants=pods)


def test_a_leader_that_must_be_ready_first_waits_for_no_worker_though_its_pod_says_the_size() -> (
    None
):
    leader = [a_member("it-0", stamped=stamp("it/0", size=4, source="lws", object="it"))]
    ordered, together = (
        read("lws", {**LWS, "startupPolicy": policy}) for policy in ("LeaderReady", "LeaderCreated")
    )
    assert "LeaderReady" in size(NS, "it/0", leader, lambda *_: ordered).skip
    assert size(NS, "it/0", leader, lambda *_: together) == GangSize(participants=4)
    assert size(NS, "it/0", leader, lambda *_: "cannot be read yet") == GangSize(participants=4)


@pytest.mark.parametrize(
    ("status", "left"),
    [
        ({}, 4),
        ({"succeeded": 3}, 4),
        ({"succeeded": 8}, 2),
        ({"succeeded": 5, "failedIndexes": "1,3-4"}, 2),
        ({"succeeded": 8, "failedIndexes": "?-,x"}, 2),
        ({"succeeded": 10}, 4),
    ],
)
def test_of_a_job_s_last_indexes_no_more_pods_start_together_than_are_left(
    status: dict[str, Any], left: int
) -> None:
    body = {**META, "spec": {"parallelism": 4, "completions": 10}, "status": status}
    assert sized("job", msgspec.convert(body, BUILT_IN["job"][0].type)) == GangSize(
        participants=left
    )


def test_members_that_disagree_about_the_size_are_not_believed() -> None:
    members = [a_member(f"pod-{n}", stamped=stamp(size=n)) for n in (2, 3)]
    assert "disagree" in size(NS, "job-1", members, lambda *_: "").unknown


@pytest.mark.parametrize(
    "over", [{"phase": "Succeeded"}, {"deletionTimestamp": "2026-11-21T08:00:00Z"}]
)
def test_members_that_are_over_have_no_say_in_the_size(over: dict[str, Any]) -> None:
    earlier = [passed(f"old-{n}", f"10.0.1.{n}", stamped=stamp(size=2), **over) for n in range(2)]
    now = [waiting(f"new-{n}", f"10.0.0.{n}", stamped=stamp(size=3)) for n in range(3)]
    assert size(NS, "job-1", [*earlier, *now], lambda *_: "") == GangSize(participants=3)
    assert size(NS, "job-1", earlier, lambda *_: "") == GangSize(participants=2)


def test_a_gang_by_owner_has_its_size_from_the_pod_group_that_is_written_to_its_pods_later() -> (
    None
):
    by_owner = stamp("uid-of-owner", size=None, source="owner")
    asked = []

    def lookup(*question: str) -> SizedObject:
        asked.append(question)
        return read("owner", {"minMember": 2})

    early = [a_member("pod-0", stamped=by_owner)]
    assert size(NS, "uid-of-owner", early, lookup).participants is None
    body = a_member("pod-1", stamped=by_owner)
    late = [*early, msgspec.structs.replace(body, pod_group="pg-7")]
    assert size(NS, "uid-of-owner", late, lookup) == GangSize(participants=2)
    assert asked == [("owner", NS, "pg-7")]


def test_a_gang_whose_labels_do_not_say_the_size_waits() -> None:
    members = [a_member("pod-0", stamped=stamp(size=None))]
    assert "no member says it" in size(NS, "job-1", members, lambda *_: "").unknown


HUGE = 2**62
BEYOND = f"its size {HUGE} is more than the 100000 that a gang can have"


@pytest.mark.parametrize(
    ("source", "spec", "why"),
    [
        ("coscheduling", {"minMember": HUGE}, BEYOND),
        ("schedulingGroup", {"schedulingPolicy": {"gang": {"minCount": HUGE}}}, BEYOND),
        ("job", {"parallelism": HUGE}, BEYOND),
        ("lws", {"leaderWorkerTemplate": {"size": HUGE}}, BEYOND),
        (
            "jobset",
            {"replicatedJobs": [{"name": "a", "replicas": HUGE, "template": {"spec": {}}}]},
            BEYOND,
        ),
        ("kubeflow", {"trainer": {"numNodes": HUGE}}, BEYOND),
        (
            "coscheduling",
            {"minMember": 100_001},
            "its size 100001 is more than the 100000 that a gang can have",
        ),
    ],
)
def test_a_size_that_no_gang_has_is_waited_for_by_nobody_and_named(
    source: str, spec: dict[str, Any], why: str
) -> None:
    assert sized(source, read(source, spec)).unknown.endswith(why)


@pytest.mark.parametrize(
    ("source", "spec"),
    [
        ("kueue", {"podSets": [{"name": "a", "count": 6}, {"name": "b", "count": -2}]}),
        ("grove", {"podgroups": [{"minReplicas": 6}, {"minReplicas": -2}]}),
        (
            "jobset",
            {
                "replicatedJobs": [
                    {"name": "a", "replicas": -2, "template": {"spec": {"parallelism": -2}}}
                ]
            },
        ),
        (
            "kubeflow",
            {"pytorchReplicaSpecs": {"Worker": {"replicas": 6}, "Master": {"replicas": -2}}},
        ),
    ],
)
def test_parts_below_zero_make_no_size(source: str, spec: dict[str, Any]) -> None:
    found = sized(source, read(source, spec, 1 if source == "kubeflow" else 0))
    assert found.participants is None
    assert "is below zero" in found.unknown


def test_a_size_of_thousands_of_digits_is_told_in_one_short_sentence() -> None:
    digits = 4_000
    spec = {
        "replicatedJobs": [
            {"name": "a", "replicas": 10**digits, "template": {"spec": {"parallelism": 10**digits}}}
        ]
    }
    why = sized("jobset", read("jobset", spec)).unknown
    assert "its size of 8001 digits is more than the 100000 that a gang can have" in why
