"""Nodes on which the plugin does not start: an exit status, one sentence with what to do, and no
traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processed import MachineNode, library
from test_programs import _kubeconfig

IMEX = "nvidia-caps-imex-channels"


@pytest.fixture
def node(short: Path) -> MachineNode:
    return MachineNode(short, _kubeconfig(short))


def without_registry(node: MachineNode) -> None:
    library(node.driver)
    node.registry.rmdir()


def devices(*lines: str) -> Callable[[MachineNode], Any]:
    return lambda node: node.devices.write_text("\n".join(("Character devices:", *lines, "")))


@pytest.mark.parametrize(
    ("change", "environ", "said"),
    [
        (devices("  1 mem"), {}, f"no character device {IMEX}; load the NVIDIA driver"),
        (devices(f"235 {IMEX}", f"236 {IMEX}"), {}, f"{IMEX} is there 2 times"),
        (devices(f"many {IMEX}"), {}, "is 'many', which is not a device's number"),
        (lambda node: node.devices.unlink(), {}, "cannot be read"),
        (lambda node: None, {"NODE_NAME": ""}, "NODE_NAME"),
        (lambda node: None, {}, "no libnvidia-ml.so.1 in"),
        (
            lambda node: library(node.driver),
            {"FAKE_DRIVER": "570.124.06"},
            "570.124.06; install 570.158.01 or newer",
        ),
        (lambda node: library(node.driver), {"FAKE_TWO_CLIQUES": "1"}, "2 NVLink cliques"),
        (
            lambda node: library(node.driver),
            {"FAKE_HANGS": "1"},
            "nvmlSystemGetDriverVersion crashed or hung",
        ),
        (
            lambda node: library(node.driver),
            {"FAKE_CRASHES": "1"},
            "crashed or hung; does nvidia-smi",
        ),
        (without_registry, {}, "mount the kubelet's plugins_registry there"),
    ],
    ids=[
        *("major-absent", "major-twice", "major-no-number", "devices-unreadable", "no-node-name"),
        *(
            "nvml-absent",
            "driver-old",
            "two-cliques",
            "nvml-hangs",
            "nvml-crashes",
            "registry-absent",
        ),
    ],
)
def test_it_ends_with_one_sentence(
    node: MachineNode, change: Callable[[MachineNode], Any], environ: dict[str, str], said: str
) -> None:
    change(node)
    done = node.ends(**environ)
    sentences = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, len(sentences)) == (1, 1), done.stderr
    assert said in sentences[0]
    assert "Traceback" not in done.stderr + done.stdout
    assert list(node.registry.glob("*.sock")) == []
