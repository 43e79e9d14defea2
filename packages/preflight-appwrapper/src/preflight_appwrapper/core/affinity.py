"""Node affinities that keep pods off nodes marked as sick, in exactly the pods that ask for the
resource. Pure.

The same input gives the same bytes: everything in the order of the configuration.
"""

from __future__ import annotations

from typing import Any

from preflight_appwrapper.api.resources import asks
from preflight_appwrapper.api.rules import Autopilot, Effect

__all__ = ["AffinityError", "inject"]

_AFFINITY = "affinity.nodeAffinity"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class AffinityError(ValueError):
    """The template's own affinity has a shape that nothing can be added to; one sentence that
    begins with its path in the pod spec.
    """


def inject(spec: dict[str, Any], autopilot: Autopilot) -> None:
    """Change the pod spec ``spec`` (plain data, the caller's own copy). Raises
    :class:`AffinityError`.
    """
    if not autopilot.inject:
        return
    required = _expressions(spec, autopilot, ("NoSchedule", "NoExecute"))
    preferred = _expressions(spec, autopilot, ("PreferNoSchedule",))
    if not required and not preferred:
        return
    affinity = _map(spec, "affinity", "affinity")
    node = _map(affinity, "nodeAffinity", _AFFINITY)
    if required:
        _require(node, required)
    if preferred:
        terms = _list(node, _PREFERRED, f"{_AFFINITY}.{_PREFERRED}")
        made = {"weight": autopilot.weight, "preference": {"matchExpressions": preferred}}
        if made not in terms:
            terms.append(made)


def _expressions(
    spec: dict[str, Any], autopilot: Autopilot, effects: tuple[Effect, ...]
) -> list[dict[str, Any]]:
    """One a key, with the values of all resources that are asked for."""
    values: dict[str, list[str]] = {}
    for resource, taints in autopilot.taints.items():
        wanted = [taint for taint in taints if taint.effect in effects]
        if not wanted or not asks(spec, resource):
            continue
        for taint in wanted:
            known = values.setdefault(taint.key, [])
            if taint.value not in known:
                known.append(taint.value)
    return [{"key": key, "operator": "NotIn", "values": found} for key, found in values.items()]


def _require(node: dict[str, Any], expressions: list[dict[str, Any]]) -> None:
    path = f"{_AFFINITY}.{_REQUIRED}"
    selector = _map(node, _REQUIRED, path)
    terms = _list(selector, "nodeSelectorTerms", f"{path}.nodeSelectorTerms")
    if not terms:
        terms.append({"matchExpressions": expressions})
        return
    for i, term in enumerate(terms):
        if not isinstance(term, dict):
            raise AffinityError(f"{path}.nodeSelectorTerms[{i}]: must be a map; correct it")
        if not term.get("matchExpressions") and not term.get("matchFields"):
            continue  # matches no node; with an expression it would match many
        known = _list(term, "matchExpressions", f"{path}.nodeSelectorTerms[{i}].matchExpressions")
        known.extend(one for one in expressions if one not in known)


def _map(holder: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    if holder.get(key) is None:
        holder[key] = {}
    if not isinstance(holder[key], dict):
        raise AffinityError(f"{path}: must be a map; correct it")
    found: dict[str, Any] = holder[key]
    return found


def _list(holder: dict[str, Any], key: str, path: str) -> list[Any]:
    if holder.get(key) is None:
        holder[key] = []
    if not isinstance(holder[key], list):
        raise AffinityError(f"{path}: must be a list; correct it")
    found: list[Any] = holder[key]
    return found
