"""Helpers beside the tests are importable by name."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from hypothesis import settings
from preflight_testing.plugin import real_api_server

settings.register_profile("house", deadline=None)  # machines differ
settings.load_profile("house")

__all__ = ["real_api_server"]
