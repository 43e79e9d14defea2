"""A set from its creation to its end, with a controller that may die before any of its writes."""

from __future__ import annotations

import copy
from contextlib import suppress

import pytest
from cliques import BY_CLIQUE, BY_GROUP, DRIVER, GPU, LITERAL, ON, Object, clique, group, pcs
from grove_world import Cluster, Died
from hypothesis import given
from hypothesis import strategies as st
from preflight_mnnvl.api.names import DECISION
from preflight_mnnvl.config import Config


def a_set(replicas: int = 1, pool: int = 3, least: int = 1) -> Object:
    cliques = [
        clique("w", annotations=ON),
        clique("alone", annotations=BY_CLIQUE),
        clique("cpu", gpus=None),
        clique("p"),
    ]
    return pcs("t", cliques, [group("g", ["p"], BY_GROUP, pool, least)], replicas=replicas)


def names(replicas: int, pool: int) -> set[str]:
    return {
        name
        for r in range(replicas)
        for name in (f"t-{r}-cd", f"t-{r}-alone-cd", *(f"t-{r}-g-{i}-cd" for i in range(pool)))
    }


def versions(cluster: Cluster) -> dict[str, str]:
    return {name: one["metadata"]["resourceVersion"] for name, one in cluster.store["cd"].items()}


@pytest.mark.parametrize("least", [1, 2])
@pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])
def test_scaling_makes_and_removes_exactly_the_right_domains_and_touches_no_sibling(
    config: Config, least: int
) -> None:
    cluster = Cluster(config)
    seen: dict[str, str] = {}
    for replicas, pool in ((1, 3), (4, 3), (2, 3), (2, 5), (2, 2)):
        cluster.apply(a_set(replicas, pool, least))
        cluster.grove("t")
        now = versions(cluster)
        assert set(now) == names(replicas, pool)
        assert set(cluster.store["claim"]) == {
            name.removesuffix("-cd") + "-mnnvl-claim" for name in now
        }
        assert {name: now[name] for name in now if name in seen} == {
            name: seen[name] for name in now if name in seen
        }
        seen = now
    assert cluster.refused == []


def test_a_literal_claim_without_its_domain_is_let_go_too() -> None:
    cluster = Cluster(LITERAL)
    cluster.apply(a_set(2))
    cluster.cliques("t")
    cluster.turn()
    cluster.apply(a_set(1))
    cluster.cliques("t")
    cluster.delete("cd", "t-1-cd")
    cluster.settle()
    assert set(cluster.store["claim"]) == {
        name.removesuffix("-cd") + "-mnnvl-claim" for name in names(1, 3)
    }


def test_what_no_podclique_needs_is_not_let_go_at_once() -> None:
    cluster = Cluster(DRIVER)
    cluster.apply(a_set(1))
    cluster.cliques("t")
    cluster.turn()
    cluster.store["pclq"].clear()  # as a mirror that is not read yet looks like
    turn = cluster.turn()["default", "t-0-cd"]
    assert (turn.state, turn.actions, turn.again) == ("unclaimed", (), cluster.now + 5)


def test_gang_termination_keeps_the_domain() -> None:
    cluster = Cluster(DRIVER)
    cluster.apply(a_set(1))
    cluster.grove("t")
    before = versions(cluster)
    cluster.store["pclq"].clear()
    cluster.settle()
    cluster.grove("t")
    assert versions(cluster) == before


def test_a_changed_template_is_injected_again_and_keeps_its_claim() -> None:
    cluster = Cluster(DRIVER)
    set_ = a_set(1)
    cluster.apply(set_)
    cluster.grove("t")
    before = copy.deepcopy(cluster.store["pclq"]["t-0-w"])
    writes = len(cluster.writes)
    set_ = copy.deepcopy(set_)
    set_["spec"]["template"]["cliques"][0]["spec"]["podSpec"]["containers"].append(
        {"name": "second", "resources": {"requests": {GPU: "1"}, "claims": [{"name": "own"}]}}
    )
    cluster.apply(set_)
    cluster.grove("t")
    now = cluster.store["pclq"]["t-0-w"]
    assert now["spec"]["podSpec"]["resourceClaims"] == before["spec"]["podSpec"]["resourceClaims"]
    assert now["spec"]["podSpec"]["containers"][1]["resources"]["claims"] == [
        {"name": "own"},
        {"name": "mnnvl"},
    ]
    assert len(cluster.writes) == writes


