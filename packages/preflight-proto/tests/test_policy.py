"""PreflightConfig as it crosses from its author to the gang controller and on to the webhook."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import UNSET, convert
from preflight_proto.policy import ContractError, PreflightConfig, decode_spec, path, refusal


def spec(made: Any) -> Any:
    return decode_spec(json.dumps(made).encode())


def judged(status: str, observed: int, generation: int = 3) -> PreflightConfig:
    condition = {
        "type": "Accepted",
        "status": status,
        "reason": "Why",
        "message": "",
        "observedGeneration": observed,
    }
    other = {"type": "Other", "status": "True", "observedGeneration": generation}
    status_of_it = {"conditions": [other, condition]}
    made = {"metadata": {"name": "one", "generation": generation}, "status": status_of_it}
    return convert(made, PreflightConfig)


def test_one_is_in_force_that_is_accepted_as_it_is_now() -> None:
    assert refusal(judged("True", 3)) == ""
    assert refusal(judged("False", 3)) == "Why"
    assert "not looked at it yet" in refusal(judged("True", 2))
    assert "not looked at it yet" in refusal(
        convert({"metadata": {"name": "new", "generation": 1}}, PreflightConfig)
    )


def test_what_is_not_set_is_told_from_what_is_empty() -> None:
    made = spec({"gangDiscovery": {"optIn": [], "labels": {"gangIdLabel": "job"}}})
    assert made.enforcement is UNSET
    assert made.gang_discovery.opt_in == ()
    assert made.gang_discovery.labels.gang_size_label is UNSET


def test_fields_of_later_versions_are_ignored() -> None:
    assert spec({"enforcement": "observe", "later": {"a": 1}}).enforcement == "observe"


@pytest.mark.parametrize(
    "wrong",
    [None, 5, {"enforcement": "maybe"}, {"gangDiscovery": {"labels": {"gangIdLabel": "a b"}}}],
)
def test_what_this_version_does_not_know_is_refused(wrong: Any) -> None:
    with pytest.raises(ContractError, match="spec cannot be read"):
        spec(wrong)


@pytest.mark.parametrize(
    "key", ["job", "example.com/job", "a.b-c/D_e.f", "a" * 63, f"{'a' * 253}/{'b' * 63}"]
)
def test_keys_of_labels_are_known(key: str) -> None:
    assert (
        spec(
            {"gangDiscovery": {"labels": {"gangIdLabel": key}}}
        ).gang_discovery.labels.gang_id_label
        == key
    )


def test_paths_are_those_of_the_api() -> None:
    root = "/apis/preflight.nvsentinel.nvidia.com/v1alpha1"
    assert path() == f"{root}/preflightconfigs"
    assert path("ml", "one") == f"{root}/namespaces/ml/preflightconfigs/one"
