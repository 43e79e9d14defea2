"""PodCliqueSets: what would fail later is said at once, what was decided stays, and what is older
passes.
"""

from __future__ import annotations

import copy
import json
from itertools import islice

import pytest
from cliques import (
    DRIVER,
    LITERAL,
    ON,
    SERVED,
    Object,
    admit,
    clique,
    container,
    decoded_set,
    group,
    pcs,
    podclique,
    support,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_mnnvl.api.types import (
    Clique,
    Group,
    PodCliqueSet,
    SetSpec,
    Template,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.informers import asked
from preflight_mnnvl.core import validate_podcliqueset as page
from preflight_mnnvl.core.expansion import Planned, expand, plan
from preflight_mnnvl.core.support import ClusterFacts, judge
from preflight_mnnvl.core.validate_podcliqueset import (
    SetAnswer,
    problems,
    review,
    surprises,
    warnings,
)

SCOPE = "grove.io/mnnvl-scope"
GROUPS = "spec.template.podCliqueScalingGroups[0]"


def create(found: Object, config: Config = DRIVER) -> SetAnswer:
    return review("CREATE", json.dumps(found).encode(), None, config, support(config))


def update(new: Object, old: Object, config: Config = DRIVER) -> SetAnswer:
    return review(
        "UPDATE", json.dumps(new).encode(), json.dumps(old).encode(), config, support(config)
    )


def test_all_problems_are_said_at_once_with_their_paths() -> None:
    cliques = [
        clique("a", annotations={**ON, SCOPE: "pod"}),
        clique("b", annotations={**ON, SCOPE: "scalingGroupReplica"}),
        clique("c", annotations={**ON, "grove.io/mnnvl-group": "rack"}),
        clique("d", annotations=ON, resourceClaims=[]),
        clique("e"),
    ]
    cliques[3]["spec"]["podSpec"]["resourceClaims"] = [{"name": "mnnvl", "resourceClaimName": "x"}]
    answer = create(pcs("t", cliques))
    assert [problem.split(": ")[0] for problem in answer.problems] == [
        "spec.template.cliques[0].annotations[grove.io/mnnvl-scope]",
        "spec.template.cliques[1].annotations[grove.io/mnnvl-scope]",
        "spec.template.cliques[2]",
        'spec.template.cliques[3].spec.podSpec.resourceClaims[0] is called "mnnvl", which is the name of the claim that is added here; rename it.',
    ]
    assert answer.message.startswith("PodCliqueSet default/t: spec.template.cliques[0]")


def test_a_device_class_that_can_be_none_is_refused_where_it_stands() -> None:
    set_ = pcs("t", [clique("a", annotations={**ON, "grove.io/mnnvl-device-class": "A"})])
    assert create(set_, LITERAL).problems == (
        'spec.template.cliques[0].annotations[grove.io/mnnvl-device-class]: grove.io/mnnvl-device-class is "A", which cannot be the name of a DeviceClass; use lower-case letters, digits, "-" and ".".',
    )
    assert create(set_).allowed


def test_the_problem_of_an_inherited_annotation_is_said_where_it_stands() -> None:
    answer = create(
        pcs(
            "t",
            [clique("a"), clique("b"), clique("cpu", gpus=None)],
            annotations={**ON, SCOPE: "Replica"},
        )
    )
    assert answer.problems == (
        'metadata.annotations[grove.io/mnnvl-scope]: the scope "Replica" is unknown; write one of replica, clique, scalingGroupReplica.',
    )


def test_a_scope_on_a_layer_without_effect_is_no_problem() -> None:
    assert create(pcs("t", [clique("a")], annotations={SCOPE: "nonsense"})).allowed
    assert create(pcs("t", [clique("a", gpus=None)], annotations={**ON, SCOPE: "nonsense"})).allowed


def test_nothing_is_refused_of_a_clique_that_may_have_no_gpus() -> None:
    set_ = pcs("t", [clique("a", gpus=None, annotations={**ON, SCOPE: "pod"})])
    set_["spec"]["template"]["cliques"][0]["spec"]["podSpec"]["containers"][0]["resources"] = {
        "claims": [{"name": "x"}]
    }
    assert create(set_).allowed


def test_names_that_would_be_too_long_are_said() -> None:
    answer = create(pcs("t" * 120, [clique("a" * 130, annotations={**ON, SCOPE: "clique"})]))
    assert (
        "would have 265 characters, more than 253; shorten the names of set and clique."
        in answer.problems[0]
    )


def test_what_cannot_be_had_is_said_at_once_or_warned_of() -> None:
    set_ = decoded_set(pcs("t", [clique("a")], annotations=ON))
    nothing = judge(ClusterFacts(domain=""), DRIVER)
    (said,) = problems(set_, plan(set_, DRIVER), DRIVER, nothing)
    assert said.startswith("metadata.annotations[grove.io/mnnvl-enabled]: MNNVL cannot be had: ")
    lenient = Config(on_unsupported="ignore")
    assert problems(set_, plan(set_, lenient), lenient, nothing) == []
    assert warnings(set_, plan(set_, lenient), lenient, nothing) == [nothing.why]
    off = decoded_set(pcs("t", [clique("a")]))
    assert problems(off, plan(off, DRIVER), DRIVER, nothing) == []


KEYS = ("grove.io/mnnvl-enabled", SCOPE, "grove.io/mnnvl-device-class")
VALUES = [None, "", "true", "false", "replica", "clique", "scalingGroupReplica"]


@pytest.mark.parametrize("layer", ["set", "clique", "group"])
@pytest.mark.parametrize("key", KEYS)
def test_the_three_annotations_cannot_be_changed_at_any_layer(layer: str, key: str) -> None:
    def with_(value: str | None) -> Object:
        found = {key: value} if value is not None else None
        return pcs(
            "t",
            [clique("a", gpus=None, annotations=found if layer == "clique" else None)],
            [group("g", ["a"], found if layer == "group" else None)],
            found if layer == "set" else None,
        )

    path = {
        "set": "metadata",
        "clique": "spec.template.cliques[0]",
        "group": "spec.template.podCliqueScalingGroups[0]",
    }[layer]
    for before in VALUES:
        for after in VALUES:
            answer = update(with_(after), with_(before))
            assert answer.allowed is (before == after), (before, after)
            if not answer.allowed:
                assert answer.problems[0].startswith(
                    f"{path}.annotations[{key}]: cannot be changed "
                )


def test_cliques_and_groups_are_compared_by_name_and_not_by_place() -> None:
    old = pcs(
        "t", [clique("a", annotations=ON), clique("b")], [group("g", ["a"], ON), group("h", ["b"])]
    )
    new = copy.deepcopy(old)
    new["spec"]["template"]["cliques"].reverse()
    new["spec"]["template"]["podCliqueScalingGroups"].reverse()
    assert update(new, old).allowed
    new["spec"]["template"]["cliques"].append(clique("c", annotations=ON))
    assert update(new, old).allowed


def test_older_objects_deletion_and_the_end_of_finalizers_always_pass() -> None:
    bad = pcs("t", [clique("a", annotations={**ON, SCOPE: "pod"})], annotations=ON)
    assert not create(bad).allowed
    more = copy.deepcopy(bad)
    more["spec"]["replicas"] = 5
    assert update(more, bad).allowed  # as old as we are, and no worse than before
    going = copy.deepcopy(bad)
    going["metadata"] |= {"deletionTimestamp": "2027-01-15T08:00:00Z", "annotations": {}}
    assert update(going, bad).allowed
    assert review("DELETE", None, json.dumps(bad).encode(), DRIVER, support(DRIVER)).allowed
    worse = copy.deepcopy(bad)
    worse["spec"]["template"]["cliques"].append(clique("b", annotations={**ON, SCOPE: "Clique"}))
    assert [p.split(":")[0] for p in update(worse, bad).problems] == [
        "spec.template.cliques[1].annotations[grove.io/mnnvl-scope]"
    ]


def test_a_problem_of_before_that_is_only_moved_is_no_new_one() -> None:
    cliques = [clique("a", annotations={**ON, SCOPE: "pod"}), clique("b", annotations=ON)]
    bad = pcs("t", [*cliques, clique("c", gpus="many", annotations=ON)])
    assert len(create(bad).problems) == 2
    assert update(
        pcs("t", [clique("d"), *reversed(bad["spec"]["template"]["cliques"])]), bad
    ).allowed
    odd = pcs("t", [clique("cliques[7]", annotations={**ON, SCOPE: "cliques[8]"})])
    assert update(odd, odd).allowed
    renamed = copy.deepcopy(bad)
    renamed["spec"]["template"]["cliques"][0]["name"] = "x"
    assert update(renamed, bad).allowed  # its PodClique is refused


def test_warnings_name_what_will_surprise() -> None:
    set_ = pcs(
        "t",
        [
            clique("a", annotations={"grove.io/mnnvl-enabled": "yes"}),
            clique("b", gpus=None, annotations=ON),
            clique("c", annotations=ON),
        ],
        annotations={"grove.io/mnnvl-device-class": "x"},
    )
    assert create(set_).warnings == (
        'spec.template.cliques[0].annotations: grove.io/mnnvl-enabled is "yes"; only "true" switches it on',
        "spec.template.cliques[1]: no container asks for GPUs (nvidia.com/gpu), so its pods get no claim",
        "grove.io/mnnvl-device-class has no effect here: the DRA driver makes the claims (mode: driver)",
    )


def test_who_asks_for_cliques_none_of_which_has_gpus_is_warned() -> None:
    cliques = [clique(name, gpus=None) for name in "ab"]
    set_ = pcs("t", cliques, [group("g", ["b"], ON)], annotations=ON)
    none = "no container asks for GPUs (nvidia.com/gpu), so its pods get no claim"
    group_path = "spec.template.podCliqueScalingGroups[0]"
    assert create(set_).warnings == (f"metadata: {none}", f"{group_path}: {none}")
    cliques[0] = clique("a")
    assert create(set_).warnings == (f"{group_path}: {none}",)


@pytest.mark.parametrize("layer", ["clique", "group"])
def test_a_set_is_not_said_to_have_no_gpus_where_a_nearer_layer_asks_for_them(layer: str) -> None:
    """One that has a router without GPUs, and workers with some, as most have."""
    worker = clique("worker", annotations=ON if layer == "clique" else None)
    groups = [group("g", ["worker"], ON)] if layer == "group" else []
    assert create(pcs("t", [clique("router", gpus=None), worker], groups, annotations=ON)) == (
        SetAnswer(name="default/t")
    )


def test_what_one_layer_hides_of_another_is_told_to_who_asks() -> None:
    off = {"grove.io/mnnvl-enabled": "false"}
    set_ = decoded_set(
        pcs(
            "t",
            [
                clique("a", annotations={SCOPE: "clique"}),
                clique("b", annotations=off),
                clique("c", annotations={**ON, SCOPE: "replica"}),
            ],
            [group("g", ["c"], {**ON, SCOPE: "scalingGroupReplica"})],
            {**ON, SCOPE: "replica"},
        )
    )
    a, b, c, g = *(f"spec.template.cliques[{i}]" for i in range(3)), GROUPS
    assert surprises(set_, plan(set_, DRIVER), DRIVER) == [
        f'{a}: {SCOPE} "replica" of metadata has no effect; what counts is "clique" of {a}',
        f'{b}: grove.io/mnnvl-enabled "true" of metadata has no effect; what counts is "false" of {b}',
        f'{c}: {SCOPE} "scalingGroupReplica" of {g} has no effect; what counts is "replica" of {c}',
    ]
    said = surprises(set_, plan(set_, LITERAL), LITERAL)
    assert (
        f'{c}: {SCOPE} "replica" of {c} has no effect; what counts is "scalingGroupReplica" of {g}'
        in said
    )
    alone = decoded_set(pcs("t", [clique("c")], [group("g", ["c"])], ON))
    assert surprises(alone, plan(alone, DRIVER), DRIVER) == []
    assert surprises(alone, plan(alone, LITERAL), LITERAL) == [
        f'{a}: grove.io/mnnvl-enabled "true" of metadata has no effect; in mode literal a clique of a scaling group does not ask the set'
    ]


@pytest.mark.parametrize(
    "raw", [b"", b"null", b"[]", b"[" * 100_000, b'{"spec":{"template":{"cliques":7}}}']
)
def test_what_is_no_podcliqueset_is_left_to_its_schema(raw: bytes) -> None:
    answer = review("CREATE", raw, None, DRIVER, support(DRIVER))
    assert answer.allowed
    assert answer.warnings
    assert review(
        "UPDATE", json.dumps(pcs("t", [clique("a")])).encode(), raw, DRIVER, support(DRIVER)
    ).allowed


names = st.sampled_from(["a", "b", "p", "p-1", "0", "a-0", "w"])
scopes = st.sampled_from([None, "replica", "clique", "scalingGroupReplica", "pod"])


@st.composite
def sets(draw: st.DrawFn) -> Object:
    def wish() -> dict[str, str]:
        found = draw(st.sampled_from([{}, ON, ON, {"grove.io/mnnvl-enabled": "false"}]))
        scope = draw(scopes)
        return {**found, **({SCOPE: scope} if scope else {})}

    cliques = [
        clique(name, gpus=draw(st.sampled_from([8, None, "many"])), annotations=wish())
        for name in draw(st.lists(names, min_size=1, max_size=4, unique=True))
    ]
    left = [one["name"] for one in cliques]
    groups = []
    for name in draw(st.lists(st.sampled_from(["p", "a", "a-1"]), max_size=2, unique=True)):
        taken = draw(st.lists(st.sampled_from(left), max_size=2, unique=True)) if left else []
        left = [one for one in left if one not in taken]
        groups.append(group(name, taken, wish(), draw(st.integers(1, 3))))
    return pcs(
        draw(st.sampled_from(["t", "a-0"])), cliques, groups, wish(), draw(st.integers(1, 2))
    )


@settings(max_examples=4 * settings().max_examples)
@given(sets(), st.sampled_from([DRIVER, LITERAL]))
def test_a_set_is_refused_exactly_where_one_of_its_podcliques_would_be_and_domains_never_share_a_name(
    set_: Object, config: Config
) -> None:
    """Those of PodCliques that Grove could make at all: it refuses a set in which two would have
    one name.
    """
    decoded = decoded_set(set_)
    made = list(islice(expand(decoded, plan(decoded, config)), 200))
    if len({one.name for one in made}) < len(made):
        return
    by_name = {one["name"]: one for one in set_["spec"]["template"]["cliques"]}
    refused: list[str] = []
    of: dict[str, set[object]] = {}
    for one in made:
        template = by_name[one.planned.clique.name]
        labels = {"gang": one.gang, "base": one.base}
        if one.planned.group:
            labels |= {
                "group": f"{decoded.metadata.name}-{one.replica}-{one.planned.group.name}",
                "index": str(one.group_index),
            }
        found = podclique(
            one.name,
            decoded.metadata.name,
            one.replica,
            dict(template.get("annotations", {})),
            template["spec"]["podSpec"],
            **labels,
        )
        answer = admit(found, config, set_)
        if not answer.allowed:
            refused.append(answer.message)
        elif answer.decision:
            identity = (
                answer.decision.scope,
                one.replica,
                one.planned.group.name if one.planned.group else one.name,
                one.group_index,
            )
            key = {
                "replica": identity[1:2],
                "clique": (one.name,),
                "scalingGroupReplica": identity[1:],
            }[answer.decision.scope]
            of.setdefault(answer.decision.cd, set()).add((answer.decision.scope, *key))
    assert all(len(identities) == 1 for identities in of.values())
    said = problems(decoded, plan(decoded, config), config, support(config))
    if refused:
        assert said, refused
    elif said:
        assert all("would be called like" in one for one in said), (
            said
        )  # at some other scale they would


def test_a_set_of_the_largest_numbers_is_reviewed_without_being_expanded() -> None:
    answer = create(
        pcs(
            "t",
            [clique("a", replicas=2**31 - 1)],
            [group("g", ["a"], None, 2**31 - 1)],
            ON,
            2**31 - 1,
        )
    )
    assert answer.allowed
    assert f"need {(2**31 - 1) ** 3} nodes" in answer.warnings[0]
    assert SERVED.fabric_nodes == 100


def test_a_malformed_amount_is_said_by_its_place_in_the_set() -> None:
    answer = create(
        pcs(
            "t",
            [
                clique("a", gpus=None),
                {**clique("b"), "spec": {"podSpec": {"containers": [container(gpus="x")]}}},
            ],
            annotations=ON,
        )
    )
    assert answer.problems == (
        'spec.template.cliques[1].spec.podSpec.containers[0].resources.limits[nvidia.com/gpu] is "x", which is not an amount; write e.g. 8.',
    )


# --- work grows with the set, and no faster


def test_a_review_looks_at_each_template_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def counted(set_: PodCliqueSet, config: Config) -> list[Planned]:
        calls.append(set_.metadata.name)
        return plan(set_, config)

    monkeypatch.setattr(page, "plan", counted)
    found = pcs("t", [clique("a")], annotations=ON)
    assert create(found).allowed
    assert calls == ["t"]
    changed = copy.deepcopy(found)
    changed["spec"]["replicas"] = 3
    assert update(changed, found).allowed
    assert calls == ["t", "t"]


class Name(str):
    """A name that counts with how many others it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def comparisons(size: int) -> int:
    cliques = [Clique(name=Name(f"c{i}")) for i in range(size)]
    groups = [
        Group(name=f"g{i}", clique_names=[Name(f"x{i}-{k}") for k in range(20)])
        for i in range(size)
    ]
    spec = SetSpec(template=Template(cliques=cliques, pod_clique_scaling_groups=groups))
    Name.compared = 0
    assert len(plan(PodCliqueSet(spec=spec), DRIVER)) == size
    return Name.compared


def test_whose_group_a_clique_is_in_is_not_searched_for_each_clique() -> None:
    small, large = comparisons(50), comparisons(200)
    assert large <= 8 * max(small, 50), (small, large)


def test_of_a_set_without_end_the_annotations_are_kept_that_are_read() -> None:
    noise = {f"grove.io/{number}": "" for number in range(1000)}
    cliques = [clique(f"c{number}", annotations={**noise, **ON}) for number in range(50)]
    groups = [group(f"g{number}", ["c1"], {**noise, **ON}) for number in range(9)]
    whole = decoded_set(pcs("s", cliques, [*groups, group("h", ["c2"], noise)], {**noise, **ON}))
    kept = asked(whole)
    assert (kept.cliques, kept.metadata.annotations) == ([], ON)
    assert [(of.name, of.annotations) for of in kept.groups] == [(f"g{i}", ON) for i in range(9)]
