"""JSON lines on stdout: time, level, msg, component, and what else a line is about."""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["fault", "set_up"]

_FRAMES: Final = 5
_MOST: Final = 1000
_encode = msgspec.json.Encoder(enc_hook=str).encode


class _JsonLines(logging.Formatter):
    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "component": self._component,
            **getattr(record, "about", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line |= _told(record.exc_info[1])
        return _encode(line).decode()


def _told(error: BaseException) -> dict[str, str]:
    """What went wrong, and where: of the innermost, where several stand in a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return {"error": f"{type(error).__name__}: {error}"[:_MOST], "at": where}


def fault(message: str, error: Exception) -> None:
    """One line about what should never be."""
    logging.getLogger(__name__).critical(message, exc_info=error)


def set_up(component: str, level: str) -> None:
    """Send everything, libraries' lines too, through one handler; ``component`` is who speaks."""
    handler = logging.StreamHandler(sys.stdout)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a line is written when it is said, and in one write
    handler.setFormatter(_JsonLines(component))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
