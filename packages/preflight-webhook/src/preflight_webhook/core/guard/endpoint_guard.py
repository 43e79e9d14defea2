"""Whether a pod could lead a check to another server than the one that it was given the name of.

A pod's author writes its hosts file and its resolver's settings, and they hold in our containers
too: a check that connects to a name would ask whom he likes whether the GPUs are healthy. An
address cannot be led elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from msgspec.structs import replace
from preflight_proto import names

from preflight_webhook.api.review import decode_aliases, decode_dns, shown
from preflight_webhook.api.types import NULL, Pod
from preflight_webhook.config.addresses import Host, hosts_in
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
    found = ((host, next(_reasons(pod, namespace, host), None)) for host in hosts)
    return tuple([(host, why) for host, why in found if why is not None])


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


def _reasons(pod: Pod, namespace: str, host: Host) -> Iterator[str]:
    spec = pod.spec
    for alias in decode_aliases(bytes(spec.host_aliases)) or ():
        for name in alias.hostnames or ():
            if _same(name.lower().rstrip("."), host.name):
                yield f'spec.hostAliases says where "{shown(name)}" is; remove that name'
    if host.name in {"localhost", "*"}:
        if host.name == "*" and spec.dns_policy == "None":
            yield "spec.dnsPolicy is None; leave it out"
        return
    if own := next((one for one in _own_names(pod, namespace) if one == host.name), None):
        yield f'the pod itself is called "{own}" in its hosts file; give the pod another name'
    yield from _resolver(pod, host)


def _resolver(pod: Pod, host: Host) -> Iterator[str]:
    spec, policy = pod.spec, pod.spec.dns_policy or "ClusterFirst"
    if policy == "None":
        yield "spec.dnsPolicy is None; leave it out"
    elif host.of_cluster and (
        policy == "Default" or (policy == "ClusterFirst" and spec.host_network)
    ):
        known = "hostNetwork" if spec.host_network else "dnsPolicy"
        yield f"with spec.{known} as it is the node's DNS is asked, which does not know it; set spec.dnsPolicy: ClusterFirstWithHostNet"
    dns = decode_dns(bytes(spec.dns_config))
    if dns is None:
        return
    if dns.nameservers:
        yield "spec.dnsConfig.nameservers says who is asked for it; leave them out"
    if dns.searches and not host.absolute:
        yield "spec.dnsConfig.searches says where it is looked for; leave them out"
    for option in dns.options or ():
        if option.name in _HARMLESS_OPTIONS:
            continue
        if option.name == "ndots" and (
            host.absolute or _more_than(option.value, host.name.count("."))
        ):
            continue
        yield f'spec.dnsConfig.options "{shown(option.name, 64)}" says how it is looked for; leave it out'


def _own_names(pod: Pod, namespace: str) -> Iterator[str]:
    """By what the kubelet writes the pod itself into its hosts file."""
    spec = pod.spec
    if spec.host_network:
        return
    if spec.hostname_override:
        yield spec.hostname_override.lower()
        return
    name = (spec.hostname or pod.metadata.name).lower()
    yield name[:63].rstrip("-.")
    if spec.subdomain:
        yield f"{name[:63]}.{spec.subdomain.lower()}.{namespace}.svc.cluster.local"


def _same(alias: str, name: str) -> bool:
    """One may stand for the other where search domains are tried; nothing is known of `*`."""
    return name in {"*", alias} or alias.startswith(name + ".") or name.startswith(alias + ".")


def _more_than(value: str | None, dots: int) -> bool:
    return value is not None and value.isdecimal() and int(value[:9]) > dots
