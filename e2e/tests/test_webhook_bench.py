"""The bench of the webhook compares what patches make, and holds figures against its bars."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e.bench.load import BenchError
from preflight_e2e.bench.peer import SKIPPED, additions, by_url, difference, serving
from preflight_e2e.bench.webhook import LARGE_BYTES, LEAST_BYTES
from preflight_testing.reviews import NUMBER, realistic_review

POD: dict[str, Any] = {
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c"}], "volumes": [{"name": "v"}]},
}


def add(path: str, value: object) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}


def test_two_ways_to_the_same_pod_are_no_difference() -> None:
    one = [add("/spec/volumes/-", {"name": "w"}), add("/metadata/labels", {"a": "b"})]
    other = [
        add("/metadata/labels", {}),
        add("/metadata/labels/a", "b"),
        {
            "op": "replace",
            "path": "/spec/volumes",
            "value": [{"name": "v"}, {"name": "w", "emptyDir": {}}],
        },
        add("/metadata/creationTimestamp", None),
    ]
    assert difference(POD, one, other) == ""


def test_a_difference_is_told_by_its_path() -> None:
    found = difference(
        POD, [add("/metadata/labels", {"a": "b"})], [add("/metadata/labels", {"a": "c"})]
    )
    assert found == '/metadata/labels/a: "b" and "c"'
    assert difference(POD, [add("/spec/volumes/-", {"name": "w"})], []).startswith(
        "/spec/volumes: "
    )


def test_the_peer_is_given_what_our_patch_adds() -> None:
    patch = [
        add("/spec/initContainers", [{"name": "check"}]),
        add("/spec/volumes/-", {"name": "w"}),
    ]
    patch += [add("/metadata/labels/a~1b", "c"), add("/spec/imagePullSecrets", [{"name": "s"}])]
    made = additions(patch)
    assert (made["first"], made["volumes"], made["pullSecrets"]) == (
        [{"name": "check"}],
        [{"name": "w"}],
        [{"name": "s"}],
    )
    assert (made["labels"], made["annotations"]) == ({"a/b": "c"}, {})


def test_without_go_the_peer_is_skipped_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with serving(tmp_path, 0, []) as peer:
        assert peer is None
    assert "SKIPPED" in SKIPPED


def test_another_webhook_is_named_by_an_https_url() -> None:
    named = by_url("https://localhost:9443/mutate")
    assert (named.address, named.path) == ("localhost:9443", "/mutate")
    with pytest.raises(BenchError, match="not an https URL"):
        by_url("localhost:9443")


@pytest.mark.parametrize(("bulk", "least"), [(0, LEAST_BYTES), (LARGE_BYTES, LARGE_BYTES)])
def test_reviews_are_as_large_as_they_are_said_to_be(bulk: int, least: int) -> None:
    text = json.dumps(realistic_review(bulk=bulk), separators=(",", ":"))
    assert len(text) >= least
    assert text.count(NUMBER) == 5
