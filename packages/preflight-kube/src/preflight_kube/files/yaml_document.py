"""YAML or JSON that people wrote, as what JSON can hold: strings, finite numbers, booleans, null,
lists, maps with strings as keys. Pure.

YAML holds more than that: dates, sets, keys of any kind, one key twice, aliases that contain
themselves or stand for a billion values. What no reader can mean is refused here, with its line,
before anything looks at it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import yaml

from preflight_kube.files.configfile import ConfigError
from preflight_kube.text import one_line

_PLAIN: Final = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")
)
_TEXT: Final = "tag:yaml.org,2002:str"
_MERGE: Final = "tag:yaml.org,2002:merge"
_MOST_DIGITS: Final = 400
"""Of a whole number as it is written; a float has 309 at most."""
_SHOWN: Final = 60
"""Characters of a name in an error."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How large a document may be.

    ``characters`` of the text; ``depth`` in levels; ``values`` of all its documents, those that
    aliases stand for counted each time; ``problems`` that are listed. ``kubernetes``: as its own
    reader has it, what looks like a date is a string, and maps are merged (``<<``).
    """

    characters: int = 1024 * 1024
    depth: int = 64
    values: int = 20_000
    problems: int = 100
    kubernetes: bool = False


DEFAULT: Final = Bounds()
"""For a configuration: a ConfigMap holds no more than 1 MiB."""
MANIFEST: Final = Bounds(characters=4 * 1024 * 1024, depth=100, values=1_000_000, kubernetes=True)
"""For an object, and those beside it."""
_FREE: Final = 1000
_EACH: Final = 10
"""Values that a text may stand for whatever its length, and for each of its characters: what is
done with a document takes time by its values, and aliases are short."""


class DocumentError(ConfigError):
    """There is no such document; each problem begins with the line or the path."""


class _Kubernetes(yaml.SafeLoader):
    """Without dates."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (as PyYAML has it)
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(text: str, bounds: Bounds = DEFAULT) -> Any:
    """The one document in ``text``; None where it is empty. Raises :class:`DocumentError` with
    every problem.
    """
    documents = read_all(text, bounds)
    if len(documents) > 1:
        raise DocumentError([f"the file: has {len(documents)} documents, expected one; split it."])
    return documents[0] if documents else None


def read_all(text: str, bounds: Bounds = DEFAULT) -> list[Any]:
    """The documents in ``text`` that are not empty, all of them within ``bounds``. Raises
    :class:`DocumentError` with every problem.
    """
    if len(text) > bounds.characters:
        raise DocumentError(
            [
                f"the file: has {len(text)} characters, more than {bounds.characters}; make it smaller."
            ]
        )
    if bad := _unprintable(text):
        raise DocumentError([bad])
    bounds = replace(bounds, values=min(bounds.values, _FREE + _EACH * len(text)))
    nodes, problems = _Nodes(bounds), list[str]()
    loader = (_Kubernetes if bounds.kubernetes else yaml.SafeLoader)(text)
    try:
        documents = []
        while loader.check_node():
            if (node := loader.get_node()) is None:
                continue
            problems += nodes.problems(node)
            if not problems:
                documents.append(loader.construct_document(node))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        why = one_line(str(getattr(error, "problem", None) or error), 100)
        problems.append(f"{where}: not YAML ({why}); correct it there.")
    except RecursionError:
        problems.append(f"the file: is nested deeper than {bounds.depth} levels; make it flatter.")
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        # Of PyYAML's own reading of numbers and their like.
        problems.append(
            f"the file: a value in it cannot be read ({one_line(str(error), 100)}); correct it."
        )
    finally:
        loader.dispose()
    for value in [] if problems else documents:
        problems += _values(value, "")
    if problems:
        raise DocumentError(problems[: bounds.problems])
    return [value for value in documents if value is not None]


