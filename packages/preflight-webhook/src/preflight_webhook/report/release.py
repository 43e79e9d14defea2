"""The injector's release as `explain` and `revalidate` know it: the webhook's configuration in its
Helm values, and of which namespaces' pods the API server asks the webhook. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from msgspec.structs import replace
from preflight_kube.api.workloads.model import at, map_of, maps
from preflight_kube.files import schema
from preflight_proto.helm_values import DEPLOYED, part_of
from preflight_proto.names import NAMESPACE_DISABLED, NAMESPACE_ENABLED, NAMESPACE_LABEL

from preflight_webhook.config.config import Config, ConfigError, of, raw_of

EXCLUDED: Final = ("nvsentinel", "kube-system", "kube-public", "kube-node-lease")
"""The chart's default for ``excludeNamespaces``."""
CHART: Final = "preflight-injector"
OWN: Final = DEPLOYED | {
    "certificates",
    "excludeNamespaces",
    "gangController",
    "logLevel",
    "namespaces",
    "webhook",
}
"""Values that say how the chart itself is deployed; the others are the webhook's configuration."""
_CHECKS: Final = [{"name": "dcgm-diag", "image": "preflight-dcgm-diag"}]
"""The chart's own checks, where its values name none."""
_REGISTRY: Final = re.compile(r"^(?:[^/]*[.:][^/]*|localhost)/")
"""The registry that an image's reference names, as the chart knows it."""
_LISTS: Final = {
    "properties": {
        key: {"type": "array", "items": {"type": "string"}}
        for key in ("namespaces", "excludeNamespaces")
    }
}
_NAME: Final = "kubernetes.io/metadata.name"
_LABELED: Final = f"label {NAMESPACE_LABEL}={NAMESPACE_ENABLED}"
_LISTED: Final = "is in `namespaces` of the chart"
_HOW: Final = f"opt it in by `kubectl label namespace {{0}} {NAMESPACE_LABEL}={NAMESPACE_ENABLED}`"
_WHY: Final = {
    "never": "namespace {0} is never asked about, whatever its labels say; run GPU pods elsewhere",
    "release": "namespace {0} is the release's own, which is never asked about; run GPU pods elsewhere",
    "excluded": "namespace {0} is in excludeNamespaces of the chart, which wins over its labels; take it out of the list, or run GPU pods elsewhere",
    "enabled": f"namespace {{0}} has the {_LABELED}",
    "disabled": f"namespace {{0}} has the label {NAMESPACE_LABEL}={NAMESPACE_DISABLED}; {_HOW[:-1]} --overwrite`",
    "listed": f"namespace {{0}} {_LISTED}",
    "listed, perhaps disabled": f"namespace {{0}} {_LISTED}; only its label {NAMESPACE_LABEL}={NAMESPACE_DISABLED} would take it out",
    "no labels": f"only if namespace {{0}} is opted in, which is not known here; {_HOW}, and give its Namespace with -f to find out",
    "no lists": f"namespace {{0}} does not have the {_LABELED}, so only if it {_LISTED}; {_HOW}",
    "another label": f'namespace {{0}} is not opted in: its label {NAMESPACE_LABEL} is "{{1}}", and it is not in `namespaces` of the chart; {_HOW}',
    "no label": f"namespace {{0}} is not opted in: it does not have the {_LABELED}, and it is not in `namespaces` of the chart; {_HOW}",
}
"""Why pods of a namespace are asked about or not, with what to do where something can be done."""
Asked = Literal["yes", "no", "unknown"]


class Lists(NamedTuple):
    """The chart's ``namespaces`` and ``excludeNamespaces``, and the namespace of its release where
    that is known.
    """

    namespaces: tuple[str, ...] = ()
    excluded: tuple[str, ...] = EXCLUDED
    release: str = ""


class OptIn(NamedTuple):
    """Whether it is asked, and why, in one sentence."""

    asked: Asked
    why: str


class InstalledRelease(NamedTuple):
    """``config``; ``lists``: what the chart says of namespaces, None where that is not known (a
    bare configuration); ``source``: where it was read, or what of the file was taken; empty for a
    bare configuration.
    """

    config: Config
    lists: Lists | None
    source: str


def opt_in(namespace: str, labels: Mapping[str, str] | None, lists: Lists | None) -> OptIn:
    """``labels``: of the namespace, None where they are not known; ``lists``: of the chart, None
    where they are not known.
    """
    label = None if labels is None else labels.get(NAMESPACE_LABEL, "")
    asked, why = _asked(namespace, label, lists)
    return OptIn(asked, _WHY[why].format(namespace, label))


