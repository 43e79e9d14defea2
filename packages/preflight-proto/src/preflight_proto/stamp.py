"""The stamp: what the webhook decided about a pod's gang, for the gang controller to read.

It travels as the annotation ``preflight.nvsentinel.nvidia.com/gang`` of every member, GPU or not.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from ._versioned import ContractError, decode
from .names import GANG_CONFIGMAP_PREFIX

__all__ = ["VERSION", "ContractError", "Stamp", "configmap_name", "decode_stamp", "encode_stamp", "gang_hash"]

VERSION: Final = 1
_MAX_NAME: Final = 253  # a ConfigMap's name is a DNS subdomain
_HASH_LENGTH: Final = 10


class Stamp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity of the gang that a pod belongs to.

    ``id`` is the raw id as the source spells it; ``source`` names the rule that found it (``schedulingGroup``, ``labels`` …);
    ``object`` is the name of the object that knows the size, when there is one; ``size`` is the number of
    participants, or None when it was not known at admission; ``config_map`` is :func:`configmap_name` of
    the id, which the controller recomputes; ``takes_part`` says whether a gang-wide check was injected.
    """

    v: int
    id: str
    source: str
    config_map: str
    takes_part: bool
    object: str | None = None
    size: int | None = None


def gang_hash(namespace: str, raw_id: str) -> str:
    """The value of the gang label: stable, short, and different for ids that sanitise alike."""
    return hashlib.sha256(f"{namespace}\0{raw_id}".encode()).hexdigest()[:16]


def configmap_name(namespace: str, raw_id: str) -> str:
    """``preflight-<gangID>``; an id that is not a DNS name as it stands, or is too long, carries its hash.

    Two different ids of one namespace never share a name: a name that was changed to fit ends in ``-`` and
    ten hexadecimal digits of the raw id's hash, and an id that already looks so is hashed as well.
    """
    plain = GANG_CONFIGMAP_PREFIX + raw_id
    fits = re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", raw_id, re.ASCII) and len(plain) <= _MAX_NAME
    if fits and not re.search(rf"-[0-9a-f]{{{_HASH_LENGTH}}}$", raw_id):
        return plain
    tail = "-" + gang_hash(namespace, raw_id)[:_HASH_LENGTH]
    readable = re.sub(r"[^a-z0-9]+", "-", raw_id.lower()).strip("-")
    return (GANG_CONFIGMAP_PREFIX + readable)[: _MAX_NAME - len(tail)].rstrip("-") + tail


def encode_stamp(stamp: Stamp) -> str:
    return msgspec.json.encode(stamp).decode()


def decode_stamp(data: bytes | str) -> Stamp:
    """Read a stamp. Raises :class:`ContractError` on anything unreadable or of a higher version."""
    return decode("gang stamp", VERSION, Stamp, data)
