from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from preflight_testing.apiserver import ApiServer

sys.path.insert(0, str(Path(__file__).parent))  # what several tests share


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real API server with all kinds, and the garbage collector."""
    from live import api_server

    with api_server(tmp_path_factory.mktemp("apiserver")) as found:
        yield found
