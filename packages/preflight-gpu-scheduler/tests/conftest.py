"""Helpers beside the tests are importable by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from preflight_testing.plugin import real_api_server

__all__ = ["real_api_server"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
