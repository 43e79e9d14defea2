"""What stamp, roster and result share: JSON with a version that readers check by name."""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

MOST_BYTES: Final = 256 * 1024
"""All of these documents are annotations or fit into one: what the annotations of an object may be
together (TotalAnnotationSizeLimitB of k8s.io/apimachinery)."""


class ContractError(ValueError):
    """A document that crosses a component border cannot be read. The message is one sentence."""


class _Version(msgspec.Struct):
    v: int


def decode(kind: str, known: int, type_: type[T], data: bytes | str) -> T:
    """Decode one document; unknown fields are ignored, a higher version is refused by name.

    Whatever ``data`` is, and however long or deeply nested: raises :class:`ContractError`, and
    nothing else.
    """
    if len(data) > MOST_BYTES:
        raise ContractError(
            f"{kind}: {len(data)} characters are more than the {MOST_BYTES} that one can have"
        )
    version = _decoded(kind, _Version, data, " (expected a JSON object with the field v)").v
    if version > known:
        raise ContractError(
            f"{kind}: version {version} is newer than {known}, the newest this component knows; upgrade it first"
        )
    return _decoded(kind, type_, data)


def _decoded(kind: str, type_: type[T], data: bytes | str, expected: str = "") -> T:
    try:
        return msgspec.json.decode(data, type=type_)
    except RecursionError:  # fields that nobody names are nested as deeply as their author likes
        raise ContractError(f"{kind}: it is nested too deeply to be read") from None
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError) as error:
        raise ContractError(f"{kind}: not readable: {error}{expected}") from None
