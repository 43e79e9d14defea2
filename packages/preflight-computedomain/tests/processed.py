"""A node of files, and the plugin on it as a process; NVML is a library of a few lines in C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from preflight_testing.apiserver import free_port

PLUGIN = Path(sys.executable).parent / "compute-domain-kubelet-plugin"
_LIBRARY = r"""
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef struct { unsigned char uuid[16]; int status; unsigned clique; unsigned char state; } info_t;
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int e) { return "error"; }
int nvmlSystemGetDriverVersion(char *o, unsigned n) { if (getenv("FAKE_HANGS")) sleep(3600); const char *v = getenv("FAKE_DRIVER"); strcpy(o, v ? v : "570.158.01"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(i + 1); return 0; }
int nvmlDeviceGetUUID(void *h, char *o, unsigned n) { strcpy(o, (long)h == 1 ? "GPU-a" : "GPU-b"); return 0; }
int nvmlDeviceGetGpuFabricInfo(void *h, info_t *o) {
    if (getenv("FAKE_CRASHES")) abort();
    memset(o, 0, sizeof *o);
    o->uuid[15] = 9; o->state = 3; o->clique = (long)h == 2 && getenv("FAKE_TWO_CLIQUES") ? 6 : 5;
    return 0;
}
"""


def library(root: Path) -> None:
    """NVML in the driver's root ``root``; the test is skipped where there is no C compiler."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler for a library in NVML's place")
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    (root / "nvml.c").write_text(textwrap.dedent(_LIBRARY))
    words = [
        "-shared",
        "-fPIC",
        "-w",
        "-Wl,-soname,libnvidia-ml.so.1",
        "-o",
        str(folder / "libnvidia-ml.so.1"),
    ]
    subprocess.run([compiler, *words, str(root / "nvml.c")], check=True)
    (root / "nvml.c").unlink()


class MachineNode:
    """``root``: an empty folder with a short name. ``kubeconfig``: of the API server that the
    plugin asks.
    """

    def __init__(self, root: Path, kubeconfig: Path, name: str = "node-1") -> None:
        self.root, self.name, self.port = root, name, free_port()
        self.driver, self.registry, self.cdi = root / "driver", root / "r", root / "cdi"
        for path in (self.driver, self.registry, self.cdi):
            path.mkdir()
        self.devices = root / "devices"
        self.devices.write_text(
            "Character devices:\n  1 mem\n235 nvidia-caps-imex-channels\n\nBlock devices:\n"
        )
        self.environ = {
            "FEATURE_GATES": "HostManagedIMEX=true",
            "KUBECONFIG": str(kubeconfig),
            "NODE_NAME": name,
            "NVIDIA_DRIVER_ROOT": str(self.driver),
            "ALT_PROC_DEVICES_PATH": str(self.devices),
            "KUBELET_REGISTRAR_DIRECTORY_PATH": str(self.registry),
            "KUBELET_PLUGINS_DIRECTORY_PATH": str(root / "p"),
            "CDI_ROOT": str(self.cdi),
        }

    def ends(self, **environ: str) -> subprocess.CompletedProcess[str]:
        """The plugin, where it does not start."""
        words = [str(PLUGIN), "--host", "127.0.0.1", "--port", str(self.port)]
        given = {**_kept(), **self.environ, **environ}
        return subprocess.run(
            words, env=given, capture_output=True, text=True, timeout=100, check=False
        )

    @contextmanager
    def running(self, *before: str) -> Iterator[subprocess.Popen[bytes]]:
        """The plugin, until the block ends. ``before``: a program that runs it."""
        words: Sequence[str] = (
            *before,
            str(PLUGIN),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        )
        with (self.root / "plugin.log").open("ab") as log:
            process = subprocess.Popen(
                words, env={**_kept(), **self.environ}, stdout=log, stderr=log
            )
        try:
            yield process
        finally:
            if before:  # which takes no signal while what it runs goes on
                for child in (
                    Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                ):
                    os.kill(int(child), signal.SIGTERM)
            else:
                process.terminate()
            process.wait(timeout=60)


def _kept() -> dict[str, str]:
    return {
        key: value
        for key, value in os.environ.items()
        if key not in ("KUBECONFIG", "FEATURE_GATES")
    }
