"""NVML by NVIDIA's own binding: the driver's version, and each GPU's NVLink fabric.

Each question is asked in a process of its own: a library that crashes or hangs ends that one.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from preflight_kube.text import one_line
from preflight_proto import nvml as reader

from preflight_computedomain.core.facts import NOT_SUPPORTED, FabricInfo
from preflight_computedomain.node.host import NvmlUnavailable

PATIENCE: Final = 30.0
"""Seconds: a driver without persistence mode initialises each GPU first, some seconds apiece."""
_LIBRARY: Final = "libnvidia-ml.so.1"
_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
_INIT_FLAG_NO_GPUS: Final = 1
"""Do not fail on a node whose GPUs are all bound to other drivers."""


def read(root: str) -> tuple[str, list[FabricInfo]]:
    """Driver version, as ``nvidia-smi`` shows it, and the fabric of each GPU, in NVML's order.
    Raises :class:`NvmlUnavailable`. ``root``: where the driver's files are mounted; empty for the
    linker's own paths. The library is loaded anew: after an upgrade of the driver it is another.
    """
    answer: tuple[str, list[FabricInfo]] | NvmlUnavailable = reader.ask(
        _answer,
        root,
        patience=PATIENCE,
        otherwise=lambda why: NvmlUnavailable(f"NVML: {why}; {_DUMB}"),
    )
    if isinstance(answer, NvmlUnavailable):
        raise answer
    return answer


_DUMB: Final = "does nvidia-smi answer on this node? Reload the driver, or restart the node."


def _answer(root: str) -> tuple[str, list[FabricInfo]] | NvmlUnavailable:
    import pynvml

    reader.renew()
    try:
        _load(root)
        pynvml.nvmlInitWithFlags(_INIT_FLAG_NO_GPUS)
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            return _text(pynvml.nvmlSystemGetDriverVersion()), [_info(it) for it in handles]
        finally:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()
    except NvmlUnavailable as error:
        return error
    except pynvml.NVMLError as error:
        if wrong := sorted(reader.without()):
            return NvmlUnavailable(f"NVML: {', '.join(wrong)} crashed or hung; {_DUMB}")
        hint = "is the NVIDIA driver installed, and nvidiaDriverRoot its place?"
        gone = error.value in (
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        )
        return NvmlUnavailable(f"NVML: {one_line(str(error), 120)}; {hint}", gone=gone)


def _load(root: str) -> None:
    """Give the binding the library of the driver's root."""
    import pynvml

    if not root or root == "/":
        return
    places = [Path(root, folder, _LIBRARY) for folder in _FOLDERS]
    library = next((path for path in places if path.exists()), None)
    if library is None:
        shown = ", ".join(_FOLDERS)
        raise NvmlUnavailable(
            f"{root}: no {_LIBRARY} in {shown}; set nvidiaDriverRoot to where the driver is."
        )
    try:
        pynvml.nvmlLib = ctypes.CDLL(str(library.resolve()))
    except OSError as error:
        raise NvmlUnavailable(
            f"{library}: cannot be loaded ({one_line(str(error), 120)}); is it for this machine?"
        ) from None


def _info(handle: Any) -> FabricInfo:
    import pynvml

    gpu = _text(pynvml.nvmlDeviceGetUUID(handle))
    try:
        info = reader.fabric_info(handle)
    except pynvml.NVMLError as error:
        lacks = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        if error.value in lacks and not reader.without():
            return FabricInfo(gpu, NOT_SUPPORTED)
        raise
    # ctypes cuts a char array at its first zero, so the bytes are taken from the memory.
    field = type(info).clusterUuid
    cluster = bytes(info)[field.offset : field.offset + field.size]
    return FabricInfo(gpu, info.state, info.status, cluster, info.cliqueId)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
