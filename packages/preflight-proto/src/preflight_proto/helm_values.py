"""A configuration file, or the Helm values of which the chart makes one: which part of the latter
is whose.

People have one file, the values of their release. The chart passes what is not its own on as the
program's configuration; so do we. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, NamedTuple

from . import names

CHARTS: Final = ("preflight-injector", "preflight-gang")
"""The charts whose values hold the configuration of a program, by their names in the umbrella
chart.
"""

GPU_SCHEDULER: Final = "preflight-gpu-scheduler"
"""While it is on, the umbrella chart tells both of them of its pods."""

COMPUTE_DOMAIN: Final = "preflight-computedomain"
"""While it is on, the umbrella chart tells them that its channel is a network device."""

ALIKE: Final = frozenset(
    {
        "alerts",
        "bindAddress",
        "commonLabels",
        "enabled",
        "extraEnv",
        "fullnameOverride",
        "global",
        "hostNetwork",
        "image",
        "imagePullPolicy",
        "imagePullSecrets",
        "metricsPort",
        "monitor",
        "nameOverride",
        "networkPolicy",
        "podDisruptionBudget",
        "preflight-common",
        "service",
        "serviceAccount",
        "topologySpreadConstraints",
    }
)
"""Values that all of our charts have, and no program reads."""

DEPLOYED: Final = ALIKE | {
    "affinity",
    "allowSecondRelease",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "podSecurityContext",
    "priorityClassName",
    "protection",
    "replicas",
    "resources",
    "securityContext",
    "tolerations",
}
"""Values of each of them that say how the chart itself is deployed."""

Values = dict[str, Any]


class Part(NamedTuple):
    """``config``: the program's own configuration. ``chart``: the chart's own values, by key; None
    where the file is not Helm values. ``common``: what stands once for all parts (of `global` what
    is below `preflight`, and `imageRegistry`). ``path``: what
    stands before the paths of ``config`` in the file. ``said``: what was taken, in words; empty for
    a bare configuration."""

    config: Any
    chart: Values | None
    path: str
    said: str
    common: Values


def part_of(
    raw: Any,
    chart: str,
    own: Collection[str],
    merged: Callable[[Values, Mapping[str, Any]], Values],
) -> Part:
    """The part of ``raw`` that is the program's of ``chart``, whose templates use the values
    ``own`` themselves.

    ``merged`` adds what stands once for all parts (`global.preflight`) to a configuration, as the
    chart does.
    """
    if not isinstance(raw, dict):
        return Part(raw, None, "", "", {})
    path, source, common = "", f"Helm values of the chart {chart}", _map(raw.get("global"))
    values: Any = raw
    if any(isinstance(raw.get(name), dict) for name in CHARTS):
        path, source = f"{chart}.", f"Helm values; what is below {chart} is taken"
        values = raw.get(chart)
        if values is None:
            values, source = {}, f"Helm values without {chart}, whose defaults are meant"
        if not isinstance(values, dict):
            return Part(values, {}, path, source, {})
    elif not any(key in raw for key in own):
        return Part(raw, None, "", "", {})
    config = _pruned({key: value for key, value in values.items() if key not in own})
    chart_s = {key: values[key] for key in own if key in values}
    # Where both say something, what is above holds; of the registry the umbrella always does.
    below, above = _map(_map(values.get("global")).get("preflight")), _map(common.get("preflight"))
    shared = {**below, **_pruned(above), "imageRegistry": common.get("imageRegistry")}
    if path and _map(raw.get(COMPUTE_DOMAIN)).get("enabled") is True:
        shared = {"networkDeviceClasses": [names.CHANNEL_CLASS], **shared}
    if path and _map(raw.get(GPU_SCHEDULER)).get("enabled") is True:
        shared = {"gpuClaimResource": names.GPU_CLAIM_RESOURCE, **shared}
    return Part(merged(config, shared), chart_s, path, source, shared)


def _pruned(values: Values) -> Values:
    """Without the keys that are null: by that people take a key out, so that the program's default
    holds.
    """
    return {
        key: _pruned(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _map(value: Any) -> Values:
    return value if isinstance(value, dict) else {}
