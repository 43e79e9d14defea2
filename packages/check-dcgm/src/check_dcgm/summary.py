"""What a diagnostic found, in words for ``kubectl logs``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight_proto.check import Action, Finding

from .catalogue import canonical_test
from .parse import Document

__all__ = ["lines", "reason", "short"]

_DO = {
    Action.CONTACT_SUPPORT: "take the node out of service and contact support",
    Action.RUN_DCGMEUD: "take the node out of service and run the DCGM EUD on it",
    Action.COMPONENT_RESET: "reset the GPU",
    Action.NONE: "nothing needs to be done",
}


def short(text: str, most: int = 160) -> str:
    """One line of at most ``most`` characters, without a full stop at its end."""
    line = " ".join(text.split()).rstrip(".")
    return line if len(line) <= most else line[: most - 1] + "…"


def reason(findings: Sequence[Finding], level: int) -> str:
    """One sentence about the whole run: the first finding, how many more, and what to do."""
    if not findings:
        return f"every GPU passed DCGM's level {level} diagnostic."
    first = findings[0]
    more = f" (and {len(findings) - 1} more above)" if len(findings) > 1 else ""
    detail = f' ("{short(first.metadata["detail"])}")' if first.metadata.get("detail") else ""
    return f"{first.message}{detail}{more}; {_DO.get(first.action, first.action.value)}."


def lines(document: Document, gpus: Mapping[int, str]) -> Iterator[str]:
    """A line for each GPU with its tests, then one for each problem with what DCGM said."""
    for number, uuid in sorted(gpus.items()):
        tests: dict[str, list[str]] = {}
        for result in document.results:
            ours = result.entity is None or (result.entity.kind == "gpu" and result.entity.id == number)
            if ours and result.status != "unknown":
                tests.setdefault(canonical_test(result.test), []).append(result.status)
        told = ", ".join(f"{test} {_worst(statuses)}" for test, statuses in tests.items())
        yield f"{uuid} (engine id {number}): {told or 'no result'}"
    for result in document.results:
        for problem in result.problems:
            kind = result.entity.kind if result.entity else "node"
            who = gpus.get(result.entity.id, f"{kind} {result.entity.id}") if result.entity and kind == "gpu" else kind
            yield f"{who}: {result.test}: error {problem.error_id}, severity {problem.severity}: {short(problem.text, 300)}"


def _worst(statuses: Sequence[str]) -> str:
    return next((s for s in ("fail", "warn", "pass") if s in statuses), "skip")
