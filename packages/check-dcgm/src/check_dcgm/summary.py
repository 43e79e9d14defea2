"""What a diagnostic found, in words for ``kubectl logs``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from preflight_proto.check import Action, Finding, Gpu

from .catalogue import SOFTWARE, ErrorSeverity, canonical_test
from .parse import Document, Entity

DO = {
    Action.CONTACT_SUPPORT: "take the node out of service and contact support",
    Action.RUN_DCGMEUD: "take the node out of service and run the DCGM EUD on it",
    Action.COMPONENT_RESET: "reset the GPU",
    Action.RESTART_BM: "restart the node",
}
_WARNED = {
    str(ErrorSeverity.CONFIG.value): "put the node's configuration right",
    str(ErrorSeverity.MONITOR.value): "the GPU can be used, see whether it comes again",
}
"""What DCGM's severity of a warning calls for (dcgm_errors.h)."""


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
    do = DO.get(first.action, first.action.value)
    if first.action is Action.NONE:
        warned = _WARNED.get(first.metadata.get("severity", ""), "see the engine's log")
        do = first.metadata.get("advice", warned)
    if not first.fatal and first.action in {Action.CONTACT_SUPPORT, Action.RUN_DCGMEUD}:
        do = "the node stays in service; try again, and contact support if it stays so"
    return f"{first.message}{detail}{more}; {do}."


def serial(gpu: Gpu, document: Document, gpus: Mapping[int, str]) -> str:
    """The serial number of a GPU's board: the driver's word, else the engine's."""
    number = next((number for number, uuid in gpus.items() if uuid == gpu.uuid), None)
    return gpu.serial or ("" if number is None else document.serials.get(number, ""))


def lines(document: Document, gpus: Mapping[int, str]) -> Iterator[str]:
    """A line for each problem with what DCGM said, then the table: a row for each GPU, a column for
    each test.
    """
    for result in document.results:
        for problem in result.problems:
            kind = result.entity.kind if result.entity else "node"
            who = (
                gpus.get(result.entity.id, f"{kind} {result.entity.id}")
                if result.entity and kind == "gpu"
                else kind
            )
            yield f"{who}: {result.test}: error {problem.error_id}, severity {problem.severity}: {short(problem.text, 300)}"
    tests = list(dict.fromkeys(canonical_test(result.test) for result in document.results))
    yield "table: " + " | ".join(["GPU", "engine id", *tests])
    for number, uuid in sorted(gpus.items()):
        cells = [_cell(test, number, document) for test in tests]
        yield "table: " + " | ".join([uuid, str(number), *cells])


def _cell(test: str, number: int, document: Document) -> str:
    statuses = [
        result.status
        for result in document.results
        if canonical_test(result.test) == test
        and ((result.entity is None and test == SOFTWARE) or result.entity == Entity("gpu", number))
    ]
    return next(
        (
            s.upper() if s == "fail" else s
            for s in ("fail", "warn", "pass", "skip")
            if s in statuses
        ),
        "not run",
    )
