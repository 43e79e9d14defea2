"""What the bench of multi-node NVLink sends."""

from __future__ import annotations

import json

from preflight_e2e.bench.mnnvl import clique

SET = {"metadata": {"name": "t"}}


def test_a_podclique_has_groves_labels_and_about_the_size_that_was_asked_for() -> None:
    found = clique(SET, 7, "a", 20_000)
    assert found["metadata"]["name"] == "t-7-a"
    assert found["metadata"]["labels"]["grove.io/podgang"] == "t-7"
    assert 18_000 < len(json.dumps(found)) < 25_000
    (container,) = found["spec"]["podSpec"]["containers"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "8"}}


def test_podcliques_of_one_replica_are_of_one_gang_and_have_names_of_their_own() -> None:
    made = [clique(SET, 0, name, 1) for name in "abcd"]
    assert len({one["metadata"]["name"] for one in made}) == 4
    assert {one["metadata"]["labels"]["grove.io/podgang"] for one in made} == {"t-0"}
