"""The link of a fake node without a network of its own: what its processes send is paced, whoever
opens the sockets.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NET = Path(__file__).parents[1] / "fakes" / "net"
WATCHED = """
import os, socket, sys, time
wanted = int(sys.argv[1])
def paced():
    with socket.socket() as one:
        end = time.monotonic() + 20
        while (rate := one.getsockopt(socket.SOL_SOCKET, 47) & 0xFFFFFFFF) != wanted and time.monotonic() < end:
            time.sleep(0.005)
        return rate
print(paced(), flush=True)
if os.fork() == 0:
    print(paced(), flush=True)
    os._exit(0)
os.wait()
"""
UNPACED = 0xFFFFFFFF


def seen(tmp_path: Path, facts: dict[str, Any], wanted: int) -> list[int]:
    """The rate of a new socket in a process of that node, and in one that it forks;
    bytes a second.
    """
    (tmp_path / "node.json").write_text(json.dumps(facts))
    environ = {"PYTHONPATH": str(NET), "FAKE_NODE_JSON": str(tmp_path / "node.json")}
    argv = [sys.executable, "-W", "ignore", "-c", WATCHED, str(wanted)]
    done = subprocess.run(argv, env=environ, check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def test_each_socket_of_the_nodes_processes_is_paced(tmp_path: Path) -> None:
    assert seen(tmp_path, {"network": {"sends_mbit": 100}}, 12_500_000) == [12_500_000] * 2


@pytest.mark.parametrize("facts", [{}, {"network": {}}])
def test_a_node_of_which_no_link_is_told_is_not_paced(
    tmp_path: Path, facts: dict[str, Any]
) -> None:
    assert seen(tmp_path, facts, UNPACED) == [UNPACED] * 2


def test_a_program_elsewhere_is_not_paced() -> None:
    argv = [sys.executable, "-W", "ignore", "-c", WATCHED, str(UNPACED)]
    done = subprocess.run(
        argv, env={"PYTHONPATH": str(NET)}, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [str(UNPACED)] * 2
