"""Sockets to listen on, and what is said where that is not possible."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from preflight_kube.cli.commands import BadInput


class PortTaken(BadInput):
    """A port cannot be listened on. The message is one sentence."""


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to ``host``:``port`` (0: any); ``::`` are all addresses of both families.
    Raises :class:`PortTaken`.
    """
    with ExitStack() as kept:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = kept.enter_context(socket.socket(family, socket.SOCK_STREAM))
            if host == "::":  # else it depends on the node's net.ipv6.bindv6only
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit it. asyncio sets it only where a socket names its protocol, and
            # an answer's second write would wait for 40 ms.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listener.bind((host, port))
        except OSError as error:  # it is taken, or the node has no IPv6
            why = error.strerror or error
            raise PortTaken(
                f"{host}:{port} cannot be listened on ({why}); choose another port."
            ) from None
        kept.pop_all()
        return listener
