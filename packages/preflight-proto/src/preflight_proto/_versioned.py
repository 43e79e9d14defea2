"""What stamp, roster and result share: JSON with a version that readers check by name."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class ContractError(ValueError):
    """A document that crosses a component border cannot be read. The message is one sentence."""


class _Version(msgspec.Struct):
    v: int


def decode(kind: str, known: int, type_: type[T], data: bytes | str) -> T:
    """Decode one document; unknown fields are ignored, a higher version is refused by name.

    Raises :class:`ContractError`.
    """
    try:
        version = msgspec.json.decode(data, type=_Version).v
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ContractError(f"{kind}: not readable ({error}); expected a JSON object with the field v") from None
    if version > known:
        raise ContractError(
            f"{kind}: version {version} is newer than {known}, the newest this component knows; upgrade it first"
        )
    try:
        return msgspec.json.decode(data, type=type_)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ContractError(f"{kind}: {error}") from None
