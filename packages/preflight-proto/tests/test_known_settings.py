"""What an operator sets for a known check is judged before any pod exists."""

from __future__ import annotations

import pytest
from preflight_proto.settings import (
    KNOWN,
    check_of,
    endpoint_problems,
    problems,
    schema,
    size_bytes,
)

IMAGE = "registry.example.com:5000/team/preflight-dcgm-diag:0.1.0@sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("check", "known"),
    [
        ("dcgm-diag", "dcgm-diag"),
        ("preflight-nccl-loopback:0.1.0", "nccl-loopback"),
        (IMAGE, "dcgm-diag"),
        ("registry.example.com:5000/mine", None),
        ("registry.example.com/dcgm-diag-of-mine:1", None),
        ("", None),
    ],
)
def test_a_known_check_is_told_by_its_name_or_its_image(check: str, known: str | None) -> None:
    assert check_of(check) == known


@pytest.mark.parametrize("check", KNOWN)
def test_every_known_check_has_a_schema_with_the_variables_that_all_have(check: str) -> None:
    assert {"GATE", "CHECK_TIMEOUT", "NODE_NAME"} < schema(check)["properties"].keys()
    assert schema(check)["x-image"] == f"preflight-{check}"


def test_a_name_that_is_not_known_is_refused_with_the_one_that_is_meant() -> None:
    assert problems(IMAGE, {"DCGM_DIAG_LEVL": "2", "SOMETHING": "1"}) == [
        "DCGM_DIAG_LEVL: dcgm-diag reads no such variable; did you mean DCGM_DIAG_LEVEL?",
        "SOMETHING: dcgm-diag reads no such variable; remove it; the check's --help lists those that it reads.",
    ]


def test_a_value_is_refused_in_the_words_of_the_check() -> None:
    assert problems("nccl-loopback", {"NCCL_LOOPBACK_SIZE": "4Q", "GATE": "obsrve"}) == [
        'NCCL_LOOPBACK_SIZE: "4Q" is not a size from 1M to 64G; set e.g. 1G or 256M, or remove it to use 1G.',
        'GATE: "obsrve" is not enforce or observe; set enforce or observe, or remove it to use enforce.',
    ]


def test_an_unknown_check_is_nobodys_to_judge() -> None:
    assert problems("registry.example.com/mine:1", {"DCGM_DIAG_LEVL": "x"}) == []


@pytest.mark.parametrize(
    "name", ["NCCL_IB_HCA", "NCCL_DEBUG", "LD_LIBRARY_PATH", "PYTHONUNBUFFERED", "no_proxy"]
)
def test_what_the_tools_below_a_check_read_is_passed_on(name: str) -> None:
    assert problems("nccl-loopback", {name: "x"}) == []


def test_a_name_of_the_checks_own_family_is_not_taken_for_the_tools() -> None:
    assert problems("nccl-allreduce", {"NCCL_ALLREDUCE_FABRC": "x"}) == [
        "NCCL_ALLREDUCE_FABRC: nccl-allreduce reads no such variable; did you mean NCCL_ALLREDUCE_FABRIC?"
    ]


def test_a_variable_that_another_value_refers_to_is_not_unknown_and_a_reference_is_not_judged() -> (
    None
):
    assert (
        problems("dcgm-diag", {"WHERE": "10.0.0.1", "DCGM_HOSTENGINE_ADDR": "$(WHERE):5555"}) == []
    )
    assert problems("dcgm-diag", {"DCGM_DIAG_LEVEL": "$(LEVEL)"}) == []


def test_every_address_of_a_list_is_judged() -> None:
    said = problems(
        "dcgm-diag",
        {"DCGM_HOSTENGINE_ADDR": "$(NODE_IP), $(NODE_IP):5555,,dcgm:0,fd00::1:5555,dcgm"},
    )
    assert [one.split(";")[0] for one in said] == [
        'DCGM_HOSTENGINE_ADDR: "$(NODE_IP)" is not host:port',
        "DCGM_HOSTENGINE_ADDR: the list has an empty entry",
        'DCGM_HOSTENGINE_ADDR: "dcgm:0" is not host:port, its port is not a number from 1 to 65535',
        'DCGM_HOSTENGINE_ADDR: "dcgm" is not host:port',
    ]
    assert endpoint_problems("X", "a:1,a:1") == ['X: "a:1" is listed twice; remove one.']
    assert endpoint_problems("X", "--help:1")[0].startswith('X: "--help:1" is not host:port')
    assert endpoint_problems("X", "$(IP):1") == [  # what the kubelet has left as it is
        'X: "$(IP):1" refers to IP, which is not set; set that variable before this one.'
    ]


@pytest.mark.parametrize("raw", ["4G", "4Gi", "4GiB", "4g", "4294967296"])
def test_a_size_has_one_meaning_however_it_is_written(raw: str) -> None:
    assert size_bytes(raw) == 4 << 30
    assert problems("nccl-allreduce", {"NCCL_ALLREDUCE_SIZE": raw}) == []
    assert problems("nccl-loopback", {"NCCL_LOOPBACK_SIZE": raw}) == []


def test_a_number_of_hundreds_of_digits_is_refused() -> None:
    [problem] = problems("nccl-loopback", {"NCCL_LOOPBACK_ITERATIONS": "9" * 400})
    assert problem.endswith(
        "is not a whole number from 1 to 1000; set a whole number from 1 to 1000, or remove it to use 20."
    )
