"""What a container cannot see of its node: the gang controller writes it into the pod, and a volume
shows it.
"""

from __future__ import annotations

import anyio

from ..names import TOPOLOGY_FILE

PATIENCE = 5.0
"""Seconds; it is written within one of the pod's binding, and the volume follows at once."""
PAUSE = 0.1


async def instance_type(path: str, topology_path: str = "", patience: float = PATIENCE) -> str:
    """The node's instance type in the file ``path``, for which is waited a little; empty where
    nobody writes it.

    ``topology_path``: a file that is written together with it, and always. So once that is there,
    nothing is waited for.
    """
    with anyio.move_on_after(patience):
        while True:
            written = bool(topology_path and await _read(topology_path))
            if (text := await _read(path)) or written:
                return text
            await anyio.sleep(PAUSE)
    return ""


async def topology(gang_folder: str) -> dict[str, str]:
    """The node's topology labels, as they came with the roster; empty where it has none, or nobody
    told.
    """
    import msgspec  # a gang's check has it

    try:
        labels: dict[str, str] = msgspec.json.decode(
            await _read(f"{gang_folder}/{TOPOLOGY_FILE}") or "{}", type=dict[str, str]
        )
    except msgspec.DecodeError:  # also what has another shape
        return {}
    return labels


async def _read(path: str) -> str:
    try:
        return (await anyio.Path(path).read_text()).strip()
    except (OSError, UnicodeDecodeError):
        return ""
