from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # what several tests share

from allreduce_testing.gangs.gang import GangUnderTest


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[GangUnderTest]:
    """Real check processes with rosters in folders; whatever they leave behind fails the test."""
    with GangUnderTest(tmp_path, preloaded=True) as one:
        yield one


@pytest.fixture
def shipped(tmp_path: Path) -> Iterator[GangUnderTest]:
    """The same, and each check starts its agent itself, which loads torch,
    as it does in the image.
    """
    with GangUnderTest(tmp_path) as one:
        yield one
