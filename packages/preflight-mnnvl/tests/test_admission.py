"""One PodClique's way: what is read, what is refused, what is added, and that nothing else is
touched.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from cliques import (
    BY_CLIQUE,
    BY_GROUP,
    DRIVER,
    GPU,
    LITERAL,
    ON,
    SERVED,
    Object,
    admit,
    clique,
    container,
    decoded_set,
    group,
    makes,
    on_update,
    patched,
    pcs,
    podclique,
    support,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from preflight_mnnvl.api.names import DECISION, FABRIC_LABEL
from preflight_mnnvl.api.types import Metadata, OwnerReference
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.claims import ClaimRef
from preflight_mnnvl.core.mutate_podclique import ClusterView, Needs, Review, ReviewAnswer, decide
from preflight_mnnvl.core.support import ClusterFacts, judge
from preflight_testing.apidouble.patches import json_patch


def pod(*containers: Object, **more: Any) -> Object:
    return {"containers": list(containers) or [container()], **more}


def enrolled(spec: Object | None = None, **labels: Any) -> Object:
    return podclique("t-0-w", "t", annotations=dict(ON), pod=spec, **labels)


# --- the wish ---


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("True", '"True"'),
        ("yes", '"yes"'),
        ("1", '"1"'),
        (" true", '"true" with white space around it'),
    ],
)
def test_what_looks_like_a_switch_and_is_none_is_warned_of(value: str, named: str) -> None:
    answer = admit(podclique("t-0-w", "t", annotations={"grove.io/mnnvl-enabled": value}))
    assert (answer.result, answer.patch) == ("not-enabled", ())
    assert answer.warnings == (f'grove.io/mnnvl-enabled is {named}; only "true" switches it on',)


def test_a_nearer_layer_switches_off_what_a_farther_one_switches_on() -> None:
    set_ = pcs("t", [clique("w")], annotations=ON)
    answer = admit(
        podclique("t-0-w", "t", annotations={"grove.io/mnnvl-enabled": "false"}), DRIVER, set_
    )
    assert (answer.result, answer.warnings) == ("not-enabled", ())


def test_in_literal_mode_a_scaling_group_comes_before_its_clique_and_the_set_has_no_say() -> None:
    groups = [group("g", ["w"], {"grove.io/mnnvl-scope": "clique"})]
    found = podclique(
        "t-0-g-0-w",
        "t",
        annotations={**ON, "grove.io/mnnvl-scope": "replica"},
        group="t-0-g",
        index="0",
    )
    set_ = pcs("t", [clique("w")], groups, annotations=ON)
    literal, driver = (admit(found, config, set_).decision for config in (LITERAL, DRIVER))
    assert literal is not None
    assert driver is not None
    assert (literal.scope, driver.scope) == ("clique", "replica")
    found["metadata"]["annotations"] = {}
    assert admit(found, LITERAL, set_).result == "not-enabled"
    assert admit(found, DRIVER, set_).result == "injected"


def test_a_set_that_is_not_known_is_asked_for_and_one_that_does_not_exist_has_no_say() -> None:
    raw = json.dumps(podclique("t-0-w", "t")).encode()
    answer = decide(Review("CREATE", "default", raw), DRIVER, ClusterView(support(DRIVER)))
    assert (answer.allowed, answer.needs) == (False, Needs("t"))
    assert admit(enrolled()).result == "injected"


def test_what_is_being_deleted_passes_untouched() -> None:
    found = enrolled()
    found["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    stored = patched(enrolled(), admit(enrolled()))
    assert on_update(found, stored).result == "going"
    assert on_update(found, stored).patch == ()


def test_a_deletion_passes() -> None:
    """Where a rule sends it: whoever refuses it leaves Grove a clique that cannot go."""
    gone = Review("DELETE", "default", b"null", json.dumps(enrolled()).encode())
    answer = decide(gone, DRIVER, ClusterView(support(DRIVER)))
    assert (answer.result, answer.allowed, answer.patch) == ("going", True, ())


def test_the_device_class_has_a_part_in_literal_mode_alone() -> None:
    found = podclique(
        "t-0-w", "t", annotations={**ON, "grove.io/mnnvl-device-class": "mine.example.com"}
    )
    _, claim = makes(found, LITERAL)
    (request,) = claim["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "mine.example.com"
    assert "has no effect here" in admit(found).warnings[0]


@pytest.mark.parametrize("name", [" ", "Mine.example.com", "a/b", "x" * 254])
def test_a_device_class_that_can_be_none_is_refused_where_the_claim_would_have_it(
    name: str,
) -> None:
    found = podclique("t-0-w", "t", annotations={**ON, "grove.io/mnnvl-device-class": name})
    answer = admit(found, LITERAL)
    assert answer.result == "denied"
    assert "grove.io/mnnvl-device-class is " in answer.message
    assert admit(found).result == "injected"


# --- GPUs ---


@pytest.mark.parametrize("amount", [8, "8", 0.5, "500m", "1e0", "+2", "8Gi"])
def test_any_amount_but_nothing_counts(amount: object) -> None:
    assert admit(enrolled(pod(container(gpus=amount)))).result == "injected"


def test_a_resource_that_stands_for_a_device_class_of_gpus_counts() -> None:
    def answered(device_class: str) -> str:
        limits = {f"deviceclass.resource.kubernetes.io/{device_class}": 8}
        return admit(enrolled(pod({"name": "a", "resources": {"limits": limits}}))).result

    assert [answered(it) for it in ("gpu.nvidia.com", "nic.example.com")] == ["injected", "no-gpu"]


@pytest.mark.parametrize("amount", [0, "0", 0.0, "0.0", "0e3", "-0", "0Ki"])
def test_nothing_in_any_spelling_does_not_count(amount: object) -> None:
    answer = admit(enrolled(pod(container(gpus=amount))))
    assert (answer.result, answer.patch) == ("no-gpu", ())
    assert answer.warnings == (
        "no container asks for GPUs (nvidia.com/gpu), so its pods get no claim",
    )


@pytest.mark.parametrize("amount", ["many", "", "8 ", None, True, [8], {"a": 1}, "٣"])
def test_an_amount_that_is_none_is_refused_by_its_place(amount: object) -> None:
    answer = admit(
        enrolled(pod(container("a", None), {"name": "b", "resources": {"requests": {GPU: amount}}}))
    )
    assert answer.message.startswith(
        "PodClique default/t-0-w: spec.podSpec.containers[1].resources.requests[nvidia.com/gpu] is "
    )
    assert answer.message.endswith("which is not an amount; write e.g. 8.")


def test_a_clique_without_gpus_is_not_refused_whatever_its_labels_are() -> None:
    set_ = pcs(
        "t", [clique("w", gpus=None)], annotations={**ON, "grove.io/mnnvl-scope": "nonsense"}
    )
    answer = admit(podclique("other", "t", pod=pod(container(gpus=None))), DRIVER, set_)
    assert (answer.result, answer.warnings) == ("no-gpu", ())


def test_gpus_by_claim_count_and_are_remembered_for_updates() -> None:
    spec = pod(
        {"name": "a", "resources": {"claims": [{"name": "gpus"}]}},
        resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "four"}],
    )
    ref = ClaimRef("ResourceClaimTemplate", "four")
    raw = json.dumps(enrolled(spec)).encode()
    asked = decide(
        Review("CREATE", "default", raw), DRIVER, ClusterView(support(DRIVER), has_set=True)
    )
    assert asked.needs == Needs("", (ref,))
    answer = admit(enrolled(spec), classes={ref: ["gpu.nvidia.com"]})
    assert answer.result == "injected"
    stored = patched(enrolled(spec), answer)
    assert stored["spec"]["podSpec"]["containers"][0]["resources"]["claims"] == [
        {"name": "gpus"},
        {"name": "mnnvl"},
    ]
    assert patched(enrolled(spec), on_update(enrolled(spec), stored)) == stored
    assert admit(enrolled(spec), classes={ref: ["nic.example.com"]}).result == "no-gpu"


def test_gpus_that_a_new_template_has_by_other_claims_keep_the_fabric() -> None:
    def asking(entry: str, template: str) -> Object:
        spec = pod(
            {"name": "a", "resources": {"claims": [{"name": entry}]}},
            resourceClaims=[{"name": entry, "resourceClaimTemplateName": template}],
        )
        return enrolled(spec)

    def updated(found: Object, stored: Object, classes: Any = None) -> ReviewAnswer:
        new, old = (json.dumps(one).encode() for one in (found, stored))
        known = ClusterView(support(DRIVER), classes=classes)
        return decide(Review("UPDATE", "default", new, old), DRIVER, known)

    def uses(found: Object) -> list[str]:
        return [
            it["name"] for it in found["spec"]["podSpec"]["containers"][0]["resources"]["claims"]
        ]

    four, eight = (ClaimRef("ResourceClaimTemplate", name) for name in ("four", "eight"))
    stored = patched(enrolled(), admit(enrolled()))  # with GPUs by a resource
    by_claim = asking("gpus", "four")
    assert updated(by_claim, stored).needs == Needs("", (four,))
    refused = updated(by_claim, stored, {})
    assert (refused.result, "which does not exist" in refused.message) == ("denied", True)
    stored = patched(by_claim, updated(by_claim, stored, {four: ["gpu.nvidia.com"]}))
    assert uses(stored) == ["gpus", "mnnvl"]
    assert patched(by_claim, updated(by_claim, stored)) == stored  # as Grove writes it again
    renamed = asking("devices", "four")
    stored = patched(renamed, updated(renamed, stored))
    assert uses(stored) == ["devices", "mnnvl"]
    larger = asking("devices", "eight")
    stored = patched(larger, updated(larger, stored, {eight: ["gpu.nvidia.com"]}))
    assert uses(stored) == ["devices", "mnnvl"]
    other = asking("devices", "nic")
    nic = {ClaimRef("ResourceClaimTemplate", "nic"): ["nic.example.com"]}
    assert uses(patched(other, updated(other, stored, nic))) == ["devices"]


def test_what_an_update_makes_of_two_claims_that_do_not_exist_yet_stays_as_it_is() -> None:
    def of(template: str, *entries: str) -> Object:
        uses = [{"name": f"c{it}", "resources": {"claims": [{"name": it}]}} for it in entries]
        refs = [{"name": it, "resourceClaimTemplateName": template} for it in entries]
        return enrolled(pod(*uses, resourceClaims=refs))

    def updated(found: Object, stored: Object) -> Object:
        new, old = (json.dumps(one).encode() for one in (found, stored))
        known = ClusterView(support(DRIVER), classes={})
        return patched(found, decide(Review("UPDATE", "default", new, old), DRIVER, known))

    four = {ClaimRef("ResourceClaimTemplate", "four"): ["gpu.nvidia.com"]}
    first = of("four", "a")
    stored = updated(of("later", "a", "b"), patched(first, admit(first, classes=four)))
    assert updated(of("later", "a", "b"), stored) == stored


def test_a_claim_that_does_not_exist_is_not_taken_for_one_without_gpus() -> None:
    spec = pod(
        {"name": "a", "resources": {"claims": [{"name": "gpus"}]}},
        resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "four"}],
    )
    answer = admit(enrolled(spec), classes={})
    assert answer.message == (
        'PodClique default/t-0-w: its claim "gpus" names the ResourceClaimTemplate four, which does not exist, '
        "and may be the one that gives it GPUs; create that first."
    )
    assert (
        admit(
            enrolled(pod(container(gpus=None), resourceClaims=spec["resourceClaims"])), classes={}
        ).result
        == "no-gpu"
    )


def test_where_label_sets_contradict_the_operators_own_says_which_set_is_asked() -> None:
    found = podclique("t-0-w", "t")
    found["metadata"]["labels"]["grove.io/pcs-name"] = "u"
    answer = admit(found, DRIVER, pcs("t", [clique("w")], annotations=ON))
    assert answer.message.startswith(
        'PodClique default/t-0-w: the labels grove.io/pcs-name ("u") and app.kubernetes.io/part-of ("t") contradict'
    )


def test_sidecars_and_init_containers_get_the_claim_and_cpu_containers_do_not() -> None:
    spec = pod(
        container("a"),
        container("b", None),
        initContainers=[
            container("i", "2"),
            container("s", 1, restartPolicy="Always"),
            container("j", None),
        ],
    )
    found = enrolled(spec)
    done = patched(found, admit(found))["spec"]["podSpec"]
    with_claim = [
        one["name"]
        for kind in ("containers", "initContainers")
        for one in done[kind]
        if "claims" in one.get("resources", {})
    ]
    assert with_claim == ["a", "i", "s"]


# --- refusals ---

LONG = "a" * 125
REFUSED: list[tuple[str, Object, str]] = [
    (
        "a user's claim with our name",
        enrolled(pod(resourceClaims=[{"name": "mnnvl", "resourceClaimTemplateName": "mine"}])),
        'spec.podSpec.resourceClaims[0] is called "mnnvl", which is the name of the claim that is added here; rename it',
    ),
    (
        "Grove's claim",
        enrolled(pod(resourceClaims=[{"name": "mnnvl-claim", "resourceClaimTemplateName": "t-0-rack"}])),
        "spec.podSpec.resourceClaims[0] is \"mnnvl-claim\" of Grove's own feature, and a node has one channel for a pod; remove it, or grove.io/mnnvl-enabled",
    ),
    (
        "no label of the set",
        {**enrolled(), "metadata": {"name": "t-0-w", "annotations": ON, "labels": {}}},
        "scope replica needs the label grove.io/pcs-name or app.kubernetes.io/part-of, and it has neither; add one of them",
    ),
    (
        "no label of the replica",
        {**enrolled(), "metadata": {"name": "t-0-w", "annotations": ON, "labels": {"grove.io/pcs-name": "t"}}},
        "scope replica needs the label grove.io/pcs-replica-index or grove.io/podcliqueset-replica-index, and it has neither; add one of them",
    ),
    (
        "no label of a scaling group",
        podclique("t-0-w", "t", annotations=BY_GROUP),
        "scope scalingGroupReplica needs the label grove.io/pcsg-name or grove.io/podcliquescalinggroup, and it has neither; add one of them, or choose another scope",
    ),
    (
        "two label sets that contradict",
        {**enrolled(), "metadata": {**enrolled()["metadata"], "labels": {**enrolled()["metadata"]["labels"], "grove.io/pcs-replica-index": "1"}}},
        'the labels grove.io/pcs-replica-index ("1") and grove.io/podcliqueset-replica-index ("0") contradict each other; correct one of them',
    ),
    (
        "a name that does not fit its labels",
        podclique("u-0-w", "t", annotations=ON),
        'its labels say replica 0 of "t", so its name must begin with "t-0-"; correct the name or the labels',
    ),
    (
        "a group's label that is not of the set",
        podclique("t-0-g-0-w", "t", annotations=ON, group="u-0-g", index="0"),
        'the label grove.io/podcliquescalinggroup is "u-0-g", expected a name that begins with "t-0-"; correct it',
    ),
    (
        "no PodGang",
        podclique("t-0-w", "t", annotations=ON, gang=""),
        "scope replica needs the label grove.io/podgang, and it has none; add it, as without it nothing would own the domain",
    ),
    (
        "a name that is not there yet",
        {**enrolled(), "metadata": {**enrolled()["metadata"], "name": "", "generateName": "t-0-"}},
        "it has no name yet (generateName), and the names of its objects are made of it; give it a name",
    ),
    (
        "names over 253 characters",
        podclique(f"{LONG}-0-{LONG}", LONG, annotations=BY_CLIQUE, gang="x"),
        f"the name {f'{LONG}-0-{LONG}-mnnvl-claim'[:119]}… would have 265 characters, more than 253; shorten the names of set and clique",
    ),
    ("containers that are none", enrolled({"containers": "x"}), "podSpec is none: Expected `array | null`, got `str` - at `$.containers`; correct it"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("found", "why"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
def test_what_cannot_be_had_is_refused_in_one_sentence(found: Object, why: str) -> None:
    answer = admit(found)
    assert not answer.allowed
    name = found["metadata"].get("name") or found["metadata"].get("generateName")
    assert (
        answer.message
        == f"PodClique default/{name if len(name) <= 120 else name[:119] + '…'}: {why}."
    )


def by_name(*there: Metadata) -> Callable[[str], Metadata | None]:
    """As the webhook finds them, by name or uid."""
    return {key: one for one in there for key in (one.name, one.uid)}.get


def test_in_literal_mode_an_object_of_somebody_else_is_named() -> None:
    answer = admit(
        enrolled(),
        LITERAL,
        taken=by_name(Metadata("t-0-mnnvl-claim", labels={"app.kubernetes.io/managed-by": "helm"})),
    )
    assert (
        answer.message
        == "PodClique default/t-0-w: the ResourceClaim t-0-mnnvl-claim exists and is managed by helm; delete or rename it."
    )


def domain_labels(pcs: str, index: str = "0", **more: str) -> dict[str, str]:
    return {
        "grove.io/mnnvl-managed": "true",
        "app.kubernetes.io/managed-by": "preflight-mnnvl",
        "app.kubernetes.io/instance": "preflight-mnnvl",
        "grove.io/pcs-name": pcs,
        "grove.io/pcs-replica-index": index,
        **{f"grove.io/pcsg-{key}": value for key, value in more.items()},
    }


def owned(name: str, labels: dict[str, str], uid: str = "d", owner: str = "") -> Metadata:
    owners = [OwnerReference(kind="PodGang", name=owner, uid="g")] if owner else None
    return Metadata(name=name, uid=uid, labels=labels, owner_references=owners)


MINE = owned("t-0-cd", domain_labels("t"))
DRIVERS = "resource.nvidia.com/computeDomain"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (
            [owned("t-0-cd", domain_labels("t-0-x"), owner="t-0-x-0")],
            'the ComputeDomain t-0-cd exists and is of another domain: its label grove.io/pcs-name is "t-0-x", expected "t" and belongs to the PodGang t-0-x-0; delete or rename it.',
        ),
        (
            [owned("t-0-cd", {"app.kubernetes.io/managed-by": "helm"})],
            "the ComputeDomain t-0-cd exists and is managed by helm; delete or rename it.",
        ),
        (
            [owned("t-0-mnnvl-claim", {}, owner="theirs")],
            "the ResourceClaimTemplate t-0-mnnvl-claim exists and does not carry the uid of the ComputeDomain t-0-cd and belongs to the PodGang theirs; delete or rename it.",
        ),
        (
            [owned("x-cd", {}, uid="x"), owned("t-0-mnnvl-claim", {DRIVERS: "x"})],
            "the ResourceClaimTemplate t-0-mnnvl-claim exists and is of the ComputeDomain x-cd; delete or rename it.",
        ),
        (
            [MINE, owned("t-0-mnnvl-claim", {DRIVERS: "x"})],
            "the ResourceClaimTemplate t-0-mnnvl-claim exists and carries the uid of another ComputeDomain; delete or rename it.",
        ),
    ],
    ids=["another set's", "a user's", "a user's template", "of another's domain", "not of ours"],
)
def test_a_podclique_whose_claim_would_be_somebody_elses_is_refused_with_the_owners_name(
    found: list[Metadata], why: str
) -> None:
    answer = admit(enrolled(), DRIVER, taken=by_name(*found))
    assert answer.message == f"PodClique default/t-0-w: {why}"


@pytest.mark.parametrize(
    "found",
    [
        [MINE],
        [MINE, owned("t-0-mnnvl-claim", {DRIVERS: "d"})],
        [owned("t-0-mnnvl-claim", {DRIVERS: "not mirrored yet"})],
    ],
)
def test_what_is_its_own_is_in_nobodys_way(found: list[Metadata]) -> None:
    assert admit(enrolled(), DRIVER, taken=by_name(*found)).result == "injected"


def test_the_claim_of_a_set_that_is_called_like_another_sets_replica_carries_a_hash() -> None:
    group = podclique(
        "llm-0-pool-0-w", "llm", annotations=BY_GROUP,
        group="llm-0-pool", index="0",
    )  # fmt: skip
    whole = podclique("llm-0-pool-0-v", "llm-0-pool", annotations=ON)
    one, other = (admit(found).decision for found in (group, whole))
    assert one is not None
    assert other is not None
    assert (one.cd, one.claim) == ("llm-0-pool-0-cd", "llm-0-pool-0-mnnvl-claim")
    assert {other.cd, other.claim}.isdisjoint({one.cd, one.claim})
    assert other.cd.startswith("llm-0-pool-0-")


def given_before(label: str) -> Callable[[str], Metadata | None]:
    """A domain of release 0.2, whose name has no hash for an index in the clique's."""
    labels = {**domain_labels("t"), "grove.io/clique-name": label}
    return by_name(owned("t-0-p-1-cd", labels))


