from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # what several tests share

from allreduce_testing.gangs.gang import Gang


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    """Real check processes with rosters in folders; whatever they leave behind fails the test."""
    with Gang(tmp_path, preloaded=True) as one:
        yield one


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[Gang]:
    """The same, and each check starts its agent itself, which loads torch,
    as it does in the image.
    """
    with Gang(tmp_path) as one:
        yield one
