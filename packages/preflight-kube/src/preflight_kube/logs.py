"""JSON lines on stdout: time, level, msg, component, and the fields of each line.

``log = get_logger(__name__)`` in a module; ``log.info("gang sealed", gang=name, generation=3)``
there. A program calls :func:`set_up` once; libraries' own lines go the same way. :func:`line` and
:func:`line_of` are for what is written thousands of times a second.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

_FRAMES: Final = 5
_MOST: Final = 1000
_SOON: Final = 0.05
"""Seconds that a :func:`line` may wait for others to be written with it."""
_ENOUGH: Final = 16 * 1024
"""Bytes that are written without waiting: a quarter of what a pipe holds, so that a write rarely
waits for its reader.
"""
_QUIET: Final = ("httpcore", "uvicorn.error")
"""Libraries that say at level info what nobody needs."""
_encode = msgspec.json.Encoder(enc_hook=str).encode
_component = ""


class Logger:
    """Writes lines with fields.

    A field may be anything that JSON has, or whose text says enough. ``error`` may be an exception:
    its kind, its text, and for :meth:`exception` the innermost frames, are written.
    """

    __slots__ = ("_log",)

    def __init__(self, log: logging.Logger) -> None:
        self._log = log

    def info(self, message: str, /, **fields: object) -> None:
        """What has changed."""
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, /, **fields: object) -> None:
        """What does not work just now, and may by itself."""
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, /, **fields: object) -> None:
        """What an operator must do something about."""
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, /, **fields: object) -> None:
        """A fault of the program, with the exception that is being handled."""
        self._write(logging.ERROR, message, fields, sys.exception())

    def enabled(self, level: str) -> bool:
        """Whether lines of ``level`` ("debug", "info", …) are written."""
        return self._log.isEnabledFor(getattr(logging, level.upper()))

    def _write(
        self,
        level: int,
        message: str,
        fields: dict[str, object],
        error: BaseException | None = None,
    ) -> None:
        if not self._log.isEnabledFor(level):
            return
        # A record by hand: one line need not look for its caller in the stack.
        record = logging.LogRecord(self._log.name, level, "", 0, message, None, None)
        record.about = fields
        if error is not None:
            record.exc_info = (type(error), error, error.__traceback__)
        self._log.handle(record)


def get_logger(name: str) -> Logger:
    """The logger of a module or component; levels can be set by ``name`` as for
    :func:`logging.getLogger`. Cheap, and needs no set-up.
    """
    return Logger(logging.getLogger(name))


class _Pending:
    """Lines not yet written. A system call a line costs more than the line; a crash loses
    :data:`_SOON` of them at most.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.size = 0

    def put(self, text: bytes) -> None:
        self.lines.append(text)
        self.size += len(text)
        if self.size >= _ENOUGH:
            self.flush()
        elif len(self.lines) == 1:
            try:
                asyncio.get_running_loop().call_later(_SOON, self.flush)
            except RuntimeError:  # nobody would come back for it
                self.flush()

    def flush(self) -> None:
        if not self.lines or sys.stdout is None:
            return
        text, self.lines, self.size = b"\n".join([*self.lines, b""]), [], 0
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()


_pending = _Pending()
flush = _pending.flush
"""Write what is pending; for the end."""


def line(level: str, msg: str, fields: Mapping[str, object]) -> None:
    """Write one line soon, together with others, from within an event loop: for what every request
    writes. ``level`` is not looked at.
    """
    line_of(part(level, msg, fields), {})


def part(level: str, msg: str, fields: Mapping[str, object]) -> bytes:
    """What many lines have in common, encoded once, for :func:`line_of`."""
    return _encode({"level": level, "msg": msg, "component": _component, **fields})[1:-1]


def line_of(common: bytes, fields: Mapping[str, object]) -> None:
    """As :func:`line`, of a :func:`part` and the ``fields`` that are this line's own; none of them
    has the name of one in the part.
    """
    rest = b"," + _encode(fields)[1:] if fields else b"}"
    _pending.put(b'{"time":%s,%s%s' % (_encode(datetime.now(UTC)), common, rest))


class _JsonLines(logging.Handler):
    """What is logged otherwise is rare, and written at once, behind the lines before it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            _pending.put(_line(record))
            _pending.flush()
        except Exception:
            self.handleError(record)


def _line(record: logging.LogRecord) -> bytes:
    about: dict[str, object] = {
        "time": datetime.fromtimestamp(record.created, UTC),
        "level": record.levelname.lower(),
        "msg": record.getMessage(),
        "component": _component,
        **getattr(record, "about", {}),
    }
    if record.exc_info and record.exc_info[1] is not None:
        about |= _raised(record.exc_info[1])
    return _encode(about)


def _raised(error: BaseException) -> dict[str, str]:
    """What went wrong, and where: the innermost, where a group has several."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = " < ".join(
        f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)
    )
    return {"error": f"{type(error).__name__}: {error}"[:_MOST], "at": where}


def fault(message: str, error: Exception) -> None:
    """One line about what should never be."""
    logging.getLogger(__name__).critical(message, exc_info=error)


def set_up(component: str, level: str) -> None:
    """Send everything, libraries' lines too, to stdout; ``component`` is the program's name in
    every line.

    ``level``: "debug", "info", "warning" or "error", in any case of letters.
    """
    global _component  # noqa: PLW0603 - one process is one component
    _component = component
    root = logging.getLogger()
    root.handlers[:] = [_JsonLines()]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
