"""Names, labels and identities."""

from __future__ import annotations

import re
from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from preflight_mnnvl.api.annotations import SCOPES
from preflight_mnnvl.api.identity import CliqueIdentity, CliqueRefused
from preflight_mnnvl.api.names import is_name, label_value
from preflight_mnnvl.core.domain import (
    Domain,
    domain_of,
    identity_labels,
    labels_of,
    other_identity,
)

LABEL = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]|")
DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
parts = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True)
longer = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,150}[a-z0-9])?", fullmatch=True)
indexes = st.integers(0, 2**31 - 1).map(str)
identities = st.builds(
    lambda pcs, replica, clique, group, index: CliqueIdentity(
        pcs, replica, f"{group}-{index}-{clique}", clique, group, index, "gang", ""
    ),
    st.one_of(parts, longer),
    indexes,
    st.one_of(parts, longer),
    parts,
    indexes,
)


@given(identities, st.sampled_from(SCOPES))
def test_names_are_such_that_kubernetes_takes_them_or_are_refused(
    identity: CliqueIdentity, scope: str
) -> None:
    try:
        domain = domain_of(identity, scope)
    except CliqueRefused as error:
        assert "more than 253" in str(error)
        return
    for name in (domain.name, domain.claim):
        assert len(name) <= 253
        assert DNS.fullmatch(name)
    assert all(
        LABEL.fullmatch(value) and len(value) <= 63
        for value in labels_of(domain, "gang", "release").values()
    )


@given(identities)
def test_the_three_scopes_of_one_podclique_never_share_a_name(identity: CliqueIdentity) -> None:
    try:
        names = {domain_of(identity, scope).name for scope in SCOPES}
    except CliqueRefused:
        return
    assert len(names) == 3


@given(
    st.lists(identities, min_size=2, max_size=2), st.sampled_from(SCOPES), st.sampled_from(SCOPES)
)
def test_different_domains_are_told_apart_by_their_labels(
    pair: list[CliqueIdentity], one: str, other: str
) -> None:
    try:
        first, second = domain_of(pair[0], one), domain_of(pair[1], other)
    except CliqueRefused:
        return
    assert (identity_labels(first) == identity_labels(second)) is (first == second)
    assert bool(other_identity(labels_of(first, "g", "r"), second, "r")) is (first != second)


def test_domains_of_one_name_in_an_earlier_release_are_told_apart() -> None:
    one, other = (
        Domain("clique", "t", "0", clique="p-1", indexed=True),
        Domain("scalingGroupReplica", "t", "0", group="p", group_index="1"),
    )
    assert one.name != other.name == "t-0-p-1-cd"
    assert one._replace(earlier=True).name == other.name
    assert 'is of another domain: its label grove.io/clique-name is ""' in other_identity(
        labels_of(other, "g", "r"), one, "r"
    )


def test_no_two_domains_ever_have_a_claim_of_one_name() -> None:
    """Every domain of every set, of names that are made of a letter and an index."""
    words = ["-".join(of) for k in (1, 2, 3) for of in product("a0", repeat=k)]
    owners: dict[str, set[tuple[str, ...]]] = {}
    for pcs in ("a", *(f"a-{word}" for word in words)):
        alone = [CliqueIdentity(pcs, "0", word, word, "", "", "g", "") for word in words]
        grouped = [
            CliqueIdentity(pcs, "0", f"{group}-0-{word}", word, group, "0", "g", "")
            for group in words
            for word in words
        ]
        for identity in (*alone, *grouped):
            for scope in SCOPES:
                if scope == "scalingGroupReplica" and not identity.group:
                    continue
                domain = domain_of(identity, scope)
                of: tuple[str, ...] = (pcs, scope, domain.clique, domain.group)
                if scope == "clique":  # Grove makes no two PodCliques of one name
                    of = (pcs, scope, identity.clique)
                for name in (domain.claim, domain.name):
                    owners.setdefault(name, set()).add(of)
    assert {name: of for name, of in owners.items() if len(of) > 1} == {}


def test_a_set_whose_names_have_no_index_has_names_without_a_hash() -> None:
    for pcs in ("t", "llama-70b", "a-01", "v2", "0"):
        assert Domain("replica", pcs, "3").claim == f"{pcs}-3-mnnvl-claim"
        assert Domain("clique", pcs, "3", clique="w").name == f"{pcs}-3-w-cd"
    assert Domain("replica", "llama-3", "0").name != "llama-3-0-cd"


def test_an_object_of_another_release_is_not_ours() -> None:
    domain = Domain("replica", "t", "0")
    assert (
        other_identity(labels_of(domain, "g", "blue"), domain, "green")
        == 'belongs to the release "blue", not to "green"'
    )
    assert (
        other_identity(None, domain, "green") == "does not carry the label grove.io/mnnvl-managed"
    )


@given(st.text(max_size=200))
def test_any_text_becomes_a_label_value_and_keeps_apart(text: str) -> None:
    value = label_value(text)
    assert LABEL.fullmatch(value)
    assert len(value) <= 63
    if not LABEL.fullmatch(text) or len(text) > 63:
        assert value != label_value(text + "x")


def test_what_is_too_long_ends_with_its_hash() -> None:
    assert label_value("a" * 100).startswith("a" * 52 + "-")
    assert not is_name("a" * 254)
    assert not is_name("A")
