"""The checkpoint: which claims are prepared, in the schema of NVIDIA's driver. Pure.

Version 2 with version 1 beside it, for a driver that is older. The checksums are held against the
very bytes that were read, so that a field which somebody adds later makes no file unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import replace
from preflight_kube.text import one_line

from preflight_computedomain.api.names import DEVICE, cdi_id

STARTED: Final = "PrepareStarted"
COMPLETED: Final = "PrepareCompleted"
ABORTED: Final = "PrepareAborted"
"""Read only: a driver that aborts preparations writes it, this one cancels them."""

_CHECKSUM: Final = re.compile(rb'(\A\{\s*"checksum"\s*:\s*)[0-9]+')


class Corrupt(ValueError):
    """The bytes are not a checkpoint; one sentence says why."""


class Channel(NamedTuple):
    """Channel 0 of the node ``pool``, for ``requests`` of a claim; none: for all that it has."""

    requests: tuple[str, ...]
    pool: str


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One claim, as version 2 has it. ``status`` and ``devices`` are kept as they were read."""

    state: str = msgspec.field(default="", name="checkpointState")
    status: Raw = msgspec.field(default_factory=lambda: Raw(b"{}"))  # written even where it is this
    devices: Raw = msgspec.field(default=Raw(b""), name="preparedDevices")
    name: str = ""
    namespace: str = ""
    aborted_at: Annotated[datetime, Meta(tz=True)] | None = msgspec.field(
        default=None, name="abortedAt"
    )

    def channel(self, uid: str) -> Channel | None:
        """The channel that the claim ``uid`` has: prepared, under this driver's name, and alone."""
        if self.state != COMPLETED or not bytes(self.devices):
            return None
        try:
            groups: Any = msgspec.json.decode(self.devices)
            ((device,),) = [group["devices"] for group in groups]
            channel = device["channel"]
            device = channel["device"]
            requests, pool = tuple(device["Requests"]), device["PoolName"]
            fits = (
                channel["info"]["id"] == 0
                and device["DeviceName"] == DEVICE
                and device["CDIDeviceIDs"] == [cdi_id(uid)]
                and isinstance(pool, str)
                and all(isinstance(name, str) for name in requests)
            )
        except (msgspec.MsgspecError, RecursionError, TypeError, ValueError, LookupError):
            return None
        return Channel(requests, pool) if fits else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``claims`` by uid. ``boot``: the node's boot of their preparation; empty in older files."""

    claims: Mapping[str, Entry] = field(default_factory=dict)
    boot: str = ""


def checksum(data: bytes) -> int:
    """FNV-1a, 32 bit, of the bytes' decimal numbers, as the kubelet's checkpoint manager has it."""
    value = 0x811C9DC5
    for byte in b"([]uint8)[" + b" ".join(_DECIMAL[byte] for byte in data) + b"]":
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


_DECIMAL: Final = tuple(str(byte).encode() for byte in range(256))


def completed(requests: Sequence[str], node: str, uid: str, domain: str) -> Raw:
    """A claim's prepared devices: channel 0 for ``requests`` (none: for all that it has)."""
    device = {
        "Requests": requests,
        "PoolName": node,
        "DeviceName": DEVICE,
        "CDIDeviceIDs": [cdi_id(uid)],
    }
    devices = [{"channel": {"info": {"id": 0}, "device": device}, "daemon": None}]
    config = {"Type": "channel", "ComputeDomain": domain}
    return Raw(msgspec.json.encode([{"devices": devices, "configState": config}]))


class _Version(msgspec.Struct, omit_defaults=True, kw_only=True):
    """``checksum``: of version 2 alone."""

    checksum: int | UnsetType = UNSET
    claims: dict[str, Entry] | None = msgspec.field(default=None, name="preparedClaims")
    boot: str = msgspec.field(default="", name="nodeBootID")


class _File(msgspec.Struct, omit_defaults=True):
    checksum: int
    v1: Raw = Raw(b"")
    v2: Raw = Raw(b"")


_FILE: Final = msgspec.json.Decoder(_File)
_VERSION: Final = msgspec.json.Decoder(_Version)


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content: one line, keys in the order of NVIDIA's driver."""
    entries = dict(sorted(checkpoint.claims.items()))
    older = {
        uid: Entry(status=entry.status, devices=entry.devices)
        for uid, entry in entries.items()
        if entry.state == COMPLETED
    }
    v1 = _line(_Version(claims=older or None))
    v2 = _Version(checksum=0, claims=entries or None, boot=checkpoint.boot)
    v2.checksum = checksum(bytes(_line(v2)))
    return msgspec.json.encode(_File(_sum(v1), v1, _line(v2)))


def _line(version: _Version) -> Raw:
    """In JSON, line breaks can stand between tokens only; what was read may have some."""
    return Raw(msgspec.json.encode(version).translate(bytes.maketrans(b"\r\n", b"  ")))


def _sum(v1: Raw) -> int:
    """The checksum of a file: of its version 1, as drivers that know no other have it."""
    return checksum(msgspec.json.encode(_File(0, v1)))


def decode(data: bytes) -> Checkpoint:
    """Read ``data``, of version 2 where it has it. Raises :class:`Corrupt`."""
    try:
        file = _FILE.decode(data)
        if not (v2 := bytes(file.v2)) and not bytes(file.v1):
            raise Corrupt("it has neither v1 nor v2")
        if file.checksum != (actual := _sum(file.v1)):
            raise Corrupt(f"its checksum is {file.checksum}, and that of its version 1 is {actual}")
        read = _VERSION.decode(v2 or file.v1)
        if v2:
            zeroed, count = _CHECKSUM.subn(rb"\g<1>0", v2)
            if not count or read.checksum != checksum(zeroed):
                raise Corrupt(
                    f"its version 2 does not have the checksum {read.checksum or 0} that it states"
                )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Corrupt(f"it cannot be read ({one_line(str(error), 120)})") from None
    claims = read.claims or {}
    if not v2:  # version 1 holds no others
        claims = {uid: replace(entry, state=COMPLETED) for uid, entry in claims.items()}
    return Checkpoint(claims, read.boot)
