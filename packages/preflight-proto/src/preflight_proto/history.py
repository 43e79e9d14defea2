"""The bound of what a check may say that it has measured. Pure."""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_GBPS"]

MAX_GBPS: Final = 1e6
"""Bandwidths beyond are not measurements; the fastest NVLink domain has about a
thousandth of it.
"""
