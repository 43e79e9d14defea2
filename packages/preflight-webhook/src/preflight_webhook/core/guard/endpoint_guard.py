"""Whether a pod could lead a check to another server than the one that it was given the name of.

A pod's author writes its hosts file and its resolver's settings, and they hold in our containers
too: a check that connects to a name would ask whom he likes whether the GPUs are healthy. An
address cannot be led elsewhere.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from msgspec.structs import replace
from preflight_kube.api.workloads.model import maps
from preflight_proto import names

from preflight_webhook.api.review import decode_aliases, decode_dns, shown, texts
from preflight_webhook.api.types import Pod
from preflight_webhook.config.addresses import Host, hosts_in
from preflight_webhook.config.allow import AllowRow, refusal
from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.inject.injection import variables_of

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
    values = {e["name"]: e["value"] for e in variables if isinstance(e.get("value"), str)}
    # What is only known in the container may be anything, but for IP addresses.
    known: dict[str, str | None] = dict.fromkeys([e["name"] for e in variables], "*")
    known |= {**dict.fromkeys(_ADDRESSES), **values}
    return tuple(
        dict.fromkeys(host for value in values.values() for host in hosts_in(value, known))
    )


@lru_cache(maxsize=256)
def _all_servers(config: Config) -> tuple[Host, ...]:
    return tuple(dict.fromkeys(host for check in config.checks for host in servers(check, config)))


def redirects(pod: Pod, namespace: str, config: Config) -> tuple[Redirect, ...]:
    """Of the names that checks connect to, those that ``pod`` could lead elsewhere. Raises
    :class:`BadReview`.
    """
    if not (hosts := _all_servers(config)) or _ordinary(pod, hosts):  # asked of every pod
        return ()
    answers = ((host, refusal(_ANSWERS, _Question(pod, namespace, host))) for host in hosts)
    return tuple([(host, why) for host, why in answers if why])


def _ordinary(pod: Pod, hosts: tuple[Host, ...]) -> bool:
    """Whether ``pod`` says nothing about names at all, as most pods."""
    spec = pod.spec
    if spec.host_network or spec.dns_policy not in _ORDINARY:
        return False
    if spec.subdomain or spec.hostname_override:
        return False
    if not all(bytes(part) == b"null" for part in (spec.host_aliases, spec.dns_config)):
        return False
    own = (spec.hostname or pod.metadata.name).lower()[:63].rstrip("-.")
    return own not in [host.name for host in hosts]


def trusted(config: Config, redirects: tuple[Redirect, ...]) -> Config:
    """``config`` without those of several hostengine addresses that the pod could lead elsewhere,
    where others are left.

    The same object for the same two, as much is remembered by it.
    """
    hosts = frozenset(host for host, _ in redirects)
    return _without(config, hosts) if hosts else config


@lru_cache(maxsize=1024)
def _without(config: Config, hosts: frozenset[Host]) -> Config:
    known: dict[str, str | None] = dict.fromkeys(_ADDRESSES)
    left = tuple(each for each in config.dcgm.engines if hosts.isdisjoint(hosts_in(each, known)))
    if not left or left == config.dcgm.engines:
        return config
    return replace(config, dcgm=replace(config.dcgm, hostengine_addr=left))


class _Question(NamedTuple):
    """Who says in a pod, of ``namespace``, where ``host`` is."""

    pod: Pod
    namespace: str
    host: Host


def _alias(case: _Question) -> str:
    aliases = decode_aliases(bytes(case.pod.spec.host_aliases)) or ()
    named = (name for alias in aliases for name in texts(alias.get("hostnames")))
    aliased = (name for name in named if _same(name.lower().rstrip("."), case.host.name))
    return next((f'"{shown(name)}"' for name in aliased), "")


def _same(alias: str, name: str) -> bool:
    """One may stand for the other where search domains are tried; nothing is known of `*`."""
    return name in {"*", alias} or alias.startswith(name + ".") or name.startswith(alias + ".")


def _own_name(case: _Question) -> bool:
    """By which the kubelet writes the pod itself into its hosts file."""
    spec, host = case.pod.spec, case.host.name
    if spec.host_network or host == "*":
        return False
    if spec.hostname_override:
        return host == spec.hostname_override.lower()
    name = (spec.hostname or case.pod.metadata.name).lower()[:63]
    whole = f"{name}.{(spec.subdomain or '').lower()}.{case.namespace}.svc.cluster.local"
    return host == name.rstrip("-.") or (bool(spec.subdomain) and host == whole)


def _at_the_node(case: _Question) -> str:
    """By which field a name of the cluster's is asked of the node's DNS."""
    spec, policy = case.pod.spec, case.pod.spec.dns_policy or "ClusterFirst"
    if case.host.of_cluster and spec.host_network and policy in {"Default", "ClusterFirst"}:
        return "hostNetwork"
    return "dnsPolicy" if case.host.of_cluster and policy == "Default" else ""


def _dns(case: _Question) -> dict[str, Any]:
    return decode_dns(bytes(case.pod.spec.dns_config)) or {}


def _option(case: _Question) -> str:
    for option in maps(_dns(case).get("options")):
        name, given = str(option.get("name") or ""), str(option.get("value") or "")
        dots = case.host.name.count(".")
        enough = case.host.absolute or (given.isdecimal() and int(given[:9]) > dots)
        if name not in _HARMLESS_OPTIONS and not (name == "ndots" and enough):
            return f'"{shown(name, 64)}"'
    return ""


_ANSWERS: Final = (
    AllowRow(_alias, "spec.hostAliases says where {1} is; remove that name"),
    AllowRow(lambda case: case.host.name == "localhost"),
    AllowRow(
        _own_name,
        'the pod itself is called "{0.host.name}" in its hosts file; give the pod another name',
    ),
    AllowRow(
        lambda case: case.pod.spec.dns_policy == "None", "spec.dnsPolicy is None; leave it out"
    ),
    AllowRow(lambda case: case.host.name == "*"),  # nothing more is known of it
    AllowRow(
        _at_the_node,
        "with spec.{1} as it is the node's DNS is asked, which does not know it; set spec.dnsPolicy: ClusterFirstWithHostNet",
    ),
    AllowRow(
        lambda case: _dns(case).get("nameservers"),
        "spec.dnsConfig.nameservers says who is asked for it; leave them out",
    ),
    AllowRow(
        lambda case: _dns(case).get("searches") and not case.host.absolute,
        "spec.dnsConfig.searches says where it is looked for; leave them out",
    ),
    AllowRow(_option, "spec.dnsConfig.options {1} says how it is looked for; leave it out"),
)
"""Ways in which a pod's own settings answer for a name, in the order in which they are asked."""
