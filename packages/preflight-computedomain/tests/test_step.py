from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import msgspec
import pytest
from etcd import NAMESPACE, Died, World
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from preflight_computedomain.api.names import FINALIZER, LABEL, TARGET_LABEL
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain
from preflight_computedomain.core import template
from preflight_computedomain.core.reconcile import (
    NOT_READY,
    READY,
    reconcile,
)

FOREIGN: dict[str, Any] = {
    "metadata": {
        "name": "t",
        "namespace": NAMESPACE,
        "labels": {"app": "theirs"},
        "finalizers": ["theirs/f"],
    },
    "spec": {"spec": {}},
}


@pytest.fixture
def world() -> World:
    made = World()
    made.create_domain("d", "t")
    return made


def decoded(body: dict[str, Any]) -> ClaimTemplate:
    return msgspec.json.decode(json.dumps(body).encode(), type=ClaimTemplate)


def status(world: World, name: str = "d") -> str:
    found: str = world.domains[name].get("status", {}).get("status", "")
    return found


def test_a_new_domain_is_ready_after_three_requests_in_their_order(world: World) -> None:
    world.look("d")
    assert world.requests == ["AddFinalizer", "CreateTemplate", "WriteStatus"]
    assert status(world) == READY
    world.look("d")
    assert len(world.requests) == 3


def test_a_deleted_domain_is_gone_after_four_requests_in_their_order(world: World) -> None:
    world.look("d")
    world.requests.clear()
    world.delete(world.domains, "d")
    world.look("d")
    assert world.requests == ["DeleteTemplate", "ReleaseTemplate", "ConfirmGone", "RemoveFinalizer"]
    assert (world.domains, world.templates) == ({}, {})


def test_the_template_asks_for_one_channel_with_sorted_parameters(world: World) -> None:
    domain = world.domain("d")
    body = template.body(domain)
    assert body["metadata"]["labels"] == {LABEL: domain.metadata.uid, TARGET_LABEL: "Workload"}
    (config,) = body["spec"]["spec"]["devices"]["config"]
    assert list(config["opaque"]["parameters"]) == sorted(config["opaque"]["parameters"])
    assert config["opaque"]["parameters"]["domainID"] == domain.metadata.uid
    assert template.owner(decoded(body)) == domain.metadata.uid


def test_num_nodes_and_nodes_have_no_say(world: World) -> None:
    world.domains["d"]["spec"]["numNodes"] = 8
    world.domains["d"]["status"] = {
        "status": "NotReady",
        "nodes": [{"name": "n", "status": "NotReady"}],
    }
    world.look("d")
    assert status(world) == READY


def test_a_template_deleted_by_hand_is_made_again_twenty_times(world: World) -> None:
    world.look("d")
    for _ in range(20):
        before = world.templates["t"]["metadata"]["uid"]
        world.delete(world.templates, "t")
        world.look("d")
        assert status(world) == NOT_READY
        assert "t" not in world.templates
        world.look("d")
        assert status(world) == READY
        assert world.templates["t"]["metadata"]["uid"] != before


def test_a_foreign_template_is_never_touched_and_is_named_until_it_goes(world: World) -> None:
    world.create_template(FOREIGN)
    before = copy.deepcopy(world.templates)
    world.look("d")
    said = reconcile(world.domain("d"), world.seen())
    assert (status(world), world.templates) == (NOT_READY, before)
    (event,) = said.events
    assert (event.reason, event.about) == (
        "ResourceClaimTemplateConflict",
        before["t"]["metadata"]["uid"],
    )
    assert "ResourceClaimTemplate t " in event.message
    assert "t" in said.next
    del world.templates["t"]
    world.look("d")
    assert status(world) == READY


@pytest.mark.parametrize("name", ["", "Train_A", "../configmaps", "a?watch=1", "x" * 254])
def test_a_name_that_no_template_can_have_is_told_and_the_domain_can_go(
    world: World, name: str
) -> None:
    world.create_domain("odd", name)
    world.look("odd")
    said = reconcile(world.domain("odd"), world.seen())
    assert (status(world, "odd"), said.actions) == (NOT_READY, ())
    (event,) = said.events
    assert event.reason == "InvalidResourceClaimTemplateName"
    assert "make this ComputeDomain anew" in event.message
    world.requests.clear()
    world.delete(world.domains, "odd")
    world.look("odd")
    assert world.requests == ["RemoveFinalizer"]
    assert "odd" not in world.domains


@pytest.mark.parametrize(
    "label",
    [
        {LABEL: "another-uid"},
        {TARGET_LABEL: "Daemon"},
        {LABEL: "another-uid", TARGET_LABEL: "Workload"},
    ],
)
def test_a_template_whose_labels_say_another_owner_is_foreign(
    world: World, label: dict[str, str]
) -> None:
    world.look("d")
    world.templates["t"]["metadata"]["labels"].update(label)
    said = reconcile(world.domain("d"), world.seen())
    assert said.status == NOT_READY
    assert [event.reason for event in said.events] == ["ResourceClaimTemplateConflict"]


def test_who_wants_the_template_of_another_computedomain_is_not_told_to_delete_it(
    world: World,
) -> None:
    world.look("d")
    world.create_domain("second", "t")
    (event,) = reconcile(world.domain("second"), world.seen()).events
    assert world.domain("d").metadata.uid in event.message
    assert "delete" not in event.message