STEPS = (
    *(
        "cliques",
        "gangs",
        "turn",
        "driver",
        "collect",
        "settle",
        "terminated",
        "lost gang",
        "lost domain",
        "lost claim",
        "restart",
        "dies",
        "later",
    ),
    *("up", "down", "pool up", "pool down"),
)


@given(
    st.lists(st.sampled_from(STEPS), max_size=25),
    st.sampled_from(["grove", "requirement"]),
    st.sampled_from([DRIVER, LITERAL]),
)
def test_any_order_of_events_ends_with_what_living_podcliques_need(
    steps: list[str], labels: str, config: Config
) -> None:
    cluster = Cluster(config, labels=labels)
    replicas, pool = 1, 2
    cluster.apply(a_set(replicas, pool))
    for step in steps:
        replicas = max(1, min(3, replicas + {"up": 1, "down": -1}.get(step, 0)))
        pool = max(1, min(4, pool + {"pool up": 1, "pool down": -1}.get(step, 0)))
        cluster.apply(a_set(replicas, pool))
        match step:
            case "cliques" | "gangs":
                getattr(cluster, step)("t")
            case "turn" | "driver" | "collect" | "settle" | "restart":
                getattr(cluster, step)()
            case "terminated":
                cluster.store["pclq"].clear()
            case "lost gang" if cluster.store["pg"]:
                cluster.delete("pg", min(cluster.store["pg"]))
            case "lost domain" if cluster.store["cd"]:
                cluster.delete("cd", min(cluster.store["cd"]))
            case "lost claim" if cluster.store["claim"]:
                cluster.delete("claim", min(cluster.store["claim"]))
            case "later":
                cluster.now += 40
            case "dies":
                cluster.dies_before = 1
                with suppress(Died):
                    cluster.turn()
                cluster.dies_before = None
    cluster.grove("t")
    assert cluster.refused == []
    assert set(cluster.store["cd"]) == names(replicas, pool)
    for one in cluster.store["cd"].values():
        (owner,) = one["metadata"]["ownerReferences"]
        gang = cluster.store["pg"][owner["name"]]["metadata"]
        assert (owner["kind"], owner["uid"]) == ("PodGang", gang["uid"])
        assert gang["annotations"] == {"grove.io/mnnvl-resources-adopted": "true"}
    assert {one.state for one in cluster.turn().values()} == {"adopted"}


def test_a_claim_that_was_written_away_in_an_outage_comes_back_and_is_told() -> None:
    cluster = Cluster(DRIVER)
    cluster.apply(a_set())
    cluster.grove("t")
    with_claims = copy.deepcopy(cluster.store["pclq"])
    cluster.outage = True
    cluster.grove("t")
    lost = cluster.store["pclq"]["t-0-w"]
    assert DECISION not in lost["metadata"].get("annotations", {})
    assert "resourceClaims" not in lost["spec"]["podSpec"]
    assert set(cluster.domains()) == names(1, 3)
    cluster.outage, cluster.messages = False, []
    cluster.grove("t")
    for name, one in cluster.store["pclq"].items():
        assert one["spec"] == with_claims[name]["spec"]
    told = [text for text in cluster.messages if "had been written away and is back" in text]
    assert told != []
    assert any("t-0-w" in text for text in told)
    assert set(cluster.domains()) == names(1, 3)


def test_without_a_living_domain_of_that_very_identity_nothing_is_given_at_an_update() -> None:
    cluster = Cluster(DRIVER)
    cluster.outage = True
    cluster.apply(a_set())
    cluster.cliques("t")
    cluster.outage = False
    before = copy.deepcopy(cluster.store["pclq"])
    cluster.grove("t")
    assert cluster.store["pclq"] == before
    assert cluster.domains() == {}
