"""Gangs on a network of shaped links: one namespace for each member, around switches that are
bridges. Needs root, ip and tc.

Each node has two links in a row, both shaped both ways: its adapter, and the cable from there to
its switch. What a node sends to its own address leaves by its adapter and comes back by it, as with
a NIC that loops back: so a slow adapter is slow to the node itself, and a slow cable is not.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from preflight_testing.matrix.fault import LINE

from .gang import GangUnderTest

SICK = 80
"""Mbit/s of a slow link: 40 % of a healthy one, of which gloo makes bus bandwidth nearly all."""

IPV4 = "/proc/sys/net/ipv4"
"""The kernel's settings. ``conf/DEVICE/accept_local``: whether what comes in by a device may have
an address of this node as its source."""
ROUND = "200"
"""The routing table that has a node's own address beyond its adapter."""

_numbers = itertools.count()


def may_shape() -> bool:
    """Whether this process may make network namespaces and shape links, tried out."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc"))):
        return False
    name = f"pf-try-{os.getpid()}"
    if (
        subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode
        != 0
    ):
        return False
    shape = f"tc qdisc add dev lo root tbf {tbf(100)} && echo 1 > {IPV4}/conf/lo/accept_local"
    worked = subprocess.run(
        ["ip", "netns", "exec", name, "sh", "-c", shape], capture_output=True, check=False
    )
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return worked.returncode == 0


def tbf(rate: int) -> str:
    """How `tc` is told of a token bucket of ``rate`` Mbit/s."""
    return f"rate {rate}mbit burst 128kb latency 100ms"


def run(command: str) -> None:
    """Run a command of words without spaces. Raises CalledProcessError."""
    subprocess.run(command.split(), check=True, capture_output=True)


class SwitchedGang(GangUnderTest):
    """What each member sends and receives is shaped on its link to the switch. Nothing of the
    network outlives it.
    """

    def __init__(self, home: Path, *, preloaded: bool = False) -> None:
        super().__init__(home, preloaded=preloaded)
        self.prefix = f"pf-{os.getpid()}-{next(_numbers)}"
        self.names: list[str] = []
        self.hub = f"{self.prefix}-hub"
        self._hosts: list[str] = []

    def __enter__(self) -> SwitchedGang:
        self._namespace(self.hub)
        self._bridge("hub")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            for name in self._hosts:
                subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def join(self, count: int) -> None:
        """Make the links of this many members, all healthy."""
        self.size = count
        for rank in range(count):
            name = f"{self.prefix}-{rank}"
            self._namespace(name)
            self.names.append(name)
            self._bridge(f"nic{rank}")
            self._link(f"add pf{rank} type veth peer name eth0 netns {name}")
            self._link(f"set pf{rank} master nic{rank} up")
            self._link(f"add cable{rank} type veth peer name port{rank}")
            self._link(f"set cable{rank} master nic{rank} up")
            self._link(f"set port{rank} master hub up")
            run(f"ip -n {name} link set eth0 addrgenmode none")
            run(f"ip -n {name} address add {self.address(rank)}/24 dev eth0")
            run(f"ip -n {name} link set eth0 up")
            run(f"ip -n {name} link set lo up")
            self._loop_back(rank)
            self.shape(rank, LINE)

    def _loop_back(self, rank: int) -> None:
        """What this node sends to itself goes out by its adapter, which hands it back."""
        name, address = self.names[rank], self.address(rank)
        inside = ("ip", "netns", "exec", name)
        self._link(f"set pf{rank} type bridge_slave hairpin on")
        values = {"eth0/accept_local": 1, "all/rp_filter": 0, "eth0/rp_filter": 0}
        script = "; ".join(f"echo {value} > {IPV4}/conf/{at}" for at, value in values.items())
        subprocess.run([*inside, "sh", "-e", "-c", script], check=True, capture_output=True)
        run(f"ip -n {name} rule add pref 10 iif lo to {address} lookup {ROUND}")
        run(f"ip -n {name} rule add pref 100 lookup local")
        run(f"ip -n {name} rule del pref 0")
        run(f"ip -n {name} route add {address} dev eth0 scope link src {address} table {ROUND}")
        show = [*inside, "cat", "/sys/class/net/eth0/address"]
        own = subprocess.run(show, check=True, capture_output=True, text=True).stdout.strip()
        run(f"ip -n {name} neigh replace {address} lladdr {own} dev eth0 nud permanent")

    def shape(
        self, rank: int, sends: int, receives: int | None = None, *, beyond: bool = False
    ) -> None:
        """Mbit/s of one member's adapter, or of the cable ``beyond`` it;
        the other one is healthy.
        """
        speeds = (sends, receives or sends)
        adapter, cable = ((LINE, LINE), speeds) if beyond else (speeds, (LINE, LINE))
        self._tbf(self.names[rank], "eth0", adapter[0])
        self._tbf(self.hub, f"pf{rank}", adapter[1])
        self._tbf(self.hub, f"cable{rank}", cable[0])
        self._tbf(self.hub, f"port{rank}", cable[1])

    def shape_path(self, sender: int, receiver: int, rate: int) -> None:
        """Mbit/s of what one member sends to one other; the rest of its link stays healthy."""
        tc, on = f"ip netns exec {self.names[sender]} tc", "dev eth0"
        run(f"{tc} qdisc replace {on} root handle 1: htb default 10")
        for number, mbit in ((10, LINE), (20, rate)):
            speed = f"rate {mbit}mbit ceil {mbit}mbit burst 128kb"
            run(f"{tc} class add {on} parent 1: classid 1:{number} htb {speed}")
        to = f"match ip dst {self.address(receiver)}/32 flowid 1:20"
        run(f"{tc} filter add {on} parent 1: protocol ip u32 {to}")

    def share_uplink(self, ranks: tuple[int, ...], rate: int) -> None:
        """Put these members behind a switch of their own, whose uplink carries so many Mbit/s each
        way.
        """
        self._bridge("leaf")
        self._link("add up0 type veth peer name up1")
        for device, bridge in (("up0", "hub"), ("up1", "leaf")):
            self._link(f"set {device} master {bridge} up")
            self._tbf(self.hub, device, rate)
        for rank in ranks:
            self._link(f"set port{rank} master leaf")

    def _namespace(self, name: str) -> None:
        self._hosts.append(name)
        run(f"ip netns add {name}")

    def _bridge(self, name: str) -> None:
        self._link(f"add {name} type bridge")
        self._link(f"set {name} up")

    def _link(self, words: str) -> None:
        """`ip link` where the switches are."""
        run(f"ip -n {self.hub} link {words}")

    def _tbf(self, namespace: str, device: str, rate: int) -> None:
        run(f"ip netns exec {namespace} tc qdisc replace dev {device} root tbf {tbf(rate)}")

    def address(self, rank: int) -> str:
        """Where a member listens, in its namespace."""
        return f"10.97.0.{rank + 1}"

    def command(self, rank: int, code: str) -> list[str]:
        """How a member's check is started, in its namespace."""
        return ["ip", "netns", "exec", self.names[rank], *super().command(rank, code)]
