"""The document that ``dcgmi diag -j`` prints, of DCGM 3 and of DCGM 4, as one shape.

NVIDIA publishes no stable schema for it, so everything is looked for and nothing is assumed: what has another
shape than expected is passed over, and the judge asks for a Pass of every GPU before it believes in health.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

__all__ = ["Document", "Entity", "Problem", "TestResult", "Unreadable", "parse"]

ROOTS: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")  # DCGM 4 and later; up to 3.3
GPU_GROUP: Final = 1

Status = Literal["pass", "skip", "fail", "warn", "unknown"]


class Unreadable(ValueError):
    """The output holds no diagnostic document. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Entity:
    """What a result is about. ``kind`` is lower case (``gpu``, ``cpu``, ``switch`` …); ``id`` is the *engine's* number."""

    kind: str
    id: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One error of a result. Ids, severity and category are DCGM's numbers, None where the version prints none."""

    text: str
    error_id: int | None = None
    severity: int | None = None
    category: int | None = None


@dataclass(frozen=True, slots=True)
class TestResult:
    """One test on one entity; ``entity`` is None for a result about no entity in particular."""

    __test__ = False

    test: str
    entity: Entity | None
    status: Status
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Document:
    """``runtime_error`` is set when the engine could not run the diagnostic; then it says nothing about hardware."""

    version: str
    results: tuple[TestResult, ...]
    runtime_error: str | None = None


def parse(output: str) -> Document:
    """The document in ``output``, whatever stands before and after it.

    Raises :class:`Unreadable` when there is none, or only the beginning of one.
    """
    documents = [_document(root, body) for found in _objects(output) for root, body in _bodies(found)]
    if not documents:
        seen = " ".join(output.split())[:120]
        raise Unreadable(
            f'no diagnostic document in the output; it begins with "{seen}"' if seen else "the output is empty"
        )
    if len(documents) == 1:
        return documents[0]
    # --iterations: one document for each; a fault in any of them is a fault.
    errors = [d.runtime_error for d in documents if d.runtime_error]
    return Document(
        documents[-1].version, tuple(r for d in documents for r in d.results), errors[0] if errors else None
    )


def _objects(output: str) -> Iterator[dict[str, Any]]:
    """Every JSON object that stands in the output on the outermost level."""
    decoder, position = json.JSONDecoder(), 0
    while (start := output.find("{", position)) >= 0:
        try:
            value, position = decoder.raw_decode(output, start)
        except (ValueError, RecursionError):
            position = start + 1
            continue
        if isinstance(value, dict):
            yield value


def _bodies(found: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for iteration in _dicts(found.get("iterations")):
        yield from _bodies(iteration)
    for root in ROOTS:
        if isinstance(body := found.get(root), dict):
            yield found, body


def _document(root: dict[str, Any], body: dict[str, Any]) -> Document:
    metadata = next((m for m in (root.get("metadata"), body.get("metadata")) if isinstance(m, dict)), {})
    version = next(
        (v for v in (body.get("version"), root.get("version"), metadata.get("version")) if isinstance(v, str)), ""
    )
    error = body.get("runtime_error")
    results = tuple(
        result
        for category in _dicts(body.get("test_categories"))
        for test in _dicts(category.get("tests"))
        for result in _results(test)
    )
    return Document(version, results, str(error) if error else None)


def _results(test: dict[str, Any]) -> Iterator[TestResult]:
    name = str(test.get("name", ""))
    for raw in _dicts(test.get("results")):  # 3.x writes null for a GPU that was not run
        entity = _entity(raw)
        problems = [p for item in _list(raw.get("warnings")) if (p := _problem(item)) is not None]
        by_entity: dict[Entity | None, list[Problem]] = {entity: []}
        for item, problem in problems:
            by_entity.setdefault(_entity(item) or entity, []).append(problem)
        if len(by_entity) > 1 and not by_entity[entity]:
            del by_entity[entity]  # everything that the row has to say is about the entities that its items name
        for about, found in by_entity.items():
            # A result that speaks of all GPUs at once (3.x deployment) names the GPU in the item itself.
            status = _status(raw.get("status")) if about == entity else "fail"
            yield TestResult(name, about, status, tuple(found))
    summary = test.get("test_summary")
    for item in _list(summary.get("warnings")) if isinstance(summary, dict) else []:
        if (pair := _problem(item)) is not None:
            yield TestResult(name, _entity(pair[0]), "fail", (pair[1],))


def _problem(item: object) -> tuple[dict[str, Any], Problem] | None:
    if isinstance(item, str):
        return ({}, Problem(item)) if item.strip() else None
    if not isinstance(item, dict):
        return None
    # The deployment tests of 3.x keep the text under "warnings".
    text = next((str(item[key]) for key in ("warning", "warnings", "error") if item.get(key)), "")
    numbers = (_int(item.get(key)) for key in ("error_id", "error_severity", "error_category"))
    return item, Problem(text, *numbers)


def _entity(raw: dict[str, Any]) -> Entity | None:
    if (number := _int(raw.get("gpu_id"))) is not None:
        return Entity("gpu", number)
    if (number := _int(raw.get("entity_id"))) is None:
        return None
    if _int(raw.get("entity_group_id")) == GPU_GROUP:
        return Entity("gpu", number)
    kind = raw.get("entity_group")
    return Entity(kind.lower(), number) if isinstance(kind, str) and kind else None


def _status(raw: object) -> Status:
    words: dict[str, Status] = {"pass": "pass", "skip": "skip", "fail": "fail", "warn": "warn"}
    return words.get(str(raw).strip().lower(), "unknown")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _int(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    try:
        return int(value)
    except ValueError:
        return None
