"""Where the text of a variable says that a program connects to: an address, or a name that somebody
must resolve.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from preflight_proto import names

_PLACE: Final = re.compile(
    r"(?:(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://)?(?:[^@/\s]*@)?(?P<host>\[[^\]]*\]|[^:/\[\]\s]+)(?P<port>:(?:[0-9]+|\$\([^()]*\)))?(?:[/?#].*)?"
)
_REFERENCE: Final = re.compile(r"\$\(([^()]*)\)")
_NO_NETWORK: Final = frozenset({"unix", "file"})
_NUMBERS: Final = re.compile(r"[0-9.]+")


_PORT: Final = re.compile(r":(?:\$\([^()]+\)|0*[1-9][0-9]{0,4})")
_ADDRESSES: Final = {names.ENV_NODE_IP: None, names.ENV_POD_IP: None}


class Host(NamedTuple):
    """A name, in lower case and without its final dot; ``absolute``: it had one, so no search
    domain is tried.

    A name that is only known in the container is `*`.
    """

    name: str
    absolute: bool = False

    @property
    def of_cluster(self) -> bool:
        """Whether it is the cluster's own DNS that knows it."""
        parts = self.name.split(".")
        return "svc" in parts or self.name.endswith(".cluster.local")

    @property
    def searched(self) -> bool:
        """Whether a Service or pod of the asking pod's own namespace can answer to it."""
        return (
            not self.absolute and self.name.count(".") < 2 and self.name not in {"localhost", "*"}
        )


def hosts_in(value: str, known: Mapping[str, str | None]) -> Iterator[Host]:
    """The names, not addresses, in ``value``: of every host:port and every URL in a list separated
    by commas.

    ``known``: what other variables hold that it may refer to by `$(NAME)`, None for one that is an
    IP address.
    """
    for part in re.split(r"[,\s]+", value):
        match = _PLACE.fullmatch(part)
        if (
            match is None
            or not (match["port"] or match["scheme"])
            or (match["scheme"] or "").lower() in _NO_NETWORK
        ):
            continue
        name = None if match["host"].startswith("[") else _expanded(match["host"], known)
        if name is None or _NUMBERS.fullmatch(name):
            continue
        yield Host(name.lower().rstrip("."), name.endswith("."))


def _expanded(host: str, known: Mapping[str, str | None]) -> str | None:
    """None for an address."""
    for reference in _REFERENCE.findall(host):
        value = known.get(reference, "*")
        if value is None:
            return None if host == f"$({reference})" else "*"
        if value == "*" or "$(" in value:
            return "*"
        host = host.replace(f"$({reference})", value)
    return host


def engine_problem(address: str) -> str:
    """What is wrong with the address of a DCGM hostengine: a sentence, or nothing."""
    place = _PLACE.fullmatch(address)
    port = (
        place["port"] if place is not None and not place["scheme"] and "/" not in address else None
    )
    wrong = port is None or not _PORT.fullmatch(port)
    if wrong or (port is not None and port[1:].isdecimal() and int(port[1:]) > 65535):
        return f'"{address[:60]}" is not host:port; set e.g. $(NODE_IP):5555.'
    for host in hosts_in(address, _ADDRESSES):
        if host.searched:
            return (
                f'a Service in the pod\'s own namespace can answer to "{host.name}", so whoever writes there decides which '
                "engine is asked; set $(NODE_IP):5555, or the whole name, e.g. dcgm-hostengine.nvsentinel.svc:5555."
            )
    return ""
