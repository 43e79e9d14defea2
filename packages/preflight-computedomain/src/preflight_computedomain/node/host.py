"""Facts of the node: files of the kernel, and NVML in a thread, as it blocks; nothing of IMEX."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from preflight_kube.logs import get_logger

from preflight_computedomain.core import facts
from preflight_computedomain.core.facts import Unfit

_log = get_logger(__name__)
_PROC_DEVICES: Final = "/proc/devices"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_MOST_BYTES: Final = 1024 * 1024


class NvmlUnavailable(Unfit):
    """NVML is not there, or has not answered well. ``gone``: its driver is not loaded any more."""

    def __init__(self, sentence: str, *, gone: bool = False) -> None:
        super().__init__(sentence)
        self.gone = gone


NvmlReader = Callable[[], tuple[str, list[facts.FabricInfo]]]
"""Asks NVML for the driver's version, as ``nvidia-smi`` shows it, and the fabric of each GPU. It
blocks, not for ever, and raises :class:`NvmlUnavailable`.
"""


def node_facts(environ: Mapping[str, str]) -> facts.NodeFacts:
    """Node and boot, by ``NODE_NAME`` and ``ALT_BOOT_ID_PATH``. Raises :class:`Unfit`."""
    boot = environ.get("ALT_BOOT_ID_PATH") or _BOOT_ID
    return facts.NodeFacts(
        facts.node_name(environ.get("NODE_NAME", "")), facts.boot_id(_text(boot), boot)
    )


def _text(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise Unfit(
            f"{path}: cannot be read ({error.strerror}); mount the node's own file there."
        ) from None


class ChannelMajor:
    """The major of the IMEX channels, read at each call, as the kernel gives it anew whenever the
    driver is loaded. ``ALT_PROC_DEVICES_PATH`` names another file. Blocking.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._path = environ.get("ALT_PROC_DEVICES_PATH") or _PROC_DEVICES
        self._last: int | str = ""

    def __call__(self) -> int:
        """The major of now; a change is logged. Raises :class:`Unfit`."""
        try:
            major = facts.imex_major(_text(self._path), self._path)
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
    """The one who knows the node's clique; ``answers`` is told whether NVML does."""

    def __init__(
        self,
        nvml: NvmlReader,
        *,
        crash: bool = True,
        answers: Callable[[bool], object] = lambda _: None,
    ) -> None:
        self._nvml, self._crash, self._answers = nvml, crash, answers
        self.current = ""
        """The clique as last read; empty for none."""
        self.driver = ""
        """Its version when the clique was last read, a semantic one."""
        self.unknown = ""
        """Why the clique is not known, by NVML, a sentence; empty: known, or there is none."""
        self._reading: asyncio.Task[str] | None = None

    async def start(self) -> str:
        """Judge the driver's version, and read the clique. Raises :class:`Unfit`."""
        version, gpus = await asyncio.to_thread(self._nvml)
        self.driver = facts.driver_fits(version)
        self.current = facts.clique(gpus, crash=self._crash)
        self._answers(True)
        return self.current

    async def refreshed(self) -> str:
        """Read anew, once for all who ask; the last one stays where that fails, unless ``gone``."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> str:
        before, now, wrong = self.current, "", ""
        try:
            version, gpus = await asyncio.to_thread(self._nvml)
        except NvmlUnavailable as error:
            now, wrong = "" if error.gone else before, str(error)
            self._answers(False)
        else:
            self._answers(True)
            joining = facts.unjoined(gpus)
            joining += joining and "; is its fabric manager well?"
            try:
                self.driver = facts.driver_fits(version)
                now = facts.clique(gpus, crash=self._crash)
                wrong = "" if now else joining
            except facts.FabricBroken as error:
                wrong = joining or str(error)
            except Unfit as error:
                wrong = str(error)
        if wrong and wrong != self.unknown:
            _log.warning("clique not known", error=wrong, clique=now or "none")
        elif now != before or self.unknown != wrong:
            _log.info("clique of the node read", clique=now or "none", before=before or "none")
        self.current, self.unknown = now, wrong
        return now
