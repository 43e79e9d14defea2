"""Nodes on which the plugin does not start: an exit status, one sentence with what to do, and no
traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.apidouble import write_kubeconfig
from preflight_testing.fakes import nvml_node
from processed import MachineNode, library

IMEX = "nvidia-caps-imex-channels"


@pytest.fixture
def node(short: Path) -> MachineNode:
    return MachineNode(short, write_kubeconfig(short / "kubeconfig", "https://127.0.0.1:1"))


def of(change: dict[int, dict[str, object]], **more: str) -> Callable[[MachineNode], Any]:
    return lambda node: library(node.driver, nvml_node("gb200", change) | more)


def without_major(node: MachineNode) -> None:
    node.devices.write_text("Character devices:\n  1 mem\n")


def without_name(node: MachineNode) -> None:
    node.environ["NODE_NAME"] = ""


def without_registry(node: MachineNode) -> None:
    library(node.driver)
    node.registry.rmdir()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            without_major, f"no character device {IMEX}; load the NVIDIA driver", id="major-absent"
        ),
        pytest.param(without_name, "NODE_NAME", id="no-node-name"),
        pytest.param(lambda _: None, "no libnvidia-ml.so.1 in", id="nvml-absent"),
        pytest.param(
            of({}, driver_faults="nvmlDeviceGetCount_v2=crash"),
            "crashed or hung; does nvidia-smi",
            id="nvml-crashes",
        ),
        pytest.param(
            of({}, driver_version="570.124.06"),
            "570.124.06; install 570.158.01 or newer",
            id="driver-old",
        ),
        pytest.param(of({0: {"fabric_state": 2}}), "refusing to start", id="fabric-not-ready"),
        pytest.param(of({1: {"fabric_clique": 6}}), "2 NVLink cliques", id="two-cliques"),
        pytest.param(
            without_registry, "mount the kubelet's plugins_registry there", id="registry-absent"
        ),
    ],
)
def test_it_ends_with_one_sentence(
    node: MachineNode, change: Callable[[MachineNode], Any], said: str
) -> None:
    change(node)
    done = node.ends()
    sentences = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert (done.returncode, len(sentences)) == (1, 1), done.stderr
    assert said in sentences[0]
    assert "Traceback" not in done.stderr + done.stdout
    for gate in ("ComputeDomainCliques", "IMEXDaemonsWithDNSNames"):
        assert f"Feature gate {gate} is forced to false" in done.stderr + done.stdout
    assert list(node.registry.glob("*.sock")) == []
