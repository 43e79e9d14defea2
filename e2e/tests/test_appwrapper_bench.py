"""What the benches of AppWrappers send, which scenarios there are, and what is not a scenario."""

from __future__ import annotations

from pathlib import Path

import pytest
from preflight_e2e.bench.appwrapper_trace import SCENARIOS, act, counts, read
from preflight_e2e.bench.appwrapper_world import EVICTED, load_of, node_of, pod_of, wrapper
from preflight_e2e.bench.load import BenchError


def test_a_wrapper_is_created_suspended_with_its_pods_declared() -> None:
    made = wrapper(3, 16)
    assert made["spec"]["suspend"] is True
    [component] = made["spec"]["components"]
    assert component["podSets"] == [{"path": "template.spec.template", "replicas": 16}]


def test_just_the_wrappers_that_will_be_moved_have_a_pod_on_the_first_node() -> None:
    there = {i for i in range(1000) for k in range(16) if node_of(i, k) == "node-0"}
    assert there == set(range(EVICTED))


def test_a_pod_belongs_to_its_component_and_carries_what_its_template_was_given() -> None:
    found = load_of("w")
    found["metadata"]["uid"] = "u"
    found["spec"]["template"]["metadata"] = {"labels": {"a": "b"}}
    made = pod_of(found, 2, "node-a")
    assert made["metadata"]["labels"] == {"a": "b"}
    assert (made["metadata"]["name"], made["metadata"]["ownerReferences"][0]["uid"]) == ("w-2", "u")


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_begins_with_a_wrapper_and_ends_with_what_is_waited_for(path: Path) -> None:
    steps = read(path)
    assert "wrap" in steps[0]
    assert "until" in steps[-1]


@pytest.mark.parametrize(
    "text", ["", "step = 3", "[[step]]\nwrap = 'w'\nuntil = 'w'\n", "[[step]]\ndance = 'w'\n", "]["]
)
def test_what_is_no_scenario_is_refused_with_its_place(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(BenchError, match=r"x\.toml"):
        read(tmp_path / "x.toml")


def test_an_act_is_told_with_its_name_and_the_options_of_a_deletion() -> None:
    about = {"resource": "loads", "name": "w"}
    sent = {
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u"},
        "kind": "DeleteOptions",
    }
    one = {
        "verb": "delete",
        "objectRef": about,
        "requestObject": sent,
        "responseStatus": {"code": 200},
    }
    assert counts(one)
    assert act(one)["options"] == {"propagationPolicy": "Background", "uid": True}
    assert not counts({**one, "responseStatus": {"code": 404}})
