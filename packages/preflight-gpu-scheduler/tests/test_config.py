"""The configuration: every problem at once, in one sentence each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_gpu_scheduler.config import Config, ConfigError, json_schema, of
from test_objects import tree


def problems(raw: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        of(raw)
    return caught.value.problems


def test_an_empty_file_is_the_defaults() -> None:
    assert of(None) == of({}) == Config()
    assert Config().seconds("stale_after") == 90
    assert Config().count_resource == "gpu.scheduling/gpu"


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"staleAfter": "30"}, 'staleAfter: "30" has no unit'),
        ({"staleAfter": "45s"}, "staleAfter: is less than two heartbeats"),
        ({"sweep": "0s"}, 'sweep: "0s" is not between 1 s and 3600 s'),
        ({"gangBind": "2m"}, "gangBind: is not below reservationSeconds"),
        ({"reservationSeconds": 1}, "reservationSeconds: must be at least 5"),
        ({"reservationSeconds": 60.5}, "reservationSeconds: must be a whole number"),
        ({"devicePlugin": "maybe"}, "devicePlugin: must be one of"),
        ({"lockNamespce": "x"}, "lockNamespce: unknown key; write lockNamespace instead"),
        ({"gangPatience": "5m"}, "gangPatience: unknown key"),
        ({"countResource": "a b"}, "countResource: must"),
        ([], "the file: must be a map"),
        ({7: "x", None: "y"}, "7: unknown key"),
    ],
)
def test_what_is_wrong_is_said_with_its_path(raw: object, words: str) -> None:
    assert any(one.startswith(words) for one in problems(raw)), problems(raw)


def test_all_problems_are_said_at_once() -> None:
    assert len(problems({"sweep": "x", "heartbeat": "y", "guardOthers": "no", "other": 1})) == 4


def test_counting_can_be_switched_off() -> None:
    assert of({"countResource": ""}).count_resource == ""


KEYS = sorted(json_schema()["$defs"]["Config"]["properties"])


@given(st.dictionaries(st.sampled_from(KEYS), tree, max_size=4) | tree)
def test_any_data_is_a_configuration_or_has_problems(raw: object) -> None:
    try:
        assert isinstance(of(raw), Config)
    except ConfigError as error:
        assert all(one.endswith(".") and "\n" not in one for one in error.problems)
