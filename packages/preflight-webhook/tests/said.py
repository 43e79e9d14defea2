"""The command line in this process: what it prints and how it ends."""

from __future__ import annotations

from functools import partial

from preflight_testing.documents import CommandEnd as Said
from preflight_testing.documents import ended
from preflight_webhook.cli import main

__all__ = ["Said", "said"]

said = partial(ended, main)
