"""What each kind of object says about a gang's size, and what the controller makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gangs import NS, a_member, stamp
from preflight_gang.sizes import Known
from preflight_gang.sizing import Sized, size
from preflight_gang.sources import BUILT_IN

META = {"metadata": {"name": "it", "namespace": NS, "uid": "u"}}


def read(source: str, spec: dict[str, Any], kind: int = 0) -> Known:
    return msgspec.convert({**META, "spec": spec}, BUILT_IN[source][kind].type)


def sized(source: str, found: Known | str, raw: str = "it", *, without: int = 0) -> Sized:
    members = [a_member("pod-0", stamped=stamp(raw, size=None, source=source, object="it"))]
    for i in range(without):
        left_out = stamp(raw, size=None, source=source, object="it", takes_part=False)
        members.append(a_member(f"cpu-{i}", stamped=left_out))
    return size(NS, raw, members, lambda *_: found)


GANG = {"gang": {"minCount": 4}}
JOBSET: dict[str, Any] = {
    "replicatedJobs": [
        {"name": "launcher", "groupName": "a", "template": {"spec": {}}},
        {"name": "worker", "groupName": "b", "replicas": 2, "template": {"spec": {"parallelism": 4, "completions": 4}}},
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
        ("kueueWorkload", {"podSets": [{"name": "a", "count": 3}, {"name": "b", "count": 2}]}, "it", 5),
        ("grove", {"podgroups": [{"minReplicas": 1}, {"minReplicas": 3}]}, "it", 4),
        ("job", {"parallelism": 8, "completions": 4, "completionMode": "Indexed"}, "it", 4),
        ("job", {"parallelism": 4}, "it", 4),
        ("jobset", JOBSET, "it", 9),
        ("jobset", JOBSET, "it/b", 8),
        ("lws", LWS, "it/0", 4),
        ("kubeflow", {"trainer": {"numNodes": 4}}, "it", 4),
    ],
)
def test_each_kind_of_object_says_its_size(source: str, spec: dict[str, Any], raw: str, count: int) -> None:
    assert sized(source, read(source, spec), raw) == Sized(participants=count)


def test_a_training_job_counts_its_roles_without_the_launcher() -> None:
    pytorch = read("kubeflow", {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 3}}}, kind=1)
    mpi = read("kubeflow", {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 4}}}, kind=2)
    assert sized("kubeflow", pytorch) == sized("kubeflow", mpi) == Sized(participants=4)


@pytest.mark.parametrize(
    ("source", "spec", "raw", "reason"),
    [
        ("schedulingGroup", {"schedulingPolicy": {"basic": {}}}, "it", "policy basic"),
        ("workloadRef", {"podGroups": [{"name": "b", "policy": {"basic": {}}}]}, "it/b", "policy basic"),
        ("jobset", {**JOBSET, "startupPolicy": {"startupPolicyOrder": "InOrder"}}, "it", "InOrder"),
        ("jobset", {"replicatedJobs": [{"name": "w", "dependsOn": [{"name": "x"}]}]}, "it", "depend on others"),
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
    told = sized(source, read(source, spec))
    assert told.participants is None
    assert missing in told.unknown


def test_an_object_that_is_not_there_is_named() -> None:
    told = sized("schedulingGroup", "does not exist yet")
    assert told.unknown == "the size is not known: PodGroup it does not exist yet"


def test_members_without_gpus_come_off_the_size() -> None:
    found = read("volcano", {"minMember": 4})
    assert sized("volcano", found, without=1) == Sized(participants=3)
    assert "of which 3 without the check" in sized("volcano", found, without=3).skip


def test_members_that_disagree_about_the_size_are_not_believed() -> None:
    members = [a_member(f"pod-{n}", stamped=stamp(size=n)) for n in (2, 3)]
    assert "disagree" in size(NS, "job-1", members, lambda *_: "").unknown


def test_a_gang_by_owner_has_its_size_from_the_pod_group_that_is_written_to_its_pods_later() -> None:
    by_owner = stamp("uid-of-owner", size=None, source="owner")
    asked = []

    def lookup(*question: str) -> Known:
        asked.append(question)
        return read("owner", {"minMember": 2})

    early = [a_member("pod-0", stamped=by_owner)]
    assert size(NS, "uid-of-owner", early, lookup).participants is None
    body = a_member("pod-1", stamped=by_owner)
    late = [*early, msgspec.structs.replace(body, pod_group="pg-7")]
    assert size(NS, "uid-of-owner", late, lookup) == Sized(participants=2)
    assert asked == [("owner", NS, "pg-7")]


def test_a_gang_whose_labels_do_not_say_the_size_waits() -> None:
    members = [a_member("pod-0", stamped=stamp(size=None))]
    assert "no member says it" in size(NS, "job-1", members, lambda *_: "").unknown