def test_a_domain_that_lives_under_a_name_without_a_hash_keeps_it_for_podcliques_that_join() -> (
    None
):
    joins = podclique("t-0-p-1", "t", annotations=BY_CLIQUE)
    for label, kept in (("p-1", True), ("other", False)):
        answer = admit(joins, DRIVER, taken=given_before(label))
        assert answer.decision is not None
        assert (answer.decision.cd == "t-0-p-1-cd") is kept


def test_an_update_keeps_the_name_that_was_given_and_asks_nobody() -> None:
    found = podclique("t-0-p-1", "t", annotations=BY_CLIQUE)
    stored = patched(found, admit(found, DRIVER, taken=given_before("p-1")))
    again = on_update(found, stored)
    assert again.decision is not None
    assert again.decision.claim == "t-0-p-1-mnnvl-claim"


def test_a_set_that_is_not_the_one_that_owns_the_podclique_is_read_live() -> None:
    found = podclique("t-0-w", "t")
    older = decoded_set(pcs("t", [clique("w")]))
    review = Review("CREATE", "default", json.dumps(found).encode())
    assert (
        decide(review, DRIVER, ClusterView(support(DRIVER)), {"t": older}.get).result
        == "not-enabled"
    )
    found["metadata"]["ownerReferences"] = [{"kind": "PodCliqueSet", "name": "t", "uid": "newer"}]
    review = Review("CREATE", "default", json.dumps(found).encode())
    assert decide(review, DRIVER, ClusterView(support(DRIVER)), {"t": older}.get).needs == Needs(
        "t"
    )
    live = ClusterView(support(DRIVER), decoded_set(pcs("t", [clique("w")], annotations=ON)), True)
    assert decide(review, DRIVER, live, {"t": older}.get).result == "injected"


