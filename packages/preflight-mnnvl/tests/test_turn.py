"""One turn about one domain: what is told, when it is looked at again,
and what is never touched.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from cliques import (
    BY_CLIQUE,
    DRIVER,
    LITERAL,
    ON,
    admit,
    clique,
    group,
    patched,
    pcs,
    podclique,
    support,
)
from grove_world import NOW, Cluster, announcements
from preflight_kube.runtime.events import Regarding
from preflight_mnnvl.api.names import DECISION
from preflight_mnnvl.api.types import PodClique
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.reasons import MOST_SUBJECTS, about, refused_announcement
from preflight_mnnvl.core.reconcile import DomainPlan, plans
from preflight_mnnvl.core.snapshot import DomainMember, Ignored, member_of, wanted
from preflight_mnnvl.core.support import ClusterFacts, judge


def cluster(config: Config = DRIVER, **steps: bool) -> Cluster:
    found = Cluster(config)
    found.apply(pcs("t", [clique("w")], annotations=ON))
    found.cliques("t")
    return found


def the_turn(found: Cluster) -> DomainPlan:
    (turn,) = found.turn().values()
    return turn


def test_a_claim_template_that_does_not_come_is_told_after_half_a_minute() -> None:
    found = cluster()
    found.turn()
    assert (the_turn(found).again, set(found.told.values())) == (NOW + 30, {"MnnvlDomainCreated"})
    found.now += 30
    turn = the_turn(found)
    assert turn.again is None
    assert (
        turn.why
        == "the ComputeDomain t-0-cd has no ResourceClaimTemplate after 30 s: is the DRA driver's controller running?"
    )
    assert "MnnvlClaimTemplateMissing" in found.told.values()


@pytest.mark.parametrize(
    ("labels", "late", "blocked"),
    [
        ({}, 0, True),
        ({"resource.nvidia.com/computeDomain": "older"}, 0, False),
        ({"resource.nvidia.com/computeDomain": "older"}, 30, True),
    ],
)
def test_a_claim_template_that_is_not_of_this_domain_is_told(
    labels: dict[str, str], late: int, blocked: bool
) -> None:
    found = cluster()
    found.turn()
    found.put("claim", {"metadata": {"name": "t-0-mnnvl-claim", "labels": labels}})
    found.now += late
    turn = the_turn(found)
    assert (turn.state == "blocked") is blocked
    assert ("MnnvlDomainBlocked" in found.told.values()) is blocked
    assert turn.again == (found.now + 60 if blocked else NOW + 30)


def test_who_owns_what_is_in_the_way_is_told() -> None:
    found = Cluster(DRIVER)
    found.apply(pcs("t", [clique("w")], annotations=ON))
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "theirs", "uid": "x"}
    labels = {"app.kubernetes.io/managed-by": "helm"}
    metadata = {"name": "t-0-cd", "labels": labels, "ownerReferences": [owner]}
    found.put("cd", {"metadata": metadata, "spec": {}})
    found.behind = True
    found.cliques("t")
    turn = the_turn(found)
    assert (turn.state, turn.actions, turn.why) == (
        "blocked",
        (),
        "the ComputeDomain t-0-cd is managed by helm and belongs to the Deployment theirs; delete or rename it, and the domain is made.",
    )
    assert turn.events[0].message == f"T{turn.why[1:]}"


def test_a_literal_claim_of_somebody_else_is_told_and_left_alone() -> None:
    found = Cluster(LITERAL)
    found.apply(pcs("t", [clique("w")], annotations=ON))
    found.put("claim", {"metadata": {"name": "t-0-mnnvl-claim"}, "spec": {}})
    found.behind = True
    found.cliques("t")
    found.turn()
    before = dict(found.store["claim"]["t-0-mnnvl-claim"])
    assert the_turn(found).state == "blocked"
    assert found.store["claim"]["t-0-mnnvl-claim"] == before


def test_a_domain_that_is_being_deleted_is_waited_for() -> None:
    found = cluster()
    found.turn()
    found.delete("cd", "t-0-cd")
    assert (the_turn(found).state, the_turn(found).actions) == ("ending", ())
    found.now += 61
    assert the_turn(found).why.startswith(
        "the ComputeDomain t-0-cd has been terminating for more than 60 s, and is made again at its end; its finalizers are "
    )
    found.collect()
    assert [action.why for action in the_turn(found).actions] == ["make"]
    found.turn()
    assert "MnnvlDomainRecreated" in found.told.values()


def test_of_a_domain_whose_podgang_has_gone_is_not_said_that_it_is_the_sets() -> None:
    found = cluster()
    found.turn()
    found.driver()
    found.gangs("t")
    found.turn()
    found.delete("pg", "t-0")
    assert the_turn(found).why == "the ComputeDomain t-0-cd belongs to a PodGang that is gone."


def test_of_a_lost_domain_there_is_an_event_of_a_controller_that_never_had_it() -> None:
    found = cluster()
    found.turn()
    found.delete("cd", "t-0-cd")
    found.collect()
    found.restart()
    found.store["pclq"]["t-0-w"]["status"] = {"scheduledReplicas": 2}
    found.turn()
    found.turn()
    assert found.store["cd"]["t-0-cd"]["metadata"]["annotations"] == {
        "mnnvl.nvsentinel.nvidia.com/recreated": "unknown"
    }
    assert "MnnvlDomainRecreated" in found.told.values()


def test_nothing_is_made_for_a_set_that_is_going() -> None:
    found = cluster()
    found.store["pcs"]["t"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert (the_turn(found).state, the_turn(found).actions) == ("wanted", ())


def test_of_a_replica_that_is_scaled_away_nothing_is_lost_though_its_groups_go_after_its_gang() -> (
    None
):
    """Grove deletes PodGang and scaling group at once; the group's PodCliques go with the group."""
    found = Cluster(DRIVER)
    two = [pcs("t", [clique("w")], [group("g", ["w"], ON)], replicas=n) for n in (2, 1, 2)]
    found.apply(two[0])
    found.grove("t")
    found.store["pclq"]["t-1-g-0-w"]["status"] = {"scheduledReplicas": 2}
    found.apply(two[1])
    found.gangs("t")
    found.collect()
    turn = found.turn()["default", "t-1-cd"]
    assert (turn.state, turn.actions) == ("wanted", ())
    assert turn.why == "its PodCliqueSet has no replica 1 any more; its PodCliques are about to go."
    found.cliques("t")
    found.settle()
    assert found.domains() == {"t-0-cd": "PodGang t-0"}
    assert "MnnvlDomainRecreated" not in found.told.values()
    found.apply(two[2])
    found.grove("t")
    assert found.domains() == {"t-0-cd": "PodGang t-0", "t-1-cd": "PodGang t-1"}


