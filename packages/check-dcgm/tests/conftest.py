from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from preflight_testing.forked import ForkServer

sys.path.insert(0, str(Path(__file__).parent))  # `documents`, which several tests share


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """The check's program, which has imported all that it needs. An engine gets half a second
    instead of ten to end what takes too long.
    """
    with ForkServer("check_dcgm.check", tmp_path_factory.mktemp("forks"), "LATER = 0.5") as server:
        yield server
