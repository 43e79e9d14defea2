"""A YAML document in which no key stands twice: of two, YAML readers take the last one and say
nothing. Pure.
"""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["DocumentError", "read"]

_MOST_DEPTH = 128


class DocumentError(ValueError):
    """``problems`` has one sentence each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


def read(text: str) -> Any:
    """The one document in ``text``; None where it is empty. Raises :class:`DocumentError`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        problems = _doubles(node)
        if problems:
            raise DocumentError(problems)
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}" if mark is not None else "the file"
        raise DocumentError(
            [f"{where}: not YAML ({getattr(error, 'problem', None) or error}); correct it."]
        ) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, DocumentError):
            raise
        raise DocumentError(
            ["the file: is nested too deeply, or has a value that cannot be read; correct it."]
        ) from None


def _doubles(root: yaml.Node) -> list[str]:
    problems: list[str] = []
    level = [root]
    for _ in range(_MOST_DEPTH):
        below: list[yaml.Node] = []
        for node in level:
            if isinstance(node, yaml.SequenceNode):
                below += node.value
            elif isinstance(node, yaml.MappingNode):
                first: dict[str, int] = {}
                for key, value in node.value:
                    line = key.start_mark.line + 1
                    known = first.setdefault(str(key.value), line)
                    if known != line:
                        problems.append(
                            f"line {line}: the key {str(key.value)[:60]} stands in line {known} already; keep one of the two."
                        )
                    below.append(value)
        if not below:
            return problems
        level = list({id(node): node for node in below}.values())  # an alias is the node itself
    raise DocumentError([f"the file: is nested deeper than {_MOST_DEPTH} levels; make it flatter."])
