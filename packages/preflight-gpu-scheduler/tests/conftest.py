"""Helpers beside the tests are importable by name."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from preflight_testing.apiserver import ApiServer
from preflight_testing.plugin import real_api_server

if TYPE_CHECKING:
    from plane import Plane

__all__ = ["real_api_server"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world(request: pytest.FixtureRequest, real_api_server: ApiServer) -> AsyncIterator[Plane]:
    """A test's own cluster on it, as usual or as `having` says."""
    from plane import plane

    async with plane(real_api_server, **getattr(request.function, "having", {})) as made:
        yield made
