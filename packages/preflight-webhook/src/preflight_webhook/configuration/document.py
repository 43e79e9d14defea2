"""A YAML document as what JSON can hold, and nothing else: texts, finite numbers, booleans, null, lists, maps with texts as keys.

YAML holds more than that: dates, sets, keys of any kind, one key twice, aliases that contain themselves or stand for a billion values. What
none of our readers can mean is refused here, by line, before anything looks at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import yaml

__all__ = ["DocumentError", "read"]

MOST_TEXT: Final = 1024 * 1024
"""Characters; a ConfigMap holds no more."""
MOST_VALUES: Final = 20_000
"""Values, those that aliases stand for counted each time."""
MOST_DEPTH: Final = 64
MOST_PROBLEMS: Final = 100
MOST_DIGITS: Final = 400
"""Of a whole number as it is written; a float has 309 at most."""
_PLAIN: Final = {
    "tag:yaml.org,2002:str": "a text",
    "tag:yaml.org,2002:int": "a number",
    "tag:yaml.org,2002:float": "a number",
    "tag:yaml.org,2002:bool": "a boolean",
    "tag:yaml.org,2002:null": "nothing",
    "tag:yaml.org,2002:seq": "a list",
    "tag:yaml.org,2002:map": "a map",
}
_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"


class DocumentError(ValueError):
    """There is no such document; ``problems`` has one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def read(text: str) -> Any:
    """The one document in ``text``; None where it is empty. Raises :class:`DocumentError` with every problem."""
    if len(text) > MOST_TEXT:
        raise DocumentError([f"the file: has {len(text)} characters, more than {MOST_TEXT}; make it smaller."])
    loader = yaml.SafeLoader(text) if not (bad := _unprintable(text)) else None
    if loader is None:
        raise DocumentError([bad])
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        problems = _problems(node)
        if problems:
            raise DocumentError(problems)
        value = loader.construct_document(node)
    except DocumentError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        why = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DocumentError([f"{where}: not YAML ({_shown(why)}); correct it there."]) from None
    except RecursionError:
        raise DocumentError([f"the file: is nested deeper than {MOST_DEPTH} levels; make it flatter."]) from None
    except (
        ValueError,
        OverflowError,
        KeyError,
        TypeError,
    ) as error:  # of PyYAML's own reading of numbers and their like
        raise DocumentError([f"the file: a value in it cannot be read ({_shown(str(error))}); correct it."]) from None
    finally:
        loader.dispose()
    if problems := [*_values(value, "")][:MOST_PROBLEMS]:
        raise DocumentError(problems)
    return value


def _unprintable(text: str) -> str:
    """Where a character stands that YAML does not allow: PyYAML says so only when the loader is made."""
    found = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if found is None:
        return ""
    line = text.count("\n", 0, found.start()) + 1
    return f"line {line}: has the character U+{ord(found[0]):04X}, which YAML does not allow; remove it."


def _problems(root: yaml.Node) -> list[str]:
    """What of the nodes is nothing that JSON can hold."""
    problems: list[str] = []
    sizes: dict[yaml.Node, int] = {}  # finished nodes, with all that they stand for
    within: set[yaml.Node] = set()

    def walk(node: yaml.Node, depth: int) -> int:
        if len(problems) >= MOST_PROBLEMS:
            return 0
        if node in within:
            problems.append(f"{_at(node)}: contains itself by an alias; write it out.")
            return 0
        if (size := sizes.get(node)) is not None:
            return size
        if depth > MOST_DEPTH:
            raise RecursionError
        if node.tag not in _PLAIN:
            what = node.tag.rpartition(":")[2]
            problems.append(
                f"{_at(node)}: a value of the kind {_shown(what)} is not allowed; write it as a text, in quotes."
            )
            return 0
        size = 1
        if isinstance(node, yaml.ScalarNode):
            if node.tag.endswith(":int") and len(node.value) > MOST_DIGITS:
                problems.append(f"{_at(node)}: a number of {len(node.value)} digits is too large; make it smaller.")
        elif isinstance(node, yaml.SequenceNode):
            within.add(node)
            size += sum([walk(value, depth + 1) for value in node.value])
            within.discard(node)
        elif isinstance(node, yaml.MappingNode):
            within.add(node)
            seen: dict[str, int] = {}
            for key, value in node.value:
                if key.tag == _MERGE:
                    problems.append(f"{_at(key)}: maps are not merged here (<<); write it out.")
                elif not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
                    problems.append(f"{_at(key)}: the key is no text; write it in quotes.")
                elif key.value in seen:
                    problems.append(
                        f"{_at(key)}: the key {_shown(key.value)} stands in line {seen[key.value]} already; keep one of the two."
                    )
                else:
                    seen[key.value] = key.start_mark.line + 1
                size += 1 + walk(value, depth + 1)
            within.discard(node)
        sizes[node] = size
        return size

    if walk(root, 0) > MOST_VALUES and not problems:
        problems.append(f"the file: holds more than {MOST_VALUES} values; make it smaller.")
    return problems


def _values(value: Any, path: str) -> Iterator[str]:
    """What of the values is nothing that the API server would take."""
    where = path or "the file"
    if isinstance(value, dict):
        for key, one in value.items():
            if bad := _control(key):
                yield f"{where}: a key in it has the character {bad}; remove it."
            else:
                yield from _values(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from _values(one, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f'{where}: "{value}" is no finite number; set one.'
    elif isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        yield f"{where}: the number is too large; set a smaller one."
    elif isinstance(value, str) and (bad := _control(value)):
        yield f"{where}: has the character {bad}; remove it."


def _control(text: str) -> str:
    """The first character that is none for a container's settings: a control character but tab and line breaks, or half a pair."""
    for one in text:
        if (one < " " and one not in "\t\n\r") or "\x7f" <= one < "\xa0" or "\ud800" <= one <= "\udfff":
            return f"U+{ord(one):04X}"
    return ""


def _at(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"


def _shown(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
