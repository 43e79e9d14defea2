"""The definition, as a real API server takes it."""

from __future__ import annotations

from typing import Any

import pytest
from lab import Lab, condition
from player import job
from preflight_appwrapper.api.crd import crd
from preflight_kube.client.client import Invalid

pytestmark = pytest.mark.anyio


def wrapper(**spec: Any) -> dict[str, Any]:
    components = [{"template": job()}]
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": "w"},
        "spec": {"components": components, **spec},
    }


async def test_the_definition_is_established_and_has_its_short_name_and_columns(lab: Lab) -> None:
    path = (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/appwrappers.workload.codeflare.dev"
    )
    found = await lab.get(path)
    assert found is not None
    said = {one["type"]: one["status"] for one in found["status"]["conditions"]}
    assert said["Established"] == "True"
    assert said.get("NonStructuralSchema", "False") == "False"
    assert found["spec"]["names"]["shortNames"] == ["aw"]
    columns = found["spec"]["versions"][0]["additionalPrinterColumns"]
    assert [one["name"] for one in columns] == [
        "Status",
        "Quota Reserved",
        "Resources Deployed",
        "Unhealthy",
        "Age",
    ]


async def test_what_kueue_writes_is_kept_as_it_is(lab: Lab) -> None:
    infos = [
        {
            "annotations": {"a": "b"},
            "labels": {"l": "m"},
            "nodeSelector": {"zone": "z"},
            "tolerations": [
                {"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}
            ],
            "schedulingGates": [{"name": "g"}],
        }
    ]
    body = wrapper(suspend=True, managedBy="kueue.x-k8s.io/multikueue")
    body["spec"]["components"][0] |= {
        "podSets": [{"path": "template.spec.template", "replicas": 2, "annotations": {"x": "y"}}],
        "podSetInfos": infos,
        "annotations": {"free": "text"},
    }
    await lab.client.create(lab.wrappers(), body)
    found = await lab.wrapper()
    assert found["spec"] == body["spec"]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"components": [{"template": ["a"]}]}, "spec.components[0].template"),
        ({"components": [{"template": "text"}]}, "spec.components[0].template"),
        ({"components": [{}]}, "spec.components[0].template: Required"),
        ({"components": [{"template": job(), "podSets": [{"replicas": 1}]}]}, "podSets[0].path: Required"),
        ({"components": [{"template": job(), "podSets": [{"path": "x", "replicas": 2**40}]}]}, "replicas"),
        ({"components": "many"}, "spec.components"),
        ({"components": [{"template": {"metadata": {"name": "x"}}}]}, "kind"),
    ],
)  # fmt: skip
async def test_a_spec_of_another_shape_is_refused_with_its_path(
    lab: Lab, spec: Any, said: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await lab.client.create(lab.wrappers(), wrapper(**spec))
    assert said in str(refused.value)


async def test_a_status_is_written_beside_the_spec_and_has_one_condition_of_each_type(
    lab: Lab,
) -> None:
    lab.judged = False
    await lab.client.create(lab.wrappers(), wrapper())
    found = await lab.wrapper()
    at = "2026-01-01T00:00:00Z"
    one = {
        "type": "Unhealthy",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": at,
    }
    known = {"name": "train", "kind": "Job", "apiVersion": "batch/v1", "podSets": []}
    status = {
        "phase": "Running",
        "resettingCount": 1,
        "conditions": [one],
        "componentStatus": [known],
    }
    await lab.client.replace_status(
        lab.wrappers("w"), {**found, "spec": {"components": []}, "status": status}
    )
    stored = await lab.wrapper()
    assert stored["spec"] == found["spec"]
    assert condition(stored, "Unhealthy") == one
    with pytest.raises(Invalid, match="Duplicate value"):
        await lab.client.replace_status(
            lab.wrappers("w"), {**stored, "status": {**status, "conditions": [one, one]}}
        )


def test_the_definition_has_every_field_that_is_read_and_no_other() -> None:
    from preflight_appwrapper.api.types import (
        AppWrapperSpec,
        AppWrapperStatus,
        ComponentStatus,
        PodSet,
    )

    whole = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    for struct, part in ((AppWrapperSpec, whole["spec"]), (AppWrapperStatus, whole["status"])):
        assert set(part["properties"]) == set(struct.__struct_encode_fields__)
    known = whole["status"]["properties"]["componentStatus"]["items"]
    assert set(known["properties"]) == set(ComponentStatus.__struct_encode_fields__)
    assert set(known["properties"]["podSets"]["items"]["properties"]) == set(
        PodSet.__struct_encode_fields__
    )
