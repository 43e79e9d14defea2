"""What stands in for hardware, by its place: the programs in `e2e/fakes`, and NVML, which is
compiled for each machine.
"""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

FAKES = Path(__file__).resolve().parents[4] / "e2e" / "fakes"
"""The folder: `bin` (dcgmi, nvidia-smi, all_reduce_perf), `node`, `net`, `nvml`."""
NVML = FAKES / "nvml" / "nvml.c"
DRIVERS = (470, 535, 550, 570, 580)
"""Branches of the driver that the stand-in for NVML can be."""
DEVICES: dict[str, dict[str, Any]] = tomllib.loads((NVML.parent / "devices.toml").read_text())
"""GPUs of which it is known what NVML says."""


class NvmlError(Exception):
    """The stand-in for NVML could not be compiled, in one sentence."""


def nvml_header() -> Path:
    """NVIDIA's own nvml.h. Raises NvmlError where its package is not installed."""
    try:
        listed = files("nvidia-nvml-dev") or []
    except PackageNotFoundError:
        listed = []
    for file in listed:
        if file.name == "nvml.h":
            return Path(str(file.locate()))
    raise NvmlError("the NVML stand-in needs nvml.h; install the Python package nvidia-nvml-dev.")


def build_nvml(source: Path, library: Path, *, driver: int = DRIVERS[-1]) -> None:
    """Compile the NVML stand-in ``source`` as ``library`` of a ``driver``'s branch. Raises
    NvmlError where there is no C compiler or no nvml.h.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NvmlError("the NVML stand-in needs a C compiler; install gcc.")
    soname = "-Wl,-soname,libnvidia-ml.so.1"  # as NVIDIA's has it: whoever has loaded it by its path finds it by its name
    words = [compiler, "-O1", "-shared", "-fPIC", "-pthread", soname, f"-DDRIVER={driver}"]
    words += ["-Wno-deprecated-declarations", f"-I{nvml_header().parent}"]
    done = subprocess.run([*words, "-o", str(library), str(source)], stdout=2, check=False)
    if done.returncode != 0:
        raise NvmlError(
            f"{compiler} ended with status {done.returncode} on {source.name}; its last lines say why."
        )


def nvml_node(
    model: str, changes: Mapping[int, Mapping[str, object]] | None = None
) -> dict[str, Any]:
    """The node.json of a healthy node with GPUs of ``model``, a key of :data:`DEVICES`;
    ``changes``: what NVML says otherwise of the GPU with that index.
    """
    facts = _facts(model)
    name, count = facts.pop("name"), facts.pop("count")
    gpus = []
    for i in range(count):
        values = {**facts, **({"serial": f"{facts['serial']}{i}"} if "serial" in facts else {})}
        values |= (changes or {}).get(i, {})
        where = {"uuid": f"GPU-{i}", "name": name, "pci": f"00000000:{0x1B + 16 * i:02X}:00.0"}
        gpus.append(where | {key: str(value) for key, value in values.items()})
    return {"gpus": gpus}


def _facts(model: str) -> dict[str, Any]:
    table = DEVICES[model]
    facts = (_facts(table["like"]) if "like" in table else {}) | table
    return {
        key: value
        for key, value in facts.items()
        if key not in {"like", "without", *table.get("without", ())}
    }
