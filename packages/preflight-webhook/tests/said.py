"""The command line in this process: what it prints and how it ends."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple
from unittest.mock import patch

import pytest
from preflight_webhook.cli import main


class Said(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Said]


def said(*arguments: str, stdin: str = "") -> Said:
    out, err = io.StringIO(), io.StringIO()
    with (
        patch.object(sys, "argv", ["preflight-webhook", *arguments]),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, out.getvalue(), err.getvalue())


def paragraphs(text: str) -> Iterator[str]:
    """What `explain --brief` says of each pod."""
    yield from text.strip().split("\n\n")
