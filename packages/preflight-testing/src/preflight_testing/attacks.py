"""What a hostile caller sends to a webhook, whichever it is: each attack is a body, made of a
review that the webhook admits. And what a hostile manifest is to a command.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import logging
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

MOST_KEPT: Final = 1024 * 1024
"""Bytes that a webhook may hold after an attack and did not before."""
MOST_AT_ONCE: Final = 96 * 1024 * 1024
"""Bytes that it may take while it answers: a few dozen times the longest body that is read."""
BOMB: Final = b"a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 12)
)
"""YAML of few bytes that stands for a billion values by its aliases."""
_NOWHERE: Final = """
current-context: x
contexts: [{name: x, context: {cluster: x}}]
clusters: [{name: x, cluster: {server: 'http://127.0.0.1:1'}}]
"""

Review = dict[str, Any]


def _changed(*where: str, **more: Any) -> Callable[[Review], bytes]:
    """The request has ``more``, or what stands at these keys in it."""

    def made(review: Review) -> bytes:
        at = review["request"]
        for key in where:
            at = at[key]
        at.update(more)
        return json.dumps(review).encode()

    return made


_with, _named = partial(_changed, "object", "spec"), partial(_changed, "object", "metadata")
_EVE: Final = {"username": "eve", "uid": "1"}


def _text(text: str) -> Callable[[Review], bytes]:
    """The object has the JSON ``text`` in its spec."""
    return lambda review: _with(x="@")(review).replace(b'"@"', text.encode(), 1)


def _repeated(review: Review) -> bytes:
    text = json.dumps(review)
    return text.replace('"spec": {', '"spec": {"x": 1, "x": [], "x": 2}, "spec": {', 1).encode()


ATTACKS: Final[dict[str, tuple[Callable[[Review], bytes], str]]] = {
    "levels": (_text("[" * 500 + "]" * 500), "the object: is nested deeper than 128 levels"),
    "levels without end": (_text("[" * 100_000), ""),
    "entries": (_with(x=[1] * 100_000), "spec.x: has 100000 entries, more than the 4096"),
    "keys": (
        _named(labels={f"a{n}": "" for n in range(100_000)}),
        "metadata.labels: has 100000 entries, more than the 4096",
    ),
    "objects": (_with(x=[[{}] * 4000] * 40), " objects and lists, more than the 100000"),
    "containers": (
        _with(containers=[{"name": f"c{n}"} for n in range(2000)]),
        "spec.containers: has 2000 entries, more than the 1024",
    ),
    "name": (
        _named(name="n" * 300_000),
        "metadata.name: has 300000 characters, more than the 317",
    ),
    "name of an entry": (
        _with(x=[{"name": "n"}, {"name": "n" * 70_000}]),
        "spec.x[1].name: has 70000 characters, more than the 317",
    ),
    "groups": (
        _changed(userInfo={**_EVE, "groups": [f"g{n}" for n in range(100_000)]}),
        "request.userInfo: has 100000 groups and extras, more than the 4096",
    ),
    "who asks": (
        _changed(userInfo={**_EVE, "extra": {"a": ["e" * 300_000]}}),
        "more than the 262144",
    ),
    "digits": (_text("9" * 100_000), ""),
    "exponent": (_text("1e999999"), ""),
    "a key again": (_repeated, ""),
    "bytes": (_with(x="x" * 4_000_000), "larger than the 3145728 bytes that are read"),
    "aliases of YAML": (lambda _: BOMB, ""),
    "half a review": (lambda review: json.dumps(review).encode()[:-40], ""),
}
"""By name: how the body is made of a review that would be admitted, and what a webhook says that
denies it; empty where it is the reader of JSON that says so, or what is odd may be admitted."""
BEYOND: Final = [name for name, (_, sentence) in ATTACKS.items() if sentence]


async def attack(app: Any, path: str, ordinary: Review, name: str) -> dict[str, Any]:
    """Send the attack to an ASGI application, and see that it answers, holds no memory, and admits
    the ordinary review afterwards. The response that the API server would read; empty where the
    request was refused with 4xx.
    """
    content, usual = ATTACKS[name][0](copy.deepcopy(ordinary)), json.dumps(ordinary).encode()
    assert (await sent(app, path, usual))["allowed"] is True
    gc.collect()
    tracemalloc.start()
    try:
        response = await sent(app, path, content)
        gc.collect()
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < MOST_KEPT, f"{kept} bytes are held"
    assert most < MOST_AT_ONCE, f"{most} bytes were taken"
    assert (await sent(app, path, usual))["allowed"] is True
    return response


async def sent(app: Any, path: str, content: bytes) -> dict[str, Any]:
    """The response to the review ``content``; empty where it was refused with 4xx."""
    head = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": head}
    messages: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    await app(scope, receive, send)
    status, answer = messages[0]["status"], messages[1]["body"]
    assert len(answer) < 128 * 1024
    if 400 <= status < 500:
        return {}
    assert status == 200, answer
    response: dict[str, Any] = json.loads(answer)["response"]
    return response


def reading(parser: argparse.ArgumentParser, file: str) -> list[list[str]]:
    """The arguments of each command that reads a file which people write, with ``file`` as that
    one.
    """
    commands: list[list[str]] = []
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        for name, inner in action.choices.items():
            commands += [[name, *rest] for rest in reading(inner, file)]
            needed = [option for option in inner._actions if option.required]
            choices = [group for group in inner._mutually_exclusive_groups if group.required]
            for option in inner._actions:
                if option.metavar != "FILE" or option.dest == "client_ca":
                    continue
                chosen = [of._group_actions[0] for of in choices if option not in of._group_actions]
                given = {other.dest: "x" for other in needed + chosen} | {option.dest: file}
                arguments = [name]
                for other in inner._actions:
                    if (value := given.get(other.dest)) is not None:
                        arguments += [*other.option_strings[-1:], value]
                commands.append(arguments)
    return commands


def refuses_bomb(
    main: Callable[[], object],
    arguments: list[str],
    folder: Path,
    patch: pytest.MonkeyPatch,
    streams: pytest.CaptureFixture[str],
) -> None:
    """Run a command in ``folder`` on a :data:`BOMB`, which ``arguments`` name ``bomb``, and see
    that it ends with status 2 and a sentence about the values.
    """
    (folder / "bomb").write_bytes(BOMB)
    (folder / "x").touch()
    (folder / "kubeconfig").write_text(_NOWHERE)
    patch.chdir(folder)
    patch.setenv("KUBECONFIG", "kubeconfig")
    patch.setenv("NODE_NAME", "n")
    patch.setattr(sys, "argv", ["it", *arguments])
    root = logging.root  # a program sets it up for itself
    patch.setattr(root, "handlers", [])
    patch.setattr(root, "level", root.level)
    with pytest.raises(SystemExit) as ended:
        main()
    printed = streams.readouterr()
    assert ended.value.code == 2
    assert "values; make it smaller." in printed.err + printed.out
