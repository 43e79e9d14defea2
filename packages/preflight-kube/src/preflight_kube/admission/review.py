"""AdmissionReview, version 1: bytes in, a request; a response, bytes out. Pure.

What is in the object is the application's: the envelope is decoded, and the object within it stays
text until it is asked for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Final, Generic, Literal, TypeVar

import msgspec

from preflight_kube.api.jsonpatch import Operation
from preflight_kube.text import one_line

T = TypeVar("T")
Text = bytes | msgspec.Raw
API_VERSION: Final = "admission.k8s.io/v1"
MOST_TEXT: Final = 1024
"""Characters of a message or a warning; what of it is a tenant's must not fill
logs and terminals.
"""
MOST_WARNINGS: Final = 16
"""An API server shows 4,096 characters of warnings."""
_REASONS: Final = {400: "BadRequest", 422: "Invalid"}
_UID: Final = re.compile(
    rb'\s*\{(?:\s*(?:"kind"\s*:\s*"AdmissionReview"|"apiVersion"\s*:\s*"admission\.k8s\.io/v1")\s*,){2}'
    rb'\s*"request"\s*:\s*\{\s*"uid"\s*:\s*"([A-Za-z0-9-]{1,128})"'
)
_NULL: Final = msgspec.Raw(b"null")


class BadReview(ValueError):
    """It is not a review, or its object is not what it should be. The message is one sentence."""


class Alike(Generic[T]):
    """The last text of each of a few lengths, with a value: the pods of one Job have one text.
    Comparing two costs less than hashing one.
    """

    LENGTHS: Final = 16
    LONGEST: Final = 128 * 1024
    """Bytes of a text that is kept, so that all of them stay within 2 MiB."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[Text, T]] = {}

    def get(self, text: Text) -> T | None:
        """The value of ``text``; None where none is kept."""
        last = self._last.get(len(text))
        return last[1] if last is not None and last[0] == text else None

    def keep(self, text: Text, value: T) -> None:
        """Keep the ``value`` of ``text``, in the place of another of its length or the oldest.

        ``text`` must be a copy of its own, else it keeps the whole review that it is a part of.
        """
        if len(text) > self.LONGEST:
            return
        if len(text) not in self._last and len(self._last) >= self.LENGTHS:
            del self._last[next(iter(self._last))]
        self._last[len(text)] = text, value


class GroupVersionKind(msgspec.Struct, frozen=True, gc=False):
    """A kind; the core group is empty."""

    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(msgspec.Struct, frozen=True, gc=False):
    """A resource; the core group is empty."""

    group: str = ""
    version: str = ""
    resource: str = ""


class UserInfo(msgspec.Struct, frozen=True, gc=False):
    """Who asks the API server."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: dict[str, tuple[str, ...]] = {}


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """What the API server asks about, as the webhook's rule names it. An API server leaves neither
    resource nor operation out; what a tool leaves out is of a creation.
    """

    uid: str
    kind: GroupVersionKind
    resource: GroupVersionResource = GroupVersionResource()
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"] = "CREATE"
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    object: msgspec.Raw = _NULL
    old_object: msgspec.Raw = _NULL
    dry_run: bool = False
    """Whether nothing will be stored: the webhook must have no effect either."""

    def new(self, type_: type[T]) -> T:
        """The object as it is to be. Raises :class:`BadReview`, also where there is none, as when
        it is to be deleted.
        """
        return _decode(self.object, type_, "request.object")

    def old(self, type_: type[T]) -> T:
        """The object as it is, when it is to be changed or deleted. Raises :class:`BadReview`, also
        where there is none.
        """
        return _decode(self.old_object, type_, "request.oldObject")


class Response(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The application's answer.

    ``patch`` is applied where the request is allowed: operations, or a JSON Patch as text already;
    Raw is what stands in the answer as it is, base64 in quotes.
    ``message`` and ``code`` (an HTTP status from 400 to 499) are what the user sees where it is
    not. ``warnings`` are shown to the user in any case. ``result``: what the answer is counted as,
    where allowed, patched and denied do not say it.
    """

    allowed: bool = True
    patch: Sequence[Operation] | bytes | msgspec.Raw = ()
    message: str = ""
    code: int = 403
    warnings: Sequence[str] = ()
    result: str = ""

    @classmethod
    def denied(cls, message: str, *, code: int = 403, warnings: Sequence[str] = ()) -> Response:
        """A refusal that shows the user ``message``."""
        return cls(allowed=False, message=message, code=code, warnings=warnings)


class _Review(msgspec.Struct, rename="camel", gc=False):
    request: AdmissionRequest
    api_version: str = ""
    kind: str = ""


_review = msgspec.json.Decoder(_Review)
_encode = msgspec.json.Encoder().encode


def decode(body: bytes | bytearray) -> AdmissionRequest:
    """The request of a review. Raises :class:`BadReview`."""
    try:
        review = _review.decode(body)
    except RecursionError:
        raise BadReview(
            f"the body is nested deeper than {sys.getrecursionlimit()} levels"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadReview(
            f"the body is not an AdmissionReview; POST one of {API_VERSION} as JSON ({one_line(str(error), 200)})"
        ) from None
    if review.kind != "AdmissionReview" or review.api_version != API_VERSION:
        what = one_line(f"{review.api_version} {review.kind}", 100).strip() or "something else"
        raise BadReview(f"the body is {what}, expected {API_VERSION} AdmissionReview")
    return review.request


def encode(uid: str, response: Response) -> bytes:
    """The AdmissionReview that answers the request ``uid``."""
    answer: dict[str, object] = {"uid": uid, "allowed": response.allowed}
    if not response.allowed:
        reason = _REASONS.get(response.code, "Forbidden")
        message = one_line(response.message, MOST_TEXT)
        answer["status"] = {"code": response.code, "reason": reason, "message": message}
    elif patch := response.patch:
        # As base64, which msgspec makes of bytes.
        encoded = patch if isinstance(patch, bytes | msgspec.Raw) else _encode(patch)
        answer |= {"patchType": "JSONPatch", "patch": encoded}
    if response.warnings:
        answer["warnings"] = [
            one_line(warning, MOST_TEXT) for warning in response.warnings[:MOST_WARNINGS]
        ]
    return _encode({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": answer})


def uid_of(beginning: bytes | bytearray) -> str:
    """The uid of the review that begins so, as an API server writes it; empty where there is none.
    For reviews that are not read.
    """
    match = _UID.match(beginning)
    return match[1].decode() if match else ""


def _decode(raw: msgspec.Raw, type_: type[T], where: str) -> T:
    if bytes(raw) == b"null":
        raise BadReview(f"{where} is missing")
    try:
        return msgspec.json.decode(raw, type=type_)
    except RecursionError:
        raise BadReview(f"{where} is nested deeper than {sys.getrecursionlimit()} levels") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        name = getattr(type_, "__name__", str(type_))
        raise BadReview(f"{where} is not a {name} ({one_line(str(error), 200)})") from None
