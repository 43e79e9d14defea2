"""Which of the addresses in ``DCGM_HOSTENGINE_ADDR`` is this node's own engine: the first whose
GPUs are ours.

Where there is one address, it is asked and what it says holds. Where there are several, one that
does not answer, or whose GPUs are not this pod's, is passed over with a line in the log; if none is
right, the reason of each is given.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from preflight_proto import names
from preflight_proto.check import Gpu, Inconclusive

from . import hostengine, identity
from .hostengine import Command, Hostengine

AGAIN: Final = (1.0, 3.0)
"""Seconds before an engine that did not answer is asked once more."""
CONNECT: Final = 3.0
"""Seconds for name and connection, where there is another address to try."""
HOSTS: Final = "/etc/hosts"
WRONG, UNREACHABLE = "WRONG_HOSTENGINE", "ENGINE_UNREACHABLE"


async def connect(
    command: Command, tools: Sequence[str], address: str, say: Callable[[str], None]
) -> Hostengine:
    """The engine at ``address``; one that does not answer is asked once more, as a DaemonSet's pod
    may just be replaced.
    """
    try:
        return await hostengine.connect(command, tools, address)
    except Inconclusive as error:
        if error.code != UNREACHABLE:
            raise
        say(f"{error.reason} Asking once more.")
    await anyio.sleep(random.uniform(*AGAIN))  # noqa: S311 (jitter)
    return await hostengine.connect(command, tools, address)


@dataclass(frozen=True, slots=True)
class Candidates:
    """``addresses`` in the order in which they are tried, by ``tools``, which ``command`` runs;
    ``say`` is the log.
    """

    addresses: tuple[str, ...]
    tools: tuple[str, ...]
    command: Command
    say: Callable[[str], None]

    async def ours(self, gpus: Sequence[Gpu]) -> Hostengine:
        """The first engine that lists every GPU of ``gpus`` and gives the first of them no other
        serial number than the driver.

        Raises :class:`Inconclusive` (``WRONG_HOSTENGINE``, ``ENGINE_UNREACHABLE``,
        ``ENGINE_VERSION``), with the reason of each address, and :class:`.hostengine.ToolsMissing`.
        """
        if len(self.addresses) == 1:
            engine = await self._connected(self.addresses[0])
            await self._refuse_foreign(engine, gpus)
            return engine
        reasons: dict[str, Inconclusive] = {}
        left = self.addresses
        for attempt in range(2):
            for address in left:
                try:
                    engine = await self._tried(address, gpus)
                except Inconclusive as error:
                    reasons[address] = error
                    if attempt == 0:
                        self.say(f"passed over: {error.reason}")
                else:
                    self.say(f"hostengine {address} is this node's")
                    return engine
            left = tuple(address for address, why in reasons.items() if why.code == UNREACHABLE)
            if attempt == 0 and left:
                self.say(f"asking once more: {', '.join(left)}")
                await anyio.sleep(random.uniform(*AGAIN))  # noqa: S311 (jitter)
        codes = {error.code for error in reasons.values()}
        code = next(
            code
            for code in (WRONG, "ENGINE_VERSION", "ENGINE_STOPPED", UNREACHABLE)
            if code in codes
        )
        sentences = " ".join(error.reason for error in reasons.values())
        raise Inconclusive(
            code,
            f"none of the addresses in {names.ENV_DCGM_HOSTENGINE} is this node's engine. {sentences}",
        )

    async def that_knows(self, uuids: Sequence[str]) -> Hostengine:
        """An engine that may be asked about GPUs that the driver does not list: the only address,
        or the first that knows one of ``uuids``.

        Raises as :meth:`ours` does.
        """
        if len(self.addresses) == 1:
            return await self._connected(self.addresses[0])
        for address in self.addresses:
            try:
                engine = await self._connected(address)
            except Inconclusive as error:
                self.say(f"passed over: {error.reason}")
                continue
            if set(uuids) & {*engine.gpus, *await hostengine.inactive(self.command, engine)}:
                return engine
        raise Inconclusive(
            WRONG, f"none of the engines at {', '.join(self.addresses)} knows {', '.join(uuids)}."
        )

    async def _connected(self, address: str) -> Hostengine:
        await _refuse_redirection(address)
        if len(self.addresses) == 1:
            return await connect(self.command, self.tools, address, self.say)
        await _reached(address)
        return await hostengine.connect(self.command, self.tools, address)

    async def _tried(self, address: str, gpus: Sequence[Gpu]) -> Hostengine:
        engine = await self._connected(address)
        await self._refuse_foreign(engine, gpus)
        # One suffices to pass an engine over; all of them are compared after the diagnostic.
        ours = dict([(gpu.uuid, gpu.serial) for gpu in gpus if gpu.serial][:1])
        foreign, _ = identity.differences(
            ours, await hostengine.serials(self.command, engine, list(ours))
        )
        if foreign:
            raise Inconclusive(
                WRONG,
                f"hostengine {address} gives other serial numbers than the driver for {', '.join(foreign)}: it is not this node's.",
            )
        return engine

    async def _refuse_foreign(self, engine: Hostengine, gpus: Sequence[Gpu]) -> None:
        absent = [gpu.uuid for gpu in gpus if gpu.uuid not in engine.gpus]
        if not absent:
            return
        statuses = await hostengine.inactive(self.command, engine)
        sight = [f"{uuid} is {statuses[uuid]} there" for uuid in absent if uuid in statuses]
        lists = ", ".join(sorted(engine.gpus)) or "no GPU at all"
        raise Inconclusive(
            WRONG,
            f"hostengine {engine.address} does not list {', '.join(absent)} (it lists {lists}{''.join('; ' + s for s in sight)}); "
            "it is another node's engine, or it has lost sight of the GPU.",
        )


async def _reached(address: str) -> None:
    """Whether something listens there: dcgmi itself waits long for what does not answer."""
    host, _, port = address.rpartition(":")
    try:
        with anyio.fail_after(CONNECT):
            connection = await anyio.connect_tcp(host.strip("[]"), int(port))
    except TimeoutError:
        why = f"no connection within {CONNECT:g} s"
    except OSError as error:
        why = f"cannot be reached ({_words(error)})"
    else:
        await connection.aclose()
        return
    raise Inconclusive(
        UNREACHABLE,
        f"hostengine {address}: {why}; is the DCGM DaemonSet running on this node, and may this pod reach it?",
    )


def _words(error: OSError) -> str:
    """Why a connection failed: of a name with several addresses, for the first of them."""
    cause = error.__cause__ or error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    number = getattr(cause, "errno", None)
    # A resolver's errors have numbers of their own, below zero.
    return (
        os.strerror(number)
        if number and number > 0
        else getattr(cause, "strerror", None) or str(cause)
    )


async def _refuse_redirection(address: str) -> None:
    try:
        hosts = await anyio.Path(HOSTS).read_text()
    except (OSError, UnicodeDecodeError):
        return
    if identity.redirected(address.rpartition(":")[0], hosts):
        raise Inconclusive(
            WRONG,
            f"{names.ENV_DCGM_HOSTENGINE}: {address} is a name that this pod's own {HOSTS} redirects (hostAliases or its hostname), so an "
            "engine of its author's choice would answer; set the address by IP, as $(NODE_IP):5555.",
        )
