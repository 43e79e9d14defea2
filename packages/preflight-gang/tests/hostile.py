"""What somebody who means no good may put into pods, ConfigMaps and custom objects."""

from __future__ import annotations

import zlib
from base64 import b64encode
from functools import cache
from typing import Any

from preflight_proto import names
from preflight_proto.stamp import configmap_name


def deep(levels: int) -> str:
    return '{"v":1,"x":' + "[" * levels + "]" * levels + "}"


DEEP = deep(1100)
"""2.2 KB, deeper than any decoder goes that calls itself."""


def gang_map(namespace: str, raw: str, *, name: str = "", **content: Any) -> dict[str, Any]:
    """A ConfigMap that says it is a gang's."""
    return {
        "metadata": {
            "name": name or configmap_name(namespace, raw, "labels"),
            "labels": {names.MANAGED_BY_LABEL: names.MANAGED_BY},
            "annotations": {names.PREFIX + "gang-id": raw, names.PREFIX + "gang-source": "labels"},
        },
        **content,
    }


@cache
def bomb(size: int) -> str:
    """``size`` bytes of seats, packed."""
    seat = b'{"uid":"","name":"","ip":"","node":"","attempt":0},'
    text = b'{"v":1,"token":"t","master_port":1,"control_port":2,"members":[' + seat * (
        size // len(seat)
    )
    return b64encode(zlib.compress(text[:-1] + b"]}", 9)).decode()


def giant_record(namespace: str, raw: str, size: int = 64 << 20) -> dict[str, Any]:
    return gang_map(namespace, raw, data={"generation": "1"}, binaryData={"members": bomb(size)})
