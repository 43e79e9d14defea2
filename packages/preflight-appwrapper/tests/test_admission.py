"""What is denied and warned of before a wrapper is stored, what is written into it, and whose
rights are asked for.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from player import bare_pod, job, service, wrapper
from preflight_appwrapper.api.names import LABEL, PREFIX
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import wrapper_from
from preflight_appwrapper.core.validation import ValidationResult, created, updated
from preflight_appwrapper.webhook.handler import (
    SubjectAccessReview,
    kept,
    label_value,
    patch,
    refusals,
    review,
)
from preflight_kube.admission.review import UserInfo
from preflight_kube.api.kinds import RESTMapping

SERVED = {
    ("batch", "v1", "Job"): RESTMapping("jobs", True),
    ("", "v1", "Service"): RESTMapping("services", True),
    ("", "v1", "Pod"): RESTMapping("pods", True),
    ("", "v1", "Namespace"): RESTMapping("namespaces", False),
    ("apps", "v1", "Deployment"): RESTMapping("deployments", True),
    ("kubeflow.org", "v2beta1", "MPIJob"): RESTMapping("mpijobs", True),
    ("ray.io", "v1", "RayJob"): RESTMapping("rayjobs", True),
}


def judged(raw: dict[str, Any]) -> ValidationResult:
    return created(wrapper_from(raw), WrapperRules(), namespace="ns", served=SERVED)


def with_metadata(**metadata: Any) -> dict[str, Any]:
    made = job()
    made["metadata"].update(metadata)
    return made


def declared(*sets: Any, template: dict[str, Any] | None = None) -> dict[str, Any]:
    raw = wrapper(template or job())
    raw["spec"]["components"][0]["podSets"] = list(sets)
    return raw


def named(name: str) -> dict[str, Any]:
    raw = wrapper()
    raw["metadata"]["name"] = name
    return raw


MPI: dict[str, Any] = {
    "apiVersion": "kubeflow.org/v2beta1",
    "kind": "MPIJob",
    "metadata": {"name": "train"},
    "spec": {
        "mpiReplicaSpecs": {
            "Launcher": {"template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}}
        }
    },
}
RAY_JOB: dict[str, Any] = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "metadata": {"name": "train"},
    "spec": {
        "rayClusterSpec": {
            "headGroupSpec": {"template": {"spec": {"containers": [{"name": "a", "image": "x"}]}}}
        }
    },
}
PATH = "template.spec.template"
LABELED = job()
LABELED["spec"]["template"]["metadata"] = {"labels": {LABEL: "other"}}
NOTHING: dict[str, Any] = {**wrapper(), "spec": {"components": []}}


def test_a_good_wrapper_is_allowed_without_a_word() -> None:
    assert judged(wrapper(service(), job(), bare_pod())) == ValidationResult()
    assert judged(declared({"path": PATH, "replicas": 2})) == ValidationResult()
    assert judged(named("x" * 63)) == ValidationResult()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (NOTHING, "spec.components: is empty"),
        (wrapper(service()), "spec.components: makes no pods"),
        (wrapper(*(job(f"j{i}") for i in range(9))), "spec.components: has 9 pod sets, and Kueue takes 8"),
        (declared({"path": "spec.template"}), "spec.components[0].podSets[0].path: \"spec.template\" is not a path"),
        (declared({"path": PATH, "replicas": 2}, {"path": PATH}), "is in podSets[0] already"),
        (declared({"path": PATH, "replicas": 3}), f"says 3 pods at {PATH}, and the template 2"),
        (declared({"path": PATH, "replicas": -3}), "podSets[0].replicas: is -3"),
        (wrapper("x"), "spec.components[0].template: must be a manifest"),  # type: ignore[arg-type]
        (wrapper({"apiVersion": "v1"}), "spec.components[0].template: has no apiVersion and kind"),
        (wrapper(job(), {**wrapper(), "metadata": {"name": "x"}}), "spec.components[1].template: is an AppWrapper itself"),
        (wrapper(with_metadata(namespace="kube-system")), "metadata.namespace: is kube-system"),
        (wrapper({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "x"}}), "belongs to the whole cluster"),
        (wrapper({"apiVersion": "x.io/v1", "kind": "Odd", "metadata": {"name": "x"}}), "does not serve x.io/v1 Odd"),
        (wrapper(job(), job()), "spec.components[1].template: is Job train, as spec.components[0] is"),
        (named("x" * 64), "metadata.name: has 64 characters"),
        (wrapper(with_metadata(name="..")), 'metadata.name: ".." cannot be the name of an object'),
        (wrapper(with_metadata(name="a/b")), 'metadata.name: "a/b" cannot be the name of an object'),
        (wrapper(LABELED), f"label {LABEL} has another value"),
        (wrapper(with_metadata(labels={LABEL: "other"})), f"{LABEL} has another value"),
        (wrapper({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}), "spec.components[0].template: "),
    ],
)  # fmt: skip
def test_what_is_denied_is_one_sentence_with_its_path(raw: dict[str, Any], said: str) -> None:
    problems = judged(raw).problems
    assert any(said in one for one in problems), problems
    assert all(one.endswith(".") and "\n" not in one for one in problems)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("a.b", False), ("w" * 62, False), ("w" * 61, True), ("w-1", True), ("", True)],
)
def test_a_name_of_which_kueue_can_make_no_workload_is_denied_with_a_queue(
    name: str, allowed: bool
) -> None:
    raw = wrapper()
    raw["metadata"]["name"] = name
    assert not judged(raw).problems
    raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    assert (not judged(raw).problems) is allowed


def test_all_problems_come_at_once() -> None:
    raw = wrapper(
        with_metadata(namespace="other"), service(), {**wrapper(), "metadata": {"name": "x"}}
    )
    raw["metadata"]["name"] = "x" * 64
    assert len(judged(raw).problems) >= 3


def test_the_same_name_of_two_kinds_or_from_a_prefix_is_no_double() -> None:
    assert judged(wrapper(job("a"), service("a"), bare_pod("a-"), bare_pod("a-"))).problems == ()


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (wrapper(annotations={"retryLimit": "x"}), "is not a whole number of 32 bits"),
        (
            wrapper(with_metadata(annotations={PREFIX + "retryLimit": "3"})),
            "write it into the wrapper's own metadata",
        ),
        (wrapper(job(ttlSecondsAfterFinished=1)), "is 1 s, so that the Job may be gone"),
        (wrapper(job(suspend=True)), "spec.suspend: is true"),
        (wrapper(MPI), "cleanPodPolicy: leaves workers running"),
        (wrapper(RAY_JOB), "shutdownAfterJobFinishes: leaves the cluster running"),
        (
            wrapper(with_metadata(labels={"kueue.x-k8s.io/queue-name": "q"})),
            "would queue this component by itself",
        ),
    ],
)
def test_what_is_probably_a_mistake_is_warned_of(raw: dict[str, Any], said: str) -> None:
    found = judged(raw)
    assert found.problems == ()
    assert any(said in one for one in found.warnings), found.warnings


@pytest.mark.parametrize(
    ("template", "spec"),
    [
        (MPI, {"cleanPodPolicy": "All"}),
        (MPI, {"runPolicy": {"cleanPodPolicy": "Running"}}),
        (RAY_JOB, {"shutdownAfterJobFinishes": True}),
        (RAY_JOB, {"deletionStrategy": {"deletionRules": []}}),
    ],
)
def test_a_job_that_leaves_no_pods_running_when_it_has_ended_is_not_warned_of(
    template: dict[str, Any], spec: dict[str, Any]
) -> None:
    assert not judged(wrapper({**template, "spec": {**template["spec"], **spec}})).warnings


def changed(**paths: Any) -> tuple[str, ...]:
    old = declared({"path": PATH, "replicas": 2})
    old["metadata"]["labels"] = {"workload.codeflare.dev/user": "anna"}
    new = copy.deepcopy(old)
    for key, value in paths.items():
        holder: Any = new
        *way, last = key.split("__")
        for step in way:
            holder = holder[int(step)] if step.isdigit() else holder[step]
        holder[last] = value
    return tuple(updated(wrapper_from(old), wrapper_from(new)))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec__suspend", True),
        ("spec__components__0__podSetInfos", [{"labels": {"a": "b"}}]),
        ("metadata__annotations", {PREFIX + "retryLimit": "9"}),
        ("metadata__labels", {"workload.codeflare.dev/user": "anna", "x": "y"}),
        ("spec__managedBy", ""),
    ],
)
def test_what_kueue_and_users_may_change_is_allowed(path: str, value: Any) -> None:
    assert changed(**{path: value}) == ()


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec__components__0__template", service(), "spec.components[0].template: cannot be changed"),
        ("spec__components", [], "spec.components: the number of components cannot be changed"),
        (
            "spec__components__0__podSets",
            [{"path": PATH, "replicas": 3}],
            "spec.components[0].podSets: cannot be changed",
        ),
        ("spec__managedBy", "other", "spec.managedBy: cannot be changed"),
        (
            "metadata__labels",
            {"workload.codeflare.dev/user": "bob"},
            "metadata.labels: workload.codeflare.dev/user",
        ),
    ],
)  # fmt: skip
def test_what_was_checked_once_cannot_be_changed(path: str, value: Any, said: str) -> None:
    assert any(one.startswith(said) for one in changed(**{path: value}))


def test_the_order_of_keys_in_a_template_is_no_change() -> None:
    assert changed(spec__components__0__template=dict(reversed(job().items()))) == ()


def test_a_change_of_podset_replicas_from_default_to_one_is_no_change() -> None:
    one, other = declared({"path": PATH}), declared({"path": PATH, "replicas": 1})
    assert not list(updated(wrapper_from(one), wrapper_from(other)))


def applied(raw: dict[str, Any], ops: list[dict[str, Any]]) -> dict[str, Any]:
    made: Any = copy.deepcopy(raw)
    for op in ops:
        holder = made
        *way, last = [
            part.replace("~1", "/").replace("~0", "~") for part in op["path"].split("/")[1:]
        ]
        for step in way:
            holder = holder[int(step)] if isinstance(holder, list) else holder[step]
        holder[last] = op["value"]
    return dict(made)


def test_the_author_is_written_over_what_was_there_and_the_default_queue_only_where_none_is() -> (
    None
):
    raw = wrapper()
    raw["metadata"]["labels"] = {"workload.codeflare.dev/user": "somebody-else", "a": "b"}
    ops = patch(
        wrapper_from(raw), user="system:anna@example.com", uid="7", default_queue="q", labeled=True
    )
    assert applied(raw, ops)["metadata"]["labels"] == {
        "a": "b",
        "workload.codeflare.dev/user": "system_anna_example.com",
        "workload.codeflare.dev/userid": "7",
        "kueue.x-k8s.io/queue-name": "q",
    }
    raw["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "own"
    ops = patch(wrapper_from(raw), user="u", uid="7", default_queue="q", labeled=True)
    assert applied(raw, ops)["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "own"


def test_a_second_call_on_its_own_output_changes_nothing() -> None:
    raw = wrapper()
    again = applied(
        raw, patch(wrapper_from(raw), user="u", uid="7", default_queue="q", labeled=False)
    )
    assert patch(wrapper_from(again), user="u", uid="7", default_queue="q", labeled=True) == []


def test_pod_sets_are_written_for_kinds_that_kueue_does_not_know_and_for_no_others() -> None:
    workers = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "l"},
    }
    template = {"spec": {"containers": [{"name": "a"}]}}
    workers["spec"] = {
        "replicas": 2,
        "leaderWorkerTemplate": {"size": 3, "workerTemplate": template},
    }
    raw = wrapper(job(), workers)
    made = applied(raw, patch(wrapper_from(raw), user="u", uid="", labeled=False))["spec"][
        "components"
    ]
    assert "podSets" not in made[0]
    assert made[1]["podSets"] == [
        {"path": "template.spec.leaderWorkerTemplate.workerTemplate", "replicas": 6}
    ]


def test_a_manifest_that_is_applied_again_keeps_what_was_written_into_its_components() -> None:
    raw = wrapper(job(), LWS)
    ops = patch(wrapper_from(raw), user="u", uid="", labeled=False)
    old = applied(raw, ops)
    infos = [{"nodeSelector": {"pool": "a"}, "labels": {"kueue.x-k8s.io/podset": "w-0"}}]
    old["spec"]["components"][0]["podSetInfos"] = infos
    again = copy.deepcopy(old)
    again["spec"]["components"] = raw["spec"]["components"]
    made = applied(again, kept(old, wrapper_from(again)))
    assert made == old
    assert not list(updated(wrapper_from(old), wrapper_from(made)))
    assert kept(old, wrapper_from(old)) == []


def test_what_kueue_takes_away_and_what_an_author_declared_is_not_kept() -> None:
    old = declared({"path": PATH, "replicas": 2})
    old["spec"]["components"][0]["podSetInfos"] = [{"labels": {"a": "b"}}]
    stopped = copy.deepcopy(old)
    stopped["spec"]["suspend"] = True
    del stopped["spec"]["components"][0]["podSetInfos"]
    assert kept(old, wrapper_from(stopped)) == []
    other = copy.deepcopy(old)
    other["spec"]["components"][0] = {"template": service()}
    assert kept(old, wrapper_from(other)) == []
    stopped["spec"]["components"][0]["podSets"] = []
    assert kept(old, wrapper_from(stopped)) == []


@given(st.text(max_size=200))
def test_any_name_becomes_the_value_of_a_label(text: str) -> None:
    value = label_value(text)
    assert len(value) <= 63
    assert not value or (value[0].isalnum() and value[-1].isalnum() and value.isascii())


def test_each_component_is_asked_for_with_all_that_is_known_of_the_author() -> None:
    user = UserInfo(
        username="system:serviceaccount:ns:sa", uid="7", groups=("g",), extra={"k": ("v",)}
    )
    asked = review(user, "ns", ("batch", "v1", "Job"), "jobs")["spec"]
    assert asked["resourceAttributes"]["resource"] == "jobs"
    assert asked["extra"] == {"k": ["v"]}
    assert asked["groups"] == ["g"]
    both = wrapper_from(wrapper(job(), service()))
    jobs = {("batch", "v1", "Job"): True}
    assert list(refusals(both, user, "ns", SERVED, jobs)) == [
        "spec.components[1].template: system:serviceaccount:ns:sa may not create services in ns; ask for that right.",
    ]
    assert len(list(refusals(both, user, "ns", SERVED, {}))) == 2


def test_a_right_that_one_authorizer_grants_and_another_denies_is_none() -> None:
    both = {"status": {"allowed": True, "denied": True}}
    assert not msgspec.convert(both, SubjectAccessReview).granted


LWS_PATH = "template.spec.leaderWorkerTemplate"
LWS = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "serve"},
    "spec": {
        "replicas": 2,
        "leaderWorkerTemplate": {
            "size": 3,
            "leaderTemplate": {"spec": {"containers": [{"name": "leader", "image": "x"}]}},
            "workerTemplate": {"spec": {"containers": [{"name": "worker", "image": "x"}]}},
        },
    },
}


def test_counts_declared_for_a_kind_that_kueue_does_not_know_are_warned_about() -> None:
    sets = [
        {"path": f"{LWS_PATH}.leaderTemplate", "replicas": 2},
        {"path": f"{LWS_PATH}.workerTemplate", "replicas": 3},
    ]
    raw = declared(*sets, template=LWS)
    found = created(wrapper_from(raw), WrapperRules(), namespace="ns")
    assert found.problems == ()
    assert any("says 3 pods" in one and "the template 4" in one for one in found.warnings)


def test_what_the_controller_may_not_create_is_denied_with_what_to_do() -> None:
    rules = WrapperRules(wrapped=frozenset({"pods", "jobs.batch"}))
    raw = wrapper(job(), bare_pod(), service())
    found = created(wrapper_from(raw), rules, namespace="ns", served=SERVED)
    assert len(found.problems) == 1
    assert found.problems[0].startswith("spec.components[2].template: v1 Service is not among")
    assert "wrappedKinds" in found.problems[0]