def test_a_gang_that_is_going_adopts_nothing() -> None:
    found = cluster()
    found.turn()
    found.gangs("t")
    found.store["pg"]["t-0"]["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert (the_turn(found).state, the_turn(found).actions) == ("owned-by-set", ())
    assert announcements(found.world()) == {}


@pytest.mark.parametrize("change", ["more owners", "other owner", "no controller"])
def test_any_owner_but_the_one_is_replaced(change: str) -> None:
    found = cluster()
    found.gangs("t")
    found.turn()
    owners = found.store["cd"]["t-0-cd"]["metadata"]["ownerReferences"]
    assert the_turn(found).state == "adopted"
    match change:
        case "more owners":
            owners.append({**owners[0], "controller": False})
        case "other owner":
            owners[0]["name"] = "x"
        case _:
            owners[0]["controller"] = False
    found.turn()
    assert found.domains() == {"t-0-cd": "PodGang t-0"}
    assert the_turn(found).state == "adopted"


def test_a_domain_follows_its_podcliques_to_another_gang_when_the_recorded_one_is_gone() -> None:
    found = cluster()
    found.grove("t")
    found.store["pclq"]["t-0-w"]["metadata"]["annotations"][DECISION] = found.store["pclq"][
        "t-0-w"
    ]["metadata"]["annotations"][DECISION].replace('"gang":"t-0"', '"gang":"t-0-x"')
    found.put("pg", {"metadata": {"name": "t-0-x"}})
    found.turn()
    assert found.domains() == {"t-0-cd": "PodGang t-0-x"}
    assert found.store["cd"]["t-0-cd"]["metadata"]["labels"]["grove.io/podgang"] == "t-0-x"
    assert the_turn(found).actions == ()


def test_where_it_cannot_be_had_nothing_is_written_and_it_is_told_once_it_is_known() -> None:
    found = cluster()
    for facts, told in ((ClusterFacts(), 0), (ClusterFacts(domain=""), 2)):
        (turn,) = plans(found.world(), DRIVER, judge(facts, DRIVER), NOW).values()
        assert (turn.state, turn.actions, len(turn.events)) == ("unsupported", (), told)


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        ("nonsense", "is none that the webhook wrote"),
        ('{"v":1}', "is none that the webhook wrote"),
        ('{"v":7}', "its decision has version 7"),
        (
            '{"v":1,"mode":"driver","scope":"replica","cd":"victim-cd","claim":"victim","gang":"x"}',
            "names victim-cd, and its labels t-0-cd",
        ),
    ],
)
def test_a_decision_that_the_webhook_did_not_write_makes_nothing(annotation: str, why: str) -> None:
    found = podclique("t-0-w", "t", annotations={DECISION: annotation})
    member = member_of(msgspec.convert(found | {"spec": {}}, PodClique))
    assert isinstance(member, Ignored)
    assert why in member.why


