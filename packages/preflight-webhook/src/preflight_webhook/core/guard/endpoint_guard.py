"""Whether a pod could lead a check to another server than the one that it was given the name of.

A pod's author writes its hosts file and its resolver's settings, and they hold in our containers
too: a check that connects to a name would ask whom he likes whether the GPUs are healthy. An
address cannot be led elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from preflight_proto import names

from preflight_webhook.api.review import decode_aliases, decode_dns, shown
from preflight_webhook.api.types import NULL, DnsConfig, Pod
from preflight_webhook.config.addresses import Host, hosts_in
from preflight_webhook.config.allow import AllowRow, refusal
from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.inject.injection import variables_of

__all__ = ["Redirect", "redirects", "servers", "trusted"]

Redirect = tuple[Host, str]
"""A name that a check connects to, and why the pod's own settings could lead it elsewhere (a
clause).
"""

_ADDRESSES: Final = frozenset({names.ENV_NODE_IP, names.ENV_POD_IP})
_ORDINARY: Final = frozenset({None, "ClusterFirst", "ClusterFirstWithHostNet"})
_HARMLESS_OPTIONS: Final = frozenset(
    {"edns0", "single-request", "single-request-reopen", "trust-ad", "use-vc"}
)


@lru_cache(maxsize=256)
def servers(check: CheckConfig, config: Config) -> tuple[Host, ...]:
    """The names, not addresses, that ``check`` is set to connect to."""
    variables = variables_of(check, config)
    known: dict[str, str | None] = {one["name"]: _text(one) for one in variables}
    values = [one["value"] for one in variables if isinstance(one.get("value"), str)]
    return tuple(dict.fromkeys(host for value in values for host in hosts_in(value, known)))


def _text(variable: dict[str, Any]) -> str | None:
    """What a variable holds: None for an IP address, `*` for what is only known
    in the container.
    """
    value = variable.get("value")
    if isinstance(value, str):
        return value
    return None if variable["name"] in _ADDRESSES else "*"


@lru_cache(maxsize=256)
def _all_servers(config: Config) -> tuple[Host, ...]:
    return tuple(dict.fromkeys(host for check in config.checks for host in servers(check, config)))


def redirects(pod: Pod, namespace: str, config: Config) -> tuple[Redirect, ...]:
    """Of the names that checks connect to, those that ``pod`` could lead elsewhere. Raises
    :class:`BadReview`.
    """
    if not (hosts := _all_servers(config)) or _ordinary(pod, hosts):  # asked of every pod
        return ()
    found = ((host, refusal(_ANSWERS, _Question(pod, namespace, host))) for host in hosts)
    return tuple([(host, why) for host, why in found if why])


def _ordinary(pod: Pod, hosts: tuple[Host, ...]) -> bool:
    """Whether ``pod`` says nothing about names at all, as most pods."""
    spec = pod.spec
    if (
        spec.host_network
        or spec.dns_policy not in _ORDINARY
        or spec.subdomain
        or spec.hostname_override
    ):
        return False
    for part in (spec.host_aliases, spec.dns_config):
        if part is not NULL and bytes(part) != b"null":
            return False
    own = (spec.hostname or pod.metadata.name).lower()[:63].rstrip("-.")
    for host in hosts:  # noqa: SIM110 (asked of every pod)
        if host.name == own:
            return False
    return True


def trusted(config: Config, found: tuple[Redirect, ...]) -> Config:
    """``config`` without those of several hostengine addresses that the pod could lead elsewhere,
    where others are left.

    The same object for the same two, as much is remembered by it.
    """
    return _without(config, frozenset(host for host, _ in found)) if found else config


@lru_cache(maxsize=1024)
def _without(config: Config, hosts: frozenset[Host]) -> Config:
    known: dict[str, str | None] = dict.fromkeys(_ADDRESSES)
    left = tuple(one for one in config.dcgm.engines if hosts.isdisjoint(hosts_in(one, known)))
    if not left or left == config.dcgm.engines:
        return config
    return replace(config, dcgm=replace(config.dcgm, hostengine_addr=left))


class _Question(NamedTuple):
    """Who says in a pod, of ``namespace``, where ``host`` is."""

    pod: Pod
    namespace: str
    host: Host


def _alias(one: _Question) -> str:
    aliases = decode_aliases(bytes(one.pod.spec.host_aliases)) or ()
    named = (name for alias in aliases for name in alias.hostnames or ())
    found = (name for name in named if _same(name.lower().rstrip("."), one.host.name))
    return next((f'"{shown(name)}"' for name in found), "")


def _same(alias: str, name: str) -> bool:
    """One may stand for the other where search domains are tried; nothing is known of `*`."""
    return name in {"*", alias} or alias.startswith(name + ".") or name.startswith(alias + ".")


def _own_name(one: _Question) -> bool:
    """By which the kubelet writes the pod itself into its hosts file."""
    spec, host = one.pod.spec, one.host.name
    if spec.host_network or host == "*":
        return False
    if spec.hostname_override:
        return host == spec.hostname_override.lower()
    name = (spec.hostname or one.pod.metadata.name).lower()[:63]
    whole = f"{name}.{(spec.subdomain or '').lower()}.{one.namespace}.svc.cluster.local"
    return host == name.rstrip("-.") or (bool(spec.subdomain) and host == whole)


def _at_the_node(one: _Question) -> str:
    """By which field a name of the cluster's is asked of the node's DNS."""
    spec, policy = one.pod.spec, one.pod.spec.dns_policy or "ClusterFirst"
    if one.host.of_cluster and spec.host_network and policy in {"Default", "ClusterFirst"}:
        return "hostNetwork"
    return "dnsPolicy" if one.host.of_cluster and policy == "Default" else ""


def _dns(one: _Question) -> DnsConfig:
    return decode_dns(bytes(one.pod.spec.dns_config)) or DnsConfig()


def _option(one: _Question) -> str:
    for option in _dns(one).options or ():
        dots, given = one.host.name.count("."), option.value or ""
        enough = one.host.absolute or (given.isdecimal() and int(given[:9]) > dots)
        if option.name not in _HARMLESS_OPTIONS and not (option.name == "ndots" and enough):
            return f'"{shown(option.name, 64)}"'
    return ""


_ANSWERS: Final = (
    AllowRow(_alias, "spec.hostAliases says where {1} is; remove that name"),
    AllowRow(lambda one: one.host.name == "localhost"),
    AllowRow(
        _own_name,
        'the pod itself is called "{0.host.name}" in its hosts file; give the pod another name',
    ),
    AllowRow(lambda one: one.pod.spec.dns_policy == "None", "spec.dnsPolicy is None; leave it out"),
    AllowRow(lambda one: one.host.name == "*"),  # nothing more is known of it
    AllowRow(
        _at_the_node,
        "with spec.{1} as it is the node's DNS is asked, which does not know it; set spec.dnsPolicy: ClusterFirstWithHostNet",
    ),
    AllowRow(
        lambda one: _dns(one).nameservers,
        "spec.dnsConfig.nameservers says who is asked for it; leave them out",
    ),
    AllowRow(
        lambda one: _dns(one).searches and not one.host.absolute,
        "spec.dnsConfig.searches says where it is looked for; leave them out",
    ),
    AllowRow(_option, "spec.dnsConfig.options {1} says how it is looked for; leave it out"),
)
"""Ways in which a pod's own settings answer for a name, in the order in which they are asked."""