def test_all_is_ready_and_warned_about(world: World) -> None:
    world.create_domain("all", "t-all", mode="All")
    world.look("all")
    assert status(world, "all") == READY
    (event,) = reconcile(world.domain("all"), world.seen()).events
    assert event.reason == "UnsupportedAllocationMode"
    assert "set Single" in event.message
    (config,) = world.templates["t-all"]["spec"]["spec"]["devices"]["config"]
    assert config["opaque"]["parameters"]["allocationMode"] == "All"


def test_a_domain_waits_for_foreign_finalizers_of_its_template(world: World) -> None:
    world.look("d")
    world.templates["t"]["metadata"]["finalizers"].append("theirs/f")
    world.delete(world.domains, "d")
    world.look("d")
    assert world.templates["t"]["metadata"]["finalizers"] == ["theirs/f"]
    assert "d" in world.domains
    world.finalizers(world.templates, "t", [])
    world.look("d")
    assert world.domains == {}


@pytest.mark.parametrize("kind", [ComputeDomain, ClaimTemplate])
def test_an_object_with_more_finalizers_than_anybody_has_is_not_read(kind: type[object]) -> None:
    def read(count: int) -> object:
        spec = {"channel": {"resourceClaimTemplate": {"name": "t"}}}
        metadata = {"name": "n", "finalizers": ["theirs/f"] * count}
        return msgspec.convert({"metadata": metadata, "spec": spec}, kind)

    assert read(64)
    with pytest.raises(msgspec.ValidationError, match="it has 65 finalizers, more than 64"):
        read(65)


def test_nothing_of_the_other_mode_is_swept() -> None:
    world = World()
    world.create_domain("d", "t")
    body = template.body(world.domain("d"))
    del world.domains["d"]
    body["metadata"]["labels"][TARGET_LABEL] = "Daemon"
    world.create_template(body)
    plain = template.body(_other(world))
    plain["metadata"].update(name="by-hand", labels={})
    world.create_template(plain)
    world.look_everywhere()
    assert sorted(world.templates) == ["by-hand", "t"]


def _other(world: World) -> Any:
    world.create_domain("x", "x")
    found = world.domain("x")
    del world.domains["x"]
    return found


NAMES = st.sampled_from(["t", "u"])
DOMAINS = st.sampled_from(["d", "e"])


class Histories(RuleBasedStateMachine):
    """Users, a controller that dies, and a cluster: nothing foreign is written, and everything
    ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.foreign: dict[str, str] = {}

    @rule(name=DOMAINS, wants=NAMES, mode=st.sampled_from(["Single", "All"]))
    def created(self, name: str, wants: str, mode: str) -> None:
        self.world.create_domain(name, wants, mode)

    @rule(name=DOMAINS)
    def deleted(self, name: str) -> None:
        self.world.delete(self.world.domains, name)

    @rule(name=NAMES)
    def template_deleted(self, name: str) -> None:
        self.world.delete(self.world.templates, name)
        if name in self.foreign:  # it stays, for its own finalizer
            self.foreign[name] = json.dumps(self.world.templates[name])

    @precondition(lambda self: self.world.templates)
    @rule(data=st.data())
    def metadata_removed(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.templates)))
        if name not in self.foreign:
            self.world.templates[name]["metadata"]["labels"] = {}
            self.world.finalizers(self.world.templates, name, [])

    @rule(name=NAMES)
    def name_taken(self, name: str) -> None:
        if name not in self.world.templates:
            self.world.create_template(
                {**FOREIGN, "metadata": {**FOREIGN["metadata"], "name": name}}
            )
            self.foreign[name] = json.dumps(self.world.templates[name])

    @rule(name=DOMAINS, requests=st.none() | st.integers(0, 3))
    def looked(self, name: str, requests: int | None) -> None:
        self.world.dies_after = requests
        with contextlib.suppress(Died):
            self.world.look(name)
        self.world.dies_after = None

    @invariant()
    def nothing_foreign_is_written(self) -> None:
        for name, before in self.foreign.items():
            assert json.dumps(self.world.templates[name]) == before

    def teardown(self) -> None:
        for _ in range(6):
            self.world.look_everywhere()
        for name, domain in self.world.domains.items():
            assert (
                "deletionTimestamp" not in domain["metadata"]
                or self.world.domain(name).template in self.foreign
            )
            mine = [
                one for one in self.world.seen() if template.owner(one) == domain["metadata"]["uid"]
            ]
            assert (status(self.world, name) == READY) == (len(mine) == 1)
        for name in list(self.world.domains):
            self.world.delete(self.world.domains, name)
        for _ in range(3):
            self.world.look_everywhere()
        assert self.world.domains == {}
        # Only a template whose label was removed while nobody looked after it is nobody's now.
        assert all(
            key in self.foreign or not one["metadata"].get("labels")
            for key, one in self.world.templates.items()
        )


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=4 * settings().max_examples, stateful_step_count=20)


def test_actions_carry_what_makes_them_safe(world: World) -> None:
    (create,) = [
        one for one in reconcile(world.domain("d"), []).actions if one.kind == "CreateTemplate"
    ]
    assert create.body["metadata"]["finalizers"] == [FINALIZER]
    world.look("d")
    world.delete(world.domains, "d")
    (delete,) = [
        one
        for one in reconcile(world.domain("d"), world.seen()).actions
        if one.kind == "DeleteTemplate"
    ]
    assert delete.uid == world.templates["t"]["metadata"]["uid"]
