"""Indexes: which objects have a value."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.runtime.indexes import Index, namespaced_name, owner_uids


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.none() | st.sets(st.sampled_from("xyz"))), max_size=30
    )
)
def test_an_index_says_what_a_walk_over_all_objects_would(
    steps: list[tuple[str, set[str] | None]],
) -> None:
    index: Index[set[str]] = Index(sorted)
    there: dict[str, set[str]] = {}
    for key, item in steps:
        if item is None:
            there.pop(key, None)
            index.remove(key)
        else:
            there[key] = item
            index.put(key, item)
        for value in "xyz":
            assert set(index.keys(value)) == {key for key, item in there.items() if value in item}
        assert set(index.values()) == set().union(*there.values())


class Owner(msgspec.Struct):
    uid: str


class Meta(msgspec.Struct):
    name: str
    namespace: str = ""
    owner_references: list[Owner] | None = None


class Thing(msgspec.Struct):
    metadata: Meta


def test_the_usual_indexes_find_names_and_owners() -> None:
    assert namespaced_name(Thing(Meta("a", "ns"))) == ("ns/a",)
    assert namespaced_name(Thing(Meta("node"))) == ("node",)
    assert owner_uids(Thing(Meta("a"))) == ()
    assert owner_uids(Thing(Meta("a", "", [Owner("u1"), Owner("u2")]))) == ("u1", "u2")
