"""How long the checks can hold a pod back when each uses up all the time that it has."""

from __future__ import annotations

from preflight_proto import names, time_limits
from preflight_proto.durations import gang_run, parse_duration

from preflight_webhook.config.config import CheckConfig, Config

__all__ = ["worst_case_delay"]


def worst_case_delay(check: CheckConfig, config: Config, ranks: int = 0) -> float:
    """Seconds: waiting for others, running, reporting. ``ranks``: GPUs of the whole gang, 0 where
    its size is not known.
    """
    own = {variable.name: variable.value for variable in check.env}
    given = own.get(names.ENV_CHECK_TIMEOUT) or check.timeout or config.check_timeout
    runs = _seconds(given) or {
        names.DCGM_DIAG: time_limits.DCGM_DIAG[config.dcgm.diag_level],
        names.NCCL_LOOPBACK: time_limits.NCCL_LOOPBACK,
        names.NCCL_ALLREDUCE: gang_run(ranks),
    }.get(check.name, time_limits.CHECK)
    waits = 0.0
    if check.gang_wide:
        waits = _seconds(own.get(names.ENV_GANG_TIMEOUT) or config.gang_timeout)
    elif check.name == names.DCGM_DIAG:  # an engine runs one diagnostic at a time
        waits = _seconds(own.get("DCGM_QUEUE_TIMEOUT", "")) or runs
    return waits + runs + time_limits.REPORT


def _seconds(text: str) -> float:
    """0 for what is empty, or no duration: the check itself refuses that."""
    try:
        return parse_duration(text) if text else 0.0
    except ValueError:
        return 0.0