def _asked(namespace: str, label: str | None, lists: Lists | None) -> tuple[Asked, str]:
    known = lists or Lists(excluded=())
    if namespace == "kube-system":
        return "no", "never"
    if known.release and namespace == known.release:
        return "no", "release"
    if namespace in known.excluded:
        return "no", "excluded"
    if label == NAMESPACE_ENABLED:
        return "yes", "enabled"
    if label == NAMESPACE_DISABLED:
        return "no", "disabled"
    if namespace in known.namespaces:
        return "yes", "listed" if label is not None else "listed, perhaps disabled"
    if label is None or lists is None:
        return "unknown", "no labels" if label is None else "no lists"
    return "no", "another label" if label else "no label"


def lists_of(configuration: Mapping[str, Any]) -> Lists:
    """What a MutatingWebhookConfiguration of the chart selects namespaces by."""
    namespaces: dict[str, None] = {}
    excluded: dict[str, None] = {}
    release = ""
    for entry in maps(configuration.get("webhooks")):
        release = str(at(entry, ("clientConfig", "service", "namespace")) or release)
        for term in maps(map_of(entry.get("namespaceSelector")).get("matchExpressions")):
            if term.get("key") == _NAME:
                into = namespaces if term.get("operator") == "In" else excluded
                into.update(dict.fromkeys(str(name) for name in term.get("values") or ()))
    return Lists(tuple(namespaces), tuple(excluded), release)


def parse(text: str) -> InstalledRelease:
    """The configuration in a configuration file or in Helm values. Raises
    :class:`~preflight_kube.files.configfile.ConfigError` with every problem.
    """
    part = part_of(raw_of(text), CHART, OWN, _merged)
    if part.chart is None:
        return InstalledRelease(of(part.config), None, "")
    own = {key: value for key, value in part.chart.items() if value is not None}
    problems = schema.problems(_LISTS, own, "the file")
    try:
        config = of(
            {"checks": _CHECKS, **part.config} if isinstance(part.config, dict) else part.config
        )
    except ConfigError as error:
        problems += error.problems
    shared = isinstance(part.config, dict) and part.config.get("checks") is part.common.get(
        "checks"
    )
    if problems:
        raise ConfigError([_located(problem, part.path, shared=shared) for problem in problems])
    if isinstance(registry := part.common.get("imageRegistry"), str) and registry:
        config = _mirrored(config, registry)
    excluded = tuple(part.chart.get("excludeNamespaces", EXCLUDED) or ())
    return InstalledRelease(config, Lists(tuple(own.get("namespaces", ())), excluded), part.said)


def _mirrored(config: Config, registry: str) -> Config:
    """Take the checks' images from ``registry``, as the chart does."""
    mirror = registry.removesuffix("/")
    checks = [
        replace(check, image=f"{mirror}/{_REGISTRY.sub('', check.image)}")
        for check in config.checks
    ]
    return replace(config, checks=tuple(checks))


def _located(problem: str, path: str, *, shared: bool) -> str:
    """With its whole path in the file."""
    if shared and problem.startswith("checks"):
        return f"global.preflight.{problem}"
    return problem if problem.startswith("the file") else f"{path}{problem}"


def _merged(config: dict[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """As the chart's templates add what all parts share."""
    merged = dict(config)
    if "checks" not in merged and common.get("checks") is not None:
        merged["checks"] = common["checks"]
    _append(merged, "gangDiscovery", "sources", common.get("gangSources"))
    _append(merged, "networkDetection", "deviceClasses", common.get("networkDeviceClasses"))
    topology = merged.get("ncclTopology") or {}
    if (label := common.get("instanceTypeLabel")) and isinstance(topology, dict):
        merged["ncclTopology"] = {**topology, "instanceTypeLabel": label}
    variables, detection = merged.get("deviceVariables") or {}, merged.get("gpuDetection") or {}
    resource = common.get("gpuClaimResource")
    if resource and isinstance(variables, dict) and isinstance(detection, dict):
        merged["deviceVariables"] = {"enabled": True, "resourceName": resource, **variables}
        listed = detection.get("resourceNames", ["nvidia.com/gpu"])
        if isinstance(listed, list) and resource not in listed:
            merged["gpuDetection"] = {**detection, "resourceNames": [*listed, resource]}
    return merged


def _append(merged: dict[str, Any], section: str, key: str, more: object) -> None:
    """Append to a list of a section; of another shape it is the configuration's to refuse."""
    there = merged.get(section) or {}
    if isinstance(more, list) and more and isinstance(there, dict):
        listed = there.get(key) or []
        if isinstance(listed, list):
            merged[section] = {**there, key: [*listed, *more]}
