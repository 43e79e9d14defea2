"""Which PreflightConfig of a namespace is in force, and what is said of the others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gang.core.overrides import LONGEST, StoredOverride, judge, status

NOW = "2026-11-21T09:00:00Z"
GOOD = {"enforcement": "observe"}
BAD = {"enforcement": "maybe"}
CONDITION = {
    "type": "Accepted",
    "status": "True",
    "reason": "InForce",
    "message": "In force in namespace ml.",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-11-21T08:00:00Z",
}


def policy(
    name: str,
    spec: Any = GOOD,
    *,
    second: int = 0,
    generation: int = 1,
    conditions: Any = (),
    **about: Any,
) -> StoredOverride:
    metadata = {
        "name": name,
        "namespace": "ml",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "generation": generation,
        "creationTimestamp": f"2026-11-21T08:00:{second:02}Z",
        **about,
    }
    return msgspec.convert(
        {"metadata": metadata, "spec": spec, "status": {"conditions": list(conditions)}},
        StoredOverride,
    )


def verdicts(*policies: StoredOverride) -> dict[str, str]:
    return {one.metadata.name: verdict.reason for one, verdict in judge(policies)}


GOING: dict[str, Any] = {"deletionTimestamp": "2026-11-21T08:30:00Z"}
IN_FORCE: dict[str, tuple[list[StoredOverride], dict[str, str]]] = {
    "one alone": ([policy("one")], {"one": "InForce"}),
    "the first by name of those as old": (
        [policy("b"), policy("a")],
        {"a": "InForce", "b": "Superseded"},
    ),
    "the oldest valid one": (
        [policy("old", BAD), policy("new", second=1)],
        {"old": "Invalid", "new": "InForce"},
    ),
    "what is being deleted makes room at once": (
        [policy("old", **GOING), policy("new", second=1)],
        {"old": "Terminating", "new": "InForce"},
    ),
}


@pytest.mark.parametrize(("policies", "reasons"), IN_FORCE.values(), ids=IN_FORCE)
def test_which_is_in_force(policies: list[StoredOverride], reasons: dict[str, str]) -> None:
    assert verdicts(*policies) == reasons


def test_the_oldest_is_in_force_and_the_others_name_it() -> None:
    judged = judge([policy("a", second=5), policy("z", second=1), policy("m", second=3)])
    said = {one.metadata.name: (v.reason, "superseded by z" in v.message) for one, v in judged}
    superseded = ("Superseded", True)
    assert said == {"a": superseded, "m": superseded, "z": ("InForce", False)}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=8), st.randoms()
)
def test_at_most_one_is_in_force_it_is_told_last_and_the_order_of_coming_does_not_matter(
    drawn: list[tuple[int, bool, bool]], chance: Any
) -> None:
    made = [
        policy(
            f"p{i}", GOOD if valid else BAD, second=second, deletionTimestamp=NOW if going else None
        )
        for i, (second, valid, going) in enumerate(drawn)
    ]
    judged = judge(made)
    shuffled = list(made)
    chance.shuffle(shuffled)
    assert judge(shuffled) == judged
    assert len(judged) == len(made)
    assert [v.accepted for _, v in judged[:-1]].count(True) == 0
    assert any(v.accepted for _, v in judged) == any(
        valid and not going for _, valid, going in drawn
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"enforcement": "enforce"},
        {"gangDiscovery": {"method": "labels", "labels": {"gangIdLabel": "example.com/job"}}},
        {"enforcement": "observe", "later": "versions may know more"},
    ],
)
def test_what_the_webhook_can_read_is_valid(spec: Any) -> None:
    assert verdicts(policy("one", spec)) == {"one": "InForce"}


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (None, "null"),
        (BAD, "enforcement"),
        ({"gangDiscovery": {"method": "slurm"}}, "gangDiscovery.method"),
        ({"gangDiscovery": {"method": "\x1b" * 10_000}}, "enum value"),
    ],
)
def test_what_the_webhook_cannot_read_is_invalid_and_says_where(spec: Any, part: str) -> None:
    [(_, verdict)] = judge([policy("one", spec)])
    assert (verdict.accepted, verdict.reason) == (False, "Invalid")
    assert part in verdict.message
    assert len(verdict.message) < LONGEST + 100
    assert "\x1b" not in verdict.message


def written(one: StoredOverride) -> dict[str, Any] | None:
    [(_, verdict)] = judge([one])
    return status(one, verdict, NOW)


def test_a_status_names_the_version_and_the_generation_it_was_judged_at() -> None:
    body = written(policy("one", generation=4))
    assert body is not None
    assert (body["metadata"]["resourceVersion"], body["metadata"]["uid"]) == ("7", "uid-one")
    assert body["status"]["conditions"] == [
        CONDITION | {"observedGeneration": 4, "lastTransitionTime": NOW}
    ]


def test_a_status_that_says_so_already_is_not_written() -> None:
    assert written(policy("one", conditions=[CONDITION])) is None


def test_the_time_of_a_transition_is_that_of_a_changed_status() -> None:
    again = written(policy("one", generation=2, conditions=[CONDITION]))
    assert again is not None
    assert again["status"]["conditions"] == [CONDITION | {"observedGeneration": 2}]
    refused = written(policy("one", BAD, generation=2, conditions=[CONDITION]))
    assert refused is not None
    assert refused["status"]["conditions"][0]["lastTransitionTime"] == NOW


def test_conditions_of_others_stay() -> None:
    other = {"type": "Theirs", "status": "Unknown", "since": "long ago"}
    body = written(policy("one", conditions=[other]))
    assert body is not None
    assert body["status"]["conditions"][0] == other
    assert [c["type"] for c in body["status"]["conditions"]] == ["Theirs", "Accepted"]


def test_a_condition_that_cannot_be_read_is_written_anew() -> None:
    body = written(policy("one", conditions=[CONDITION | {"observedGeneration": "one"}]))
    assert body is not None
    assert body["status"]["conditions"] == [CONDITION | {"lastTransitionTime": NOW}]
