from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_kube.api.quantities import (
    UNIT,
    effective_limits,
    effective_requests,
    fractional_cpu,
    parse_quantity,
    quantity_text,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8), ("500m", Fraction(1, 2)), ("1Gi", 2**30), ("1.5Ki", 1536), ("1e3", 1000), ("1E3", 1000), ("2E", 2 * 10**18),
        ("-1", -1), ("+2", 2), (".5", Fraction(1, 2)), ("5.", 5), ("100n", Fraction(1, 10**7)), ("1e-3", Fraction(1, 1000)),
    ],
)  # fmt: skip
def test_reads_what_kubernetes_reads(text: str, value: Fraction) -> None:
    assert parse_quantity(text) == value * UNIT


@pytest.mark.parametrize("text", ["", "two", "1 Gi", "1gi", "0x1", "1e", "--1", "1Gi2", "１"])
def test_refuses_the_rest_in_one_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a quantity; write e\.g\. 8"):
        parse_quantity(text)


@given(st.integers(0, 10**18))
def test_whole_thousandths_survive_the_way_through_text(millis: int) -> None:
    assert parse_quantity(quantity_text(millis * UNIT // 1000)) == millis * UNIT // 1000


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8, "8"),
        (Fraction(3, 2), "1500m"),
        (10**9, "1G"),
        (2**30, "1073741824"),
        (0, "0"),
        (1500, "1500"),
    ],
)
def test_writes_as_the_api_server_does(value: int, text: str) -> None:
    assert quantity_text(int(value * UNIT)) == text


@given(st.integers(0, 1000 * UNIT))
def test_a_fractional_cpu_is_never_whole_and_never_more(nanos: int) -> None:
    cut = fractional_cpu(nanos)
    assert cut <= nanos
    assert cut == 0 or cut % UNIT


def test_what_is_finer_than_nano_is_rounded_up() -> None:
    assert parse_quantity("0.1n") == 1


# --- of a pod

Object = dict[str, Any]


def container(cpu: object = None, *, limit: object = None, sidecar: bool = False) -> Object:
    requests = {} if cpu is None else {"cpu": cpu}
    made: Object = {
        "resources": {"requests": requests, "limits": {} if limit is None else {"cpu": limit}}
    }
    return {**made, "restartPolicy": "Always"} if sidecar else made


def cpu(spec: Object) -> Fraction:
    return Fraction(effective_requests(spec)["cpu"], UNIT)


@pytest.mark.parametrize(
    ("init", "containers", "expected"),
    [
        ([], ["1", "500m"], Fraction(3, 2)),
        ([container("4")], ["1", "1"], 4),
        ([container("1"), container("3")], ["1", "1"], 3),
        ([container("1", sidecar=True)], ["2"], 3),
        # The sidecar runs beside the later init container, and not beside the one before it.
        ([container("4"), container("1", sidecar=True), container("4")], ["2"], 5),
        ([container("4"), container("1", sidecar=True)], ["2"], 4),
        ([container("1", sidecar=True), container("1", sidecar=True), container("3")], ["2"], 5),
    ],
)
def test_init_containers_and_sidecars_count_as_the_scheduler_counts_them(
    init: list[Object], containers: list[str], expected: Fraction
) -> None:
    assert (
        cpu({"initContainers": init, "containers": [container(one) for one in containers]})
        == expected
    )


def test_a_limit_alone_is_a_request_too() -> None:
    assert cpu({"containers": [container(limit="2"), container("1", limit="4")]}) == 3


def test_overhead_is_added_at_the_end() -> None:
    spec = {
        "containers": [container("1")],
        "initContainers": [container("3")],
        "overhead": {"cpu": "250m", "memory": 5},
    }
    assert effective_requests(spec) == {"cpu": 3 * UNIT + UNIT // 4, "memory": 5 * UNIT}


def test_what_the_pod_itself_asks_for_counts_instead_of_its_containers_and_overhead_on_top() -> (
    None
):
    spec = {
        "containers": [{"resources": {"requests": {"cpu": "1", "example.com/gpu": 8}}}],
        "resources": {"requests": {"cpu": "8", "example.com/gpu": 1}},
        "overhead": {"cpu": "1"},
    }
    assert effective_requests(spec) == {"cpu": 9 * UNIT, "example.com/gpu": 8 * UNIT}


def test_a_limit_of_the_pod_alone_is_its_request_only_where_no_container_has_one() -> None:
    own = {"resources": {"limits": {"cpu": "8", "memory": "1Gi", "hugepages-2Mi": "4Mi"}}}
    found = effective_requests({"containers": [container("1")], **own})
    assert found == {"cpu": UNIT, "memory": 2**30 * UNIT, "hugepages-2Mi": 2**22 * UNIT}


def test_limits_are_counted_alike_and_overhead_makes_none() -> None:
    spec = {
        "containers": [container("1", limit="2"), container("1")],
        "initContainers": [container(limit="3")],
        "overhead": {"cpu": "1", "memory": "1Gi"},
    }
    assert effective_limits(spec) == {"cpu": 4 * UNIT}
    assert effective_limits({**spec, "resources": {"limits": {"cpu": "8"}}}) == {"cpu": 9 * UNIT}


@pytest.mark.parametrize(
    "spec",
    [{}, {"containers": None}, {"containers": [None, {}]}, {"containers": [{"resources": 1}]}],
)
def test_a_pod_that_asks_for_nothing_has_no_requests(spec: Object) -> None:
    assert effective_requests(spec) == {}


@pytest.mark.parametrize("value", ["two", True, None, ["1"]])
def test_an_amount_that_is_not_one_is_named_with_its_path(value: object) -> None:
    spec = {"containers": [{}, {"resources": {"requests": {"cpu": value}}}]}
    with pytest.raises(ValueError, match=r"^spec\.containers\[1\]\.resources\.requests\.cpu: "):
        effective_requests(spec)


steps = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5)


@given(steps, st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_it_is_the_most_that_runs_at_any_moment(
    init: list[tuple[int, bool]], containers: list[int]
) -> None:
    moments, sidecars = [], 0
    for amount, sidecar in init:
        moments.append(sidecars + amount)
        sidecars += amount if sidecar else 0
    moments.append(sidecars + sum(containers))
    spec = {
        "initContainers": [container(amount, sidecar=sidecar) for amount, sidecar in init],
        "containers": [container(amount) for amount in containers],
    }
    assert cpu(spec) == max(moments)