def test_the_conflicts_that_need_no_lookup_hold_at_updates_too() -> None:
    stored = patched(enrolled(), admit(enrolled()))
    for entry in (
        {"name": "mnnvl", "resourceClaimName": "mine"},
        {"name": "mnnvl-claim", "resourceClaimName": "x"},
    ):
        assert not on_update(enrolled(pod(resourceClaims=[entry])), stored).allowed
    both = podclique("t-0-w", "t", annotations={**ON, "grove.io/mnnvl-group": "rack"})
    assert 'grove.io/mnnvl-group is "rack" at the PodClique' in on_update(both, stored).message


def test_a_channel_that_an_update_brings_is_refused_and_only_new_claims_are_looked_up() -> None:
    def claims(*names: str) -> Object:
        entries = [{"name": name, "resourceClaimTemplateName": name} for name in names]
        return enrolled(pod(resourceClaims=entries))

    def updated(found: Object, classes: dict[ClaimRef, list[str]] | None = None) -> ReviewAnswer:
        new, old = (json.dumps(one).encode() for one in (found, stored))
        review = Review("UPDATE", "default", new, old)
        return decide(review, DRIVER, ClusterView(support(DRIVER), classes=classes))

    ref = ClaimRef("ResourceClaimTemplate", "own")
    stored = patched(claims("before"), admit(claims("before"), classes={}))
    assert updated(claims("before")).allowed
    assert updated(claims("before", "own")).needs == Needs("", (ref,))
    channel = {ref: ["compute-domain-default-channel.nvidia.com"]}
    refused = updated(claims("before", "own"), channel)
    assert (refused.allowed, "cannot have two channels of a node" in refused.message) == (
        False,
        True,
    )
    assert updated(claims("before", "own"), {ref: ["gpu.nvidia.com"]}).allowed


