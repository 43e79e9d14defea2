"""The node's DCGM hostengine, as dcgmi reaches it: which GPUs it has, and the diagnostic itself.

The exit status of dcgmi is DCGM's return code modulo 256. Only one diagnostic runs on an engine at
a time.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from preflight_proto import names
from preflight_proto.check import (
    Completed,
    Failed,
    Inconclusive,
    Outcome,
    ToolMissing,
    Verdict,
)

from .identity import parse_serial

VERSION_MISMATCH: Final = 244
UNREACHABLE: Final = 235
_NO_CONNECTION: Final = "unable to establish a connection"
NOT_STARTED: Final = 127
"""The dynamic loader's, for want of a library or of memory; no return code of DCGM's."""
BUSY: Final = frozenset({217, 222})
"""Already running (-39) and in use (-34): somebody else's diagnostic."""

PATIENCE: Final = 30.0
"""Seconds that a listing may take."""
HEARTBEAT_SINCE: Final = (4, 4, 2)
TIMEOUT_SINCE: Final = (3, 3, 8)
"""``diag -t`` exists from there on."""
SHOWS_INACTIVE_SINCE: Final = (4, 5, 0)
"""From there on ``discovery -l`` lists active GPUs only, and ``-a`` the others too."""
OURS_AFTER: Final = 1.0
"""Seconds after which a diagnostic that was not refused is ours: an engine that is busy says so at
once, and runs one at a time.
"""

Command = Callable[[Sequence[str], float], Awaitable[Completed]]
Version = tuple[int, ...]


class ToolsMissing(Failed):
    """None of these tools is in this image."""

    def __init__(self, tools: Sequence[str]) -> None:
        reason = (
            f"the image {names.container_name('dcgm-diag')} has none of {', '.join(tools)} on its PATH that can be started; build it with dcgmi in it, as its "
            "README says, or set DCGMI to where dcgmi is."
        )
        super().__init__(Verdict(Outcome.MISCONFIGURED, "TOOL_MISSING", reason))


@dataclass(frozen=True, slots=True)
class Hostengine:
    """A hostengine that answered: ``tool`` speaks its version; ``gpus`` maps UUID to the engine's
    own id. ``others``: tools that come after this one, for an engine that refuses its diagnostic.
    """

    tool: str
    address: str
    client_version: Version
    engine_version: Version
    gpus: dict[str, int]
    others: tuple[str, ...] = ()

    @property
    def both(self) -> Version:
        """What both sides can do."""
        return min(self.client_version, self.engine_version)

    @property
    def heartbeat(self) -> bool:
        """Whether the engine stops our diagnostic, and only ours, when we go away."""
        return self.both >= HEARTBEAT_SINCE

    @property
    def version(self) -> str:
        """The engine's version in words; empty where it does not say."""
        return _dotted(self.engine_version)


async def connect(command: Command, tools: Sequence[str], address: str) -> Hostengine:
    """The engine at ``address``, through the first of ``tools`` that speaks its version.

    Raises :class:`Inconclusive` (``ENGINE_UNREACHABLE``, ``ENGINE_STOPPED``, ``ENGINE_VERSION``)
    and :class:`ToolsMissing`.
    """
    refused: dict[str, Version] = {}
    engine: Version = (0,)
    for position, tool in enumerate(tools):
        try:
            versions = await _versions(command, tool, address)
            done = await command([tool, "discovery", "-l", "--host", address], PATIENCE)
        except ToolMissing:
            continue
        if done.returncode == NOT_STARTED and "No such file" in done.stderr:
            continue  # and not for want of memory
        if done.returncode == VERSION_MISMATCH:
            refused[tool], engine = versions[0], max(engine, versions[1])
            continue
        if done.timed_out or (done.returncode != 0 and not lists_all(done.stdout)):
            line = next(
                (line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()),
                "nothing",
            )
            how = (
                f"no answer within {PATIENCE:g} s"
                if done.timed_out
                else f'"{line[:160]}" (exit {done.returncode})'
            )
            raise Inconclusive(
                "ENGINE_UNREACHABLE",
                f"hostengine {address}: {how}; is the DCGM DaemonSet running on this node, and may this pod reach it?",
            )
        listing = parse_listing(done.stdout)
        if done.returncode == UNREACHABLE and listing:
            raise Inconclusive(
                "ENGINE_STOPPED",
                f"hostengine {address} ended when it was asked for its GPUs; see its log. DCGM before 4.1.1 ends so where the node has no "
                "/sys/class/hwmon or /sys/class/thermal, as a virtual machine: upgrade it, or start it with --denylist-modules 9.",
            )
        return Hostengine(tool, address, *versions, listing, tuple(tools[position + 1 :]))
    if refused:
        raise Inconclusive("ENGINE_VERSION", refusal(address, refused, engine))
    raise ToolsMissing(tools)


def refusal(address: str, tools: Mapping[str, Version], engine: Version) -> str:
    """Why an engine refuses these dcgmi (tool → version): which side is behind, as far as versions
    are known, and what to do. An engine answers older clients as long as it knows what they ask,
    and no newer ones.
    """
    theirs, newest = _dotted(engine), _dotted(max(tools.values()))
    named = [
        f"{'older than' if engine < version else 'newer than'} {tool} {_dotted(version)}"
        if theirs and version > (0,) and version != engine
        else f"of {'the version of' if version == engine > (0,) else 'another version than'} {tool}"
        for tool, version in tools.items()
    ]
    node = f"upgrade DCGM on the node{f' to {newest}' if newest else ''}"
    image = f"put dcgmi {theirs or 'of its version'} into the image and name it in DCGMI"
    if not theirs or any(engine < version for version in tools.values()):
        todo = f"{node}, or {image}"
    else:
        todo = (
            image if any(version < engine for version in tools.values()) else "see the engine's log"
        )
    return (
        f"hostengine {address} ({f'DCGM {theirs}' if theirs else 'it does not say its version'}) is {', '.join(named)}, and refuses "
        f"what is asked of it; {todo}."
    )


