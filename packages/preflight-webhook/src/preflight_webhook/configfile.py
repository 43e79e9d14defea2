"""The configuration file: read at the start, and again when it changes. A broken new one is refused and the old one stays."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .config import Config, ConfigError, parse
from .metrics import Metrics

__all__ = ["ConfigFile", "read", "read_by"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Stamp = tuple[int, int, int] | None


def read(path: Path) -> Config:
    """The configuration in ``path``. Raises :class:`~.config.ConfigError` with every problem, each beginning with the path."""
    return read_by(parse, path)


def read_by(parse: Callable[[str], T], path: Path) -> T:
    """What ``parse`` makes of the text in ``path``; raises as :func:`read`."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError([f"{path}: {why}; give a readable configuration file."]) from None
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


class ConfigFile:
    """``config`` is the newest good one. Raises :class:`~.config.ConfigError` when the first is none."""

    def __init__(self, path: Path, metrics: Metrics) -> None:
        self.path, self._metrics = path, metrics
        self._seen = self._stamp()
        self.config = read(path)
        self._accepted()

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether there is a new configuration now."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.config = read(self.path)
        except Exception as raised:
            # Whatever a file holds, the one before it stays, and the next one is read again.
            error = raised if isinstance(raised, ConfigError) else ConfigError([f"{self.path}: {raised!r:.200}."])
            self._metrics.config_valid.set(0)
            self._metrics.config_refused.inc()
            log.error(
                "new configuration refused, the old one stays: %s",
                " ".join(error.problems),
                extra={"about": {"problems": error.problems}},
            )
            return False
        self._accepted()
        checks = [check.name for check in self.config.checks]
        log.info(
            "configuration reloaded; injecting %s", ", ".join(checks) or "no check", extra={"about": {"checks": checks}}
        )
        return True

    def _accepted(self) -> None:
        self._metrics.config_valid.set(1)
        self._metrics.config_generation.inc()

    def _stamp(self) -> Stamp:
        # Followed through links: a kubelet swaps the folder that a mounted ConfigMap points to.
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size
