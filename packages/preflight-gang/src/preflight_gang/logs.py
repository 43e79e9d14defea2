"""JSON lines on stdout: time, level, msg, component, and what else a line is about."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from io import TextIOWrapper
from typing import Final

import msgspec

__all__ = ["set_up"]

COMPONENT: Final = "preflight-gang"
_encode = msgspec.json.Encoder(enc_hook=str).encode


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "component": COMPONENT,
            **getattr(record, "about", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return _encode(line).decode()


def set_up(level: str) -> None:
    """Send everything, libraries' lines too, through one handler."""
    handler = logging.StreamHandler(sys.stdout)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a line is written when it is said, and in one write
    handler.setFormatter(_JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
