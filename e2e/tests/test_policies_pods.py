"""What a real API server lets people make and change of checked pods: both charts, and the
injector's alone.
"""

from __future__ import annotations

import time

import pytest
from preflight_e2e.admission_policies import (
    CONTROLLER,
    LISTED,
    OFF,
    SYSTEM,
    TRAINING,
    WEB,
    PolicyServer,
    checked_pod,
    plain_pod,
)
from preflight_e2e.impersonation import CHECKED, GANG, OURS, ROSTER, add, annotation, label, remove
from preflight_testing.helm import Object

pytest_plugins = ["preflight_e2e.admission_policy_fixtures"]
pytestmark = pytest.mark.timeout(180)
POLICY = "ValidatingAdmissionPolicy"


# --- stamps


@pytest.mark.parametrize("namespace", [WEB, OFF, SYSTEM, "preflight"])
@pytest.mark.parametrize(
    "forged",
    [
        plain_pod(labels={CHECKED: "true"}),
        plain_pod(labels={GANG: "x"}),
        plain_pod(annotations={GANG: "{}"}),
        plain_pod(annotations={OURS + "anything": ""}),
    ],
    ids=["checked", "gang label", "gang annotation", "another annotation"],
)
def test_no_pod_looks_stamped_where_the_injector_is_not_at_work(
    policies: PolicyServer, namespace: str, forged: Object
) -> None:
    said = policies.create(namespace, forged)
    assert f"Pod {namespace}/plain carries labels or annotations under {OURS}" in said
    assert "leave them out" in said


@pytest.mark.parametrize("namespace", [TRAINING, LISTED])
def test_what_the_webhook_writes_passes_where_it_is_at_work(
    policies: PolicyServer, namespace: str
) -> None:
    assert policies.create(namespace, checked_pod()) == ""


@pytest.mark.parametrize("namespace", [WEB, OFF, TRAINING, SYSTEM])
def test_an_ordinary_pod_passes_everywhere(policies: PolicyServer, namespace: str) -> None:
    assert (
        policies.create(
            namespace, plain_pod(labels={"app": "x"}, annotations={"nvsentinel.nvidia.com/x": "y"})
        )
        == ""
    )


def test_a_namespace_that_is_switched_off_lets_nobody_make_a_member_later(
    policies: PolicyServer,
) -> None:
    path = policies.stored(OFF, plain_pod())
    assert "label " + GANG in policies.patch(path, add("/metadata/labels", {GANG: "x"}))


def test_a_pod_with_twenty_thousand_annotations_costs_nothing_and_hides_no_stamp(
    policies: PolicyServer, *, timed: bool
) -> None:
    many = {f"a{number}": "" for number in range(20_000)}
    begun = time.monotonic()
    assert policies.create(WEB, plain_pod(annotations=many)) == ""
    assert CHECKED.partition("/")[0] in policies.create(
        WEB, plain_pod(annotations=many, labels={CHECKED: "true"})
    )
    assert CHECKED.partition("/")[0] in policies.create(
        WEB, plain_pod(annotations={**many, ROSTER: "{}"})
    )
    if timed:  # a walk over one of them takes as long
        assert time.monotonic() - begun < 10


# --- what the webhook and the controller have written

