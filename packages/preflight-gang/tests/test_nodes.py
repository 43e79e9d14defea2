"""What a pod is told about its node, and what is kept of nodes and volumes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gangs import pod_json
from preflight_gang.api.types import Node, Pod, node_with
from preflight_gang.config import TOPOLOGY_LABELS
from preflight_gang.core.node_facts import facts_patch, goes_with_roster, missing_annotations
from preflight_proto import names
from preflight_proto.names import INSTANCE_TYPE_LABEL

ZONE = "topology.kubernetes.io/zone"
LABELS = {
    INSTANCE_TYPE_LABEL: "p5.48xlarge",
    ZONE: "eu-1a",
    "nvidia.com/gpu.clique": "",
    "team": "red",
}


OF_THE_GANG = {"name": names.GANG_VOLUME, "projected": {"sources": []}}
KEPT = node_with({INSTANCE_TYPE_LABEL, *TOPOLOGY_LABELS})
OF_THE_NODE = {"name": "preflight-node", "downwardAPI": {"items": []}}


def a_pod(*volumes: dict[str, Any], mounted_by_first: str = "", **fields: Any) -> Pod:
    made = pod_json("pod-0", **fields)
    made["spec"]["volumes"] = [{"name": "data", "hostPath": {"path": "/data"}}, *volumes]
    if mounted_by_first:
        made["spec"]["initContainers"][0]["volumeMounts"] = [
            {"name": mounted_by_first, "mountPath": "/x"}
        ]
    return msgspec.convert(made, Pod)


def a_node(**labels: str) -> Node:
    found = {
        "metadata": {"name": "node-a", "labels": {**LABELS, **labels}},
        "status": {"images": [{"names": ["x"]}]},
    }
    return msgspec.json.decode(msgspec.json.encode(found), type=KEPT)


KNOWN = {names.INSTANCE_TYPE_ANNOTATION: "another", names.TOPOLOGY_ANNOTATION: "{}"}
TOPOLOGY = {names.TOPOLOGY_ANNOTATION: f'{{"{ZONE}":"eu-1a"}}'}
TYPE = {names.INSTANCE_TYPE_ANNOTATION: "p5.48xlarge"}
BARE = msgspec.convert({"metadata": {"name": "node-a"}}, Node)


@pytest.mark.parametrize(
    ("pod", "node", "annotations"),
    [
        pytest.param(a_pod(OF_THE_NODE), a_node(), TYPE | TOPOLOGY, id="what it shows"),
        pytest.param(a_pod(OF_THE_GANG), a_node(), TOPOLOGY, id="the gang's check: topology alone"),
        pytest.param(a_pod(), a_node(), {}, id="it shows nothing"),
        pytest.param(a_pod({**OF_THE_NODE, "name": "mine"}), a_node(), {}, id="not by our volume"),
        pytest.param(a_pod(OF_THE_NODE, annotations=KNOWN), a_node(), {}, id="once"),
        pytest.param(
            a_pod(OF_THE_NODE), BARE, {names.TOPOLOGY_ANNOTATION: "{}"}, id="a node without labels"
        ),
        pytest.param(a_pod(OF_THE_NODE), None, {}, id="a node that is not known"),
    ],
)
def test_a_pod_is_told_what_it_shows_of_its_node(
    pod: Pod, node: Node | None, annotations: dict[str, str]
) -> None:
    found = missing_annotations(pod, node, INSTANCE_TYPE_LABEL, TOPOLOGY_LABELS)
    assert found == annotations


def test_of_a_node_only_the_wanted_labels_are_kept() -> None:
    assert a_node().metadata.labels.keys() == {INSTANCE_TYPE_LABEL, ZONE, "nvidia.com/gpu.clique"}


def test_a_node_whose_other_labels_change_is_the_same_node() -> None:
    assert a_node(team="blue") == a_node()


def test_of_volumes_only_ours_that_show_the_node_are_kept() -> None:
    assert [volume.name for volume in a_pod(OF_THE_NODE).spec.volumes] == ["preflight-node"]


def test_what_the_gang_check_alone_reads_goes_with_the_first_roster() -> None:
    assert goes_with_roster(a_pod(OF_THE_GANG))
    assert not goes_with_roster(a_pod(OF_THE_GANG, roster='{"v":1}')), "that was written already"
    assert not goes_with_roster(a_pod(OF_THE_GANG, roster=None)), "none will come"
    assert not goes_with_roster(a_pod(OF_THE_GANG, OF_THE_NODE, mounted_by_first="preflight-node"))


def test_the_patch_is_for_this_pod_alone() -> None:
    assert facts_patch(a_pod(), {"a/b": "c"}) == [
        {"op": "test", "path": "/metadata/uid", "value": "uid-pod-0"},
        {"op": "add", "path": "/metadata/annotations/a~1b", "value": "c"},
    ]


def test_a_pod_without_annotations_gets_them_only_while_it_has_none() -> None:
    bare = a_pod(annotations={})
    assert facts_patch(bare, {"a/b": "c"})[1:] == [
        {"op": "test", "path": "/metadata/annotations", "value": None},
        {"op": "add", "path": "/metadata/annotations", "value": {"a/b": "c"}},
    ]


def test_another_label_may_name_the_instance_type() -> None:
    text = msgspec.json.encode(
        {"metadata": {"name": "node-0", "labels": {**LABELS, "example.com/sku": "ours"}}}
    )
    node = msgspec.json.decode(text, type=node_with({"example.com/sku"}))
    assert missing_annotations(a_pod(OF_THE_NODE), node, "example.com/sku", ()) == {
        names.INSTANCE_TYPE_ANNOTATION: "ours",
        names.TOPOLOGY_ANNOTATION: "{}",
    }
