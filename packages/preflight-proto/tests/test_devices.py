"""When a request of a claim is for GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_proto.devices import (
    OTHER_RESOURCES,
    DeviceRequest,
    is_for_gpus,
    may_be_gpus,
    requests_of,
)


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


ALTERNATIVES = {
    "name": "g",
    "firstAvailable": [
        {"name": "x", "deviceClassName": "a", "count": 2},
        {"name": "y", "deviceClassName": "b"},
    ],
}


@pytest.mark.parametrize(
    ("request_", "met", "expected"),
    [
        ({"deviceClassName": "a"}, None, (("a",), 1, False)),
        ({"deviceClassName": "a", "count": 3}, None, (("a",), 3, False)),
        ({"deviceClassName": "a", "allocationMode": "All"}, None, (("a",), None, False)),
        ({"deviceClassName": "a", "adminAccess": True}, None, (("a",), 1, True)),
        ({"deviceClassName": "a"}, {"g"}, (("a",), 1, False)),
        ({"deviceClassName": "a"}, {"other"}, ((), None, False)),
        ({"exactly": {"deviceClassName": "a"}}, None, (("a",), 1, False)),
        ({"exactly": {"deviceClassName": "a", "count": 3}}, None, (("a",), 3, False)),
        (
            {"exactly": {"deviceClassName": "a", "allocationMode": "All"}},
            None,
            (("a",), None, False),
        ),
        ({"exactly": {"deviceClassName": "a", "adminAccess": True}}, None, (("a",), 1, True)),
        ({"exactly": {"deviceClassName": "a"}}, {"g"}, (("a",), 1, False)),
        (ALTERNATIVES, None, (("a", "b"), None, False)),
        (ALTERNATIVES, {"g/x"}, (("a",), 2, False)),
        (ALTERNATIVES, {"g/y"}, (("b",), 1, False)),
        (ALTERNATIVES, {"g"}, ((), None, False)),
    ],
)
def test_a_request_of_a_claim_or_template_is_read_in_the_shape_of_any_version(
    request_: dict[str, Any], met: set[str] | None, expected: DeviceRequest
) -> None:
    claim = {"spec": {"devices": {"requests": [{"name": "g", **request_}]}}}
    for made in (claim, {"spec": claim}):
        assert list(requests_of(made, met)) == [expected]


@pytest.mark.parametrize("odd", [None, [], "x", {}, {"devices": 1}, {"devices": {"requests": "x"}}])
def test_what_is_no_claim_asks_for_nothing(odd: Any) -> None:
    assert list(requests_of({"spec": odd})) == []


def test_what_is_no_request_asks_for_no_class() -> None:
    odd: Any = {"devices": {"requests": [1, None, {"firstAvailable": [1]}, {"exactly": []}]}}
    assert {request.classes for request in requests_of({"spec": odd})} == {("",)}


def test_a_resource_of_nvidia_may_be_gpus_unless_it_is_known_to_be_others() -> None:
    for gpu in ("nvidia.com/pgpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"):
        assert may_be_gpus(gpu, OTHER_RESOURCES)
        assert not may_be_gpus(gpu, [gpu])
    for other in ("nvidia.com/hostdev", "nvidia.com/rdma_a", "rdma/hca", "cpu", "nvidia.com"):
        assert not may_be_gpus(other, OTHER_RESOURCES)
