"""The stamp: what the webhook decided about a pod's gang, for the gang controller to read.

It travels as the annotation ``preflight.nvsentinel.nvidia.com/gang`` of every member, GPU or not.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

import msgspec

from ._versioned import ContractError, decode
from .names import GANG_CONFIGMAP_PREFIX

__all__ = ["ContractError"]

VERSION: Final = 2
NATIVE: Final = "schedulingGroup"
"""The source whose ConfigMaps have ADR-026's plain names, ``preflight-<gangID>``: Kubernetes' own,
which ADR-026 has as the default.
"""
Source = Annotated[str, msgspec.Meta(pattern=r"\A[a-zA-Z][a-zA-Z0-9]*\Z", max_length=50)]
_MAX_NAME: Final = 253  # a ConfigMap's name is a DNS subdomain
_HASH_LENGTH: Final = 10
_LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_HASHED: Final = re.compile(rf"-[0-9a-f]{{{_HASH_LENGTH}}}$")


class Stamp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity of the gang that a pod belongs to.

    ``id`` is the raw id as the source spells it; ``source`` names the rule that found it
    (``schedulingGroup``, ``labels`` …); ``object`` is the name of the object that knows the size,
    when there is one; ``size`` is the number of participants, or None when it was not known at
    admission; ``config_map`` is :func:`configmap_name` of source and id, which the controller
    recomputes; ``takes_part`` says whether a gang-wide check was injected.
    """

    v: int
    id: str
    source: Source
    config_map: str
    takes_part: bool
    object: str | None = None
    size: int | None = None


def gang_id(source: str, raw_id: str) -> str:
    """What tells a gang from the others of its namespace: two sources may give two gangs one raw
    id. A source has no colon.
    """
    return f"{source}:{raw_id}"


def gang_hash(namespace: str, raw_id: str, source: str) -> str:
    """The value of the gang label: stable, short, and different for ids that sanitise alike."""
    return hashlib.sha256(f"{namespace}\0{raw_id}\0{source}".encode()).hexdigest()[:16]


def configmap_name(namespace: str, raw_id: str, source: str) -> str:
    """``preflight-<gangID>`` for gangs by :data:`NATIVE`, ``preflight-<gangID>.<source>`` for
    others. An id that is not a DNS label as it stands, or is too long, carries its hash.

    Two different gangs of one namespace never share a name: no id is written with a dot, a source
    has no hyphen of its own, and a name that was changed to fit ends in ``-`` and ten hexadecimal
    digits of :func:`gang_hash`; an id that already looks so is hashed as well.
    """
    plain = GANG_CONFIGMAP_PREFIX + raw_id
    end = (
        ""
        if source == NATIVE
        else "." + re.sub("[A-Z]", lambda match: "-" + match[0].lower(), source)
    )
    fits = _LABEL.fullmatch(raw_id) and len(plain + end) <= _MAX_NAME
    if fits and not _HASHED.search(raw_id):
        return plain + end
    tail = "-" + gang_hash(namespace, raw_id, source)[:_HASH_LENGTH]
    readable = re.sub(r"[^a-z0-9]+", "-", raw_id.lower()).strip("-")
    return (
        (GANG_CONFIGMAP_PREFIX + readable)[: _MAX_NAME - len(tail + end)].rstrip("-") + tail + end
    )


def encode_stamp(stamp: Stamp) -> str:
    """The annotation's value."""
    return msgspec.json.encode(stamp).decode()


def decode_stamp(data: bytes | str) -> Stamp:
    """Read a stamp. Raises :class:`ContractError` on anything unreadable or of a higher version."""
    return decode("gang stamp", VERSION, Stamp, data)
