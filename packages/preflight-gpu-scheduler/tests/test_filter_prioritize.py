"""What filter and prioritize answer, and what they see of a node."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.allocation import Reserved, written
from preflight_gpu_scheduler.api.gpu_node_status import Device, Inventory
from preflight_gpu_scheduler.api.types import Node
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.core.filter_prioritize import (
    FilterResult,
    NodeView,
    Question,
    choices,
    filter_nodes,
    known,
    own_ids,
    prioritize,
)
from preflight_gpu_scheduler.core.filter_prioritize import view as view_of
from shapes import claim, lease, node, pod, view

NODES = {
    "free": view(),
    "half": view(0x0F),
    "one": view(0x01),
    "stale": view(blocked=messages.STATUS_STALE),
    "labelled": view(labels={"pool": "a"}),
}


def seen(
    found: Node | None, inventory: Inventory | None, busy: Collection[int], **more: Any
) -> NodeView:
    """The view of a node; ``more`` is the configuration's, or the view's."""
    config = Config(**{key: more.pop(key) for key in set(more) & set(Config.__struct_fields__)})
    return view_of(found, known(inventory, "n", config), busy, config, **more)


def failed(result: FilterResult) -> dict[str, str]:
    return result.failed_nodes | result.failed_and_unresolvable_nodes


def ask(**changes: Any) -> Question:
    return Question(**{"pod": pod(), "claim": claim(), **changes})


def test_a_node_passes_when_the_choice_finds_gpus_there_and_the_others_say_why_not() -> None:
    answered = filter_nodes(ask(), [*NODES, "strange"], NODES)
    assert answered.node_names == ("free", "half", "labelled")
    assert failed(answered) == {
        "one": messages.TOO_FEW,
        "stale": messages.STATUS_STALE,
        "strange": messages.NODE_UNKNOWN,
    }


def test_what_eviction_cannot_change_is_unresolvable() -> None:
    result = filter_nodes(ask(), ["one", "stale"], NODES)
    assert (result.failed_nodes, result.failed_and_unresolvable_nodes) == (
        {"one": messages.TOO_FEW},
        {"stale": messages.STATUS_STALE},
    )


@pytest.mark.parametrize(
    ("question", "why"),
    [
        (ask(claim=None, refused=messages.CLAIM_NOT_FOUND), messages.CLAIM_NOT_FOUND),
        (ask(refused=messages.COUNT_DIFFERS), messages.COUNT_DIFFERS),
        (ask(claim=claim(gang="job")), messages.GANG_NOT_RESERVED),
        (ask(claim=claim(labels={"pool": "b"})), messages.LABELS_DIFFER),
        (ask(claim=claim(9)), messages.TOO_SMALL),
        (ask(claim=claim(5, mode="Required")), messages.ISLANDS_TOO_SMALL),
    ],
)
def test_why_no_node_does(question: Question, why: str) -> None:
    answered = filter_nodes(question, ["free"], NODES)
    assert not answered.node_names
    assert set(failed(answered).values()) == {why}


def test_of_many_nodes_the_best_are_given_and_of_these_the_fullest() -> None:
    masks = {"whole": 0xFF, "pair": 0b11, "pairs": 0x33, "split": 0b10001, "one": 1}
    nodes = {name: view(mask) for name, mask in masks.items()}
    assert filter_nodes(ask(), list(nodes), nodes, most=2).node_names == ("pair", "pairs")
    assert failed(filter_nodes(ask(), list(nodes), nodes, most=2)) == {"one": messages.TOO_FEW}
    assert len(filter_nodes(ask(), list(nodes), nodes, most=4).node_names or ()) == 4
    assert len(filter_nodes(ask(), list(nodes), nodes).node_names or ()) == 4


def test_a_selector_takes_the_nodes_with_its_labels() -> None:
    assert filter_nodes(ask(claim=claim(labels={"pool": "a"})), list(NODES), NODES).node_names == (
        "labelled",
    )


def test_a_full_set_of_leases_leads_to_its_node_and_half_a_set_where_it_can_be_completed() -> None:
    full = ask(own={"one": (0b110, (1, 2))})
    assert filter_nodes(full, ["free", "one"], NODES).node_names == ("one",)
    assert failed(filter_nodes(full, ["free"], NODES)) == {"free": messages.ELSEWHERE}
    assert filter_nodes(ask(own={"one": (0b10, (1,))}), ["free", "one"], NODES).node_names == (
        "one",
    )
    hopeless = ask(claim=claim(3), own={"one": (0b10, (1,))})
    assert filter_nodes(hopeless, ["free", "one"], NODES).node_names == ("free",)
    assert next(choices(full, ["one"], NODES))[0].ids == (1, 2)


def test_a_gangs_member_goes_where_its_plan_says() -> None:
    told = written(
        Reserved(
            number=1, node="half", ids=(0, 1), plan="x", members=2, first="p", first_uid="uid-p"
        )
    )
    question = ask(pod=pod(annotations={names.RESERVED_ANNOTATION: told}), claim=claim(gang="job"))
    assert filter_nodes(question, ["free", "half"], NODES).node_names == ("half",)


def test_prioritize_likes_what_leaves_least_over() -> None:
    nodes = {
        "whole": view(0xFF),
        "pair": view(0b11),
        "split": view(0b10001),
        "stale": NODES["stale"],
    }
    found = {one.host: one.score for one in prioritize(ask(), [*nodes, "strange"], nodes)}
    assert found == {"whole": 8, "pair": 10, "split": 2, "stale": 0, "strange": 0}


@given(
    st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=6),
    st.integers(1, 8),
    st.sampled_from(["Required", "Preferred", "Ignore"]),
)
def test_every_node_is_answered_once_and_scores_are_within_bounds(
    found: list[tuple[int, bool]], count: int, mode: str
) -> None:
    nodes = {
        f"n{n}": view(mask, blocked=messages.NO_STATUS if blocked else "")
        for n, (mask, blocked) in enumerate(found)
    }
    question = ask(claim=claim(count, mode=mode))
    answered = filter_nodes(question, list(nodes), nodes)
    passed = answered.node_names or ()
    assert sorted([*passed, *failed(answered)]) == sorted(nodes)
    for name in passed:
        assert next(choices(question, [name], nodes))[0].ids
    assert all(0 <= one.score <= 10 for one in prioritize(question, list(nodes), nodes))


def test_constants_alone_are_given_as_reasons() -> None:
    known = {
        value for key, value in vars(messages).items() if key.isupper() and isinstance(value, str)
    }
    assert known >= messages.UNRESOLVABLE
    assert known - messages.UNRESOLVABLE == {
        messages.TOO_FEW,
        messages.NO_ISLAND,
        messages.NOT_ADJACENT,
        messages.KEPT,
        messages.STATUS_CHANGED,  # of binds alone
        messages.TAKEN,
        messages.GANG_NOT_TOGETHER,
        messages.GANG_GATHERS,  # errors: the pod comes again by itself
        messages.GANG_RESTS,
        messages.GANG_TURN,
        messages.GANG_TOO_FEW,
    }


DEVICES = tuple(Device(id=n, island="a") for n in range(4))


@pytest.mark.parametrize(
    ("inventory", "options", "blocked"),
    [
        (None, {}, messages.NO_STATUS),
        (Inventory(node="n", problems=("x",)), {}, messages.STATUS_NOT_VALID),
        (
            Inventory(node="n", devices=DEVICES, observed_time="t"),
            {"stale": True},
            messages.STATUS_STALE,
        ),
        (Inventory(node="n", devices=DEVICES), {"stale": True}, ""),
        (Inventory(node="n", devices=DEVICES, conflicts=("device-plugin",)), {}, messages.PLUGIN),
        (Inventory(node="n", devices=DEVICES, conflicts=("dra-driver",)), {}, messages.DRIVER),
        (
            Inventory(node="n", devices=DEVICES, conflicts=("device-plugin",)),
            {"device_plugin": "ignore"},
            "",
        ),
    ],
)
def test_what_keeps_a_whole_node_from_being_used(
    inventory: Inventory | None, options: Any, blocked: str
) -> None:
    assert seen(node(), inventory, (), **options).blocked == blocked


def test_a_node_that_is_not_there_is_not_known_and_one_without_a_status_may_be_assumed() -> None:
    assert seen(None, None, ()).blocked == messages.NODE_UNKNOWN
    assert seen(node(), None, {0}, missing_node_status="assume16").free == 0xFFFE


def test_leased_and_sick_gpus_and_those_that_the_agent_sees_in_use_are_not_free() -> None:
    devices = (
        *DEVICES[:2],
        Device(id=2, health="Unhealthy"),
        Device(id=3, processes=1),
        Device(id=4, processes=1, in_use_by=("u",)),
    )
    for over, free in ((set[str](), [0]), ({"u"}, [0, 4])):
        found = seen(node(), Inventory(node="n", devices=devices), {1}, ended=over.__contains__)
        assert [slot.id for n, slot in enumerate(found.slots) if found.free >> n & 1] == free


def test_only_leases_of_the_pods_current_number_are_its_own() -> None:
    fenced = pod(annotations={names.RECLAIMED_ANNOTATION: "1"})
    leases = [lease("n", 0), lease("n", 1, number=2), lease("m", 0, "else", number=2)]
    assert own_ids(leases, fenced) == {"n": (1,)}


def test_an_empty_view_gives_nothing() -> None:
    assert next(choices(ask(), ["n"], {"n": NodeView()}))[0].why == messages.TOO_SMALL