CHANGES = {
    "the roster": (add(annotation(ROSTER), "{}"), "annotation " + ROSTER),
    "the roster away": (remove(annotation(ROSTER)), "annotation " + ROSTER),
    "the gang annotation": (add(annotation(GANG), '{"v":1}'), "annotation " + GANG),
    "a new reserved annotation": (add(annotation(OURS + "x"), ""), "annotation " + OURS + "x"),
    "all annotations": (remove("/metadata/annotations"), "annotation " + ROSTER),
    "the gang label": (add(label(GANG), "x"), "label " + GANG),
    "the checked label away": (remove(label(CHECKED)), "label " + CHECKED),
    "all labels": (remove("/metadata/labels"), "label " + GANG),
    "a check's image": (
        add("/spec/initContainers/1/image", "evil:1"),
        "preflight-dcgm-diag evil:1",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_tenant_changes_nothing_that_is_reserved(policies: PolicyServer, change: str) -> None:
    patch, part = CHANGES[change]
    path = policies.stored()
    said = policies.patch(path, patch)
    assert f"Pod {TRAINING}/{path.rpartition('/')[2]}: " in said
    assert part in said
    assert "create the pod anew" in said


FREE = {
    "his label": add(label("app"), "other"),
    "his annotation": add(annotation("team"), "other"),
    "his image": add("/spec/containers/0/image", "train:2"),
    "his init container's image": add("/spec/initContainers/0/image", "fetch:2"),
    "a toleration": add("/spec/tolerations/-", {"operator": "Exists"}),
    "a finalizer": add("/metadata/finalizers", ["example.com/hold"]),
}


@pytest.mark.parametrize("change", FREE)
def test_a_tenant_changes_what_is_his(policies: PolicyServer, change: str) -> None:
    assert policies.patch(policies.stored(), FREE[change]) == ""


def test_a_pod_without_our_labels_is_nobodys_business(policies: PolicyServer) -> None:
    path = policies.stored(WEB, plain_pod(initContainers=[{"name": "preflight-x", "image": "x"}]))
    assert policies.patch(path, add("/metadata/annotations", {OURS + "x": ""})) == ""
    assert policies.patch(path, add("/spec/initContainers/0/image", "other:1")) == ""


def test_the_controller_writes_answers_and_is_refused_by_no_policy_of_the_injector(
    policies: PolicyServer,
) -> None:
    path = policies.stored()
    assert policies.patch(path, add(annotation(ROSTER), "{}"), user=CONTROLLER) == ""
    assert (
        policies.patch(path, add(annotation(OURS + "node-topology"), "{}"), user=CONTROLLER) == ""
    )


def test_nobody_walks_over_the_annotations_of_a_pod_with_too_many(policies: PolicyServer) -> None:
    stamped = checked_pod()
    stamped["metadata"]["annotations"] |= {f"a{number}": "" for number in range(20_000)}
    path = policies.stored(TRAINING, stamped)
    assert "has more than 1,000 labels, annotations" in policies.patch(
        path, add(annotation(ROSTER), "{}")
    )
    assert policies.patch(path, add("/spec/containers/0/image", "train:2")) == ""
    assert policies.patch(path, add("/metadata/finalizers", ["example.com/hold"])) == ""
    assert policies.patch(path, remove("/metadata/finalizers")) == ""


@pytest.mark.parametrize(
    ("who", "path", "body"),
    [
        (
            "system:serviceaccount:kube-system:generic-garbage-collector",
            "",
            {"metadata": {"ownerReferences": []}},
        ),
        (
            "system:kube-scheduler",
            "/status",
            {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}},
        ),
        ("system:node:one", "/status", {"status": {"phase": "Running"}}),
        (
            "system:serviceaccount:kube-system:job-controller",
            "",
            {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}},
        ),
    ],
    ids=["garbage collector", "scheduler", "kubelet", "job controller"],
)
def test_the_clusters_own_controllers_go_about_their_work(
    policies: PolicyServer, who: str, path: str, body: Object
) -> None:
    assert policies.patch(policies.stored() + path, body, user=who) == ""


def test_a_checked_pod_is_bound_evicted_and_deleted(policies: PolicyServer) -> None:
    path = policies.stored()
    node = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": path.rpartition("/")[2]},
        "target": {"name": "one"},
    }
    assert policies.ask("POST", f"{path}/binding", node, user="system:kube-scheduler") == ""
    evicted = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": path.rpartition("/")[2]},
    }
    assert policies.ask("POST", f"{path}/eviction", evicted) == ""
    assert policies.ask("DELETE", policies.stored()) == ""
