"""What is refused before any work is done on it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.admission import limits


def pod(**spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "c"}], **spec}}


def test_what_workloads_have_is_within_every_limit() -> None:
    env = [{"name": f"A{n}", "value": "x"} for n in range(100)]
    usual = pod(
        containers=[{"name": f"c{n}", "env": env} for n in range(40)],
        resourceClaims=[{"name": "c"}] * 16,
        tolerations=[{"key": "a"}] * 100,
    )
    assert limits.of_pod(usual, claims=limits.REQUESTS) == ""
    assert limits.of_text(json.dumps(usual).encode()) == ""


def test_all_that_is_too_much_is_said_at_once_with_what_was_found_and_the_limit() -> None:
    said = limits.of_pod(
        pod(resourceClaims=[{}] * 17, schedulingGates=[{}] * 4097), claims=limits.REQUESTS
    )
    assert said == (
        "spec.resourceClaims: 17 entries are more than the 16 that a webhook goes through; use fewer. "
        "spec.schedulingGates: 4097 entries are more than the 4096 that a webhook goes through; use fewer."
    )


@pytest.mark.parametrize("opening", [b"{", b"["])
def test_a_text_is_measured_before_it_is_decoded(opening: bytes) -> None:
    assert limits.of_text(opening * limits.VALUES) == ""
    assert "100001 objects and lists" in limits.of_text(msgspec.Raw(opening * 100_001))


tree = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "containers", "env", "initContainers"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["spec", "metadata"]), tree))
def test_whatever_an_object_is_it_is_measured(whole: dict[str, Any]) -> None:
    assert limits.of_pod(whole) == ""
