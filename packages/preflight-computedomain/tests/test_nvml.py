"""What the plugin's reader makes of a driver's library in C, and of what goes wrong in a call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.fakes import DRIVERS, NVML, NvmlError, build_nvml, nvml_node

PROGRAM = """
import asyncio, json, sys
from dataclasses import asdict
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.node.host import CliqueOwner
from preflight_computedomain.node.nvml import NvmlLibrary, reader

said = []
reader.start(said.append, lasting=True)
library = NvmlLibrary(sys.argv[1])
owner = CliqueOwner(library, crash=False)
for line in sys.stdin:
    reader._Helper.again, reader.SILENCE = 0.0, float(line)
    clique = asyncio.run(owner.refreshed())
    try:
        fabric = [[one.gpu, one.state, one.status] for one in library()[1]]
    except Exception as error:
        fabric = [type(error).__name__]
    print(json.dumps([clique, owner.unknown, fabric, said]), flush=True)
    said.clear()
"""
CALLS = [
    *("nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetUUID"),
    *("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV"),
]
RACK = "6f0c2a3e-0000-4000-8000-00000000aa00.32766"


class Looks:
    """A program that reads the clique as the plugin does, of one node after the other."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self._file = process, folder / "driver.json"
        self.clique, self.unknown = "", ""
        self.fabric: list[Any] = []
        self.said: list[str] = []

    def look(self, node: dict[str, Any], silence: float = 60.0) -> None:
        self._file.write_text(json.dumps({"driver_version": "580.65.06"} | node))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{silence}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the plugin ended with status {self._process.wait()}"
        self.clique, self.unknown, self.fabric, self.said = json.loads(line)


@contextmanager
def looks(root: Path, driver: int) -> Iterator[Looks]:
    folder = root / "usr/lib64"
    folder.mkdir(parents=True)
    try:
        build_nvml(NVML, folder / "libnvidia-ml.so.1", driver=driver)
    except NvmlError as error:
        pytest.skip(str(error))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(root)],
        env=dict(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Looks(process, folder)


@pytest.mark.parametrize(("driver", "joined"), [(470, 0), (535, 3), (550, 3), (580, 3)])
def test_the_fabric_is_read_by_a_call_that_the_driver_has(
    tmp_path: Path, driver: int, joined: int
) -> None:
    with looks(tmp_path, driver) as plugin:
        plugin.look(nvml_node("gb200"))
        assert (plugin.clique, plugin.unknown) == (RACK if joined else "", "")
        assert {state for _, state, _ in plugin.fabric} == {joined}


@pytest.mark.parametrize("driver", DRIVERS)
def test_whatever_goes_wrong_in_a_call_the_clique_is_as_before_or_not_known(
    tmp_path: Path, driver: int
) -> None:
    """And no claim is refused for good, as of a node without a clique."""
    with looks(tmp_path, driver) as plugin:
        plugin.look(nvml_node("gb200"))
        before = plugin.clique
        for call in CALLS:
            for what in ("crash", "15", "10", "999"):
                node = nvml_node("gb200", {2: {"faults": f"{call}={what}"}})
                plugin.look(node | {"driver_faults": f"{call}={what}"})
                world = (call, what, plugin.clique, plugin.unknown, plugin.fabric)
                assert plugin.clique == before, world
                assert not any("ended" in text for text in plugin.said) or what == "crash", world
                known = plugin.fabric != ["NvmlUnavailable"]
                assert known == (not plugin.unknown), world


def test_a_call_that_hangs_is_not_known_and_ends_with_the_pause(tmp_path: Path) -> None:
    with looks(tmp_path, 580) as plugin:
        plugin.look(nvml_node("gb200") | {"driver_faults": "nvmlDeviceGetCount_v2=hang"}, 0.5)
        assert plugin.clique == ""
        # On a busy machine the process itself is late, and is given up with all its questions.
        late = ("nvmlDeviceGetCount crashed or hung", "the process gave no answer")
        assert any(sentence in plugin.unknown for sentence in late)
        plugin.look(nvml_node("gb200"))
        assert (plugin.clique, plugin.unknown) == (RACK, "")
