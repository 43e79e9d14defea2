"""The CDI document of a prepared claim, by which a container gets channel 0. Pure.

The runtime makes the device node inside the container; the host's own node is not needed.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from preflight_computedomain.api.names import CDI_KIND, CDI_PREFIX, DEVICE_NODE, cdi_device


def document(uid: str, major: int) -> bytes:
    """The file's content for the claim ``uid``; ``major``: of the IMEX channels' device nodes."""
    # 0.5.0 is the first version in which a device's name may begin with a digit, as a uid does.
    node = {"path": DEVICE_NODE, "type": "c", "major": major, "minor": 0, "fileMode": 0o666}
    spec: dict[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": CDI_KIND,
        "devices": [{"name": cdi_device(uid), "containerEdits": {"deviceNodes": [node]}}],
    }
    return msgspec.json.encode(spec)


def is_document(uid: str, data: bytes) -> bool:
    """Tell whether ``data`` is the :func:`document` of the claim ``uid`` with some major."""
    match = re.search(rb'"major":([0-9]{1,4}),', data)
    return match is not None and data == document(uid, int(match[1]))


def uid_of(file: str) -> str:
    """The claim's uid in the name of such a file, finished or not; empty where it is another's."""
    if not file.startswith(CDI_PREFIX):
        return ""
    return file.removeprefix(CDI_PREFIX).removesuffix(".tmp").removesuffix(".json")