# --- what is supported ---


@pytest.mark.parametrize(
    ("facts", "config", "says"),
    [
        (ClusterFacts(domain=""), Config(), "this cluster serves no computedomains.resource.nvidia.com (v1beta1); install NVIDIA's DRA driver, or remove grove.io/mnnvl-enabled"),
        (ClusterFacts(), Config(), "MNNVL cannot be had yet"),
        (SERVED, Config(feature="off"), 'switched off here (feature: "off")'),
        (SERVED._replace(fabric_nodes=0), Config(require_fabric_nodes=True), "no node carries the label nvidia.com/gpu.clique"),
        (SERVED._replace(fabric_nodes=None), Config(require_fabric_nodes=True), "the nodes have not been read"),
        (SERVED._replace(claim=""), Config(mode="literal"), "no resourceclaims that we know"),
    ],
)  # fmt: skip
def test_where_it_cannot_be_had_a_podclique_is_refused_or_admitted_without(
    facts: ClusterFacts, config: Config, says: str
) -> None:
    refused = admit(enrolled(), config, support=judge(facts, config))
    assert not refused.allowed
    assert says in refused.message
    lenient = Config(
        **{
            **{key: getattr(config, key) for key in config.__struct_fields__},
            "on_unsupported": "ignore",
        }
    )
    ignored = admit(enrolled(), lenient, support=judge(facts, lenient))
    assert (ignored.allowed, ignored.result, ignored.patch) == (True, "unsupported", ())
    assert says in ignored.warnings[0]


