"""A JSONPatch as an answer carries it, a JSON string of base64, from parts that were encoded once.

A container of ours is the same for most pods but for its resources, and it is most of the patch.
Base64 takes three bytes at a time, so parts whose length is a multiple of three may simply follow
each other; spaces, which JSON allows between its tokens, fill them up.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

__all__ = ["Built", "encode_patch", "text_of"]

_encode = msgspec.json.Encoder().encode
_FILL: Final = (b"", b"  ", b" ")
"""By what is over a multiple of three."""


class Built(NamedTuple):
    """A container: ``fields`` with its :func:`text_of`, both shared with other pods and not to be
    changed, and its own ``resources``.
    """

    fields: dict[str, Any]
    text: bytes
    resources: dict[str, Any]

    @property
    def whole(self) -> dict[str, Any]:
        """The container as it is injected."""
        return {**self.fields, "resources": self.resources}


def text_of(fields: dict[str, Any]) -> bytes:
    """Base64 of the JSON of ``fields``, of which there is one at least, but for the brace at its
    end.
    """
    return _text(_encode(fields)[:-1])


def encode_patch(patch: Sequence[dict[str, Any]]) -> bytes:
    """A JSONPatch as an AdmissionReview carries it, a JSON string of base64; nothing for one that
    changes nothing.

    Values are plain data, a :class:`Built`, or a list of those.
    """
    if not patch:
        return b""
    done, rest = list[bytes](), b"["
    plain: list[dict[str, Any]] = []
    for operation in patch:
        value: Any = operation.get("value")
        many = type(value) is list and bool(value) and type(value[0]) is Built
        if not many and type(value) is not Built:
            plain.append(operation)
            continue
        if plain:
            rest += _encode(plain)[1:-1] + b","
            plain = []
        rest += b'{"op":"%s","path":%s,"value":' % (
            operation["op"].encode(),
            _encode(operation["path"]),
        )
        rest += b"[" if many else b""
        for one in value if many else (value,):
            done += (_text(rest), one.text)
            rest = b',"resources":%s},' % _encode(one.resources)
        rest = rest[:-1] + (b"]}," if many else b"},")
    rest = rest + _encode(plain)[1:] if plain else rest[:-1] + b"]"
    done.append(_text(rest))
    return b'"%s"' % b"".join(done)


def _text(part: bytes) -> bytes:
    return b2a_base64(part + _FILL[len(part) % 3], newline=False)
