from __future__ import annotations

import pytest
from check_nccl_allreduce.settings import Settings, show_size
from preflight_proto.check import SettingsError
from preflight_proto.check.settings import read


@pytest.mark.parametrize(
    ("text", "value"),
    [("4Gi", 4 * 1024**3), ("256Mi", 256 * 1024**2), ("8192", 8192), ("4Ki", 4096)],
)
def test_sizes_are_read(text: str, value: int) -> None:
    assert read(Settings, {"NCCL_ALLREDUCE_SIZE": text}).size == value
    assert show_size(value) == ("8Ki" if value == 8192 else text)


@pytest.mark.parametrize("text", ["4Q", "-1", "1", "4097", "100Gi", "4 Gi", "٤Gi"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(SettingsError, match="NCCL_ALLREDUCE_SIZE"):
        read(Settings, {"NCCL_ALLREDUCE_SIZE": text})


def test_the_threshold_is_unset_by_default() -> None:
    assert read(Settings, {}).threshold is None
