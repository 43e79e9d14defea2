"""The variables of this check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from preflight_proto import names
from preflight_proto.check import duration, setting, text, text_list, whole_number

__all__ = ["TIMEOUTS", "Settings"]

TIMEOUTS: Final = {1: 120.0, 2: 900.0, 3: 2700.0, 4: 10800.0}
"""Seconds a diagnostic of each level may take: level 1 takes seconds, level 2 was seen to take 2.5 to 10.5 minutes."""


@dataclass(frozen=True)
class Settings:
    level: int = setting(
        names.ENV_DCGM_LEVEL,
        whole_number(1, 4),
        default=1,
        help="depth of the diagnostic: 1 tests software only (seconds), 2 adds memory and PCIe (minutes), 3 and 4 stress",
    )
    address: str = setting(
        names.ENV_DCGM_HOSTENGINE,
        text("host:port", "host:port of the node's hostengine, e.g. $(NODE_IP):5555"),
        help="the DCGM hostengine of this pod's own node",
    )
    tools: tuple[str, ...] = setting(
        "DCGMI",
        text_list("a list of programs", "names or paths separated by commas"),
        default=("dcgmi", "dcgmi3"),
        help="dcgmi programs, newest first; the next one is tried when the engine is too old for the one before",
    )
    queue_timeout: float | None = setting(
        "DCGM_QUEUE_TIMEOUT",
        duration(),
        default=None,
        help="how long to wait while another diagnostic occupies the engine; by default as long as one of this level may take",
    )

    def problems(self) -> list[str]:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            return [
                f'{names.ENV_DCGM_HOSTENGINE}: "{self.address}" is not host:port; set e.g. dcgm-hostengine.nvsentinel.svc:5555.'
            ]
        return []
