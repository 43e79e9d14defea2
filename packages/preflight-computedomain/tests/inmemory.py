"""A node's files and time in memory, so that thousands of histories cost seconds.

Files: what is synced is kept apart from what is not, and a power failure takes of the latter what
it likes. Time: a loop whose clock goes on when nobody has anything left to do; the seconds that the
plugin waits are those of production, and cost nothing. What the plugin does in threads is done by
the loop, and may stand still for a while before any of its steps on the disk.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from types import SimpleNamespace
from typing import Any


class Content:
    """An inode. ``synced``: what is sure to survive a power failure."""

    def __init__(self, number: int) -> None:
        self.number, self.data, self.synced = number, b"", b""


class Folder:
    """The names that processes see, and those that are synced."""

    def __init__(self) -> None:
        self.seen: dict[str, Content] = {}
        self.synced: dict[str, Content] = {}


class _Writing(io.BytesIO):
    def __init__(self, files: Files, number: int) -> None:
        super().__init__()
        self._files, self._number = files, number
        self._half = files.in_the_middle and files.room == -1

    def fileno(self) -> int:
        return self._number

    def flush(self) -> None:
        content = self._files.open_ones[self._number]
        assert isinstance(content, Content)
        content.data = self.getvalue()
        if self._half:
            content.data = content.data[: len(content.data) // 2]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        if not self.closed:
            try:
                self.flush()
            finally:
                del self._files.open_ones[self._number]
                super().close()


class Files:
    """The functions of ``os`` that the plugin's disk calls. ``room``: for so many files, None for
    any number; the next one is not created, or ``in_the_middle`` is cut.
    """

    O_WRONLY, O_RDONLY, O_CREAT, O_TRUNC = os.O_WRONLY, os.O_RDONLY, os.O_CREAT, os.O_TRUNC
    O_NOFOLLOW, O_CLOEXEC, O_DIRECTORY = os.O_NOFOLLOW, os.O_CLOEXEC, os.O_DIRECTORY

    def __init__(self) -> None:
        self.folders: dict[str, Folder] = {}
        self.open_ones: dict[int, Content | Folder] = {}
        self.room: int | None = None
        self.in_the_middle = False
        self._last = 0

    def number(self) -> int:
        self._last += 1
        return self._last

    def open(self, path: PurePosixPath, flags: int, mode: int = 0) -> int:
        number = self.number()
        if flags & os.O_DIRECTORY:
            self.open_ones[number] = self.folder(path)
            return number
        assert flags & os.O_CREAT
        assert flags & os.O_TRUNC
        if self.room is not None:
            self.room = max(self.room - 1, -1)
            if self.room < 0 and not self.in_the_middle:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        names = self.folder(path.parent).seen
        content = names.setdefault(path.name, Content(self.number()))
        content.data = b""
        self.open_ones[number] = content
        return number

    def fdopen(self, number: int, how: str) -> _Writing:
        assert how == "wb"
        return _Writing(self, number)

    def fsync(self, number: int) -> None:
        found = self.open_ones[number]
        if isinstance(found, Folder):
            found.synced = dict(found.seen)
        else:
            found.synced = found.data

    def close(self, number: int) -> None:
        del self.open_ones[number]

    def folder(self, path: PurePosixPath) -> Folder:
        try:
            return self.folders[str(path)]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(path)) from None

    def sync(self) -> None:
        """Everything, as `sync` of the shell."""
        for folder in self.folders.values():
            folder.synced = dict(folder.seen)
            for content in folder.seen.values():
                content.synced = content.data

    def power_fails(self, keeps: Callable[[], bool]) -> None:
        """Of what is not synced, each name and each content is kept or not, as ``keeps`` says."""
        for folder in self.folders.values():
            names = sorted({*folder.seen, *folder.synced})
            after = {
                name: content
                for name in names
                if (content := (folder.seen if keeps() else folder.synced).get(name)) is not None
            }
            for content in after.values():
                if content.data != content.synced and not keeps():
                    content.data = content.data[: len(content.data) // 2]
                content.synced = content.data
            folder.seen, folder.synced = after, dict(after)
        self.open_ones.clear()


class Paths(PurePosixPath):
    """What the plugin asks of a path, of the files of its class."""

    files: Files

    @classmethod
    def of(cls, files: Files) -> type[Paths]:
        return type("PathsOfOneNode", (cls,), {"files": files})

    def _content(self) -> Content:
        try:
            return self.files.folder(self.parent).seen[self.name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(self)) from None

    def read_bytes(self) -> bytes:
        return self._content().data

    def write_bytes(self, data: bytes) -> None:
        """Somebody else's doing."""
        content = self._content()
        content.data = content.synced = data

    def stat(self) -> Any:
        found = self._content()
        return SimpleNamespace(
            st_ino=found.number, st_mtime_ns=hash(found.data), st_size=len(found.data)
        )

    def exists(self) -> bool:
        return self.name in self.files.folder(self.parent).seen

    def is_dir(self) -> bool:
        return str(self) in self.files.folders

    def iterdir(self) -> Iterator[Paths]:
        return iter([self / name for name in self.files.folder(self).seen])

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        assert exist_ok
        self.files.folders.setdefault(str(self), Folder())

    def unlink(self) -> None:
        self._content()
        del self.files.folder(self.parent).seen[self.name]

    def hardlink_to(self, other: Paths) -> None:
        self.files.folder(self.parent).seen[self.name] = other._content()

    def replace(self, other: PurePosixPath) -> None:
        content = self._content()
        del self.files.folder(self.parent).seen[self.name]
        self.files.folder(other.parent).seen[other.name] = content


