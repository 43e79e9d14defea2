"""JSON lines on stdout: time, level, msg, component, and what else a line is about."""

from __future__ import annotations

import asyncio
import logging
import sys
from datetime import UTC, datetime
from typing import Final

import msgspec

__all__ = ["flush", "line", "line_of", "part", "set_up"]

COMPONENT: Final = "preflight-webhook"
SOON: Final = 0.05
"""Seconds that the line of an admission may wait for others to be written with it."""
ENOUGH: Final = 16 * 1024
"""Bytes that are written without waiting: a quarter of what a pipe holds, so that a write rarely waits for who reads it."""
_encode = msgspec.json.Encoder(enc_hook=str).encode


class _Pending:
    """Lines not yet written. A system call a line costs more than the line; a crash loses :data:`SOON` of them at most."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.size = 0

    def put(self, text: bytes) -> None:
        self.lines.append(text)
        self.size += len(text)
        if self.size >= ENOUGH:
            self.flush()
        elif len(self.lines) == 1:
            try:
                asyncio.get_running_loop().call_later(SOON, self.flush)
            except RuntimeError:  # nobody would come back for it
                self.flush()

    def flush(self) -> None:
        if not self.lines:
            return
        text, self.lines, self.size = b"\n".join([*self.lines, b""]), [], 0
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


_pending = _Pending()
flush = _pending.flush
"""Write what is pending; for the end."""


def line(level: str, msg: str, about: dict[str, object]) -> None:
    """Write one line soon, without the logging machinery. ``about`` is not empty."""
    line_of(part(level, msg, {}), about)


def part(level: str, msg: str, about: dict[str, object]) -> bytes:
    """What many lines have in common, encoded once, for :func:`line_of`."""
    return _encode({"level": level, "msg": msg, "component": COMPONENT, **about})[1:-1]


def line_of(common: bytes, about: dict[str, object]) -> None:
    """Write one line soon, without the logging machinery: what is ``common`` to it and others, and what is its own, of which there is some."""
    _pending.put(b'{"time":%s,%s,%s' % (_encode(datetime.now(UTC)), common, _encode(about)[1:]))


class _JsonLines(logging.Handler):
    """What is logged otherwise is rare, and written at once, behind the lines before it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _pending.put(self._line(record))
            _pending.flush()
        except Exception:
            self.handleError(record)

    @staticmethod
    def _line(record: logging.LogRecord) -> bytes:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "component": COMPONENT,
            **getattr(record, "about", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = f"{type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return _encode(line)


def set_up(level: str) -> None:
    """Send everything, libraries' lines too, through one handler."""
    root = logging.getLogger()
    root.handlers[:] = [_JsonLines()]
    root.setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # its start and stop are told by us
    logging.getLogger("httpx").setLevel(logging.WARNING)