def test_what_hardware_says_is_a_warning() -> None:
    answer = admit(
        enrolled(),
        support=judge(ClusterFacts(domain="v1beta1", device_class=False, fabric_nodes=0), DRIVER),
    )
    assert answer.result == "injected"
    assert [said.split(":")[0] for said in answer.warnings] == [
        "there is no DeviceClass compute-domain-default-channel.nvidia.com",
        "no node carries the label nvidia.com/gpu.clique",
    ]


# --- what is written ---


def test_a_decision_that_a_template_brought_along_is_nobodys() -> None:
    forged = {
        DECISION: '{"v":1,"mode":"driver","scope":"replica","cd":"victim-cd","claim":"victim","gang":"x"}'
    }
    off = podclique("t-0-w", "t", annotations=dict(forged))
    assert DECISION not in patched(off, admit(off))["metadata"]["annotations"]
    assert (
        DECISION
        not in patched(off, on_update(off, podclique("t-0-w", "t")))["metadata"]["annotations"]
    )
    on = podclique("t-0-w", "t", annotations={**ON, **forged})
    assert "victim" not in json.dumps(patched(on, admit(on)))


def test_a_decision_of_a_later_version_is_not_guessed_at() -> None:
    stored = podclique("t-0-w", "t", annotations={**ON, DECISION: '{"v":2,"new":true}'})
    assert on_update(enrolled(), stored).message == (
        "PodClique default/t-0-w: its decision has version 2, and this program knows 1; install the release that wrote it, or a later one."
    )


