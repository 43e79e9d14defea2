"""YAML that people wrote, as what JSON can hold. Pure.

Of a key that stands twice YAML readers take the last and say nothing; aliases may stand for a billion values; dates are no text. Each is refused, by line.
"""

from __future__ import annotations

from typing import Any, Final

import yaml
from preflight_proto.printable import printable

__all__ = ["DocumentError", "read", "read_all"]

MOST_TEXT: Final = 4 * 1024 * 1024
"""Characters; more than the API server takes."""
MOST_DEPTH: Final = 100
MOST_PROBLEMS: Final = 50
_PLAIN: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map"))
_TEXT: Final = "tag:yaml.org,2002:str"


class DocumentError(ValueError):
    """There is no such document; ``problems`` has one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


def read(text: str) -> Any:
    """The one document in ``text``; None where it is empty. Raises :class:`DocumentError`."""
    found = read_all(text)
    if len(found) > 1:
        raise DocumentError([f"the file: has {len(found)} documents, expected one; split it."])
    return found[0] if found else None


def read_all(text: str) -> list[Any]:
    """The documents in ``text`` that are not empty. Raises :class:`DocumentError` with every problem."""
    if len(text) > MOST_TEXT:
        raise DocumentError([f"the file: has {len(text)} characters, more than {MOST_TEXT}; make it smaller."])
    try:
        loader = yaml.SafeLoader(text)
        try:
            found = []
            while loader.check_node():
                if (node := loader.get_node()) is None:
                    continue
                problems: list[str] = []
                _look(node, 0, problems)
                if problems:
                    raise DocumentError(problems[:MOST_PROBLEMS])
                found.append(loader.construct_document(node))
            return [one for one in found if one is not None]
        finally:
            loader.dispose()
    except DocumentError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        why = printable(str(getattr(error, "problem", None) or error), 100)
        raise DocumentError([f"{where}: not YAML ({why}); correct it there."]) from None
    except RecursionError:
        raise DocumentError([f"the file: is nested deeper than {MOST_DEPTH} levels; make it flatter."]) from None
    except (ValueError, OverflowError, KeyError, TypeError) as error:  # of PyYAML's own reading of numbers
        raise DocumentError([f"the file: a value cannot be read ({printable(str(error), 100)}); correct it."]) from None


def _look(node: yaml.Node, depth: int, problems: list[str]) -> None:
    if depth > MOST_DEPTH:
        raise RecursionError
    if len(problems) >= MOST_PROBLEMS:
        return
    line = node.start_mark.line + 1
    if node.tag not in _PLAIN:
        kind = printable(node.tag.rpartition(":")[2], 40)
        problems.append(f"line {line}: a value of the kind {kind} is not allowed; write it as a text, in quotes.")
    elif getattr(node, "anchor", None):
        problems.append(f"line {line}: anchors and aliases are not read here; write it out.")
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _look(value, depth + 1, problems)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, value in node.value:
            at = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
                problems.append(f"line {at}: the key is no text; write it in quotes.")
            elif key.value in seen:
                problems.append(
                    f"line {at}: the key {printable(key.value, 60)} is in line {seen[key.value]} already; keep one of the two."
                )
            else:
                seen[key.value] = at
            _look(value, depth + 1, problems)
