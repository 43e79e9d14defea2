"""Where the obvious way does not work: one test for each trap of which the decision is pure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cliques import (
    DRIVER,
    LITERAL,
    ON,
    SERVED,
    admit,
    clique,
    group,
    makes,
    on_update,
    patched,
    pcs,
    podclique,
)
from grove_world import Cluster
from mirrored import Mirror
from preflight_mnnvl.api.annotations import read_decision, write_decision
from preflight_mnnvl.api.names import DECISION
from preflight_mnnvl.api.types import Metadata, OwnerReference
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.domain import adoption
from preflight_mnnvl.core.expansion import plan
from preflight_mnnvl.core.mutate_podclique import ClusterView, Review, decide
from preflight_mnnvl.core.support import ClusterFacts, judge
from preflight_mnnvl.core.validate_podcliqueset import warnings


def on(scope: str) -> dict[str, str]:
    return {**ON, "grove.io/mnnvl-scope": scope}


def cluster_of(*sets: dict[str, object], labels: str = "grove", literal: bool = False) -> Cluster:
    cluster = Cluster(LITERAL if literal else DRIVER, labels=labels)
    for one in sets:
        cluster.apply(one)
    return cluster


def test_t3_the_gang_is_that_of_the_label_whatever_the_index_is() -> None:
    found = podclique(
        "t-0-g-7-w",
        "t",
        annotations=on("scalingGroupReplica"),
        group="t-0-g",
        index="7",
        gang="anything",
    )
    assert (decision := admit(found).decision) is not None
    assert (decision.cd, decision.gang) == ("t-0-g-7-cd", "anything")


@pytest.mark.parametrize(
    ("served", "mode", "version"),
    [
        (("v1beta1",), DRIVER, "v1beta1"),
        (("v1", "v1beta1"), DRIVER, "v1beta1"),
        (("v1alpha1",), DRIVER, ""),
        (("v1alpha1",), LITERAL, "v1alpha1"),
        (("v1alpha1", "v1beta1"), LITERAL, "v1beta1"),
        ((), LITERAL, ""),
    ],
)
def test_t5_the_version_is_one_that_is_served_and_known(
    served: tuple[str, ...], mode: Config, version: str
) -> None:
    mirror = Mirror(mode, lambda _: None, lambda: 0.0)
    for known, cache in mirror.parts["domain"].caches.items():
        cache.absent = known not in served
    assert mirror.support.domain_version == version


@pytest.mark.parametrize(
    ("served", "exactly"), [("v1", True), ("v1beta2", True), ("v1beta1", False)]
)
def test_t5_a_literal_claim_has_the_shape_of_its_version(served: str, exactly: bool) -> None:
    found = podclique("t-0-w", "t", annotations=ON)
    cd, claim = makes(
        found,
        LITERAL,
        pcs("t", [clique("w")]),
        support=judge(SERVED._replace(claim=served), LITERAL),
    )
    assert claim["apiVersion"] == f"resource.k8s.io/{served}"
    (request,) = claim["spec"]["devices"]["requests"]
    wanted = request["exactly"] if exactly else request
    assert wanted["deviceClassName"] == "compute-domain.nvidia.com"
    assert wanted["selectors"] == [
        {"cel": {"expression": 'device.attributes["compute-domain.nvidia.com"].name == "t-0-cd"'}}
    ]
    assert cd["spec"]["numNodes"] == 0


def test_t5_a_literal_domain_has_a_channel_only_in_the_version_that_wants_one() -> None:
    found = podclique("t-0-w", "t", annotations=ON)
    for version, required in (("v1beta1", True), ("v1alpha1", False)):
        known = judge(SERVED._replace(domain=version), LITERAL)
        domain, _ = makes(found, LITERAL, support=known)
        assert ("channel" in domain["spec"]) is required


def test_t6_a_domain_that_went_with_its_gang_is_made_again_and_told() -> None:
    cluster = cluster_of(pcs("t", [clique("w")], annotations=ON))
    cluster.grove("t")
    first = cluster.store["cd"]["t-0-cd"]["metadata"]["uid"]
    cluster.delete("pg", "t-0")
    cluster.collect()
    cluster.gangs("t")
    cluster.settle()
    again = cluster.store["cd"]["t-0-cd"]["metadata"]
    assert again["uid"] != first
    assert again["annotations"] == {"mnnvl.nvsentinel.nvidia.com/recreated": first}
    assert again["ownerReferences"][0]["uid"] == cluster.store["pg"]["t-0"]["metadata"]["uid"]
    assert "MnnvlDomainRecreated" in cluster.told.values()
    assert any(
        "pods that joined the old domain must be restarted" in message
        for message in cluster.messages
    )


def test_t7_admission_makes_nothing_and_the_controller_all_that_a_stored_podclique_needs() -> None:
    found = podclique("t-0-w", "t", annotations=ON)
    cluster = cluster_of(pcs("t", [clique("w")], annotations=ON), literal=True)
    cluster.cliques("t")
    assert (cluster.store["cd"], cluster.store["claim"]) == ({}, {})
    assert [body["kind"] for body in makes(found)] == ["ComputeDomain"]
    assert [body["kind"] for body in makes(found, LITERAL)] == ["ComputeDomain", "ResourceClaim"]


def test_t9_annotations_of_set_and_group_arrive_though_grove_does_not_copy_them() -> None:
    set_ = pcs(
        "t", [clique("w"), clique("v")], [group("g", ["v"], {"grove.io/mnnvl-scope": "clique"})], ON
    )
    cluster = cluster_of(set_)
    cluster.cliques("t")
    w, v = (
        cluster.store["pclq"][name]["metadata"]["annotations"] for name in ("t-0-w", "t-0-g-0-v")
    )
    assert {k: x for k, x in w.items() if k != DECISION} == ON
    assert {k: x for k, x in v.items() if k != DECISION} == on("clique")


def test_t9_a_template_is_found_by_its_whole_name_and_not_by_its_end() -> None:
    set_ = pcs(
        "t", [clique("worker", annotations=ON), clique("gpu-worker")], [group("g", ["gpu-worker"])]
    )
    found = podclique("t-0-g-0-gpu-worker", "t", group="t-0-g", index="0")
    assert admit(found, DRIVER, set_).result == "not-enabled"


def test_t10_adoption_counts_without_the_annotation_on_the_gang() -> None:
    cluster = cluster_of(pcs("t", [clique("w")], annotations=ON))
    cluster.grove("t")
    assert cluster.store["pg"]["t-0"]["metadata"]["annotations"] == {
        "grove.io/mnnvl-resources-adopted": "true"
    }
    del cluster.store["pg"]["t-0"]["metadata"]["annotations"]
    (turn,) = cluster.turn().values()
    assert (turn.state, turn.actions) == ("adopted", ())


def test_t11_adoption_is_a_patch_and_needs_no_right_to_delete() -> None:
    patch = adoption(
        Metadata(name="a", uid="u", resource_version="7"), Metadata(name="gang", uid="g")
    )
    assert [(step["op"], step["path"]) for step in patch[:3]] == [
        ("test", "/metadata/uid"),
        ("test", "/metadata/resourceVersion"),
        ("add", "/metadata/ownerReferences"),
    ]
    owner = OwnerReference("grove.io/v1alpha1", "PodCliqueSet", "t", "s", False)
    owned = Metadata(name="a", uid="u", resource_version="7", owner_references=[owner])
    # What the driver writes into it meanwhile is in nobody's way; another owner is.
    assert adoption(owned, Metadata(name="gang", uid="g"))[1] == {
        "op": "test",
        "path": "/metadata/ownerReferences",
        "value": [
            {
                "apiVersion": "grove.io/v1alpha1",
                "kind": "PodCliqueSet",
                "name": "t",
                "uid": "s",
                "controller": False,
            }
        ],
    }


def test_t12_a_clique_called_like_a_replica_of_a_group_has_a_domain_of_its_own() -> None:
    set_ = pcs(
        "t",
        [clique("p-1", annotations=on("clique")), clique("w")],
        [group("p", ["w"], on("scalingGroupReplica"), 2)],
    )
    alone = admit(podclique("t-0-p-1", "t", annotations=on("clique")), DRIVER, set_).decision
    grouped = podclique(
        "t-0-p-1-w", "t", group="t-0-p", index="1", annotations=on("scalingGroupReplica")
    )
    replica = admit(grouped, DRIVER, set_).decision
    assert alone is not None
    assert replica is not None
    assert replica.cd == "t-0-p-1-cd"
    assert alone.cd != replica.cd
    assert alone.cd.startswith("t-0-p-1-")


def test_t13_nothing_of_ours_looks_like_groves_own() -> None:
    cluster = cluster_of(pcs("t", [clique("w")], annotations=ON))
    cluster.cliques("t")
    cluster.turn()
    meta = cluster.store["cd"]["t-0-cd"]["metadata"]
    assert meta["labels"]["app.kubernetes.io/managed-by"] == "preflight-mnnvl"
    assert (
        meta["ownerReferences"][0]["controller"],
        meta["ownerReferences"][0]["blockOwnerDeletion"],
    ) == (
        False,
        False,
    )


@pytest.mark.parametrize(("value", "refused"), [("rack", True), ("none", False)])
def test_t13_both_features_at_once_are_refused(value: str, refused: bool) -> None:
    set_ = pcs("t", [clique("w")], annotations={**ON, "grove.io/mnnvl-group": value})
    answer = admit(podclique("t-0-w", "t"), DRIVER, set_)
    assert answer.allowed is not refused
    if refused:
        assert (
            'grove.io/mnnvl-group is "rack" at the PodCliqueSet while grove.io/mnnvl-enabled is "true"'
            in answer.message
        )


def test_t14_a_set_that_needs_more_nodes_than_carry_the_label_is_warned_of() -> None:
    from cliques import decoded_set

    set_ = decoded_set(
        pcs(
            "t",
            [clique("w", replicas=4), clique("ps", gpus=2, replicas=2)],
            annotations=ON,
            replicas=2,
        )
    )
    (said,) = warnings(
        set_, plan(set_, DRIVER), DRIVER, judge(SERVED._replace(fabric_nodes=8), DRIVER)
    )
    assert "need 12 nodes, one each, and 8 carry the label nvidia.com/gpu.clique" in said
    assert (
        warnings(set_, plan(set_, DRIVER), DRIVER, judge(SERVED._replace(fabric_nodes=12), DRIVER))
        == []
    )


def test_t16_an_unknown_scope_is_refused_with_the_three_that_there_are() -> None:
    for scope in ("Replica", "pod"):
        answer = admit(podclique("t-0-w", "t", annotations=on(scope)))
        assert answer.message == (
            f'PodClique default/t-0-w: the scope "{scope}" is unknown; write one of replica, clique, scalingGroupReplica.'
        )
    assert admit(podclique("t-0-w", "t", annotations=on(""))).result == "injected"


def test_t18_a_podclique_older_than_the_add_on_stays_without_and_that_is_told() -> None:
    old = podclique("t-0-w", "t", annotations=ON)
    answer = on_update(old, old)
    assert (answer.allowed, answer.patch) == (True, ())
    assert answer.warnings == (
        "PodClique t-0-w asks for multi-node NVLink, and its pods get no claim; delete it, and Grove makes it anew with one",
    )


@pytest.mark.parametrize(
    "facts", [ClusterFacts(domain=""), ClusterFacts("v1beta1", fabric_nodes=0)]
)
def test_where_none_can_be_had_nobody_is_told_to_make_a_podclique_anew(facts: ClusterFacts) -> None:
    config = Config(on_unsupported="ignore", require_fabric_nodes=True)
    old = json.dumps(podclique("t-0-w", "t", annotations=ON)).encode()
    answer = decide(
        Review("UPDATE", "default", old, old), config, ClusterView(judge(facts, config))
    )
    assert (answer.allowed, answer.patch, answer.warnings) == (True, (), ())


def test_t19_nothing_carries_a_finalizer_of_ours() -> None:
    found = podclique("t-0-w", "t", annotations=ON)
    assert all("finalizers" not in body["metadata"] for body in makes(found, LITERAL))
    assert "finalizer" not in json.dumps(patched(found, admit(found)))


def test_the_decision_of_an_earlier_release_is_read_and_still_written_alike() -> None:
    golden = (Path(__file__).parent / "golden/v1/decision.json").read_text().strip()
    decision = read_decision(golden)
    assert decision is not None
    assert (decision.mode, decision.cd, decision.gpu_claims) == (
        "driver",
        "set-0-domain",
        ("gpus",),
    )
    assert write_decision(decision) == golden
