"""Documents that others read: the CDI file and the CustomResourceDefinition."""

from __future__ import annotations

import json

from claimed import uid
from jsonschema import Draft202012Validator
from preflight_computedomain.api.crd import crd
from preflight_computedomain.api.names import cdi_file
from preflight_computedomain.node.state_dir import document, uid_of


def test_the_cdi_file_adds_one_device_node_that_everybody_may_use() -> None:
    made = json.loads(document(uid(1), 235))
    assert (made["cdiVersion"], made["kind"]) == ("0.5.0", "k8s.compute-domain.nvidia.com/claim")
    (device,) = made["devices"]
    assert device["name"] == f"{uid(1)}-channel-0"
    assert device["containerEdits"] == {
        "deviceNodes": [
            {
                "path": "/dev/nvidia-caps-imex-channels/channel0",
                "type": "c",
                "major": 235,
                "minor": 0,
                "fileMode": 0o666,
            }
        ]
    }


def test_a_files_name_tells_its_claim_finished_or_not() -> None:
    assert uid_of(cdi_file("u-1")) == uid_of(cdi_file("u-1") + ".tmp") == "u-1"
    assert uid_of("nvidia.json") == ""


def test_the_definition_takes_a_domain_and_refuses_another_mode() -> None:
    (version,) = crd()["spec"]["versions"]
    judge = Draft202012Validator(version["schema"]["openAPIV3Schema"])
    spec = {
        "numNodes": 0,
        "channel": {"resourceClaimTemplate": {"name": "t"}, "allocationMode": "Single"},
    }
    assert judge.is_valid({"spec": spec})
    assert not judge.is_valid({"spec": {**spec, "numNodes": -1}})
    assert not judge.is_valid(
        {"spec": {"channel": {"resourceClaimTemplate": {"name": "t"}, "allocationMode": "foo"}}}
    )
    assert not judge.is_valid({"spec": {"channel": {}}})
