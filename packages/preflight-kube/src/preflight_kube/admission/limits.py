"""How much of everything a review may bring before its application sees it. Pure.

Admission runs before validation, on one core for everybody: what one object makes it do, all others
wait for. Kubernetes itself bounds an object only by its bytes. The limits lie far above what
workloads have. :class:`~.reviews.Reviews` asks :func:`of_request` about every review, so that no
application can be without; how many bytes are read at all is in :mod:`.request_body`.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, Final

import msgspec

from preflight_kube.admission.review import AdmissionRequest, Alike
from preflight_kube.text import one_line

VALUES: Final = 100_000
"""Objects and lists in a whole object."""
NESTING: Final = 128
"""Levels of objects and lists."""
ENTRIES: Final = 4096
"""Of any one list or map."""
CONTAINERS: Final = 1024
"""Of either list of a pod; no kubelet starts so many."""
LISTS: Final = {
    "containers": CONTAINERS,
    "initContainers": CONTAINERS,
    "resourceClaims": 1024,
    "components": 64,
    "cliques": 1024,
    "podCliqueScalingGroups": 1024,
}
"""Entries of the lists of these names, wherever they are: for each there is work, a line of a
status, or an object to be made.
"""
NAME: Final = 317
"""Characters of an object's name, namespace, kind and apiVersion, and of the name of a list's
entry: a DNS subdomain, a slash and 63 more, than which Kubernetes has nothing longer.
"""
USER: Final = 256 * 1024
"""Characters of all that a review says of who asks."""
REQUESTS: Final = 16
"""Requests to the API server for one review."""
CALLER_A_SECOND: Final = 500
"""Requests to the API server for all reviews of one address, in the long run."""
CALLER_AT_ONCE: Final = 5000
"""The same, at once."""
_REQUEST: Final = (
    ("request.name", "characters", NAME),
    ("request.namespace", "characters", NAME),
    ("request.userInfo", "groups and extras", ENTRIES),
    ("request.userInfo", "characters", USER),
)
_MOST_PROBLEMS: Final = 8
_OTHERS: Final = bytes(set(range(256)) - set(b'{}[]"'))
_BRACES: Final = bytes.maketrans(b"[]", b"{}")
_TEXT: Final = re.compile(rb'"[^"]*"')
_NAMES: Final = (b'"name', b'"generateName', b'"namespace', b'"kind', b'"apiVersion')
"""How keys begin of what has at most :data:`NAME` characters."""
_LETTER: Final = re.compile(rb"\\u00[4-7]")
"""A letter as no API server writes it: in a key, it may spell a name."""
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_passed: Final = Alike[bool]()
"""Whether :func:`_small` was true of it."""
_numbered: Final = Alike[bool]()
"""Texts of which it was, with all digits zero: to no limit is one another, but in an escape."""
_Problem = tuple[Any, str, int, str, int]
"""The list or map that it is in, where in that, how many were found, of what, and the limit."""
_OBJECT: Final = "the object"
_TOO_DEEP: Final = f"{_OBJECT}: is nested deeper than {NESTING} levels; make it flatter."


def of_request(request: AdmissionRequest) -> str:
    """Why a review is denied before its application sees it: one sentence for each reason, or
    empty.
    """
    user = request.user_info
    about = [user.username, user.uid, *user.groups]
    if user.extra:
        about += chain.from_iterable(user.extra.values())
    name, namespace, entries = len(request.name), len(request.namespace), len(about) - 2
    characters = sum(map(len, about))
    if name <= NAME and namespace <= NAME and entries <= ENTRIES and characters <= USER:
        return of_object(request.object)
    counts = name, namespace, entries, characters
    return " ".join(
        _sentence(where, count, what, most)
        for count, (where, what, most) in zip(counts, _REQUEST, strict=True)
        if count > most
    )


def of_object(raw: bytes | bytearray | msgspec.Raw) -> str:
    """The same of an object by itself (JSON). What is not JSON is its reader's to refuse."""
    if isinstance(raw, msgspec.Raw) and _passed.get(raw):
        return ""
    text = bytes(raw)
    shape = text if b"\\" in text else text.translate(_DIGITS)
    if _numbered.get(shape) or _small(shape):
        _numbered.keep(shape, True)
        _passed.keep(msgspec.Raw(text), True)
        return ""
    if (count := text.count(b"{") + text.count(b"[")) > VALUES:
        return _sentence(_OBJECT, count, "objects and lists", VALUES)
    try:
        return of_value(msgspec.json.decode(text))
    except RecursionError:
        return _TOO_DEEP
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def of_value(whole: object) -> str:
    """The same of one that is decoded."""
    level: list[Any] = [whole] if isinstance(whole, dict | list) else []
    problems: list[_Problem] = []
    for _ in range(NESTING):
        if not level:
            break
        level = [inner for node in level for inner in _inner(node, problems)]
    else:
        return _TOO_DEEP
    return " ".join(
        _sentence(f"{_path(whole, node)}{rest}".lstrip(".") or _OBJECT, count, what, most)
        for node, rest, count, what, most in problems[:_MOST_PROBLEMS]
    )