def test_a_decision_holds_whatever_the_annotations_and_the_mode_become() -> None:
    stored = patched(enrolled(), admit(enrolled()))
    changed = podclique(
        "t-0-w",
        "t",
        annotations={"grove.io/mnnvl-enabled": "false", "grove.io/mnnvl-scope": "clique"},
    )
    assert patched(changed, on_update(changed, stored, LITERAL)) == stored


def test_a_clique_that_loses_its_gpus_loses_the_claim_and_keeps_the_decision() -> None:
    stored = patched(enrolled(), admit(enrolled()))
    cpu = copy.deepcopy(stored)
    cpu["spec"]["podSpec"]["containers"][0]["resources"]["limits"] = {"cpu": 1}
    done = patched(cpu, on_update(cpu, stored))
    assert done["metadata"] == stored["metadata"]
    assert "resourceClaims" not in done["spec"]["podSpec"]
    assert "claims" not in done["spec"]["podSpec"]["containers"][0]["resources"]


OURS = [
    {"key": FABRIC_LABEL, "operator": "Exists"},
    # Feature discovery writes an empty label on a node that is in no clique.
    {"key": FABRIC_LABEL, "operator": "NotIn", "values": [""]},
]
OTHER = {"key": "zone", "operator": "In", "values": ["a"]}


