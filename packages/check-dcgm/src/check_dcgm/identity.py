"""Whether the engine that answered is the node's own: do its GPUs have our serial numbers?

A UUID alone proves little: every request names ours, so an engine that repeats them knows them. A
serial number is not in the request. It keeps a wrong node's engine out and an engine that knows
nothing of the node. It is not a secret, though: a program that once ran on these GPUs can have read
it. Against such an engine only its address helps, which is why it should be an IP of the node.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping

_SERIAL = re.compile(r"[0-9A-Za-z][0-9A-Za-z_./-]*")
_UNKNOWN = frozenset({"n/a", "0", "unknown"})


def known_serial(serial: str) -> str:
    """``serial`` where it is one, else nothing.

    DCGM prints what it does not know as a value (``<<<NOT_SUPPORTED>>>``, ``Insf. Permission``,
    ``****``; dcgm_structs.h, dcgmi/CommandOutputController.cpp), and such a value is no other
    board's number.
    """
    text = serial.strip()
    return text if _SERIAL.fullmatch(text) and text.lower() not in _UNKNOWN else ""


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """(foreign, unproven): UUIDs whose serial number the engine gives otherwise, and those for
    which it gives none. Leading zeros and letter case are not part of a number.

    ``ours`` is UUID → serial number as the driver says; a GPU without one cannot be compared and is
    in neither list.
    """
    foreign, unproven = [], []
    for uuid, serial in ours.items():
        if not serial:
            continue
        if not theirs.get(uuid):
            unproven.append(uuid)
        elif _plain(serial) != _plain(theirs[uuid]):
            foreign.append(uuid)
    return foreign, unproven


def _plain(serial: str) -> str:
    return serial.strip().lstrip("0").lower()


def parse_serial(stdout: str) -> tuple[str, str]:
    """(UUID, serial number) from the table of ``dcgmi discovery --gpuid N -i a``; empty where it
    does not say.
    """

    def cell(name: str) -> str:
        match = re.search(rf"^\|\s*{name}\s*\|\s*(.*?)\s*\|\s*$", stdout, re.MULTILINE)
        return known_serial(match[1]) if match else ""

    return cell("UUID"), cell("Serial Number")


def redirected(host: str, hosts_file: str) -> bool:
    """Whether the pod's own /etc/hosts says where ``host`` is: then the pod's author has chosen the
    engine.

    By hostAliases, or by the pod's own hostname. An address or ``localhost`` cannot be redirected
    that way, and a pod on the host's network has the node's file, of which only the part that the
    kubelet adds is the pod's.
    """
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        pass
    else:
        return False
    if "(host network)" in hosts_file:
        hosts_file = hosts_file.partition("# Entries added by HostAliases")[2]
    for line in hosts_file.splitlines():
        words = line.partition("#")[0].lower().split()
        if name in {word.rstrip(".") for word in words[1:]}:
            return True
    return False
