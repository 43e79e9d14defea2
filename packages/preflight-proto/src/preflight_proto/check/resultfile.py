"""A verdict where the kubelet finds it: the result, written as the termination message."""

from __future__ import annotations

from pathlib import Path

from . import log
from .verdict import Verdict


def write(
    check: str, verdict: Verdict, path: str, *, gated: bool, seconds: float, unreported: str = ""
) -> None:
    """Write the result to ``path``, over one that is there; a line in the log where that fails.

    ``seconds``: how long the check took; ``unreported``: why its events did not arrive, which the
    result's reader is the only one to learn. It stands first in the reason: what is too long is cut
    at its end.
    """
    import msgspec  # loaded beside the tools; see Check.later

    from ..result import VERSION, Result, encode_result

    reason = f"not reported ({unreported}): {verdict.reason}" if unreported else verdict.reason
    result = Result(
        v=VERSION,
        check=check,
        outcome=verdict.outcome.value,
        code=verdict.code,
        gated=gated,
        duration=round(seconds, 3),
        subject=verdict.subject,
        reason=reason,
        measured=verdict.measured,
        expected=verdict.expected,
        blames=verdict.blames or msgspec.UNSET,
        details=dict(verdict.details) if verdict.details else msgspec.UNSET,
    )
    try:
        Path(path).write_bytes(encode_result(result))
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL
        why = getattr(error, "strerror", None) or error
        log.echo(
            f"result: {path} cannot be written ({why}); the exit status still says the verdict"
        )
