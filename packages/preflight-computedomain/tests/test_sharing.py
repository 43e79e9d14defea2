from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
from claimed import document, parameters, ref, result
from hypothesis import given
from hypothesis import strategies as st
from preflight_computedomain.api.names import DRIVER, GRANTED
from preflight_computedomain.api.types import ComputeDomain, Metadata, Slice, UsedClaim
from preflight_computedomain.core import slices
from preflight_computedomain.core.sharing import Sharing


def used(number: int, domain: str, *nodes: str) -> UsedClaim:
    body: dict[str, Any] = document(ref(number), [result(pool=node) for node in nodes])
    opaque = {"driver": DRIVER, "parameters": parameters(domainID=domain)}
    body["spec"] = {"devices": {"config": [{"opaque": opaque}]}}
    return msgspec.json.decode(msgspec.json.encode(body), type=UsedClaim)


def offered(node: str, clique: str) -> Slice:
    body = slices.body(node, "uid", slices.channel(clique, "570.158.1"))
    return msgspec.json.decode(msgspec.json.encode(body), type=Slice)


def test_two_active_domains_of_one_clique_are_told_of_each_other() -> None:
    sharing = Sharing()
    for node, clique in (("a", "x.1"), ("b", "x.1"), ("c", "x.2")):
        sharing.slice(offered(node, clique))
    assert sharing.claim(used(1, "red", "a")) == {"red"}
    assert sharing.claim(used(2, "blue", "c")) == {"blue"}
    assert sharing.shared() == {}
    assert sharing.claim(used(3, "blue", "b")) == {"red", "blue"}
    assert sharing.shared() == {"x.1": {"red", "blue"}}
    assert (sharing.others("red"), sharing.others("blue")) == ({"x.1": {"blue"}}, {"x.1": {"red"}})
    assert sharing.claim(used(1, "red", "a"), gone=True) == {"red", "blue"}
    assert sharing.shared() == {}


def test_a_node_that_offers_nothing_now_keeps_the_clique_of_its_pods() -> None:
    sharing = Sharing()
    for number, (node, domain) in enumerate((("a", "red"), ("b", "blue")), 1):
        sharing.slice(offered(node, "x.1"))
        sharing.claim(used(number, domain, node))
    sharing.slice(offered("a", ""))
    assert sharing.shared() == {"x.1": {"red", "blue"}}
    sharing.slice(offered("a", "x.1"), gone=True)
    assert sharing.shared() == {}


def domain(name: str, *cliques: str) -> ComputeDomain:
    annotations = {GRANTED: ",".join(cliques)}
    return ComputeDomain(metadata=Metadata(name=name, uid=name, annotations=annotations))


def test_a_clique_is_the_first_ones_until_its_pods_have_ended() -> None:
    sharing = Sharing()
    for node in "ab":
        sharing.slice(offered(node, "x.1"))
    sharing.claim(used(1, "red", "a"))
    red, blue = domain("red"), domain("blue")
    assert sharing.granted(red, [red, blue]) == {"x.1"}
    red = domain("red", "x.1")
    sharing.claim(used(2, "blue", "b"))
    assert sharing.granted(red, [red, blue]) == {"x.1"}
    assert sharing.granted(blue, [red, blue]) == set()
    assert sharing.granted(blue, [blue]) == set(), "it is gone, and its pods run"
    sharing.claim(used(1, "red", "a"), gone=True)
    assert sharing.granted(red, [red, blue]) == set()
    assert sharing.granted(blue, [red, blue]) == set(), "that it has it stands there still"
    assert sharing.granted(blue, [domain("red"), blue]) == {"x.1"}


def test_a_claim_that_names_a_domain_of_another_namespace_makes_it_active_nowhere() -> None:
    homes = {"red": "another", "blue": used(1, "blue").metadata.namespace}
    sharing = Sharing(lambda uid: homes.get(uid, ""))
    for node in "abc":
        sharing.slice(offered(node, "x.1"))
    sharing.claim(used(1, "red", "a"))
    sharing.claim(used(2, "blue", "b"))
    assert (sharing.shared(), sharing.cliques("red")) == ({}, set())
    assert sharing.granted(domain("blue"), [domain("red"), domain("blue")]) == {"x.1"}
    del homes["red"]
    assert sharing.shared() == {"x.1": {"red", "blue"}}, "it is gone, and its pods may run"


NODES, DOMAINS, CLIQUES = "ab", ("red", "blue"), ("", "x.1", "x.2")
CHANGES = st.one_of(
    st.tuples(st.sampled_from(NODES), st.sampled_from(CLIQUES)),
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(DOMAINS),
        st.lists(st.sampled_from(NODES), max_size=2, unique=True),
    ),
)


@given(st.lists(CHANGES, max_size=12))
def test_whatever_changes_it_is_as_if_it_had_been_read_at_once(changes: list[Any]) -> None:
    sharing, of, claims = Sharing(), dict[str, str](), dict[int, tuple[str, list[str]]]()
    for change in changes:
        before = sharing.shared()
        if len(change) == 2:
            of[change[0]] = change[1]
            concerned = sharing.node(*change)
        else:
            number, domain, nodes = change
            claims[number] = domain, nodes
            concerned = sharing.claim(used(number, domain, *nodes))
        active = defaultdict(set)
        for domain, nodes in claims.values():
            for node in nodes:
                if clique := of.get(node):
                    active[clique].add(domain)
        assert sharing.shared() == {key: one for key, one in active.items() if len(one) > 1}
        if sharing.shared() != before:
            assert concerned == set(DOMAINS)
