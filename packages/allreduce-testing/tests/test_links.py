"""What a node sends to itself passes the stages that its hairpin is said to pass."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from allreduce_testing.gangs.links import SwitchedGang, may_shape

DATAGRAMS, BYTES = 20, 1000
SEND = """
import socket
here, there, frames, size = {here!r}, {there!r}, {frames}, {size}
ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
ends[0].bind((here, 0))
ends[1].bind((here, 9998))
ends[0].settimeout(30)
for _ in range(frames):
    ends[1].sendto(b"x" * size, (there, ends[0].getsockname()[1]))
for _ in range(frames):
    ends[0].recv(2 * size)
"""


def carried(gang: SwitchedGang, device: str) -> int:
    words = ("ip", "netns", "exec", gang.hub, "tc", "-s", "qdisc", "show", "dev", device)
    shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    sent = re.search(r"Sent (\d+) bytes", shown)
    assert sent is not None
    return int(sent[1])


def to_itself(gang: SwitchedGang) -> dict[str, bool]:
    """Whether the first node's adapter, cable and port carry what it sends to itself."""
    devices = {"adapter": "pf0", "cable": "cable0", "port": "port0"}
    before = {name: carried(gang, device) for name, device in devices.items()}
    address = gang.address(0)
    code = SEND.format(here=address, there=address, frames=DATAGRAMS, size=BYTES)
    subprocess.run(["ip", "netns", "exec", gang.names[0], "python3", "-c", code], check=True)
    return {
        name: carried(gang, device) - before[name] >= DATAGRAMS * BYTES
        for name, device in devices.items()
    }


@pytest.mark.skipif(not may_shape(), reason="needs root, ip and tc with network namespaces and tbf")
def test_a_hairpin_passes_the_cable_and_the_port_where_it_turns_at_the_leaf_alone(
    tmp_path: Path,
) -> None:
    with SwitchedGang(tmp_path) as gang:
        gang.join(1)
        assert to_itself(gang) == {"adapter": True, "cable": False, "port": False}
        gang.loop_at_leaf(0)
        assert to_itself(gang) == {"adapter": True, "cable": True, "port": True}


@pytest.mark.skipif(not may_shape(), reason="needs root, ip and tc with network namespaces and tbf")
def test_a_hairpin_between_rails_is_routed_by_the_spine(tmp_path: Path) -> None:
    with SwitchedGang(tmp_path) as gang:
        gang.join(1)
        gang.route_rails()
        assert to_itself(gang) == {"adapter": True, "cable": True, "port": True}