def _dotted(version: Version) -> str:
    return ".".join(map(str, version)) if version > (0,) else ""


async def _versions(command: Command, tool: str, address: str) -> tuple[Version, Version]:
    """(client, engine). ``-v`` waits only a tenth of a second for the engine, and without it newer
    ones print nothing at all.
    """
    for _ in range(2):
        client, engine = parse_versions(
            (await command([tool, "-v", "--host", address], PATIENCE)).stdout
        )
        if engine > (0,):
            return client, engine
    if client == (0,):
        client, _ = parse_versions((await command([tool, "--version"], PATIENCE)).stdout)
    return client, engine


def unconnected(output: str) -> str:
    """The line in which dcgmi says, before its document, that it reached no engine; empty where it
    did. dcgmi 4.4.2 then goes on with an engine of its own, in its own container, and with that
    one's document and exit status: nothing of it is about this node.
    """
    before = output.partition("{")[0]
    return next((line for line in before.splitlines() if _NO_CONNECTION in line), "")


async def inactive(command: Command, engine: Hostengine) -> dict[str, str]:
    """GPUs that the engine knows and does not list as active: UUID → its status, as LOST. Empty
    where it cannot say.
    """
    if engine.both < SHOWS_INACTIVE_SINCE:
        return {}
    done = await command([engine.tool, "discovery", "-l", "-a", "--host", engine.address], PATIENCE)
    return parse_statuses(done.stdout) if done.returncode == 0 and not done.timed_out else {}


async def serials(command: Command, engine: Hostengine, uuids: Sequence[str]) -> dict[str, str]:
    """UUID → serial number, as the engine says when asked about each GPU; those it does not say are
    left out.
    """
    by_uuid = {}
    for uuid in uuids:
        number = engine.gpus.get(uuid)
        if number is None:
            continue
        asked = ["discovery", "--gpuid", str(number), "-i", "a", "--host", engine.address]
        done = await command([engine.tool, *asked], PATIENCE)
        reported, serial = parse_serial(done.stdout)
        if reported == uuid and serial:
            by_uuid[uuid] = serial
    return by_uuid


def diag_argv(
    engine: Hostengine, level: int, uuids: Sequence[str], seconds: float | None = None
) -> list[str]:
    """dcgmi 4 takes UUIDs; dcgmi 3 takes the engine's numbers only. After ``seconds`` the engine
    ends the diagnostic, where it can.
    """
    by_uuid = engine.client_version >= (4,)
    ids = ",".join(uuid if by_uuid else str(engine.gpus[uuid]) for uuid in uuids)
    argv = [engine.tool, "diag", "-r", str(level), "--host", engine.address, "-i", ids, "-j"]
    if seconds is not None and engine.both >= TIMEOUT_SINCE:
        argv += ["-t", str(max(1, int(seconds)))]
    return [*argv, "--enable-heartbeat"] if engine.heartbeat else argv


def stop_signal(engine: Hostengine, elapsed: float) -> signal.Signals:
    """How to end dcgmi ``elapsed`` seconds after its start.

    SIGTERM makes it stop whatever runs on the engine: right for our own diagnostic, wrong for a
    neighbour's. An engine with a heartbeat stops ours by itself once dcgmi is gone.
    """
    return signal.SIGTERM if elapsed >= OURS_AFTER and not engine.heartbeat else signal.SIGKILL


def parse_listing(stdout: str) -> dict[str, int]:
    """UUID → engine id from the table of ``dcgmi discovery -l``."""
    gpus: dict[str, int] = {}
    number = None
    for line in stdout.splitlines():
        if row := re.match(r"\|\s*(\d+)\s*\|", line):
            number = int(row[1])
        if (uuid := re.search(r"\b(GPU-[0-9a-fA-F-]+)", line)) and number is not None:
            gpus[uuid[1]] = number
    return gpus


def lists_all(stdout: str) -> bool:
    """Whether ``dcgmi discovery -l`` printed as many GPUs as it says that it found: what fails
    after that is about NVSwitches or CPUs, whose modules an engine need not have.
    """
    count = re.search(r"^(\d+) GPUs? found", stdout, re.MULTILINE)
    return count is not None and 0 < int(count[1]) == len(parse_listing(stdout))


def parse_statuses(stdout: str) -> dict[str, str]:
    """UUID → status of those GPUs in the table of ``dcgmi discovery -l -a`` that have one: it is
    printed where it is not OK.
    """
    statuses: dict[str, str] = {}
    status = ""
    for line in stdout.splitlines():
        if re.match(r"\|\s*\d+\s*\|", line):
            status = ""
        if word := re.search(r"\bStatus:\s*(\w+)", line):
            status = word[1].upper()
        if (uuid := re.search(r"\b(GPU-[0-9a-fA-F-]+)", line)) and status:
            statuses[uuid[1]] = status
    return statuses


def parse_versions(stdout: str) -> tuple[Version, Version]:
    """(client, engine) from ``dcgmi -v --host``; one that does not say is version (0,)."""
    versions = [
        tuple(int(n) for n in v.split("."))
        for v in re.findall(r"(?i)version\s*:\s*(\d+(?:\.\d+)+)", stdout)
    ]
    client = versions[0] if versions else (0,)
    engine = versions[1] if len(versions) > 1 else (0,)
    return client, engine
