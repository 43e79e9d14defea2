"""Manifests that are almost right, and a command line that reads them: whatever is in a file ends
with a status and sentences.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from typing import Any, Final, NamedTuple
from unittest import mock

import yaml
from hypothesis import strategies as st

Path = tuple[str | int, ...]
_ODD: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, -1, 1.5, 10**30, float("inf"), "", "true", "1e400"),
    *("x" * 300, "é" * 50, "\x1b[31mred\u202e", "two\nlines", "2020-01-01T00:00:00Z"),
    *([], {}, [[]], [None], [1], {"a": 1}, {"name": None}, [{"name": 1}]),
)
"""Values that stand where something else should."""
UNPRINTABLE: Final = ("\x1b", "\u202e")


class CommandEnd(NamedTuple):
    """How a command line ended: its status, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def harmless(self) -> bool:
        """Whether nothing of it changes a terminal."""
        return not any(character in self.out + self.err for character in UNPRINTABLE)


def ended(main: Callable[[], object], *arguments: str, stdin: str = "") -> CommandEnd:
    """Run the entry point of a program in this process, with ``arguments``. What it raises but
    SystemExit is raised here.
    """
    out, err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), io.StringIO()
    status = 0
    with (
        mock.patch("sys.argv", ["program", *arguments]),
        mock.patch("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 0
    out.flush()
    return CommandEnd(status, out.buffer.getvalue().decode(), err.getvalue())


@st.composite
def mutants(draw: st.DrawFn, text: str) -> str:
    """The YAML documents of ``text``, one or two values replaced, moved, doubled or gone."""
    documents = list(yaml.safe_load_all(text))
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(documents))
        if not places:
            break
        *above, last = draw(st.sampled_from(places))
        parent = _at(documents, above)
        match draw(st.sampled_from(("odd", "odd", "odd", "moved", "twice", "gone"))):
            case "odd":
                parent[last] = deepcopy(draw(st.sampled_from(_ODD)))
            case "moved":
                parent[last] = deepcopy(_at(documents, draw(st.sampled_from(places))))
            case "twice" if hasattr(parent, "append"):
                parent.append(deepcopy(parent[last]))
            case _:
                del parent[last]
    return str(yaml.dump_all(documents, Dumper=_Plain, allow_unicode=True))


def _places(within: Any, above: Path = ()) -> Iterator[Path]:
    if isinstance(within, dict | list):
        for key in within if isinstance(within, dict) else range(len(within)):
            yield (*above, key)
            yield from _places(within[key], (*above, key))


def _at(within: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        within = within[key]
    return within


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # what was moved is written twice