def _member(name: str, gang: str, **labels: Any) -> DomainMember:
    found = podclique(
        name,
        "t",
        annotations={
            **ON,
            **({"grove.io/mnnvl-scope": labels.pop("scope")} if "scope" in labels else {}),
        },
        gang=gang,
        **labels,
    )
    done: Any = patched(found, admit(found))
    member = member_of(msgspec.json.decode(msgspec.json.encode(done), type=PodClique))
    assert isinstance(member, DomainMember)
    return member


def test_of_several_gangs_the_base_is_taken() -> None:
    (one,) = wanted(
        [_member("t-0-g-1-w", "t-0-g-0", group="t-0-g", index="1"), _member("t-0-w", "t-0")]
    ).values()
    assert (one.gang, len(one.members)) == ("t-0", 2)


def test_that_all_is_adopted_is_taken_back_while_a_domain_of_the_gang_is_missing() -> None:
    found = Cluster(DRIVER)
    found.apply(pcs("t", [clique("a", annotations=BY_CLIQUE), clique("b", annotations=BY_CLIQUE)]))
    found.grove("t")
    gang = found.store["pg"]["t-0"]["metadata"]
    assert gang["annotations"] == {"grove.io/mnnvl-resources-adopted": "true"}
    found.delete("cd", "t-0-b-cd")
    found.collect()
    found.turn()
    assert found.store["pg"]["t-0"]["metadata"]["annotations"] == {}
    found.settle()
    gang = found.store["pg"]["t-0"]["metadata"]
    assert gang["annotations"] == {"grove.io/mnnvl-resources-adopted": "true"}


def test_what_keeps_a_domain_that_is_being_deleted_is_told_after_a_minute() -> None:
    found = cluster()
    found.turn()
    found.delete("cd", "t-0-cd")
    turn = the_turn(found)
    assert (turn.state, turn.again, turn.events) == ("ending", NOW + 60, ())
    found.now += 60
    turn = the_turn(found)
    assert (turn.state, turn.again) == ("ending", None)
    assert {event.regarding.kind for event in turn.events} == {"PodCliqueSet", "PodClique"}
    assert {(event.reason, event.warning) for event in turn.events} == {("MnnvlDomainEnding", True)}
    assert "its finalizers are resource.nvidia.com/computeDomain:" in turn.events[0].message


def test_who_took_claims_of_a_foreign_template_is_told_to_be_restarted() -> None:
    found = cluster()
    found.turn()
    found.put("claim", {"metadata": {"name": "t-0-mnnvl-claim", "labels": {}}})
    assert the_turn(found).why.endswith(
        "delete or rename it, and the driver makes its own; pods that run with claims of this one must be restarted."
    )


def test_the_label_of_a_base_gang_is_taken_for_a_domain_of_the_whole_replica() -> None:
    assert (
        _member("t-0-g-1-w", "t-0-g-0", group="t-0-g", index="1", base="t-0").decision.gang == "t-0"
    )
    scoped = _member(
        "t-0-g-1-w", "t-0-g-0", group="t-0-g", index="1", base="t-0", scope="scalingGroupReplica"
    )
    assert scoped.decision.gang == "t-0-g-0"


def test_one_fact_has_one_name_and_few_subjects() -> None:
    subjects = [Regarding("v", "PodClique", f"c{i}", f"u{i}", "default") for i in range(100)]
    first = about(subjects, "MnnvlDomainBlocked", "m", "fact")
    assert len(first) == MOST_SUBJECTS + 1
    assert first == about(subjects, "MnnvlDomainBlocked", "m", "fact")
    assert not {*first} & {*about(subjects, "MnnvlDomainBlocked", "m", "other")}
    assert all(one.warning for one in first)
    assert "config.authorizer.exemptServiceAccountUserNames" in refused_announcement(
        "t-0", "system:serviceaccount:a:b"
    )


def test_events_are_the_same_at_every_turn() -> None:
    found = cluster()
    found.gangs("t")
    found.turn()
    events = [event for turn in found.turn().values() for event in turn.events]
    assert events == [event for turn in found.turn().values() for event in turn.events]
    assert support(DRIVER).ok


def test_a_claim_template_that_only_looks_like_ours_is_left_to_its_owner() -> None:
    found = Cluster(DRIVER)
    labels = {
        "grove.io/mnnvl-managed": "true",
        "app.kubernetes.io/managed-by": "preflight-mnnvl",
        "app.kubernetes.io/instance": "preflight-mnnvl",
    }
    found.put("claim", {"metadata": {"name": "x-mnnvl-claim", "labels": labels}})
    found.settle()
    (turn,) = found.turn().values()
    assert (turn.state, turn.actions, found.writes) == ("gone", (), [])
