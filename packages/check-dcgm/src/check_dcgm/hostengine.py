"""The node's DCGM hostengine, as dcgmi reaches it: which GPUs it has, and the diagnostic itself.

The exit status of dcgmi is DCGM's return code modulo 256. Only one diagnostic runs on an engine at a time.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from preflight_proto.check import Completed, Inconclusive, ToolMissing

__all__ = ["BUSY", "ON_TIMEOUT", "Engine", "connect", "diag_argv", "parse_listing", "parse_versions"]

VERSION_MISMATCH: Final = 244
BUSY: Final = frozenset({217, 222})
"""Already running (-39) and in use (-34): somebody else's diagnostic."""

PATIENCE: Final = 30.0
"""Seconds that a listing may take."""
HEARTBEAT_SINCE: Final = (4, 4, 2)
ON_TIMEOUT: Final = signal.SIGKILL
"""SIGTERM would make dcgmi stop whatever runs on the engine, a neighbour's diagnostic too."""

Command = Callable[[Sequence[str], float], Awaitable[Completed]]
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Engine:
    """A hostengine that answered: ``tool`` speaks its version; ``gpus`` maps UUID to the engine's own id."""

    tool: str
    address: str
    client_version: Version
    engine_version: Version
    gpus: dict[str, int]

    @property
    def heartbeat(self) -> bool:
        """Whether the engine stops our diagnostic, and only ours, when we go away."""
        return min(self.client_version, self.engine_version) >= HEARTBEAT_SINCE


async def connect(command: Command, tools: Sequence[str], address: str) -> Engine:
    """The engine at ``address``, through the first of ``tools`` that speaks its version.

    Raises :class:`Inconclusive`: ``ENGINE_UNREACHABLE``, ``ENGINE_VERSION``, ``TOOL_MISSING``.
    """
    found, refused = [], []
    for tool in tools:
        try:
            versions = parse_versions((await command([tool, "-v", "--host", address], PATIENCE)).stdout)
        except ToolMissing:
            continue
        found.append(tool)
        done = await command([tool, "discovery", "-l", "--host", address], PATIENCE)
        if done.returncode == VERSION_MISMATCH:
            refused.append(tool)
            continue
        gpus = parse_listing(done.stdout)
        if done.returncode != 0 or done.timed_out:
            said = next((line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()), "nothing")
            how = f"no answer within {PATIENCE:g} s" if done.timed_out else f'"{said[:160]}" (exit {done.returncode})'
            raise Inconclusive(
                "ENGINE_UNREACHABLE",
                f"hostengine {address}: {how}; is the DCGM DaemonSet running on this node, and may this pod reach it?",
            )
        return Engine(tool, address, versions[0], versions[1], gpus)
    if refused:
        raise Inconclusive(
            "ENGINE_VERSION",
            f"hostengine {address} is too old for {', '.join(refused)}; upgrade DCGM on the node or add an older dcgmi to the image.",
        )
    raise Inconclusive(
        "TOOL_MISSING", f"none of {', '.join(tools)} is on PATH in this image; build it on a base that has dcgmi."
    )


def diag_argv(engine: Engine, level: int, uuids: Sequence[str]) -> list[str]:
    """dcgmi 4 takes UUIDs; dcgmi 3 takes the engine's numbers only."""
    by_uuid = engine.client_version >= (4,)
    ids = [uuid if by_uuid else str(engine.gpus[uuid]) for uuid in uuids]
    argv = [engine.tool, "diag", "-r", str(level), "--host", engine.address, "-i", ",".join(ids), "-j"]
    return [*argv, "--enable-heartbeat"] if engine.heartbeat else argv


def parse_listing(stdout: str) -> dict[str, int]:
    """UUID → engine id from the table of ``dcgmi discovery -l``."""
    gpus: dict[str, int] = {}
    number: int | None = None
    for line in stdout.splitlines():
        if row := re.match(r"\|\s*(\d+)\s*\|", line):
            number = int(row[1])
        if (uuid := re.search(r"\b(GPU-[0-9a-fA-F-]+)", line)) and number is not None:
            gpus[uuid[1]] = number
    return gpus


def parse_versions(stdout: str) -> tuple[Version, Version]:
    """(client, engine) from ``dcgmi -v --host``; an engine that does not tell is version (0,)."""
    found = [tuple(int(n) for n in v.split(".")) for v in re.findall(r"(?i)version\s*:\s*(\d+(?:\.\d+)+)", stdout)]
    client = found[0] if found else (0,)
    engine = found[1] if len(found) > 1 else (0,)
    return client, engine
