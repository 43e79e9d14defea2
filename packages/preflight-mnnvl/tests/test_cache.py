"""What the controller sees: which change leads to which domain, and what counts as seen after a
write.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from cliques import DRIVER, ON, Object, admit, container, group, patched, pcs, podclique
from cliques import clique as a_clique
from mirrored import Mirror
from preflight_kube.runtime.cache import OVERLAY_TTL
from preflight_mnnvl.api.types import (
    ComputeDomain,
    Metadata,
    PodClique,
    PodCliqueSet,
    PodGang,
    SetSpec,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller.cache import clique_key, gang_key, waiting
from preflight_mnnvl.core.snapshot import lacks_claim

CD = ("default", "t-0-cd")


class Seeing:
    def __init__(self, config: Config = DRIVER) -> None:
        self.touched: list[tuple[str, str]] = []
        self.now = 0.0
        self.mirror = Mirror(config, self.touched.append, lambda: self.now)

    def told(self) -> set[tuple[str, str]]:
        found = set(self.touched)
        self.touched.clear()
        return found


def clique(name: str = "t-0-w", uid: str = "u") -> PodClique:
    found = podclique(name, "t", annotations=ON)
    done: Object = patched(found, admit(found))
    done["metadata"]["uid"] = uid
    return msgspec.json.decode(json.dumps(done), type=PodClique)


def domain(version: str, uid: str = "d", gang: str = "t-0", **meta: Any) -> ComputeDomain:
    labels = {
        "grove.io/pcs-name": "t",
        "grove.io/pcs-replica-index": "0",
        "grove.io/mnnvl-managed": "true",
        "app.kubernetes.io/managed-by": "preflight-mnnvl",
        "app.kubernetes.io/instance": "preflight-mnnvl",
        "grove.io/podgang": gang,
    }
    found = Metadata(
        name=CD[1], namespace=CD[0], uid=uid, resource_version=version, labels=labels, **meta
    )
    return ComputeDomain(metadata=found)


def a_set(uid: str, replicas: int | None = None, version: str = "") -> PodCliqueSet:
    of = Metadata(name="t", namespace="default", uid=uid, resource_version=version)
    return PodCliqueSet(metadata=of, spec=SetSpec(replicas=replicas))


def a_gang(name: str) -> PodGang:
    return PodGang(metadata=Metadata(name=name, namespace="default", uid=f"uid-{name}"))


def test_a_podclique_a_set_and_a_podgang_lead_to_the_domain_that_they_concern() -> None:
    one = Seeing()
    one.mirror.clique("u", clique())
    assert one.told() == {CD}
    one.mirror.clique("u", clique())
    assert one.told() == set()
    one.mirror.set_as(a_set("s"))
    assert one.told() == {CD}
    one.mirror.gang_as(a_gang("t-0"))
    assert one.told() == {CD, gang_key("default", "t-0")}
    one.mirror.gang_as(a_gang("other"))
    assert one.told() == {gang_key("default", "other")}
    one.mirror.clique("u", None)
    assert one.told() == {CD}
    assert one.mirror.wants(CD) is None


def test_a_domain_leads_to_itself_by_its_labels_also_when_nobody_needs_it() -> None:
    one = Seeing()
    one.mirror.part_as("domain", domain("1"))
    assert one.told() == {CD}
    one.mirror.gang_as(a_gang("t-0"))
    assert CD in one.told()
    assert one.mirror.view(CD).gangs.keys() == {"t-0"}
    assert set(one.mirror.every()) == {CD, gang_key("default", "t-0")}


def test_an_answer_counts_as_seen_until_the_watch_has_it_or_something_newer() -> None:
    one = Seeing()
    one.mirror.clique("u", clique())
    one.mirror.wrote("domain", domain("7"))
    for brought, counts in (("", "7"), ("5", "7"), ("9", "9")):
        if brought:
            one.mirror.part_as("domain", domain(brought))
        seen = one.mirror.view(CD).domain
        assert seen is not None
        assert seen.metadata.resource_version == counts


def test_an_answer_is_forgotten_when_the_watch_never_brings_it() -> None:
    one = Seeing()
    one.mirror.clique("u", clique())
    one.mirror.wrote("domain", domain("7"))
    one.now = OVERLAY_TTL
    assert one.mirror.view(CD).domain is None


def test_a_domain_that_goes_is_remembered_as_lost_while_somebody_needs_it_and_no_longer() -> None:
    one = Seeing()
    one.mirror.clique("u", clique())
    one.mirror.part_as("domain", domain("1", uid="first"))
    one.mirror.part_as("domain", domain("1", uid="first"), gone=True)
    assert one.mirror.view(CD).lost == "first"
    one.mirror.clique("u", None)
    assert one.mirror.view(CD).lost == ""
    one.mirror.clique("u", clique())
    assert one.mirror.view(CD).lost == ""


def test_how_many_replicas_a_set_has_now_is_seen_at_its_domains() -> None:
    one = Seeing()
    one.mirror.clique("u", clique())
    for replicas in (1, 0, 2):
        one.told()
        one.mirror.set_as(a_set("s", replicas, str(replicas)))
        assert (one.mirror.view(CD).replicas, CD in one.told()) == (replicas, True)


def test_what_is_lost_is_forgotten_with_its_set() -> None:
    one = Seeing()
    one.mirror.set_as(a_set("s"))
    one.mirror.clique("u", clique())
    one.mirror.part_as("domain", domain("1"))
    one.mirror.part_as("domain", domain("1"), gone=True)
    assert one.mirror.view(CD).lost == "d"
    one.mirror.set_as(a_set("s"), gone=True)
    assert one.mirror.lost == {}


def test_the_end_of_a_predecessor_does_not_take_its_successor_along() -> None:
    one = Seeing()
    one.mirror.part_as("domain", domain("1", uid="first"))
    one.mirror.part_as("domain", domain("2", uid="second"))
    one.mirror.part_as("domain", domain("1", uid="first"), gone=True)
    seen = one.mirror.view(CD).domain
    assert seen is not None
    assert seen.metadata.uid == "second"


def test_of_a_kind_that_is_not_served_any_more_nothing_is_known() -> None:
    one = Seeing()
    one.mirror.part_as("domain", domain("1"))
    one.mirror.served("domain", False)
    assert one.mirror.view(CD).domain is None
    assert list(one.mirror.every()) == []


BEFORE, LATER = "2027-01-15T08:00:00Z", "2027-01-15T09:00:00Z"


def set_(where: str = "", uid: str = "s", made: str = BEFORE) -> PodCliqueSet:
    """The set t with the scaling group g, enrolled in the layer ``where``."""
    found = pcs(
        "t",
        [a_clique("w")],
        [group("g", ["w"], ON if where == "group" else None)],
        ON if where == "set" else None,
    )
    found["metadata"] |= {"uid": uid, "creationTimestamp": made}
    return msgspec.json.decode(json.dumps(found), type=PodCliqueSet)


def bare(grouped: bool = False, owner: str = "s", **meta: Any) -> PodClique:
    """Of the set t, with GPUs, and with nothing of ours."""
    found = (
        podclique("t-0-g-0-w", "t", group="t-0-g", index="0")
        if grouped
        else podclique("t-0-w", "t")
    )
    kind = "PodCliqueScalingGroup" if grouped else "PodCliqueSet"
    name = "t-0-g" if grouped else "t"
    found["metadata"] |= {
        "uid": "u",
        "creationTimestamp": LATER,
        "ownerReferences": [{"kind": kind, "name": name, "uid": owner}],
        **meta,
    }
    return msgspec.json.decode(json.dumps(found), type=PodClique)


@pytest.mark.parametrize("first", ["set", "clique"])
@pytest.mark.parametrize("where", ["set", "group", "clique"])
def test_a_podclique_that_lost_its_claim_is_found_whichever_layer_asks(
    where: str, first: str
) -> None:
    one = Seeing()
    annotations = ON if where == "clique" else {}
    if first == "set":
        one.mirror.set_as(set_(where))
    one.mirror.clique("u", bare(where == "group", annotations=annotations))
    if first == "clique":
        one.mirror.set_as(set_(where))
    assert clique_key("default", "u") in one.told()
    assert clique_key("default", "u") in list(one.mirror.every())
    found = one.mirror.unclaimed_one("u")
    assert found is not None
    assert found[0].name.startswith("t-0-")
    one.mirror.clique("u", None)
    assert (one.mirror.unclaimed(), one.told()) == ([], {clique_key("default", "u")})


@pytest.mark.parametrize(
    ("clique", "of"),
    [
        (bare(), set_("")),
        (bare(), set_("group")),
        (bare(owner="before"), set_("set")),
        (bare(True, "any", creationTimestamp=BEFORE), set_("set", made=LATER)),
        (bare(deletionTimestamp=LATER), set_("set")),
        (bare(annotations={"grove.io/mnnvl-enabled": "false"}), set_("set")),
    ],
    ids=["asks not", "another group", "another set", "older than its set", "going", "says no"],
)
def test_who_does_not_ask_is_not_found(clique: PodClique, of: PodCliqueSet) -> None:
    one = Seeing()
    one.mirror.clique("u", clique)
    one.mirror.set_as(of)
    assert one.mirror.unclaimed() == []


@pytest.mark.parametrize(
    ("annotations", "gpus", "claims", "without"),
    [
        (ON, 8, None, True),
        (ON, None, None, False),
        (ON, 8, [{"name": "mnnvl", "resourceClaimTemplateName": "t-0-mnnvl-claim"}], True),
    ],
    ids=["asks", "has no GPUs", "asks and has no decision"],
)
def test_whose_pods_get_no_claim(
    annotations: dict[str, str], gpus: object, claims: Any, without: bool
) -> None:
    pod: dict[str, Any] = {"containers": [container(gpus=gpus)]}
    found = podclique(
        "t-0-w",
        "t",
        annotations=annotations,
        pod={**pod, **({"resourceClaims": claims} if claims else {})},
    )
    assert lacks_claim(msgspec.json.decode(json.dumps(found), type=PodClique), DRIVER) is without


@pytest.mark.parametrize(("gpus", "without"), [(8, True), (None, False)])
def test_a_podclique_that_has_lost_its_gpus_needs_no_claim(gpus: object, without: bool) -> None:
    found = podclique("t-0-w", "t", annotations=dict(ON))
    stored = patched(found, admit(found))
    stored["spec"]["podSpec"] = {"containers": [container(gpus=gpus)]}
    assert lacks_claim(msgspec.json.decode(json.dumps(stored), type=PodClique), DRIVER) is without


def test_a_podgangs_key_is_no_domains() -> None:
    assert waiting(gang_key("default", "t-0")) == ("gang", "t-0")
    assert waiting(CD) == ("", CD[1])
