"""How long the checks can hold a pod back when each uses up all the time that it has.

What a check allows itself where nothing is set is its own to say; these are the numbers of its README.
"""

from __future__ import annotations

from typing import Final

from preflight_proto import names
from preflight_proto.durations import gang_run, parse_duration

from ..configuration.config import CheckConfig, Config

__all__ = ["longest"]

_DCGM: Final = {1: 120.0, 2: 900.0, 3: 2700.0, 4: 10800.0}
"""Seconds of a diagnostic by its level."""
_LOOPBACK: Final = 600.0
_OTHERS: Final = 300.0
"""The check kit's."""
_REPORT: Final = 10.0
"""Seconds that a connector which does not answer may cost."""


def longest(check: CheckConfig, config: Config, ranks: int = 0) -> float:
    """Seconds: waiting for others, running, reporting. ``ranks``: GPUs of the whole gang, 0 where its size is not known."""
    own = {variable.name: variable.value for variable in check.env}
    given = own.get(names.ENV_CHECK_TIMEOUT) or check.timeout or config.check_timeout
    runs = _seconds(given) or {
        names.DCGM_DIAG: _DCGM[config.dcgm.diag_level],
        names.NCCL_LOOPBACK: _LOOPBACK,
        names.NCCL_ALLREDUCE: gang_run(ranks),
    }.get(check.name, _OTHERS)
    waits = 0.0
    if check.gang_wide:
        waits = _seconds(own.get(names.ENV_GANG_TIMEOUT) or config.gang_timeout)
    elif check.name == names.DCGM_DIAG:  # an engine runs one diagnostic at a time
        waits = _seconds(own.get("DCGM_QUEUE_TIMEOUT", "")) or runs
    return waits + runs + _REPORT


def _seconds(text: str) -> float:
    """0 for what is empty, or no duration: the check itself refuses that."""
    try:
        return parse_duration(text) if text else 0.0
    except ValueError:
        return 0.0