@pytest.mark.parametrize(
    ("affinity", "terms"),
    [
        (None, [{"matchExpressions": OURS}]),
        ({"podAffinity": {}}, [{"matchExpressions": OURS}]),
        ({"nodeAffinity": None}, [{"matchExpressions": OURS}]),
        ({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}, [{"matchExpressions": OURS}]),
        (
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [OTHER]}, {"matchFields": [OTHER]}, {}]}}},
            [{"matchExpressions": [OTHER, *OURS]}, {"matchFields": [OTHER], "matchExpressions": OURS}, {}],
        ),
    ],
)  # fmt: skip
def test_placement_is_required_beside_what_is_required_and_only_once(
    affinity: Object | None, terms: list[Object]
) -> None:
    config = Config(placement="fabric")
    found = enrolled(pod(**({"affinity": affinity} if affinity else {})))
    stored = patched(found, admit(found, config))
    required = stored["spec"]["podSpec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert required == {"nodeSelectorTerms": terms}
    assert admit(stored, config).patch == ()
    assert patched(found, on_update(found, stored, DRIVER)) == stored


# --- properties ---

OTHERS = {ClaimRef("ResourceClaim", "x"): ()}
"""What is known of the claims that generated pods have."""

names = st.from_regex(r"[a-z]([-a-z0-9]{0,8}[a-z0-9])?", fullmatch=True)
amounts = st.sampled_from([0, 1, 8, "0", "2", "1k"])
claim_names = st.sampled_from(["a", "b", "mnnvl", "c"])


@st.composite
def containers(draw: st.DrawFn) -> Object:
    found: Object = {"name": draw(names), "image": "x"}
    if draw(st.booleans()):
        found["resources"] = {}
        if draw(st.booleans()):
            found["resources"][draw(st.sampled_from(["limits", "requests"]))] = {
                draw(st.sampled_from([GPU, "cpu"])): draw(amounts)
            }
        if draw(st.booleans()):
            found["resources"]["claims"] = [
                {"name": name}
                for name in draw(st.lists(claim_names, max_size=3, unique=True))
                if name != "mnnvl"
            ]
    return found


@st.composite
def podcliques(draw: st.DrawFn) -> Object:
    set_, name = draw(names), draw(names)
    spec: Object = {"containers": draw(st.lists(containers(), min_size=1, max_size=3))}
    if draw(st.booleans()):
        spec["initContainers"] = draw(st.lists(containers(), max_size=2))
    if draw(st.booleans()):
        spec["resourceClaims"] = [
            {"name": one, "resourceClaimName": "x"}
            for one in draw(st.lists(claim_names, max_size=3, unique=True))
            if one != "mnnvl"
        ]
    annotations = {
        "a/b": "c",
        **draw(st.sampled_from([{}, ON, BY_CLIQUE])),
    }
    return podclique(
        f"{set_}-0-{name}",
        set_,
        annotations=draw(st.sampled_from([annotations, annotations])),
        pod=spec,
    )


@given(podcliques(), st.sampled_from([DRIVER, LITERAL, Config(placement="fabric")]))
def test_a_patch_twice_is_a_patch_once_and_touches_nothing_else(
    found: Object, config: Config
) -> None:
    answer = admit(found, config, classes=OTHERS)
    once = patched(found, answer)
    again = admit(once, config, classes=OTHERS)
    assert again.patch == ()
    assert again.decision == answer.decision
    assert patched(found, on_update(found, once, config)) == once
    assert _without_ours(once) == _without_ours(found)


def _without_ours(found: Object) -> Object:
    done = copy.deepcopy(found)
    spec = done["spec"]["podSpec"]
    for one in [*spec["containers"], *spec.get("initContainers", ()), {"resources": spec}]:
        at = one.get("resources", {})
        for key in ("claims", "resourceClaims"):
            if at.get(key) is not None and not (
                rest := [c for c in at[key] if c["name"] != "mnnvl"]
            ):
                del at[key]
            elif key in at:
                at[key] = rest
    spec.pop("affinity", None)
    annotations = done["metadata"].get("annotations", {})
    done["metadata"]["annotations"] = {k: v for k, v in annotations.items() if k == "a/b"}
    return done


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=4 * settings().max_examples)
@given(
    json_values,
    st.sampled_from(
        [
            "metadata",
            "spec",
            "labels",
            "podSpec",
            "containers",
            "resourceClaims",
            "affinity",
            "whole",
        ]
    ),
    st.booleans(),
)
def test_hostile_objects_never_raise(value: object, where: str, literal: bool) -> None:
    found: Any = enrolled()
    match where:
        case "metadata" | "spec":
            found[where] = value
        case "labels":
            found["metadata"]["labels"] = value
        case "podSpec":
            found["spec"]["podSpec"] = value
        case "whole":
            found = value
        case _:
            found["spec"]["podSpec"][where] = value
    config = LITERAL if literal else Config(placement="fabric")
    raw = json.dumps(found).encode()
    for review in (
        Review("CREATE", "default", raw),
        Review(
            "UPDATE", "default", raw, json.dumps(patched(enrolled(), admit(enrolled()))).encode()
        ),
        Review("UPDATE", "default", json.dumps(enrolled()).encode(), raw),
        Review("CREATE", "default", raw[:-1]),
    ):
        answer = decide(review, config, ClusterView(support(config), None, True, {}))
        assert answer.allowed or answer.message.endswith(".") or answer.needs
        if (
            answer.allowed
            and review.object == raw
            and isinstance(found, dict)
            and isinstance(found.get("metadata"), dict)
        ):
            json_patch(found, list(answer.patch))
