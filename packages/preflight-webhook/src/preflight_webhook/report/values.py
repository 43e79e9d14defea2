"""The webhook's configuration in the Helm values of its release: what a person has in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jsonschema
from preflight_kube.files import schema
from preflight_proto.helm_values import DEPLOYED, part_of

from preflight_webhook.config.config import Config, ConfigError, of, raw_of
from preflight_webhook.report.optin import EXCLUDED, Lists

__all__ = ["CHART", "OWN", "InstalledRelease", "parse"]

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
_LISTS: Final = jsonschema.Draft202012Validator(
    {
        "properties": {
            key: {"type": "array", "items": {"type": "string"}}
            for key in ("namespaces", "excludeNamespaces")
        }
    }
)


class InstalledRelease(NamedTuple):
    """``config``; ``lists``: what the chart says of namespaces, None where that is not known (a
    bare configuration); ``source``: where it was read, or what of the file was taken; empty for a
    bare configuration.
    """

    config: Config
    lists: Lists | None
    source: str


def parse(text: str) -> InstalledRelease:
    """The configuration in a configuration file or in Helm values. Raises
    :class:`~preflight_kube.files.configfile.ConfigError` with every problem.
    """
    part = part_of(raw_of(text), CHART, OWN, _merged)
    if part.chart is None:
        return InstalledRelease(of(part.config), None, "")
    own = {key: value for key, value in part.chart.items() if value is not None}
    problems = schema.sentences(_LISTS.iter_errors(own), "the file")
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
    excluded = tuple(part.chart.get("excludeNamespaces", EXCLUDED) or ())
    return InstalledRelease(config, Lists(tuple(own.get("namespaces", ())), excluded), part.said)


def _located(problem: str, path: str, *, shared: bool) -> str:
    """With its whole path in the file."""
    if shared and problem.startswith("checks"):
        return f"global.preflight.{problem}"
    return problem if problem.startswith("the file") else f"{path}{problem}"


def _merged(config: dict[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """As the chart's templates add what all parts share."""
    made = dict(config)
    if "checks" not in made and common.get("checks") is not None:
        made["checks"] = common["checks"]
    if isinstance(sources := common.get("gangSources"), list) and sources:
        discovery = made.get("gangDiscovery") or {}
        if isinstance(discovery, dict) and isinstance(discovery.get("sources") or [], list):
            made["gangDiscovery"] = {
                **discovery,
                "sources": [*(discovery.get("sources") or []), *sources],
            }
    if label := common.get("instanceTypeLabel"):
        topology = made.get("ncclTopology") or {}
        if isinstance(topology, dict):
            made["ncclTopology"] = {**topology, "instanceTypeLabel": label}
    if resource := common.get("gpuClaimResource"):
        variables, detection = made.get("deviceVariables") or {}, made.get("gpuDetection") or {}
        if isinstance(variables, dict) and isinstance(detection, dict):
            made["deviceVariables"] = {"enabled": True, "resourceName": resource, **variables}
            listed = detection.get("resourceNames", ["nvidia.com/gpu"])
            if isinstance(listed, list) and resource not in listed:
                made["gpuDetection"] = {**detection, "resourceNames": [*listed, resource]}
    return made
