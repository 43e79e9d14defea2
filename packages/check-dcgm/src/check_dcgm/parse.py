"""The document that ``dcgmi diag -j`` prints, of DCGM 2.4 to 4.6, as one shape; found in time
linear in the length of the output, which comes from over the network.

NVIDIA publishes no stable schema for it, so everything is looked for and nothing is assumed: what
has another shape than expected is passed over, and the judge asks for a Pass of each test on every
GPU before it believes in health.

Whose a result is, and where its problems are:

- 2.4 to 3.2: ``gpu_ids`` (one id as text), deployment tests are nobody's; ``warnings`` is a text,
  from 3.2.5 with ``error_id`` beside it.
- 3.3.1: ``gpu_id`` as text, deployment tests are nobody's, with a row for each problem; a list, of
  deployment tests a text with its ids beside it.
- 3.3.3 to 3.3.9: the same, and of deployment tests ``gpu_id`` of the last problem, -1 for none; a
  list, of deployment tests with the text under ``warnings``.
- 4.0 to 4.4: ``entity_group_id`` and ``entity_id``; a list, and what is nobody's is in
  ``test_summary``.
- from 4.5: the same; ``test_summary`` repeats every problem of the test, without its entity.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from .catalogue import COUNTER, MEMORY, by_words, canonical_test, is_deployment
from .identity import known_serial

MAX_STARTS: Final = 256
"""Places tried that turned out to begin no object. More is noise, and each may cost a look at all
the rest.
"""

MAX_READ: Final = 32 << 20
"""Characters read in all behind such places: eight times the most that is kept of an output."""

_START: Final = re.compile(r'\{(?=\s*+["}])')
_DECODER: Final = json.JSONDecoder(strict=False)
ROOTS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")  # DCGM 4 and later; up to 3.3
GPU_GROUP: Final = 1
UNREADABLE: Final = "unreadable"
"""The kind of an entity whose number cannot be read: it may be anybody."""

Status = Literal["pass", "skip", "fail", "warn", "unknown"]
_GPU_IN_TEXT: Final = re.compile(r"\bGPU ?#?(\d{1,4})\b")
_GIVEN: Final = re.compile(r"\bAllocated \d+ bytes")
_NOT_GIVEN: Final = "DCGM prints Pass, as for the last GPU, and no memory that it was given"


class UnreadableDocument(ValueError):
    """The output holds no diagnostic document. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Entity:
    """What a result is about. ``kind`` is lower case (``gpu``, ``cpu``, ``switch`` …); ``id`` is
    the *engine's* number.
    """

    kind: str
    id: int


