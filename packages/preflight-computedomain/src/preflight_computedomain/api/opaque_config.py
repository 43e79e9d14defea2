"""The configuration by which a claim names its ComputeDomain, read strictly or recognized. Pure."""

from __future__ import annotations

import json
from typing import Any, Final

from preflight_kube.text import one_line

from preflight_computedomain.api.names import API_VERSION, CHANNEL_CONFIG, DAEMON_CONFIG, GROUP

_MOST_BYTES: Final = 10 * 1024
"""The API server takes no longer parameters (OpaqueParametersMaxLength of resource.k8s.io)."""
_FIELDS: Final = ("allocationMode", "apiVersion", "domainID", "kind")


class ConfigInvalid(Exception):
    """One sentence: which field, what was found, what to do."""


def channel_config(parameters: bytes) -> tuple[str, str]:
    """The domain's uid and the allocation mode, as given or empty, of a
    ``ComputeDomainChannelConfig`` of v1beta1, read strictly. Raises :class:`ConfigInvalid`.
    """
    fields = _strict(parameters)
    for field, expected in (("apiVersion", API_VERSION), ("kind", CHANNEL_CONFIG)):
        if (value := fields.get(field)) != expected:
            raise ConfigInvalid(f"field {field} is {_shown(value)}; it must be {expected}")
    if unknown := sorted(fields.keys() - set(_FIELDS)):
        shown = ", ".join(one_line(name, 60) for name in unknown[:5])
        raise ConfigInvalid(f"field {shown} is not known; known are {', '.join(_FIELDS)}")
    domain, mode = fields.get("domainID"), fields.get("allocationMode", "")
    if not isinstance(domain, str) or not domain:
        raise ConfigInvalid(
            f"field domainID is {_shown(domain)}; it must be the uid of a ComputeDomain"
        )
    if not isinstance(mode, str):
        raise ConfigInvalid(f"field allocationMode is {_shown(mode)}; it must be text")
    return domain, mode


def domain_of(parameters: bytes) -> str:
    """The ComputeDomain's uid in a channel's configuration; empty where it is none."""
    kind, domain = _recognized(parameters)
    return domain if kind == CHANNEL_CONFIG and isinstance(domain, str) else ""


def is_daemon(parameters: bytes) -> bool:
    """Tell whether this is the configuration of a daemon's claim, of whatever version."""
    return _recognized(parameters)[0] == DAEMON_CONFIG


def _recognized(parameters: bytes) -> tuple[object, object]:
    """Kind and domainID of a configuration of this driver's group, unjudged."""
    try:
        fields = json.loads(parameters) if len(parameters) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict) or str(fields.get("apiVersion")).partition("/")[0] != GROUP:
        return None, None
    return fields.get("kind"), fields.get("domainID")


def _strict(parameters: bytes) -> dict[str, Any]:
    if len(parameters) > _MOST_BYTES:
        raise ConfigInvalid(
            f"parameters have {len(parameters)} bytes; {_MOST_BYTES} at most are read"
        )
    try:
        fields = json.loads(parameters, object_pairs_hook=_each_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(
            f"parameters are not JSON ({one_line(str(error), 80)}); write an object"
        ) from None
    if not isinstance(fields, dict):
        raise ConfigInvalid(
            f"parameters are {_shown(fields)}; write an object with {', '.join(_FIELDS)}"
        )
    return fields


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ConfigInvalid(f"field {one_line(key, 60)} is there twice; keep one of them")
        fields[key] = value
    return fields


def _no_number(text: str) -> Any:
    raise ConfigInvalid(f"{text} is not JSON; write a number or text")


def _shown(value: object) -> str:
    if value is None:
        return "missing"
    try:
        return one_line(json.dumps(value, ensure_ascii=False), 60)
    except (ValueError, RecursionError):
        return "not text"
