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
from preflight_testing.fakes import nvml_node
from processed import compiled, library, says

PROGRAM = """
import asyncio, json, sys
from functools import partial
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.node.host import CliqueOwner
from preflight_computedomain.node.nvml import read, reader

said = []
reader.start(said.append, lasting=True)
library = partial(read, sys.argv[1])
owner = CliqueOwner(library, crash=False)
for line in sys.stdin:
    reader._Helper.again, reader.SILENCE = 0.0, float(line)
    clique = asyncio.run(owner.refreshed())
    try:
        fabric = [[one.gpu, one.state, one.status] for one in library()[1]]
    except Exception as error:
        fabric = [type(error).__name__]
    print(json.dumps([clique, owner.driver, owner.unknown, fabric, said]), flush=True)
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
        self._process, self.folder = process, folder
        self.clique, self.driver, self.unknown = "", "", ""
        self.fabric: list[Any] = []
        self.said: list[str] = []

    def look(self, node: dict[str, Any], silence: float = 60.0, version: str = "580.65.06") -> None:
        says(self.folder, node, version)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{silence}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the plugin ended with status {self._process.wait()}"
        self.clique, self.driver, self.unknown, self.fabric, self.said = json.loads(line)


@contextmanager
def looks(root: Path, driver: int) -> Iterator[Looks]:
    folder = library(root, driver=driver)
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
        assert plugin.driver == "580.65.6"


def test_a_cluster_that_begins_with_a_zero_and_a_gpu_of_no_fabric_are_read(tmp_path: Path) -> None:
    rack = {"fabric_cluster": "0007" + "00" * 13 + "09", "fabric_clique": 5}
    node = nvml_node("gb200", dict.fromkeys(range(4), rack))
    del node["gpus"][3]["fabric_state"]
    with looks(tmp_path, 580) as plugin:
        plugin.look(node)
        assert plugin.clique == "00070000-0000-0000-0000-000000000009.5"
        assert [state for _, state, _ in plugin.fabric] == [3, 3, 3, 0]


@pytest.mark.parametrize(
    "error",
    [pytest.param(9, id="the old one not loaded"), pytest.param(18, id="it has another version")],
)
def test_after_an_upgrade_of_the_driver_its_new_library_is_asked(
    tmp_path: Path, error: int
) -> None:
    with looks(tmp_path, 570) as plugin:
        plugin.look(nvml_node("gb200"))
        assert plugin.clique == RACK
        plugin.look(nvml_node("gb200") | {"driver_faults": f"nvmlInitWithFlags={error}"})
        assert plugin.clique == ""
        assert plugin.unknown.startswith("NVML: ")
        compiled(plugin.folder / "libnvidia-ml.so.580", 580)
        (tmp_path / "link").symlink_to("libnvidia-ml.so.580")
        (tmp_path / "link").replace(plugin.folder / "libnvidia-ml.so.1")
        plugin.look(nvml_node("gb200"), version="")
        assert (plugin.clique, plugin.driver) == (RACK, "580.65.6")


@pytest.mark.parametrize("driver", [470, 535, 580])  # without, by the first and by the last call
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
