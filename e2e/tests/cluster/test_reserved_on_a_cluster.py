"""What the API server lets a tenant change of what preflight has written. Needs KUBECONFIG; no image and no node is used."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_e2e.actors import (
    CHECKED,
    GANG,
    OURS,
    RECORD,
    ROSTER,
    Place,
    add,
    annotation,
    label,
    remove,
    said,
)

pytestmark = [pytest.mark.timeout(240), pytest.mark.policies]


# The tenant may do in his namespace whatever its admin may.
OF_A_TENANT = {
    "the roster": (add(annotation(ROSTER), "{}"), "annotation " + ROSTER),
    "the roster away": (remove(annotation(ROSTER)), "annotation " + ROSTER),
    "the gang annotation": (add(annotation(GANG), '{"v":1}'), "annotation " + GANG),
    "a new reserved annotation": (add(annotation(OURS + "x"), ""), "annotation " + OURS + "x"),
    "all annotations": (remove("/metadata/annotations"), "annotation " + ROSTER),
    "the gang label": (add(label(GANG), "x"), "label " + GANG),
    "the checked label away": (remove(label(CHECKED)), "label " + CHECKED),
    "all labels": (remove("/metadata/labels"), "label " + GANG),
    "a check's image": (add("/spec/initContainers/1/image", "evil:1"), "preflight-dcgm-diag evil:1"),
}


@pytest.mark.parametrize("change", OF_A_TENANT)
def test_a_tenant_changes_nothing_that_is_reserved(place: Place, change: str) -> None:
    patch, part = OF_A_TENANT[change]
    pod = place.pod()
    answer = place.tenant.patch(pod, patch)
    assert f"Pod {place.namespace}/{pod.metadata.name}: " in answer
    assert part in answer
    assert "create the pod anew" in answer


def test_a_tenant_makes_no_member_of_a_pod_that_is_none(place: Place) -> None:
    pod = place.pod(labels={"app": "web"})
    assert "label " + GANG in place.tenant.patch(pod, add(label(GANG), "0123456789abcdef"))


@pytest.mark.parametrize(
    "container",
    [
        {"volumeMounts": [{"name": "preflight-state", "mountPath": "/s"}]},
        {"targetContainerName": "preflight-dcgm-diag"},
    ],
    ids=["mount", "target"],
)
def test_a_tenant_looks_into_no_check(place: Place, container: dict[str, Any]) -> None:
    answer = place.tenant.debug(place.pod(), container)
    assert "ephemeral container debug can neither mount a volume preflight-* nor target a preflight check" in answer


FREE = {
    "his label": add(label("app"), "other"),
    "his annotation": add(annotation("team"), "other"),
    "his image": add("/spec/containers/0/image", "train:2"),
    "his init container's image": add("/spec/initContainers/0/image", "fetch:2"),
    "a toleration": add("/spec/tolerations/-", {"operator": "Exists"}),
}


@pytest.mark.parametrize("change", FREE)
def test_a_tenant_changes_what_is_his(place: Place, change: str) -> None:
    assert place.tenant.patch(place.pod(), FREE[change]) == ""


@pytest.mark.parametrize(
    "container",
    [{"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, {"targetContainerName": "train"}],
    ids=["mount", "target"],
)
def test_a_tenant_debugs_what_is_his(place: Place, container: dict[str, Any]) -> None:
    assert place.tenant.debug(place.pod(), container) == ""


def test_a_finalizer_comes_and_goes(place: Place) -> None:
    pod = place.pod()
    assert place.tenant.patch(pod, add("/metadata/finalizers", ["example.com/hold"])) == ""
    assert place.tenant.patch(pod, remove("/metadata/finalizers")) == ""


def test_a_pod_without_our_labels_is_nobodys_business(place: Place) -> None:
    pod = place.pod(labels={"app": "web"})
    assert place.tenant.patch(pod, add(annotation(OURS + "x"), "")) == ""
    assert place.tenant.patch(pod, add("/spec/initContainers/1/image", "other:1")) == ""


def record(place: Place) -> Any:
    """What the controller has written about a gang."""
    return place.controller.api.create_namespaced_config_map(place.namespace, place.configmap("preflight-job", RECORD))


def test_a_tenant_forges_no_record(place: Place) -> None:
    body = place.configmap("preflight-job", RECORD)
    answer = said(lambda: place.tenant.api.create_namespaced_config_map(place.namespace, body))
    assert f"ConfigMap {place.namespace}/{body['metadata']['name']} is, by its label" in answer


@pytest.mark.parametrize(
    "patch",
    [{"data": {"peers": "evil:10.0.0.9"}}, {"metadata": {"labels": None}}, {"binaryData": {"x": "eA=="}}],
    ids=["data", "labels", "binary"],
)
def test_a_tenant_changes_no_record(place: Place, patch: dict[str, Any]) -> None:
    name = record(place).metadata.name
    answer = said(lambda: place.tenant.api.patch_namespaced_config_map(name, place.namespace, patch))
    assert "only the gang controller writes those" in answer


def test_a_tenant_makes_no_record_of_a_configmap_of_his(place: Place) -> None:
    api = place.tenant.api
    his = api.create_namespaced_config_map(place.namespace, place.configmap("preflight-notes", {})).metadata.name
    assert said(lambda: api.patch_namespaced_config_map(his, place.namespace, {"data": {"a": "b"}})) == ""
    labelled = {"metadata": {"labels": RECORD}}
    assert "the record of a gang" in said(lambda: api.patch_namespaced_config_map(his, place.namespace, labelled))


def test_a_record_can_be_annotated_and_goes_with_its_gang(place: Place) -> None:
    api, name = place.tenant.api, record(place).metadata.name
    api.patch_namespaced_config_map(name, place.namespace, {"metadata": {"annotations": {"seen": "yes"}}})
    api.delete_namespaced_config_map(name, place.namespace)


# --- pods that could keep an API server busy


def many(count: int) -> dict[str, str]:
    return {f"a{number}": "" for number in range(count)}


def test_a_pod_with_many_annotations_gets_its_answer_and_keeps_it(place: Place) -> None:
    pod = place.pod(annotations=many(990))
    assert place.controller.patch(pod, add(annotation(ROSTER), "{}")) == ""
    assert "annotation a7;" in place.controller.patch(pod, remove(annotation("a7")))
    assert place.tenant.patch(pod, remove(annotation("a7"))) == ""
    assert "annotation " + ROSTER in place.tenant.patch(pod, add(annotation(ROSTER), ""))


def test_nobody_walks_over_the_annotations_of_a_pod_with_too_many(place: Place) -> None:
    pod = place.pod(annotations=many(20_000))
    assert "has more than 1,000 annotations" in place.controller.patch(pod, add(annotation(ROSTER), "{}"))
    assert "has more than 1,000 labels, annotations" in place.tenant.patch(pod, add(annotation(ROSTER), "{}"))
    assert place.tenant.patch(pod, add("/spec/containers/0/image", "train:2")) == ""
    assert place.tenant.patch(pod, add("/metadata/finalizers", ["example.com/hold"])) == ""
    assert place.tenant.patch(pod, remove("/metadata/finalizers")) == ""
