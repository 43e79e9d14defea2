"""When a request of a claim is for GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_proto.devices import OTHER_RESOURCES, is_for_gpus, may_be_gpus, requests_of


@pytest.mark.parametrize(
    ("alternatives", "admin", "expected"),
    [
        (["gpu.example.com"], False, True),
        (["nic.example.com", "gpu.example.com"], False, True),  # the scheduler may take either
        (["nic.example.com"], False, False),
        (["gpu.example.com"], True, False),  # to look at them, not to have them
        ([None], False, False),
        ([], False, False),
    ],
)
def test_a_request_is_for_gpus_where_any_alternative_gives_them_to_the_pod_itself(
    alternatives: list[str | None], admin: bool, expected: bool
) -> None:
    assert is_for_gpus(alternatives, {"gpu.example.com"}, admin=admin) is expected


def test_the_requests_of_a_claim_and_of_a_template_are_read_in_the_shape_of_any_version() -> None:
    first = {"name": "g", "firstAvailable": [{"deviceClassName": "a"}, {"deviceClassName": "b"}]}
    exactly = {"name": "g", "exactly": {"deviceClassName": "a", "adminAccess": True}}
    flat = {"name": "g", "deviceClassName": "a"}  # v1beta1
    claim = {"spec": {"devices": {"requests": [first, exactly, flat]}}}
    expected = [(["a", "b"], False), (["a"], True), (["a"], False)]
    assert list(requests_of(claim)) == list(requests_of({"spec": claim})) == expected
    odd: Any
    for odd in (None, [], "x", {}, {"devices": 1}, {"devices": {"requests": [1, None]}}):
        assert [names for names, _ in requests_of({"spec": odd})] in ([], [[""], [""]])


def test_a_resource_of_nvidia_may_be_gpus_unless_it_is_known_to_be_others() -> None:
    for gpu in ("nvidia.com/pgpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"):
        assert may_be_gpus(gpu, OTHER_RESOURCES)
        assert not may_be_gpus(gpu, [gpu])
    for other in ("nvidia.com/hostdev", "nvidia.com/rdma_a", "rdma/hca", "cpu", "nvidia.com"):
        assert not may_be_gpus(other, OTHER_RESOURCES)
