"""Node affinities that keep pods off nodes marked as sick, in exactly the pods that ask for the
resource. Pure.

The same input gives the same bytes: everything in the order of the configuration.
"""

from __future__ import annotations

from typing import Any

from preflight_appwrapper.api.decode_partial import lenient
from preflight_appwrapper.api.rules import Autopilot, Effect
from preflight_appwrapper.api.types import PodSpec

__all__ = ["ComponentError", "inject", "list_of", "map_of"]


class ComponentError(ValueError):
    """The component cannot be created, whatever is tried; one sentence that
    begins with its path.
    """


_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def inject(spec: dict[str, Any], autopilot: Autopilot, where: str) -> None:
    """Change the pod spec ``spec`` (plain data, the caller's own copy), whose path is ``where``.
    Raises :class:`ComponentError` where nothing can be added to its own affinity.
    """
    if not autopilot.inject:
        return
    pod = lenient(PodSpec, spec)
    required = _expressions(pod, autopilot, ("NoSchedule", "NoExecute"))
    preferred = _expressions(pod, autopilot, ("PreferNoSchedule",))
    if not required and not preferred:
        return
    affinity = map_of(spec, "affinity", f"{where}.affinity")
    place = f"{where}.affinity.nodeAffinity"
    node = map_of(affinity, "nodeAffinity", place)
    if required:
        _require(node, required, f"{place}.{_REQUIRED}")
    if preferred:
        terms = list_of(node, _PREFERRED, f"{place}.{_PREFERRED}")
        made = {"weight": autopilot.weight, "preference": {"matchExpressions": preferred}}
        if made not in terms:
            terms.append(made)


def _expressions(
    spec: PodSpec, autopilot: Autopilot, effects: tuple[Effect, ...]
) -> list[dict[str, Any]]:
    """One a key, with the values of all resources that are asked for."""
    values: dict[str, list[str]] = {}
    for resource, taints in autopilot.taints.items():
        wanted = [taint for taint in taints if taint.effect in effects]
        if not wanted or not spec.asks(resource):
            continue
        for taint in wanted:
            known = values.setdefault(taint.key, [])
            if taint.value not in known:
                known.append(taint.value)
    return [{"key": key, "operator": "NotIn", "values": found} for key, found in values.items()]


def _require(node: dict[str, Any], expressions: list[dict[str, Any]], path: str) -> None:
    selector = map_of(node, _REQUIRED, path)
    terms = list_of(selector, "nodeSelectorTerms", f"{path}.nodeSelectorTerms")
    if not terms:
        terms.append({"matchExpressions": expressions})
        return
    for i, term in enumerate(terms):
        if not isinstance(term, dict):
            raise ComponentError(f"{path}.nodeSelectorTerms[{i}]: must be a map; correct it.")
        if not term.get("matchExpressions") and not term.get("matchFields"):
            continue  # matches no node; with an expression it would match many
        known = list_of(term, "matchExpressions", f"{path}.nodeSelectorTerms[{i}].matchExpressions")
        known.extend(one for one in expressions if one not in known)


def map_of(holder: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """The map under ``key``, made where there is none. Raises :class:`ComponentError`."""
    found = {} if holder.get(key) is None else holder[key]
    if not isinstance(found, dict):
        raise ComponentError(f"{where}: must be a map; correct it.")
    holder[key] = found
    return found


def list_of(holder: dict[str, Any], key: str, where: str) -> list[Any]:
    """The list under ``key``; as :func:`map_of`."""
    found = [] if holder.get(key) is None else holder[key]
    if not isinstance(found, list):
        raise ComponentError(f"{where}: must be a list; correct it.")
    holder[key] = found
    return found
