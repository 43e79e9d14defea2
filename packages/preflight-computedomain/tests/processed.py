"""A node of files, and the plugin on it as a process, with the tests' own library for NVML."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.apiserver import free_port
from preflight_testing.fakes import DRIVERS, NVML, NvmlError, build_nvml, nvml_node

PLUGIN = Path(sys.executable).parent / "compute-domain-kubelet-plugin"


def library(root: Path, node: dict[str, Any] | None = None, driver: int = DRIVERS[-1]) -> Path:
    """NVML in the driver's root ``root``, of a ``node`` of :func:`nvml_node` (a healthy one in a
    rack); the test is skipped where it cannot be compiled. The folder of the library.
    """
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    compiled(folder / f"libnvidia-ml.so.{driver}", driver)
    (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{driver}")
    says(folder, node or nvml_node("gb200"))
    return folder


def compiled(path: Path, driver: int) -> None:
    try:
        path.write_bytes(_built(driver))
    except NvmlError as error:
        pytest.skip(str(error))


@cache
def _built(driver: int) -> bytes:
    with tempfile.NamedTemporaryFile() as made:
        build_nvml(NVML, Path(made.name), driver=driver)
        return Path(made.name).read_bytes()


def says(folder: Path, node: dict[str, Any], version: str = "580.65.06") -> None:
    """Has the library in ``folder`` describe ``node``; no ``version``: its own."""
    given = {"driver_version": version} if version else {}
    (folder / "driver.json").write_text(json.dumps(given | node))


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

    def ends(self) -> subprocess.CompletedProcess[str]:
        """The plugin, where it does not start."""
        words = [str(PLUGIN), "--host", "127.0.0.1", "--port", str(self.port)]
        given = {**_kept(), **self.environ}
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
