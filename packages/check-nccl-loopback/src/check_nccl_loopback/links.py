"""How the GPUs of this pod are joined: NVML's answer for each pair, else the matrix of `nvidia-smi
topo -m`.

Not knowing is fine: then only the model decides which floor holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any, Final

import anyio
from preflight_proto import nvml
from preflight_proto.check import Completed, Gpu, ToolMissing, presence

from .floors import LinkClass

PATIENCE: Final = 30.0
_NVLINK_CAPABILITY: Final = 2  # nvml.h: NVML_P2P_CAPS_INDEX_NVLINK
_LEVELS: Final = {
    0: "PIX",
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}  # nvml.h: nvmlGpuTopologyLevel_t
NVLINK: Final = "NVLINK"
DIRECT: Final = "NVLINK, from GPU to GPU"
"""Without a switch a GPU's links are divided among the others of its board, not always evenly: then
``, N links`` stands behind it.
"""
_TO_GPU: Final = 0  # nvml.h: NVML_NVLINK_DEVICE_TYPE_GPU
_OK: Final = 0  # nvml.h: NVML_P2P_STATUS_OK
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")

Command = Callable[[Sequence[str], float], Awaitable[Completed]]


async def find(
    command: Command, gpus: Sequence[Gpu]
) -> tuple[LinkClass, str, dict[tuple[int, int], str]]:
    """The class of the pod's links, who says so, and what joins each pair of positions in ``gpus``
    (``NVLINK``, ``DIRECT`` where NVML knows that no switch is between, either with its number of
    links where that differs from pair to pair, or how far the pair is apart on PCIe).
    """
    count = len(gpus)
    by_nvml = await anyio.to_thread.run_sync(
        _pairs, [gpu.uuid for gpu in gpus], abandon_on_cancel=True
    )
    if by_nvml:
        return _classify(by_nvml, count), "NVML", by_nvml
    try:
        done = await command(["nvidia-smi", "topo", "-m"], PATIENCE)
    except ToolMissing:
        return LinkClass.UNKNOWN, "neither NVML nor nvidia-smi", {}
    if done.returncode != 0 or done.timed_out:
        return LinkClass.UNKNOWN, "neither NVML nor nvidia-smi", {}
    place = {
        gpu.index: position for position, gpu in enumerate(gpus)
    }  # a GPU that is lost leaves a gap in the driver's numbers
    matrix = parse_matrix(done.stdout)
    pairs = {
        (place[index], place[other]): kind
        for (index, other), kind in matrix.items()
        if {index, other} <= place.keys()
    }
    return _classify(pairs, count), "nvidia-smi", pairs


def parse_matrix(stdout: str) -> dict[tuple[int, int], str]:
    """Pair of the driver's numbers → ``NVLINK``, with the number of links where that differs from
    pair to pair, or the matrix's word for a way over PCIe (PIX, PXB, PHB, NODE, SYS), from the rows
    `GPU0 X NV18 …`; the columns of NICs are passed over.
    """
    lines = [_ESCAPES.sub("", line).split() for line in stdout.splitlines()]
    header = next(
        (words for words in lines if words and words[0] == "GPU0" and "X" not in words), []
    )
    columns = [int(word[3:]) for word in header if re.fullmatch(r"GPU\d{1,3}", word)]
    pairs: dict[tuple[int, int], str] = {}
    for words in lines:
        row = re.fullmatch(r"GPU(\d{1,3})", words[0]) if words else None
        if row is None or words is header or len(words) <= len(columns):
            continue
        for column, cell in zip(columns, words[1:], strict=False):
            if int(row[1]) < column:
                pairs[int(row[1]), column] = cell
    bonds = {
        pair: int(cell[2:]) for pair, cell in pairs.items() if re.fullmatch(r"NV\d{1,3}", cell)
    }
    return pairs | _bonded(NVLINK, bonds)


def _bonded(what: str, bonds: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], str]:
    """The kind of link of each pair, with its number of links where that differs: boards without
    switches, and bridges, may join some pairs by twice as many as others, and twice as fast.
    """
    alike = len(set(bonds.values())) == 1
    return {pair: what if alike else f"{what}, {count} links" for pair, count in bonds.items()}


def _classify(pairs: Mapping[tuple[int, int], str], count: int) -> LinkClass:
    if len(pairs) != count * (count - 1) // 2 or not pairs:
        return LinkClass.UNKNOWN
    joined = {kind.startswith(NVLINK) for kind in pairs.values()}
    return (
        LinkClass.MIXED
        if len(joined) > 1
        else LinkClass.NVLINK
        if True in joined
        else LinkClass.PCIE
    )


def _pairs(uuids: Sequence[str]) -> dict[tuple[int, int], str]:
    return nvml.ask(_ask_nvml, uuids, patience=PATIENCE, otherwise=lambda _: {})


def _ask_nvml(uuids: Sequence[str]) -> dict[tuple[int, int], str]:
    """Pair → what joins it; empty when NVML cannot say."""
    with nvml.started() as there:
        if not there:
            return {}
        import pynvml

        with suppress(pynvml.NVMLError):
            handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in uuids]
            nvlink = DIRECT if _direct(handles[0]) else NVLINK
            pairs = {
                (a, b): nvlink
                if pynvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], _NVLINK_CAPABILITY) == _OK
                else _apart(handles[a], handles[b])
                for a, b in combinations(range(len(handles)), 2)
            }
            if nvlink is NVLINK:
                return pairs
            ends = [_ends(handle) for handle in handles]
            places = [_bus(pynvml.nvmlDeviceGetPciInfo(handle)) for handle in handles]
            bonds = {(a, b): ends[a][places[b]] for (a, b), how in pairs.items() if how is DIRECT}
            return pairs | _bonded(DIRECT, bonds)
    return {}


def _direct(handle: Any) -> bool:
    """Tell whether a GPU's NVLinks end at another GPU; False where NVML cannot say."""
    import pynvml

    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with suppress(pynvml.NVMLError):
            return bool(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _TO_GPU)
    return False


def _ends(handle: Any) -> Counter[str]:
    """How many of a GPU's NVLinks end at which PCI address; of those that are up."""
    import pynvml

    ends: Counter[str] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        with suppress(pynvml.NVMLError):
            if pynvml.nvmlDeviceGetNvLinkState(handle, link):
                ends[_bus(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))] += 1
    return ends


def _bus(info: Any) -> str:
    name = info.busId
    return presence.address(name.decode(errors="replace") if isinstance(name, bytes) else name)


def _apart(handle: Any, other: Any) -> str:
    """How far two GPUs are apart on PCIe, in nvidia-smi's words; PCIE where NVML cannot say."""
    import pynvml

    try:
        return _LEVELS.get(pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other), "PCIE")
    except (pynvml.NVMLError, AttributeError):
        return "PCIE"
