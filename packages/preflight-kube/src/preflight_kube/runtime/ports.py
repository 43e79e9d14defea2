"""Sockets to listen on, and what is said where that is not possible."""

from __future__ import annotations

import socket

from preflight_kube.cli.commands import BadInput


class PortTaken(BadInput):
    """A port cannot be listened on. The message is one sentence."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(
            f"{host}:{port} cannot be listened on ({error.strerror or error}); choose another port."
        )


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to ``host``:``port`` (0: any); ``::`` are all addresses of both families.
    Raises :class:`PortTaken`.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # a node without IPv6
        raise PortTaken(host, port, error) from None
    if host == "::":  # else it depends on the node's net.ipv6.bindv6only
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Connections inherit it. asyncio sets it only where a socket names its protocol, and an
    # answer's second write would wait for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortTaken(host, port, error) from None
    return listener
