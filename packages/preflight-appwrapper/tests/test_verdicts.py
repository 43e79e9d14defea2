"""What components say of themselves, each kind in the shape of its own API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_appwrapper.api.rules import BUILT_IN, FailureRule, StatusMatch
from preflight_appwrapper.core.component_status import verdict
from preflight_appwrapper.core.decode import PartialObject, thing
from preflight_kube.api.kinds import kind_of


def of(
    api: str,
    kind: str,
    *conditions: tuple[str, str],
    status: dict[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    found = [
        {"type": type_, "status": value, "reason": "R", "message": "m"}
        for type_, value in conditions
    ]
    return {
        "apiVersion": api,
        "kind": kind,
        "spec": spec,
        "status": {"conditions": found, **(status or {})},
    }


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (of("batch/v1", "Job", ("Failed", "True")), "failed"),
        (of("batch/v1", "Job", ("FailureTarget", "True")), "nothing"),  # its pods are still being ended
        (of("batch/v1", "Job", ("SuccessCriteriaMet", "True"), ("Complete", "True")), "finished"),
        (of("batch/v1", "Job", ("Failed", "False")), "nothing"),
        (of("batch/v1", "Job", completions=10, parallelism=2, status={"succeeded": 10}), "more"),
        (of("batch/v1", "Job", completions=2, parallelism=2, status={"succeeded": 1}), "more"),
        (of("batch/v1", "Job", completions=2, parallelism=2, status={"succeeded": 2}), "nothing"),
        (of("batch/v1", "Job", ("Complete", "True"), completions=10), "finished"),
        (of("batch/v1", "Job"), "nothing"),
        (
            of(
                "kubeflow.org/v1",
                "PyTorchJob",
                ("Created", "True"),
                ("Running", "False"),
                ("Failed", "True"),
            ),
            "failed",
        ),
        (of("kubeflow.org/v1", "PyTorchJob", ("Succeeded", "True")), "finished"),
        (of("kubeflow.org/v1", "PyTorchJob", ("Restarting", "True")), "nothing"),
        (of("kubeflow.org/v1", "MPIJob", ("Failed", "True")), "failed"),
        (of("kubeflow.org/v2beta1", "MPIJob", ("Succeeded", "True")), "finished"),
        (of("jobset.x-k8s.io/v1alpha2", "JobSet", ("Failed", "True")), "failed"),
        (of("jobset.x-k8s.io/v1alpha2", "JobSet", ("Completed", "True")), "finished"),
        (of("jobset.x-k8s.io/v1alpha2", "JobSet", ("StartupPolicyCompleted", "True")), "nothing"),
        (of("ray.io/v1", "RayJob", status={"jobDeploymentStatus": "Failed"}), "failed"),
        (of("ray.io/v1", "RayJob", status={"jobDeploymentStatus": "ValidationFailed"}), "failed"),
        (of("ray.io/v1", "RayJob", status={"jobDeploymentStatus": "Retrying", "jobStatus": "FAILED"}), "more"),
        (
            of(
                "ray.io/v1",
                "RayJob",
                status={"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"},
            ),
            "finished",
        ),
        (of("ray.io/v1", "RayJob"), "more"),
        (of("ray.io/v1", "RayCluster", status={"state": "failed"}), "nothing"),
        (of("apps/v1", "Deployment", ("Failed", "True")), "nothing"),
        (of("v1", "Service"), "nothing"),
        (of("v1", "Pod", status={"phase": "Succeeded"}), "finished"),
        (of("v1", "Pod", ("DisruptionTarget", "True"), status={"phase": "Failed"}), "nothing"),
    ],
)  # fmt: skip
def test_each_kind_is_read_by_its_own_status(raw: dict[str, Any], says: str) -> None:
    assert verdict(raw).says == says


def test_of_some_kinds_it_is_known_that_they_own_their_pods() -> None:
    owning = {rule.kind for rule in BUILT_IN if verdict(of(f"{rule.group}/v1".lstrip("/"), rule.kind)).owns_pods}  # fmt: skip
    assert owning == {"Job", "PyTorchJob", "Pod", "StatefulSet", "RayCluster"}


def test_a_failed_ray_job_is_quoted() -> None:
    raw = of(
        "ray.io/v1",
        "RayJob",
        status={"jobDeploymentStatus": "Failed", "message": "the driver exited"},
    )
    assert verdict(raw).message == "Failed: the driver exited"


@pytest.mark.parametrize("spec", [{"suspend": True}, {"runPolicy": {"suspend": True}}])
def test_a_component_that_is_held_back_by_itself_is_known(spec: dict[str, Any]) -> None:
    assert verdict(of("kubeflow.org/v1", "PyTorchJob", **spec)).suspended


def test_the_end_of_a_suspension_is_known() -> None:
    raw = of("batch/v1", "Job", suspend=False)
    raw["status"]["conditions"] = [
        {"type": "Suspended", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ]
    found = verdict(raw)
    assert not found.suspended
    assert found.resumed == datetime(2026, 1, 1, tzinfo=UTC)


def test_why_kubernetes_takes_a_pod_away_is_known() -> None:
    assert verdict(of("v1", "Pod", ("DisruptionTarget", "True"))).disrupted == "R: m"
    assert not verdict(of("v1", "Pod", ("DisruptionTarget", "False"))).disrupted
    assert not verdict(of("batch/v1", "Job", ("DisruptionTarget", "True"))).disrupted


def test_pods_that_have_succeeded_are_counted_by_the_kinds_that_own_theirs() -> None:
    roles = {"Master": {"active": 1}, "Worker": {"succeeded": 2, "failed": 1}}
    assert verdict(of("batch/v1", "Job", status={"succeeded": 3})).succeeded == 3
    met = of("batch/v1", "Job", ("SuccessCriteriaMet", "True"), parallelism=4, completions=9)
    assert (verdict(met).succeeded, verdict(met).says) == (4, "more")
    torch = of("kubeflow.org/v1", "PyTorchJob", status={"replicaStatuses": roles})
    assert verdict(torch).succeeded == 2
    known = [{"name": "load", "succeeded": 2}, {"name": "train", "ready": 1}]
    jobs = [a_job("load", 3, 2), a_job("train", 8, load="Complete")]
    raw = of(*JOB_SET, replicatedJobs=jobs, status={"replicatedJobsStatus": known})
    assert verdict(raw).succeeded == 6


def a_job(name: str, pods: int, replicas: int = 1, **on: str) -> dict[str, Any]:
    depends = [{"name": other, "status": status} for other, status in on.items()]
    template = {"spec": {"parallelism": pods}}
    return {"name": name, "replicas": replicas, "template": template, "dependsOn": depends}


def exclusive(of: str) -> dict[str, Any]:
    """In a topology domain of its own."""
    return {"metadata": {"annotations": {f"{of}.sigs.k8s.io/exclusive-topology": "rack"}}}


JOB_SET = ("jobset.x-k8s.io/v1alpha2", "JobSet")
LWS, STATEFUL = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"), ("apps/v1", "StatefulSet")
MPI = ("kubeflow.org/v2beta1", "MPIJob")


@pytest.mark.parametrize(
    ("raw", "in_order"),
    [
        (of(*STATEFUL, replicas=2, podManagementPolicy="OrderedReady"), True),
        (of(*STATEFUL, replicas=2, podManagementPolicy="Parallel"), False),
        (of(*STATEFUL, replicas=1, podManagementPolicy="OrderedReady"), False),
        (of(*LWS, startupPolicy="LeaderReady"), True),
        (of(*LWS, startupPolicy="LeaderCreated"), False),
        (of(*MPI, launcherCreationPolicy="WaitForWorkersReady"), True),
        (of(*MPI, launcherCreationPolicy="AtStartup"), False),
        (of(*JOB_SET, startupPolicy={"startupPolicyOrder": "InOrder"}), True),
        (of(*JOB_SET, startupPolicy={"startupPolicyOrder": "AnyOrder"}), False),
        (of(*JOB_SET, replicatedJobs=[a_job("a", 1), a_job("b", 1, a="Ready")]), True),
        ({**of(*JOB_SET), **exclusive("alpha.jobset")}, True),
        (of(*JOB_SET, replicatedJobs=[{"template": exclusive("alpha.jobset")}]), True),
        ({**of(*LWS), **exclusive("leaderworkerset")}, True),
        ({**of(*LWS), **exclusive("other")}, False),
        (of("batch/v1", "Job", parallelism=2), False),
    ],
)
def test_who_makes_some_pods_only_once_others_are_ready_is_known(
    raw: dict[str, Any], in_order: bool
) -> None:
    assert verdict(raw).in_order is in_order
    about = raw.get("metadata") or {}
    stored = {"metadata": {"name": "x", **about}, "spec": raw["spec"], "status": raw["status"]}
    read = msgspec.json.decode(msgspec.json.encode(stored), type=PartialObject)
    assert (
        thing(read, kind_of(raw["apiVersion"], raw["kind"]), BUILT_IN).verdict.in_order is in_order
    )


@pytest.mark.parametrize(
    ("succeeded", "later"), [({}, 9), ({"load": 1}, 9), ({"load": 2}, 0), ({"load": 2, "a": 1}, 0)]
)
def test_jobs_that_depend_on_others_which_have_not_completed_make_no_pods_yet(
    succeeded: dict[str, int], later: int
) -> None:
    jobs = [
        a_job("load", 1, 2),
        a_job("a", 4, load="Complete"),
        a_job("b", 5, a="Ready"),
        a_job("c", 7, load="Ready"),
    ]
    known = [{"name": name, "succeeded": count} for name, count in succeeded.items()]
    raw = of(*JOB_SET, replicatedJobs=jobs, status={"replicatedJobsStatus": known})
    assert verdict(raw).later == later


def test_a_further_kind_is_read_as_it_is_configured() -> None:
    rule = FailureRule(
        group="example.com",
        kind="Train",
        failed=(StatusMatch(path="status.state", values=("Broken",)),),
    )
    assert (
        verdict(of("example.com/v1", "Train", status={"state": "Broken"}), (*BUILT_IN, rule)).says
        == "failed"
    )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["type", "status", "conditions", "spec", "suspend", "completions", "succeeded"]
            ),
            below,
        )
    ),
    max_leaves=20,
)


@given(_JSON, _JSON)
def test_no_status_makes_it_raise(spec: Any, status: Any) -> None:
    for rule in BUILT_IN:
        verdict(
            {"apiVersion": f"{rule.group}/v1", "kind": rule.kind, "spec": spec, "status": status}
        )
