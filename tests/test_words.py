"""Names are words of the field: controller-runtime's, Prometheus's, NCCL's, DCGM's. The private
ones that are left are counted, member by member, and become fewer.

``python tests/test_words.py`` prints what there is now: put smaller numbers into :data:`LEFT`.
``python tests/test_words.py MEMBER`` says where.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = {path.parent.name: path for path in (*ROOT.glob("packages/*/src"), ROOT / "e2e/src")}

PRIVATE = {
    "anew": "again, recreate",
    "ganging": "gang controller",
    "gathering": "barrier",
    "look": "reconcile, read, poll",
    "looks": "reconciles, polling",
    "mend": "repair, patch",
    "mended": "repaired",
    "meters": "metrics",
    "nobody": "none",
    "nudge": "requeue, wake",
    "nudged": "requeued",
    "nudging": "requeueing",
    "said": "answer, message, error",
    "saw": "observe",
    "say": "record, write, echo",
    "says": "is, reports",
    "seen": "snapshot, observed",
    "somebody": "the account, the holder",
    "speaker": "event recorder",
    "tell": "notify, record",
    "tells": "notifies",
    "told": "message, answer, notified",
    "untold": "pending",
    "whoever": "the holder",
    "wish": "requested",
    "wished": "requested",
}
"""What to write in the place of a word in names of modules, classes, functions and metrics, and in
log messages.
"""
VAGUE = {"found", "made", "one", "said", "told"}
"""Variables and parameters whose noun is meant: the pod, the lease, the response."""
BRITISH = re.compile(
    r"\w*(?:behaviour|colour|favour|honour|neighbour|labelled|licence|centre\b|"
    r"(?:anal|cataly)yse|(?:general|initial|local|normal|optim|recogn|serial|summar)is(?:e|ing|ation))\w*"
)
LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "fault"}
METRICS = re.compile(r"(?:Counter|Gauge|Histogram|Summary|Info|Enum)(?:MetricFamily)?")

LEFT: dict[str, tuple[int, int]] = {
    "allreduce-testing": (6, 0),
    "check-dcgm": (0, 0),
    "check-nccl-allreduce": (1, 1),
    "check-nccl-loopback": (0, 0),
    "e2e": (3, 7),
    "preflight-appwrapper": (9, 0),
    "preflight-cli": (0, 0),
    "preflight-computedomain": (8, 0),
    "preflight-gang": (3, 105),
    "preflight-gpu-scheduler": (7, 0),
    "preflight-kube": (2, 0),
    "preflight-proto": (1, 1),
    "preflight-testing": (0, 6),
    "preflight-webhook": (0, 0),
}
"""Of each member: private or British words in names, metrics and log messages; vague variables."""


def words(name: str) -> list[str]:
    """The words of an identifier or a sentence, in lower case."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return re.findall(r"[a-z]+", spaced.replace("_", " ").lower())


def named(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names of classes, functions and metrics, and log messages, each with its line."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                yield node.lineno, name
            case ast.Call(
                func=ast.Attribute(value=of, attr=attr), args=[ast.Constant(str(text)), *_]
            ):
                if attr in LOGGED and "log" in ast.unparse(of).lower():
                    yield node.lineno, text
            case ast.Call(func=ast.Name(id=kind), args=[ast.Constant(str(text)), *_]):
                if METRICS.fullmatch(kind):
                    yield node.lineno, text


def variables(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """What is assigned to, and parameters."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name


@lru_cache
def trees(member: str) -> list[tuple[Path, ast.Module]]:
    """Of each file that is not generated."""
    files = sorted(SOURCES[member].rglob("*.py"))
    return [
        (path.relative_to(ROOT), ast.parse(path.read_text()))
        for path in files
        if "_generated" not in path.parts
    ]


def private(member: str) -> Iterator[str]:
    """Where a name or a log message has a word that is not the field's."""
    for where, tree in trees(member):
        file = (0, where.stem if where.stem != "__init__" else where.parent.name)
        for line, text in (file, *named(tree)):
            for word in words(text):
                if word in PRIVATE:
                    yield f"{where}:{line}: {text!r} has {word!r}; write {PRIVATE[word]}"
                elif BRITISH.fullmatch(word):
                    yield f"{where}:{line}: {text!r} has {word!r}; spell it as Americans do"


def vague(member: str) -> Iterator[str]:
    """Where a variable does not say what it is."""
    for where, tree in trees(member):
        for line, name in variables(tree):
            if name in VAGUE:
                yield f"{where}:{line}: {name}; write what it is"


@pytest.mark.parametrize("member", sorted(SOURCES))
def test_private_words_become_fewer(member: str) -> None:
    names, loose = LEFT.get(member, (0, 0))
    for found, left in ((list(private(member)), names), (list(vague(member)), loose)):
        assert len(found) <= left, f"{left} were left:\n" + "\n".join(found)


def test_every_member_that_is_counted_is_there() -> None:
    assert LEFT.keys() <= SOURCES.keys()


if __name__ == "__main__":
    for member in sys.argv[1:]:
        print(*private(member), *vague(member), sep="\n")
    for member in sorted(SOURCES) if not sys.argv[1:] else ():
        print(f'    "{member}": ({len(list(private(member)))}, {len(list(vague(member)))}),')
