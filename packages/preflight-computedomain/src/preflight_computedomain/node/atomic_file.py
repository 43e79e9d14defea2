"""Files that are there whole or not at all, whenever the process or the machine ends.

``step`` is called before each change on the disk with a word for it, and once more after the last:
there a test ends the process.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

TEMPORARY: Final = ".tmp"
"""The end of an unfinished file's name; a container runtime reads no such file as CDI."""


class Disk:
    """Blocking; call it in a thread. Raises OSError."""

    def __init__(self, step: Callable[[str], None] = lambda _: None) -> None:
        self._step = step

    def write(
        self, path: Path, data: bytes, mode: int = 0o600, *, keep: Path | None = None
    ) -> None:
        """Put ``data`` into ``path``: under another name, synced, renamed, the folder synced.

        ``keep``: the name in the same folder under which the file that was there stays.
        """
        part = path.with_name(path.name + TEMPORARY)
        path.parent.mkdir(parents=True, exist_ok=True)
        if part.is_dir():
            self.aside(part)
        self._step(f"write {part.name}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(part, flags, mode), "wb") as file:
                file.write(data)
                file.flush()
                self._step(f"sync {part.name}")
                os.fsync(file.fileno())
            self._step(f"rename {part.name}")
            if keep is not None and path.exists():
                try:
                    keep.hardlink_to(path)
                except OSError:  # a file system without, or a link to another one
                    path.rename(keep)
            elif path.is_dir():
                self.aside(path)
            part.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            error.filename = error.filename or str(path)  # a write that fails names none
            raise
        self._step(f"sync folder of {path.name}")
        self._sync(path.parent)
        self._step(f"after {path.name}")

    def remove(self, path: Path) -> bool:
        """Tell whether ``path`` was there; it is gone now."""
        self._step(f"remove {path.name}")
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except IsADirectoryError:
            self.aside(path)
            return True
        self._step(f"sync folder without {path.name}")
        self._sync(path.parent)
        self._step(f"after removal of {path.name}")
        return True

    def aside(self, folder: Path) -> None:
        """Move ``folder``, which stands where a file belongs, to a name that nobody reads."""
        self._step(f"rename {folder.name}")
        folder.rename(folder.with_name(f"folder-{secrets.token_hex(4)}-{folder.name}.aside"))
        self._sync(folder.parent)

    @staticmethod
    def _sync(folder: Path) -> None:
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        finally:
            os.close(number)