@dataclass(frozen=True, slots=True)
class DocumentProblem:
    """One error of a result. Ids, severity and category are DCGM's numbers, None where the version
    prints none.
    """

    text: str
    error_id: int | None = None
    severity: int | None = None
    category: int | None = None


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test on one entity; ``entity`` is None for a result about no entity in particular.
    ``info`` is what DCGM adds in words.
    """

    __test__ = False

    test: str
    entity: Entity | None
    status: Status
    problems: tuple[DocumentProblem, ...] = ()
    info: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """``runtime_error`` is set when the engine could not run the diagnostic; the exit status then
    says why.

    ``serials``: the engine's id of a GPU → the serial number of its board, where the version prints
    it.
    """

    version: str
    results: tuple[TestResult, ...]
    runtime_error: str | None = None
    serials: dict[int, str] = field(default_factory=dict)
    driver: str = ""


def parse(output: str) -> Document:
    """The document in ``output``, whatever stands before and after it; takes time linear in its
    length.

    Raises :class:`UnreadableDocument` when there is none, or only the beginning of one.
    """
    documents = [_document(root, body) for item in objects(output) for root, body in _bodies(item)]
    if not documents:
        raise UnreadableDocument(_why_not(output))
    if len(documents) == 1:
        return documents[0]
    # --iterations: one document for each; a fault in any of them is a fault.
    errors = [d.runtime_error for d in documents if d.runtime_error is not None]
    serials = {number: serial for d in documents for number, serial in d.serials.items()}
    results = tuple(r for d in documents for r in d.results)
    return Document(
        documents[-1].version, results, errors[0] if errors else None, serials, documents[-1].driver
    )


def _why_not(output: str) -> str:
    if any(f'"{root}"' in output for root in ROOTS):
        end = " ".join(output[-200:].split())[-60:]
        return f'the diagnostic document in the output is cut short or broken; it ends with "{end}"'
    seen = " ".join(output[:1000].split())[:120]
    return (
        f'no diagnostic document in the output; it begins with "{seen}"'
        if seen
        else "the output is empty"
    )


def _bodies(item: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for each in (*_dicts(item.get("iterations")), item):
        for root in ROOTS:
            if isinstance(body := each.get(root), dict):
                yield each, body


def _document(root: dict[str, Any], body: dict[str, Any]) -> Document:
    places = [
        body,
        root,
        *(m for m in (root.get("metadata"), body.get("metadata")) if isinstance(m, dict)),
    ]

    def first(key: str) -> str:
        return next((place[key] for place in places if isinstance(place.get(key), str)), "")

    results = tuple(
        result
        for category in _dicts(body.get("test_categories"))
        for test in _dicts(category.get("tests"))
        for result in _results(test)
    )
    error = body.get("runtime_error")
    return Document(
        first("version"),
        results,
        None if error is None else str(error),
        _serials(root) | _serials(body),
        first("Driver Version Detected"),
    )


def _serials(place: dict[str, Any]) -> dict[int, str]:
    """Of 3.3 (an object beside the rest) and of 4 (in the list of entities); boards without one
    have none.
    """
    serials: list[tuple[object, object]] = []
    if isinstance(old := place.get("GPU Device Serials"), dict):
        serials += old.items()
    for group in _dicts(place.get("entity_groups")):
        if _int(group.get("entity_group_id")) == GPU_GROUP:
            serials += [
                (entity.get("entity_id"), entity.get("serial_num"))
                for entity in _dicts(group.get("entities"))
            ]
    return {
        number: known
        for raw, serial in serials
        if (number := _int(raw)) is not None
        and isinstance(serial, str)
        and (known := known_serial(serial))
    }


def _results(test: dict[str, Any]) -> Iterator[TestResult]:
    name = str(test.get("name", ""))
    rows = [_identified(row) for row in _rows(name, test)]
    if canonical_test(name) == MEMORY:
        rows = _given(rows)
    summary = test.get("test_summary")
    if isinstance(summary, dict):
        rows = _with_reason(name, rows, summary)
    yield from rows
    # What a result says already is not repeated by the summary; the rest is about whom its text
    # names, or about nobody.
    seen = {problem.text for row in rows for problem in row.problems}
    if not isinstance(summary, dict):
        return
    for problem, owner in _problems(summary):
        if problem.text not in seen:
            yield _identified(TestResult(name, owner or _named(problem), "fail", (problem,)))
    silent = not any(
        row.problems or row.status in {"fail", "warn"} for row in rows
    ) and not _problems(summary)
    if silent and _status(summary.get("status")) == "fail":
        yield TestResult(name, None, "fail")  # nobody's result says why


def _given(rows: list[TestResult]) -> list[TestResult]:
    """The rows of the memory test, which has one result for all GPUs, that of the last: a Pass
    without the memory that the test was given is a skip where a later row says how much that was.
    (The first ones are never left out for want of room.)
    """
    last = max((i for i, row in enumerate(rows) if _GIVEN.search(row.info)), default=0)
    return [
        row
        if row.status != "pass" or _GIVEN.search(row.info)
        else replace(row, status="skip", info=row.info or _NOT_GIVEN)
        for row in rows[:last]
    ] + rows[last:]


def _with_reason(name: str, rows: list[TestResult], summary: dict[str, Any]) -> list[TestResult]:
    """The rows, those that were skipped with the test's own words where they have none; a test
    without rows that was skipped has one.
    """
    info = _info(summary.get("info"))
    if not rows and _status(summary.get("status")) == "skip":
        return [TestResult(name, None, "skip", info=info)]
    return [
        replace(row, info=info) if row.status == "skip" and not row.info else row for row in rows
    ]


def _identified(row: TestResult) -> TestResult:
    """The row with the ids that the words of its problems show, for those that have none of their
    own.
    """
    problems = (
        replace(p, error_id=by_words(row.test, p.text) or p.error_id)
        if p.error_id is None or (p.error_id == COUNTER and p.severity is None)
        else p
        for p in row.problems
    )
    return replace(row, problems=tuple(problems))


def _rows(name: str, test: dict[str, Any]) -> Iterator[TestResult]:
    for raw in _dicts(test.get("results")):  # 3.x writes null for a GPU that was not run
        entity, status, info = _entity(raw), _status(raw.get("status")), _info(raw.get("info"))
        problems = _problems(raw)
        if entity is not None and not is_deployment(name):
            yield TestResult(name, entity, status, tuple(problem for problem, _ in problems), info)
            continue
        # A row for all GPUs: its id, where it has one, is that of its last problem, and -1 is
        # nobody's.
        owners = [owner or _named(problem) for problem, owner in problems]
        if owners and owners[-1] is None:
            owners[-1] = entity
        owned = list(zip((problem for problem, _ in problems), owners, strict=True))
        yield TestResult(
            name, None, status, tuple(problem for problem, owner in owned if owner is None), info
        )
        for owner in dict.fromkeys(owner for _, owner in owned if owner is not None):
            theirs = tuple(problem for problem, target in owned if target == owner)
            yield TestResult(name, owner, "warn" if status == "warn" else "fail", theirs)


def _problems(raw: dict[str, Any]) -> list[tuple[DocumentProblem, Entity | None]]:
    """What is under ``warnings``: a list of objects, or one text with its ids beside it; and whom
    an object names itself.
    """
    listed = raw.get("warnings")
    if isinstance(listed, str):
        return [(DocumentProblem(listed, *_numbers(raw)), None)] if listed.strip() else []
    problems: list[tuple[DocumentProblem, Entity | None]] = []
    for item in _list(listed):
        if isinstance(item, str) and item.strip():
            problems.append((DocumentProblem(item), None))
        elif isinstance(item, dict):
            # The deployment tests of 3.3 keep the text under "warnings".
            text = next(
                (str(item[key]) for key in ("warning", "warnings", "error") if item.get(key)), ""
            )
            problems.append((DocumentProblem(text, *_numbers(item)), _entity(item)))
    return problems


def _numbers(raw: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    return (
        _int(raw.get("error_id")),
        _int(raw.get("error_severity")),
        _int(raw.get("error_category")),
    )


def _named(problem: DocumentProblem) -> Entity | None:
    """The one GPU that a problem's text names by the engine's number."""
    numbers = {int(number) for number in _GPU_IN_TEXT.findall(problem.text)}
    return Entity("gpu", numbers.pop()) if len(numbers) == 1 else None


def _entity(raw: dict[str, Any]) -> Entity | None:
    for key in ("gpu_id", "gpu_ids"):
        if raw.get(key) is not None:
            number = _int(raw[key])
            if number is None:
                return Entity(UNREADABLE, -1)
            return Entity("gpu", number) if number >= 0 else None
    if raw.get("entity_id") is None:
        return None
    number = _int(raw["entity_id"])
    kind = raw.get("entity_group")
    gpu = _int(raw.get("entity_group_id")) == GPU_GROUP or (
        isinstance(kind, str) and kind.strip().upper() == "GPU"
    )
    if number is None or number < 0:
        return Entity(UNREADABLE, -1)
    if gpu:
        return Entity("gpu", number)
    return (
        Entity(kind.strip().lower(), number)
        if isinstance(kind, str) and kind.strip()
        else Entity(UNREADABLE, -1)
    )


def _status(raw: object) -> Status:
    words: dict[str, Status] = {
        "pass": "pass",
        "skip": "skip",
        "not run": "skip",
        "fail": "fail",
        "warn": "warn",
    }
    return words.get(str(raw).strip().lower(), "unknown")


def _info(raw: object) -> str:
    texts = [item for item in (raw if isinstance(raw, list) else [raw]) if isinstance(item, str)]
    return " ".join(" ".join(texts).split())


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _int(value: object) -> int | None:
    """A whole number, also as text or as a float without a fraction."""
    if isinstance(value, bool) or not isinstance(value, int | str | float):
        return None
    if isinstance(value, int):
        return value
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Every JSON object on the outermost level of ``text``, in order; what is not an object is
    passed over. A tool's warnings may stand before, between and after the objects, and may hold
    braces and quotes of their own.
    """
    position = starts = read = 0
    while starts < MAX_STARTS and read < MAX_READ and (start := _START.search(text, position)):
        try:
            value, position = _DECODER.raw_decode(text, start.start())
        except (ValueError, RecursionError) as error:  # punctuation, or nested too deep
            starts, position = starts + 1, start.end()
            read += getattr(error, "pos", len(text)) - start.start()
        else:
            yield value
