"""The checkpoint: which claims are prepared, in the schema of NVIDIA's driver. Pure.

Version 2 with version 1 beside it, for a driver that is older. The checksums are held against the
very bytes that were read, so that a field which somebody adds later makes no file unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from preflight_kube.text import one_line

from preflight_computedomain.api.names import DEVICE, cdi_id

STARTED: Final = "PrepareStarted"
COMPLETED: Final = "PrepareCompleted"
ABORTED: Final = "PrepareAborted"
"""Read only: a driver that aborts preparations writes it, this one cancels them."""

_CHECKSUM: Final = re.compile(rb'(\{\s*"checksum"\s*:\s*)[0-9]+')


class Corrupt(ValueError):
    """The bytes are not a checkpoint; one sentence says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One claim. ``status`` and ``devices`` are JSON, kept as read. ``channel``: whether it is
    channel 0, by this driver's name; ``requests``: those that got it; ``pool``: the node.
    """

    state: str
    status: bytes = b"{}"
    devices: bytes = b""
    name: str = ""
    namespace: str = ""
    aborted_at: datetime | None = None
    channel: bool = field(default=False, compare=False)
    requests: tuple[str, ...] = field(default=(), compare=False)
    pool: str = field(default="", compare=False)

    @property
    def prepared(self) -> bool:
        """Tell whether the claim has channel 0."""
        return self.state == COMPLETED and self.channel


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


def completed(requests: Sequence[str], node: str, uid: str, domain: str) -> bytes:
    """A claim's prepared devices: channel 0 for ``requests`` (none: for all that it has)."""
    device = {
        "Requests": requests,
        "PoolName": node,
        "DeviceName": DEVICE,
        "CDIDeviceIDs": [cdi_id(uid)],
    }
    return msgspec.json.encode(
        [
            {
                "devices": [{"channel": {"info": {"id": 0}, "device": device}, "daemon": None}],
                "configState": {"Type": "channel", "ComputeDomain": domain},
            }
        ]
    )


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content: one line, keys in the order of NVIDIA's driver."""
    claims = sorted(checkpoint.claims.items())
    older = {uid: _entry1(entry) for uid, entry in claims if entry.state == COMPLETED}
    entries = {uid: _entry2(entry) for uid, entry in claims}
    v1 = _object(preparedClaims=_object(**older) if older else b"")
    fields = {
        "preparedClaims": _object(**entries) if entries else b"",
        "nodeBootID": _text(checkpoint.boot),
    }
    own = b"%d" % checksum(_object(checksum=b"0", **fields))
    whole = b"%d" % checksum(_object(checksum=b"0", v1=v1))
    return _object(checksum=whole, v1=v1, v2=_object(checksum=own, **fields))


def _entry1(entry: Entry) -> bytes:
    return _object(status=_line(entry.status), preparedDevices=_line(entry.devices))


def _entry2(entry: Entry) -> bytes:
    aborted = entry.aborted_at.strftime("%Y-%m-%dT%H:%M:%SZ") if entry.aborted_at else ""
    return _object(
        checkpointState=msgspec.json.encode(entry.state),
        status=_line(entry.status),
        preparedDevices=_line(entry.devices),
        name=_text(entry.name),
        namespace=_text(entry.namespace),
        abortedAt=_text(aborted),
    )


def _text(text: str) -> bytes:
    return msgspec.json.encode(text) if text else b""


def _object(**fields: bytes) -> bytes:
    """A JSON object of encoded values; empty ones are left out."""
    parts = (msgspec.json.encode(key) + b":" + value for key, value in fields.items() if value)
    return b"{" + b",".join(parts) + b"}"


def _line(raw: bytes) -> bytes:
    """``raw`` without line breaks; in JSON they can stand between tokens only."""
    return raw.replace(b"\n", b" ").replace(b"\r", b" ")


class _Entry(msgspec.Struct, rename="camel", kw_only=True):
    checkpoint_state: str = COMPLETED  # version 1 holds no others
    status: msgspec.Raw = msgspec.Raw(b"{}")
    prepared_devices: msgspec.Raw = msgspec.Raw(b"")
    name: str = ""
    namespace: str = ""
    aborted_at: datetime | None = None


class _Version(msgspec.Struct, kw_only=True):
    checksum: int = 0
    claims: dict[str, _Entry] | None = msgspec.field(default=None, name="preparedClaims")
    boot: str = msgspec.field(default="", name="nodeBootID")


class _File(msgspec.Struct, kw_only=True):
    checksum: int
    v1: msgspec.Raw = msgspec.Raw(b"")
    v2: msgspec.Raw = msgspec.Raw(b"")


_FILE: Final = msgspec.json.Decoder(_File)
_VERSION: Final = msgspec.json.Decoder(_Version)


def decode(data: bytes) -> Checkpoint:
    """Read ``data``, of version 2 where it has it. Raises :class:`Corrupt`."""
    try:
        file = _FILE.decode(data)
        v1, v2 = bytes(file.v1), bytes(file.v2)
        if not v1 and not v2:
            raise Corrupt("it has neither v1 nor v2")
        if file.checksum != (actual := checksum(_object(checksum=b"0", v1=v1))):
            raise Corrupt(f"its checksum is {file.checksum}, and that of its version 1 is {actual}")
        read = _VERSION.decode(v2 or v1)
        if v2:
            zeroed, count = (
                _CHECKSUM.subn(rb"\g<1>0", v2, count=1) if _CHECKSUM.match(v2) else (b"", 0)
            )
            if not count or read.checksum != checksum(zeroed):
                raise Corrupt(
                    f"its version 2 does not have the checksum {read.checksum} that it states"
                )
        return Checkpoint(
            {uid: _read(uid, entry) for uid, entry in (read.claims or {}).items()}, read.boot
        )
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise Corrupt(f"it cannot be read ({one_line(str(error), 120)})") from None


def _read(uid: str, entry: _Entry) -> Entry:
    at = entry.aborted_at
    return entry_of(
        uid,
        entry.checkpoint_state,
        (entry.namespace, entry.name),
        status=bytes(entry.status),
        devices=bytes(entry.prepared_devices),
        aborted_at=at.replace(tzinfo=UTC) if at is not None and at.tzinfo is None else at,
    )


def entry_of(
    uid: str,
    state: str,
    ref: tuple[str, str] = ("", ""),
    *,
    status: bytes = b"{}",
    devices: bytes = b"",
    aborted_at: datetime | None = None,
) -> Entry:
    """An entry, with what its devices say. ``ref``: the claim's namespace and name."""
    requests, pool = _channel(uid, devices)
    channel = requests is not None
    namespace, name = ref
    return Entry(state, status, devices, name, namespace, aborted_at, channel, requests or (), pool)


def _channel(uid: str, devices: bytes) -> tuple[tuple[str, ...] | None, str]:
    """The requests and the pool, where ``devices`` are channel 0 alone under this driver's name."""
    if not devices:
        return None, ""
    try:
        groups: Any = msgspec.json.decode(devices)
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
        return None, ""
    return (requests, pool) if fits else (None, "")
