"""The result: one JSON line that a check leaves in its termination message.

The kubelet divides 12 KiB of termination messages over all containers of a pod, so a result is at most
768 bytes and its mandatory fields come first.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ._versioned import ContractError, decode

__all__ = ["MAX_BYTES", "VERSION", "Result", "encode_result", "from_termination"]

VERSION: Final = 1
MAX_BYTES: Final = 768

_KILLED: Final = 137  # 128 + SIGKILL: out of memory or evicted; says nothing about hardware


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of one check ended.

    ``outcome`` is one of passed, failed, skipped, misconfigured, inconclusive; ``gated`` says whether the outcome
    decided the exit status (false in observe mode); ``duration`` is in seconds; ``subject`` is what it is about (a
    GPU's UUID, or empty for the node); ``measured`` and ``expected`` are GB/s.
    """

    v: int
    check: str
    outcome: str
    code: str
    gated: bool
    duration: float
    subject: str = ""
    reason: str = ""
    measured: float | None = None
    expected: float | None = None


def encode_result(result: Result) -> bytes:
    """One line of JSON, at most :data:`MAX_BYTES`; what is too long is cut from ``reason``, then from ``subject``."""
    data = msgspec.json.encode(result)
    for name in ("reason", "subject", "code", "check"):
        value = getattr(result, name)
        while len(data) > MAX_BYTES and value:
            # Escapes can make a character up to 12 bytes long: cut by the excess, then look again.
            excess = len(data) - MAX_BYTES
            value = value[: max(0, min(len(value) - 1, len(value) - excess // 12 - 1))]
            result = msgspec.structs.replace(result, **{name: value + "…" if value else ""})
            data = msgspec.json.encode(result)
    return data


def from_termination(check: str, message: str, exit_code: int) -> Result:
    """What a terminated check has to say. Never raises.

    Without a readable result of this very check the exit status is judged: 0 passed, 2 misconfigured, 137 (killed, e.g. out of
    memory) inconclusive, anything else failed. A result that claims success beside a failing exit status is not believed.
    """
    try:
        result = decode("result", VERSION, Result, message)
    except ContractError as error:
        return _by_status(check, exit_code, str(error) if message.strip() else "no result was written")
    if result.check != check:
        return _by_status(check, exit_code, f"the result speaks of the check {result.check!r}")
    if exit_code != 0 and result.outcome in {"passed", "skipped"}:
        return _by_status(check, exit_code, f"the result says {result.outcome}, the exit status {exit_code}")
    return result


def _by_status(check: str, exit_code: int, why: str) -> Result:
    outcome, code = {
        0: ("passed", "OK"),
        2: ("misconfigured", "EXIT_2"),
        _KILLED: ("inconclusive", "KILLED"),
    }.get(exit_code, ("failed", f"EXIT_{exit_code}"))
    return Result(v=VERSION, check=check, outcome=outcome, code=code, gated=True, duration=0.0, reason=why)
