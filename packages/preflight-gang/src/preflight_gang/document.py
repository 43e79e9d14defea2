"""A YAML document in which no key stands twice: of two, YAML readers take the last one and say nothing."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["DocumentError", "read"]

MOST_DEPTH = 64


class DocumentError(ValueError):
    """There is no such document; ``problems`` has one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


def read(text: str) -> Any:
    """The one document in ``text``; None where it is empty. Raises :class:`DocumentError` with every problem."""
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            problems = [] if node is None else _twice(node, 0)
            if problems:
                raise DocumentError(problems)
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DocumentError([f"{where}: not YAML ({why:.100}); correct it there."]) from None
    except RecursionError:
        raise DocumentError([f"the file: is nested deeper than {MOST_DEPTH} levels; make it flatter."]) from None


def _twice(node: yaml.Node, depth: int) -> list[str]:
    if depth > MOST_DEPTH:
        raise RecursionError
    if isinstance(node, yaml.SequenceNode):
        return [problem for value in node.value for problem in _twice(value, depth + 1)]
    if not isinstance(node, yaml.MappingNode):
        return []
    problems: list[str] = []
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            problems.append(f"line {line}: a key must be a string; write it in quotes.")
        elif key.value in seen:
            problems.append(
                f"line {line}: the key {key.value:.60} is in line {seen[key.value]} already; keep one of the two."
            )
        else:
            seen[key.value] = line
        problems += _twice(value, depth + 1)
    return problems