def _unprintable(text: str) -> str:
    """Where a character is that YAML does not allow: PyYAML says so only when the
    loader is made.
    """
    match = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if match is None:
        return ""
    line = text.count("\n", 0, match.start()) + 1
    return f"line {line}: has the character U+{ord(match[0]):04X}, which YAML does not allow; remove it."


class _Nodes:
    """What of the nodes is nothing that JSON can hold. Counts the values of all documents of a text
    together.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._values = 0

    def problems(self, root: yaml.Node) -> list[str]:
        """Of one document. Raises RecursionError where it is too deep."""
        self._problems: list[str] = []
        self._sizes: dict[yaml.Node, int] = {}  # finished nodes, with all that they stand for
        self._within: set[yaml.Node] = set()
        within = self._values <= self._bounds.values  # else it has been said of one before
        self._values += self._walk(root, 1)
        if within and self._values > self._bounds.values and not self._problems:
            self._problems.append(
                f"the file: holds more than {self._bounds.values} values; make it smaller."
            )
        return self._problems

    def _walk(self, node: yaml.Node, depth: int) -> int:
        """How many values ``node`` stands for."""
        problems, bounds = self._problems, self._bounds
        if len(problems) >= bounds.problems:
            return 0
        if node in self._within:
            problems.append(f"{_at(node)}: contains itself by an alias; write it out.")
            return 0
        if (size := self._sizes.get(node)) is not None:
            return size
        if depth > bounds.depth:
            raise RecursionError
        if node.tag not in _PLAIN:
            what = one_line(node.tag.rpartition(":")[2], _SHOWN)
            problems.append(
                f"{_at(node)}: a value of the kind {what} is not allowed; write it as a string, in quotes."
            )
            return 0
        size = 1
        if isinstance(node, yaml.ScalarNode):
            if node.tag.endswith(":int") and len(node.value) > _MOST_DIGITS:
                problems.append(
                    f"{_at(node)}: a number of {len(node.value)} digits is too large; make it smaller."
                )
        else:
            self._within.add(node)
            if isinstance(node, yaml.SequenceNode):
                size += sum([self._walk(value, depth + 1) for value in node.value])
            else:
                self._keys(node)
                size += sum([1 + self._walk(value, depth + 1) for _, value in node.value])
            self._within.discard(node)
        self._sizes[node] = size
        return size

    def _keys(self, node: yaml.Node) -> None:
        seen: dict[str, int] = {}
        for key, _ in node.value:
            if key.tag == _MERGE and self._bounds.kubernetes:
                continue
            if key.tag == _MERGE:
                self._problems.append(f"{_at(key)}: maps are not merged here (<<); write it out.")
            elif not isinstance(key, yaml.ScalarNode) or key.tag != _TEXT:
                self._problems.append(f"{_at(key)}: the key is not a string; write it in quotes.")
            elif key.value in seen:
                name, line = one_line(key.value, _SHOWN), seen[key.value]
                self._problems.append(
                    f"{_at(key)}: the key {name} is in line {line} already; keep one of the two."
                )
            else:
                seen[key.value] = key.start_mark.line + 1


def _values(value: Any, path: str) -> Iterator[str]:
    """What of the values is nothing that an API server would take."""
    where = path or "the file"
    if isinstance(value, dict):
        for key, inner in value.items():
            if bad := _control(key):
                yield f"{where}: a key in it has the character {bad}; remove it."
            else:
                yield from _values(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _values(inner, f"{path}[{i}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f'{where}: "{value}" is not a finite number; set one.'
    elif isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        yield f"{where}: the number is too large; set a smaller one."
    elif isinstance(value, str) and (bad := _control(value)):
        yield f"{where}: has the character {bad}; remove it."


def _control(text: str) -> str:
    """The first character that no setting has: a control character but tab and line breaks, or half
    a pair.
    """
    for character in text:
        if (
            (character < " " and character not in "\t\n\r")
            or "\x7f" <= character < "\xa0"
            or "\ud800" <= character <= "\udfff"
        ):
            return f"U+{ord(character):04X}"
    return ""


def _at(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}, column {node.start_mark.column + 1}"
