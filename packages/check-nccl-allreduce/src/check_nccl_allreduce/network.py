"""This pod's side of the network: the interface that NCCL and gloo must be given, and ports."""

from __future__ import annotations

import ipaddress
import socket

import psutil


def interface_of(address: str) -> str | None:
    """The interface that has ``address``, else the one in whose subnet it lies, or None."""
    wanted = ipaddress.ip_address(address)
    containing = None
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            try:
                own = ipaddress.ip_interface(
                    f"{entry.address.split('%')[0]}/{entry.netmask or ''}".rstrip("/")
                )
            except ValueError:  # a hardware address
                continue
            if own.ip == wanted:
                return name
            if wanted in own.network:
                containing = containing or name
    return containing


def free_port(address: str) -> int:
    """A port that nobody holds just now on ``address``."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
        port: int = probe.getsockname()[1]
        return port
