"""NVML by NVIDIA's own binding: the driver's version, and each GPU's NVLink fabric."""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from preflight_kube.text import one_line

from .fabric import NOT_SUPPORTED, FabricInfo
from .node import NvmlUnavailable

__all__ = ["NvmlLibrary"]

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


class NvmlLibrary:
    """``root``: where the NVIDIA driver's files are mounted; empty for the dynamic linker's own
    paths.
    """

    def __init__(self, root: str = "") -> None:
        self._root = root
        self._loaded: Path | None = None

    def driver_version(self) -> str:
        """As ``nvidia-smi`` shows it. Raises :class:`NvmlUnavailable`."""
        with self._open() as nvml:
            return _text(nvml.nvmlSystemGetDriverVersion())

    def fabric(self) -> list[FabricInfo]:
        """Of each GPU, in NVML's order; a GPU or driver without a fabric has the state
        :data:`NOT_SUPPORTED`. Raises :class:`NvmlUnavailable`.
        """
        with self._open() as nvml:
            return [
                _info(nvml, nvml.nvmlDeviceGetHandleByIndex(i))
                for i in range(nvml.nvmlDeviceGetCount())
            ]

    @contextmanager
    def _open(self) -> Generator[Any]:
        import pynvml

        self._load()
        try:
            pynvml.nvmlInitWithFlags(_INIT_FLAG_NO_GPUS)
            try:
                yield pynvml
            finally:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            hint = "is the NVIDIA driver installed, and nvidiaDriverRoot its place?"
            gone = error.value in (
                pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
                pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            )
            raise NvmlUnavailable(f"NVML: {one_line(str(error), 120)}; {hint}", gone=gone) from None

    def _load(self) -> None:
        """Give the binding the library of the driver's root, and after an upgrade of the driver its
        new one: by the soname it would get that which is loaded. That one stays, as a thread may
        be in it.
        """
        import pynvml

        if not self._root or self._root == "/":
            return
        places = [Path(self._root, folder, _LIBRARY) for folder in _FOLDERS]
        found = next((path for path in places if path.exists()), None)
        if found is None:
            shown = ", ".join(_FOLDERS)
            raise NvmlUnavailable(
                f"{self._root}: no {_LIBRARY} in {shown}; set nvidiaDriverRoot to where the driver is."
            )
        found = found.resolve()  # a file of the driver's version
        if found == self._loaded:
            return
        try:
            library = ctypes.CDLL(str(found))
        except OSError as error:
            raise NvmlUnavailable(
                f"{found}: cannot be loaded ({one_line(str(error), 120)}); is it for this machine?"
            ) from None
        with pynvml.libLoadLock:
            pynvml.nvmlLib = library
            pynvml._nvmlGetFunctionPointer_cache.clear()
        self._loaded = found


def _info(nvml: Any, handle: Any) -> FabricInfo:
    gpu = _text(nvml.nvmlDeviceGetUUID(handle))
    found = nvml.c_nvmlGpuFabricInfo_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(found))
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return FabricInfo(gpu, NOT_SUPPORTED)
        raise
    # ctypes cuts a char array at its first zero, so the bytes are taken from the memory.
    field = type(found).clusterUuid
    cluster = bytes(found)[field.offset : field.offset + field.size]
    return FabricInfo(gpu, found.state, found.status, cluster, found.cliqueId)


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