class Work:
    """What the plugin does in a thread; it stands still before its step ``at``."""

    def __init__(self, what: Callable[[], Any], at: int) -> None:
        self._what, self._left = what, at
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ended = False
        self._result: Any = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Return when it stands still or has ended, as ``go_on`` does."""
        self._thread.start()
        self._stands.acquire()

    def go_on(self) -> None:
        self._go.release()
        self._stands.acquire()

    def step(self) -> None:
        if self._left == 0:
            self._stands.release()
            self._go.acquire()
        self._left -= 1

    def tell(self, future: asyncio.Future[Any]) -> None:
        _tell(future, self._result, self._error)

    def _run(self) -> None:
        try:
            self._result = self._what()
        except BaseException as error:  # a process that ends, too, is somebody's answer
            self._error = error
        self.ended = True
        self._stands.release()


class Clockwork(asyncio.BaseEventLoop):
    """``slow``: what is done in a thread stands still before that step of its own, for so many
    seconds; None: nothing does. Raises AssertionError where nobody would ever go on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.slow: tuple[int, float] | None = None
        self._current: Work | None = None
        self._now = 0.0
        self._selector = self

    def time(self) -> float:
        return self._now

    def step(self) -> None:
        """To be called before each step on the disk."""
        if self._current is not None:
            self._current.step()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, what: Callable[..., Any], *given: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        if self.slow is None:
            try:
                self.call_soon(_tell, future, what(*given), None)
            except BaseException as error:
                self.call_soon(_tell, future, None, error)
            return future
        at, seconds = self.slow
        work = Work(lambda: what(*given), at)
        self._turn(work, work.begin)

        def later() -> None:
            if not work.ended:
                self._turn(work, work.go_on)
            work.tell(future)

        self.call_later(0 if work.ended else seconds, later)
        return future

    def _turn(self, work: Work, goes: Callable[[], None]) -> None:
        self._current = work
        goes()
        self._current = None

    def select(self, timeout: float | None) -> list[Any]:
        assert timeout is not None, "nobody will ever go on"
        self._now += max(timeout, 0)
        return []

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _tell(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if not future.cancelled():
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
