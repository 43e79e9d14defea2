"""What the plugin reads of its node: files of the kernel, and NVML in a thread of its own, as it
may block.

Nothing is read of IMEX, and nothing is started.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, Protocol, TypeVar

from preflight_kube.logs import get_logger

from .fabric import FabricBroken, FabricInfo, clique
from .facts import NodeFacts, Unfit, boot_id, driver_fits, imex_major, node_name

__all__ = [
    "ChannelMajor",
    "CliqueOwner",
    "NvmlReader",
    "NvmlUnavailable",
    "node_facts",
    "patiently",
]

T = TypeVar("T")
_log = get_logger(__name__)
_PROC_DEVICES: Final = "/proc/devices"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MOST_BYTES: Final = 1024 * 1024


class NvmlUnavailable(Exception):
    """NVML is not there, has answered with an error, or has not answered; one sentence. ``gone``:
    it says that the driver is not loaded, or is another than the library's.
    """

    def __init__(self, sentence: str, *, gone: bool = False) -> None:
        super().__init__(sentence)
        self.gone = gone


class NvmlReader(Protocol):
    """What is asked of NVML. Both may block, and raise :class:`NvmlUnavailable`."""

    def driver_version(self) -> str:
        """As ``nvidia-smi`` shows it."""

    def fabric(self) -> list[FabricInfo]:
        """Of each GPU; none where the node has no GPU."""


def node_facts(environ: Mapping[str, str]) -> NodeFacts:
    """Node and boot, by ``NODE_NAME`` and ``ALT_BOOT_ID_PATH``. Raises :class:`Unfit`."""
    boot = environ.get("ALT_BOOT_ID_PATH") or _BOOT_ID
    return NodeFacts(node_name(environ.get("NODE_NAME", "")), boot_id(_text(boot), boot))


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise Unfit(
            f"{path}: cannot be read ({error.strerror}); mount the node's own file there."
        ) from None


class ChannelMajor:
    """The major of the IMEX channels' device nodes, read at each call: the kernel gives it anew
    whenever the driver is loaded, and the old number to another driver. ``ALT_PROC_DEVICES_PATH``
    names another file. Blocking.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get("ALT_PROC_DEVICES_PATH") or _PROC_DEVICES
        self._last: int | str = ""

    def __call__(self) -> int:
        """The major of now; a change is logged. Raises :class:`Unfit`."""
        try:
            major = imex_major(_text(self._path), self._path)
        except Unfit as error:
            if self._last and self._last != str(error):
                _log.error("no channel's major any more", error=str(error), before=self._last)
            self._last = str(error)
            raise
        if self._last and self._last != major:
            _log.warning(
                "the driver was loaded anew; pods that have a channel need to be made anew",
                major=major,
                before=self._last,
            )
        self._last = major
        return major


class CliqueOwner:
    """The one who knows the node's clique. ``patience``: seconds that NVML has for an answer."""

    def __init__(self, nvml: NvmlReader, *, crash: bool = True, patience: float = 10.0) -> None:
        self._nvml, self._crash, self._patience = nvml, crash, patience
        self._current = ""
        self.unknown = ""
        """Why NVML did not say the clique when it was last asked, a sentence; empty: it did."""
        self._reading: asyncio.Task[str] | None = None

    @property
    def current(self) -> str:
        """As last read; empty for none."""
        return self._current

    async def start(self) -> str:
        """Judge the driver's version, and read the clique. Raises :class:`Unfit`, with the sentence
        to end with.
        """
        try:
            driver_fits(await patiently(self._nvml.driver_version, self._patience))
            self._current = clique(
                await patiently(self._nvml.fabric, self._patience), crash=self._crash
            )
        except (NvmlUnavailable, FabricBroken) as error:
            raise Unfit(str(error)) from None
        return self._current

    async def refreshed(self) -> str:
        """Read anew; whoever asks meanwhile gets the same answer. What cannot be read leaves the
        last one, unless the driver has gone.
        """
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> str:
        try:
            found = clique(await patiently(self._nvml.fabric, self._patience), crash=self._crash)
        except FabricBroken as error:
            _log.error("the node has no clique any more", error=str(error))
            found = ""
        except NvmlUnavailable as error:
            self.unknown = str(error)
            if error.gone:
                self._current = ""
            _log.warning("clique not read", error=self.unknown, clique=self._current or "none")
            return self._current
        self.unknown = ""
        if found != self._current:
            _log.info(
                "clique of the node changed", clique=found or "none", before=self._current or "none"
            )
        self._current = found
        return found


async def patiently(ask: Callable[[], T], patience: float) -> T:
    """What ``ask`` returns, in a thread that is left behind where it takes longer than ``patience``
    seconds.

    Raises what it raises, and :class:`NvmlUnavailable` when it is late. The thread is its own: one
    that hangs takes no other's place.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def settle(put: Callable[[], None]) -> None:
        if not answer.done():
            put()

    def work() -> None:
        try:
            put = partial(answer.set_result, ask())
        except BaseException as error:
            put = partial(answer.set_exception, error)
        with suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(settle, put)

    threading.Thread(target=work, name="nvml", daemon=True).start()
    try:
        async with asyncio.timeout(patience):
            return await answer
    except TimeoutError:
        raise NvmlUnavailable(
            f"NVML: no answer within {patience:g} s; does nvidia-smi answer on this node? Reload the driver, or restart the node."
        ) from None
