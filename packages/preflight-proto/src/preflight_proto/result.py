"""The result: one JSON line that a check leaves in its termination message.

The kubelet divides 12 KiB of termination messages over all containers of a pod, so a result is at
most 768 bytes and its mandatory fields come first.
"""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from typing import Final

import msgspec

from ._versioned import ContractError, decode
from .printable import printable
from .settings import MAX_GBPS

__all__ = ["MAX_GBPS"]

VERSION: Final = 1
MAX_BYTES: Final = 768
MAX_SECONDS: Final = 7 * 86_400.0
"""A check that says it took longer is taken to have taken this long: no gang waits for a week."""

_MAX_REASON: Final = 4096  # what a termination message can hold; a result's own limit cuts further
_MAX_CODE: Final = 64
_FIRST_WORDS: Final = 128
"""Bytes of the reason that details leave to it, or they go."""
_MAX_DETAILS: Final = 16
_MOST_CUTS: Final = 24
"""Fields, with those of the details, that are taken off a result to find where it was cut."""
_TERMINATED: Final = (
    143  # 128 + SIGTERM: stopped before the check could say anything; says nothing about hardware
)
_KILLED: Final = 137  # 128 + SIGKILL: out of memory or evicted; says nothing about hardware


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How one run of one check ended.

    ``outcome`` is one of passed, failed, skipped, misconfigured, inconclusive; ``gated`` says
    whether the outcome decided the exit status (false in observe mode); ``blames`` is the code of
    what its own node, or a GPU there, is to be seen to for; ``duration`` is in seconds; ``subject``
    is what it is about (a GPU's UUID, or empty for the node); ``measured`` and ``expected`` are
    GB/s, ``details`` says of what (model, number of GPUs, links, size, versions).
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
    blames: str | msgspec.UnsetType = msgspec.UNSET
    details: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


def encode_result(result: Result) -> bytes:
    """One line of JSON, at most :data:`MAX_BYTES`; what is too long is cut from ``reason``, then
    from ``subject``; ``details`` go only when the reason is down to its first words. Its values are
    those of :func:`bounded`."""
    result = bounded(result)
    data = msgspec.json.encode(result)
    if (
        len(data) > MAX_BYTES
        and result.details is not msgspec.UNSET
        and len(data) - len(msgspec.json.encode(result.reason)) > MAX_BYTES - _FIRST_WORDS
    ):
        result = msgspec.structs.replace(result, details=msgspec.UNSET)
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


def bounded(result: Result) -> Result:
    """``result`` with printable texts and finite numbers: 0 ≤ duration ≤ :data:`MAX_SECONDS`,
    bandwidths in 0 … :data:`MAX_GBPS` or None.
    """
    seconds = result.duration
    return msgspec.structs.replace(
        result,
        check=printable(result.check),
        outcome=printable(result.outcome),
        code=printable(result.code),
        subject=printable(result.subject),
        reason=printable(result.reason, _MAX_REASON),
        duration=0.0 if math.isnan(seconds) else min(max(seconds, 0.0), MAX_SECONDS),
        measured=_bandwidth(result.measured),
        expected=_bandwidth(result.expected),
        blames=result.blames
        if result.blames is msgspec.UNSET
        else printable(result.blames, _MAX_CODE),
        details=_details(result.details),
    )


def _details(details: dict[str, str] | msgspec.UnsetType) -> dict[str, str] | msgspec.UnsetType:
    if details is msgspec.UNSET:
        return details
    first = itertools.islice(details.items(), _MAX_DETAILS)
    return {printable(name, MAX_BYTES): printable(value, MAX_BYTES) for name, value in first}


def _bandwidth(gbps: float | None) -> float | None:
    return gbps if gbps is not None and 0 <= gbps <= MAX_GBPS else None


def from_termination(check: str, message: str, exit_code: int) -> Result:
    """What a terminated check has to say. Never raises.

    A result of another check beside exit status 0 is inconclusive ``BAD_RESULT``: a check that only
    observes ends so whatever it found. Else, without a readable result of this very check, the exit
    status is judged: 0 passed, 2 misconfigured, 137 (killed, e.g. out of memory) and 143 (stopped)
    inconclusive, anything else failed. Texts are printable and numbers finite, see :func:`bounded`.
    A result that claims success beside a failing exit status is not believed.
    """
    try:
        result = _decoded(message)
    except ContractError as error:
        return _by_status(
            check, exit_code, str(error) if message.strip() else "no result was written"
        )
    if result.check != check:
        why = f"the result speaks of the check {printable(result.check, _MAX_CODE)!r}; give the check this name in the configuration"
        judged = _by_status(check, exit_code, why)
        return (
            msgspec.structs.replace(judged, outcome="inconclusive", code="BAD_RESULT")
            if exit_code == 0
            else judged
        )
    if exit_code != 0 and result.outcome in {"passed", "skipped"}:
        return _by_status(
            check, exit_code, f"the result says {result.outcome}, the exit status {exit_code}"
        )
    return bounded(result)


def _decoded(message: str) -> Result:
    """A result that may have been cut: of a pod with more than 16 containers the kubelet keeps less
    than :data:`MAX_BYTES` of each one's message.
    """
    try:
        return decode("result", VERSION, Result, message)
    except ContractError:
        whole, end = message, '"}'
        for _ in range(_MOST_CUTS):
            with suppress(ContractError):
                return decode("result", VERSION, Result, whole + end)
            whole, end = whole.rpartition(',"')[0], "}"
        raise


def _by_status(check: str, exit_code: int, why: str) -> Result:
    outcome, code = {
        0: ("passed", "OK"),
        2: ("misconfigured", "EXIT_2"),
        _KILLED: ("inconclusive", "KILLED"),
        _TERMINATED: ("inconclusive", "TERMINATED"),
    }.get(exit_code, ("failed", f"EXIT_{exit_code}"))
    return Result(
        v=VERSION,
        check=check,
        outcome=outcome,
        code=code,
        gated=True,
        duration=0.0,
        reason=printable(why, _MAX_REASON),
    )
