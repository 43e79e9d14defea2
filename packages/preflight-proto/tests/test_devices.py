"""When a request of a claim is for GPUs."""

from __future__ import annotations

import pytest
from preflight_proto.devices import is_for_gpus


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