def of_list(whole: object, path: str, most: int) -> str:
    """Why the list at ``path`` is too long where an application goes through fewer than others do:
    one sentence, or empty.
    """
    for key in path.split("."):
        whole = whole.get(key) if isinstance(whole, dict) else None
    count = len(whole) if isinstance(whole, list) else 0
    return _sentence(path, count, "entries", most) if count > most else ""


def _small(text: bytes) -> bool:
    """Whether no limit can be passed, without looking at any value: what nearly all objects are,
    for a tenth of the time.
    """
    if b"\\" in text:
        if _LETTER.search(text):
            return False
        # A quote that ends nothing.
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    commas = text.count(b",")
    if commas >= CONTAINERS or (commas >= LISTS["components"] and b"components" in text):
        return False
    return _short_names(text) and _shallow(text.translate(None, _OTHERS))


def _shallow(brackets: bytes) -> bool:
    """Tell whether what these ``brackets`` and quotes are of is within the levels."""
    if 2 * brackets.count(b'""') < brackets.count(b'"'):  # some are in texts, and open nothing
        brackets = _TEXT.sub(b"", brackets)
    brackets = brackets.translate(_BRACES, b'"')  # else one turn would take a list within a map
    for level in range(NESTING):
        if len(brackets) < NESTING - level:
            return True
        brackets = brackets.replace(b"{}", b"")
    return False


def _short_names(text: bytes) -> bool:
    """Whether none of the names is long, as far as that shows at a glance: so many bytes without a
    quote may be in a list, a key, or the value of another key.
    """
    at, end = text.find(b'"') + 1, len(text) - NAME
    while at < end:
        if (quote := text.rfind(b'"', at, at + NAME + 1)) >= 0:
            at = quote + 1
            continue
        if not text.startswith(b'":"', at - 3):
            if text[at - 2] not in b",[{":
                return False
        elif text.endswith(_NAMES, 0, at - 3):
            return False
        at = text.find(b'"', at) + 1 or end
    return True


def _inner(node: Any, problems: list[_Problem]) -> list[Any]:
    """The lists and maps in a list or map, and what of it is beyond a limit. By type and not
    isinstance: all of it is JSON, and this is asked of every value of every review.
    """
    if len(node) > ENTRIES:
        problems.append((node, "", len(node), "entries", ENTRIES))
    children: list[Any] = []
    if type(node) is list:
        for i, inner in enumerate(node):
            if type(inner) is dict:
                children.append(inner)
                if type(name := inner.get("name")) is str and len(name) > NAME:
                    problems.append((node, f"[{i}].name", len(name), "characters", NAME))
            elif type(inner) is list:
                children.append(inner)
        return children
    for key, inner in node.items():
        if type(inner) is dict:
            children.append(inner)
            if key == "metadata":
                _of_metadata(node, inner, problems)
        elif type(inner) is list:
            children.append(inner)
            if key in LISTS and len(inner) > LISTS[key]:
                problems.append((node, f".{key}", len(inner), "entries", LISTS[key]))
    return children


def _of_metadata(node: dict[str, Any], inner: dict[str, Any], problems: list[_Problem]) -> None:
    named = {".kind": node.get("kind"), ".apiVersion": node.get("apiVersion")}
    named |= {f".metadata.{key}": inner.get(key) for key in ("name", "generateName", "namespace")}
    for rest, name in named.items():
        if isinstance(name, str) and len(name) > NAME:
            problems.append((node, rest, len(name), "characters", NAME))


def _path(whole: Any, wanted: Any, path: str = "") -> str:
    """Where in ``whole`` the very object ``wanted`` is; empty for itself, and where it is not."""
    if whole is wanted or not isinstance(whole, dict | list):
        return ""
    for key, inner in whole.items() if isinstance(whole, dict) else enumerate(whole):
        here = f"{path}[{key}]" if isinstance(whole, list) else f"{path}.{one_line(str(key), 64)}"
        if inner is wanted:
            return here.removeprefix(".")
        if below := _path(inner, wanted, here):
            return below
    return ""


def _sentence(where: str, count: int, what: str, most: int) -> str:
    verb = "use fewer" if what != "characters" else "shorten it"
    return f"{where}: has {count} {what}, more than the {most} that a webhook goes through; {verb}."
