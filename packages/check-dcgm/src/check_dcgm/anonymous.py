"""Strip from a tool's output what says whose machine it was: UUIDs, serial numbers, addresses and
names.

The same word gets the same stand-in throughout, so a document still says which GPU is which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_UUID: Final = re.compile(r"\b(GPU|MIG)-[0-9a-fA-F]{4,}(?:-[0-9a-fA-F]+)*")
_SERIALS: Final = (
    re.compile(r'("serial_num"\s*:\s*")([^"]+)(")'),
    re.compile(r"(\|\s*Serial [Nn]umber\s*\|\s*)([^\s|]+)(\s*\|)"),
    re.compile(r"(Serial [Nn]umber\s*:\s*)([^\s|]+)()"),
)
_OLD_SERIALS: Final = re.compile(r'("GPU Device Serials"\s*:\s*\{)([^}]*)(\})')
_PAIR: Final = re.compile(r'(:\s*")([^"]+)(")')
_IPV4: Final = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_MAC_OR_IPV6: Final = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{1,4}:){5,7}[0-9a-fA-F]{1,4}(?![\w:])")


class Anonymizer:
    """``names``: words that name the machine or its owner; ``serials``: serial numbers that are
    known already.
    """

    def __init__(self, names: Iterable[str] = (), serials: Iterable[str] = ()) -> None:
        self._uuids: dict[str, str] = {}
        self._serials: dict[str, str] = {}
        self._names = sorted({name for name in names if len(name) > 2}, key=len, reverse=True)
        for serial in serials:
            self._serial(serial)

    def strip(self, text: str) -> str:
        """``text`` with stand-ins."""
        for pattern in _SERIALS:
            for match in pattern.finditer(text):
                self._serial(match[2])
        for block in _OLD_SERIALS.finditer(text):
            for match in _PAIR.finditer(block[2]):
                self._serial(match[2])
        text = _UUID.sub(lambda match: self._uuid(match[0]), text)
        for serial in sorted(self._serials, key=len, reverse=True):
            text = re.sub(rf"(?<!\w){re.escape(serial)}(?!\w)", self._serials[serial], text)
        text = _MAC_OR_IPV6.sub("ADDRESS", _IPV4.sub("192.0.2.1", text))
        for name in self._names:
            text = text.replace(name, "NAME")
        return text

    def _uuid(self, uuid: str) -> str:
        kind = uuid.partition("-")[0]
        return self._uuids.setdefault(
            uuid, f"{kind}-00000000-0000-0000-0000-{len(self._uuids):012d}"
        )

    def _serial(self, serial: str) -> None:
        if len(serial.strip()) > 3 and serial not in {"Unknown"}:
            self._serials.setdefault(serial.strip(), f"900000000{len(self._serials):04d}")
