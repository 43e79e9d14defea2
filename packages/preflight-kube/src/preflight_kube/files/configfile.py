"""A configuration file: read at the start, and again when it changes. A broken new one is refused
and the old one stays.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from preflight_kube.text import printable

T = TypeVar("T")
Stamp = tuple[int, int, int] | None


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` has one sentence per problem, each beginning
    with its path, in one line, whatever keys and values of the file it quotes.
    """

    def __init__(self, problems: list[str]) -> None:
        self.problems = [printable(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


def read(parse: Callable[[str], T], path: Path) -> T:
    """What ``parse`` makes of the text in ``path``. Raises :class:`ConfigError` with every problem,
    each beginning with the path.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not UTF-8"
        raise ConfigError([f"{path}: {why}; give a readable configuration file."]) from None
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError([f"{path}: {problem}" for problem in error.problems]) from None


class ConfigFile(Generic[T]):
    """``config`` is the newest good one. Raises :class:`ConfigError` when the first is none.

    ``accepted`` is called with each good one, the first too; ``refused`` with the problems of one
    that is not, for the log and metrics. Nothing is logged here: command lines import this module.
    """

    def __init__(
        self,
        parse: Callable[[str], T],
        path: Path,
        *,
        accepted: Callable[[T], None] = lambda _: None,
        refused: Callable[[list[str]], None],
    ) -> None:
        self.path, self._parse, self._accepted, self._refused = path, parse, accepted, refused
        self._seen = self._stamp()
        self.config = read(parse, path)
        accepted(self.config)

    def refresh(self) -> bool:
        """Read the file again if it has changed; whether there is a new configuration now."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self.config = read(self._parse, self.path)
        except Exception as raised:
            # Whatever a file holds, the one before it stays, and the next one is read again.
            known = raised.problems if isinstance(raised, ConfigError) else None
            self._refused(known or [printable(f"{self.path}: {raised!r:.200}.")])
            return False
        self._accepted(self.config)
        return True

    def _stamp(self) -> Stamp:
        # Followed through links: a kubelet swaps the folder that a mounted ConfigMap points to.
        try:
            stat = self.path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size
