"""What stands in for hardware, by its place: the programs in `e2e/fakes`, and NVML, which is
compiled for each machine.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

__all__ = ["FAKES", "NVML", "NvmlError", "build_nvml"]

FAKES = Path(__file__).resolve().parents[4] / "e2e" / "fakes"
"""The folder: `bin` (dcgmi, nvidia-smi, all_reduce_perf), `node`, `net`, `nvml`."""
NVML = FAKES / "nvml" / "nvml.c"


class NvmlError(Exception):
    """The stand-in for NVML could not be compiled, in one sentence."""


def build_nvml(source: Path, library: Path) -> None:
    """Compile the NVML stand-in ``source`` as ``library``. Raises NvmlError where there is no C
    compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NvmlError("the NVML stand-in needs a C compiler; install gcc.")
    soname = "-Wl,-soname,libnvidia-ml.so.1"  # as NVIDIA's has it: whoever has loaded it by its path finds it by its name
    words = [compiler, "-O1", "-shared", "-fPIC", soname, "-o", str(library), str(source)]
    done = subprocess.run(words, stdout=2, check=False)
    if done.returncode != 0:
        raise NvmlError(
            f"{compiler} ended with status {done.returncode} on {source.name}; its last lines say why."
        )
