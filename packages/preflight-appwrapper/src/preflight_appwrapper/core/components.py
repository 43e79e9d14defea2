"""A component's manifest as it is created: labels, the owner, what Kueue wants in the pods, and
affinities that keep pods off nodes marked as sick, in exactly those that ask for the resource.
Pure.

The same input gives the same bytes: everything in the order of the configuration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final, TypeVar

from msgspec import Struct
from preflight_kube.api.kinds import controller_reference

from preflight_appwrapper.api.decode_partial import lenient
from preflight_appwrapper.api.names import API_VERSION, CLAIMED, KIND, LABEL
from preflight_appwrapper.api.rules import Autopilot, Effect, WrapperRules
from preflight_appwrapper.api.types import AppWrapper, ClaimRef, PodSet, PodSetInfo, PodSpec
from preflight_appwrapper.core import podsets

T = TypeVar("T")

LONGEST_NAME: Final = 253
"""Characters of any object's name."""
_MOST_DEPTH: Final = 128
_MOST_PREFIX: Final = 58
"""Characters of ``generateName`` that are kept before five random ones: Kubernetes' own limit."""


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


class ComponentError(ValueError):
    """The component cannot be created, ever; one sentence that begins with its path."""


class Named(Struct, frozen=True):
    """The name of a component before it exists."""

    api_version: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def named(wrapper: AppWrapper, index: int, suffix: str) -> Named:
    """``suffix``: random characters after a ``generateName``. Raises :class:`ComponentError`."""
    where = f"spec.components[{index}].template"
    template = wrapper.spec.components[index].template
    if not isinstance(template, dict):
        raise ComponentError(f"{where}: must be a manifest (a map); correct it.")
    api, kind = template.get("apiVersion"), template.get("kind")
    if not isinstance(api, str) or not api or not isinstance(kind, str) or not kind:
        raise ComponentError(f"{where}: has no apiVersion and kind; set both.")
    metadata = template.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    name, prefix = metadata.get("name"), metadata.get("generateName")
    if isinstance(name, str) and name:
        return Named(api, kind, name)
    if isinstance(prefix, str) and prefix:
        return Named(api, kind, prefix[:_MOST_PREFIX] + suffix)
    raise ComponentError(f"{where}.metadata: has neither name nor generateName; set one.")


def possible_name(name: str) -> bool:
    """Say whether any object can have this name, which is to be a part of a path."""
    clean = name.isprintable() and not {"/", "%"} & set(name)
    return 0 < len(name) <= LONGEST_NAME and clean and name not in {".", ".."}


def claims_of(wrapper: AppWrapper, index: int) -> list[ClaimRef]:
    """The claims and claim templates that a component's pods name. Never raises."""
    component = wrapper.spec.components[index]
    claims: dict[ClaimRef, None] = {}
    for pod_set in podsets.readable(component.template, component.pod_sets):
        with suppress(podsets.PodSetError):
            template = podsets.pod_template(component.template, pod_set.path)
            claims |= dict.fromkeys(lenient(PodSpec, template["spec"]).claims)
    return list(claims)


def build(
    wrapper: AppWrapper,
    index: int,
    name: str,
    rules: WrapperRules,
    claims: Mapping[ClaimRef, Collection[str]] = {},
) -> dict[str, Any]:
    """The object to create under ``name``; ``claims``: the device classes that claims ask for, as
    far as these could be read. Raises :class:`ComponentError` with the first thing that is in the
    way.
    """
    where = f"spec.components[{index}]"
    component = wrapper.spec.components[index]
    if nested_too_deeply(component.template):
        raise ComponentError(
            f"{where}.template: is nested deeper than {_MOST_DEPTH} levels; make it flatter."
        )
    if not isinstance(component.template, dict):
        raise ComponentError(f"{where}.template: must be a manifest (a map); correct it.")
    made = deepcopy(component.template)
    metadata = _map_of(made, "metadata", f"{where}.template")
    _into_namespace(metadata, wrapper.metadata.namespace, where)
    metadata.pop("generateName", None)
    metadata["name"] = name
    _merge(metadata, "labels", {LABEL: wrapper.metadata.name}, f"{where}.template.metadata")
    _own(metadata, wrapper, where)
    known = wrapper.status.component_status
    sets = known[index].pod_sets if index < len(known) else _pod_sets(component, where)
    for i, one in enumerate(sets):
        info = component.pod_set_infos[i] if i < len(component.pod_set_infos) else PodSetInfo()
        path = f"{where}.{one.path}"
        _fill(made, one, info, wrapper.metadata.name, rules=rules, claims=claims, where=path)
    return made


def _pod_sets(component: Any, where: str) -> Any:
    try:
        return podsets.pod_sets(component)
    except podsets.PodSetError as error:
        raise ComponentError(f"{where}.podSets: {error}.") from None


def _into_namespace(metadata: dict[str, Any], namespace: str, where: str) -> None:
    if metadata.get("namespace") not in (None, "", namespace):
        found = str(metadata["namespace"])[:60]
        raise ComponentError(
            f"{where}.template.metadata.namespace: {found} is not the wrapper's own, {namespace}; remove it."
        )
    metadata["namespace"] = namespace


def _own(metadata: dict[str, Any], wrapper: AppWrapper, where: str) -> None:
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or any(
        not isinstance(one, dict) or one.get("controller") for one in owners
    ):
        raise ComponentError(
            f"{where}.template.metadata.ownerReferences: names another controller, or is not a list; remove it."
        )
    mine = controller_reference(API_VERSION, KIND, wrapper.metadata)
    metadata["ownerReferences"] = [*owners, mine]


def _fill(
    made: dict[str, Any],
    one: PodSet,
    info: PodSetInfo,
    owner: str,
    *,
    rules: WrapperRules,
    claims: Mapping[ClaimRef, Collection[str]],
    where: str,
) -> None:
    try:
        template = podsets.pod_template(made, one.path)
    except podsets.PodSetError as error:
        raise ComponentError(f"{where}: {error}.") from None
    metadata, spec = _map_of(template, "metadata", where), template["spec"]
    if info.annotations:
        _merge(metadata, "annotations", info.annotations, f"{where}.metadata")
    _merge(metadata, "labels", {**info.labels, LABEL: owner}, f"{where}.metadata")
    if info.node_selector:
        _merge(spec, "nodeSelector", info.node_selector, f"{where}.spec")
    if info.tolerations:
        tolerations = _list_of(spec, "tolerations", f"{where}.spec")
        tolerations.extend(deepcopy(list(info.tolerations)))
    if info.scheduling_gates:
        gates = _list_of(spec, "schedulingGates", f"{where}.spec")
        for name in dict.fromkeys(gate.name for gate in info.scheduling_gates):
            if not any(isinstance(one, dict) and one.get("name") == name for one in gates):
                gates.append({"name": name})
    if rules.scheduler_name and not spec.get("schedulerName"):
        spec["schedulerName"] = rules.scheduler_name
    asked, given = _asked(lenient(PodSpec, spec), rules.autopilot, claims)
    if given:
        _map_of(metadata, "annotations", f"{where}.metadata")[CLAIMED] = ",".join(given)
    if rules.autopilot.inject:
        _inject(spec, rules.autopilot, asked, f"{where}.spec")


def _merge(holder: dict[str, Any], key: str, added: Mapping[str, str], where: str) -> None:
    found = _map_of(holder, key, where)
    for name, value in added.items():
        if name in found and found[name] != value:
            raise ComponentError(
                f'{where}.{key}: "{name}" is "{str(found[name])[:60]}" in the template and must be "{value[:60]}"; remove it there.'
            )
        found[name] = value


def nested_too_deeply(raw: object) -> bool:
    """More levels than any manifest has, and than may safely be copied."""
    level: list[Any] = [raw]
    for _ in range(_MOST_DEPTH):
        below = {  # by identity: YAML may use one list in many places
            id(item): item
            for one in level
            if isinstance(one, dict | list)
            for item in (one.values() if isinstance(one, dict) else one)
            if isinstance(item, dict | list)
        }
        level = list(below.values())
        if not level:
            return False
    return True


def _asked(
    pod: PodSpec, autopilot: Autopilot, claims: Mapping[ClaimRef, Collection[str]]
) -> tuple[set[str], list[str]]:
    """The resources and device classes, of those that are marked on nodes, that a pod asks for or
    may ask for, and those that its claims surely do. A claim that could not be read may be for any.
    """
    marked = autopilot.taints
    given = sorted({key for ref in pod.claims for key in claims.get(ref, ()) if key in marked})
    asked = {key for key in marked if pod.asks(key)} | set(given)
    if any(ref not in claims for ref in pod.claims):
        asked |= {key for key in marked if "/" not in key}
    return asked, given


def _inject(spec: dict[str, Any], autopilot: Autopilot, asked: Collection[str], where: str) -> None:
    """Change a pod spec, the caller's own copy, at ``where``. Raises :class:`ComponentError`."""
    required = _expressions(autopilot, asked, ("NoSchedule", "NoExecute"))
    preferred = _expressions(autopilot, asked, ("PreferNoSchedule",))
    if not required and not preferred:
        return
    node = _map_of(_map_of(spec, "affinity", where), "nodeAffinity", f"{where}.affinity")
    place = f"{where}.affinity.nodeAffinity"
    if required:
        _require(node, required, place)
    if preferred:
        terms = _list_of(node, _PREFERRED, place)
        made = {"weight": autopilot.weight, "preference": {"matchExpressions": preferred}}
        if made not in terms:
            terms.append(made)


def _expressions(
    autopilot: Autopilot, asked: Collection[str], effects: tuple[Effect, ...]
) -> list[dict[str, Any]]:
    """One a key, with the values of all resources that are asked for."""
    values: dict[str, dict[str, None]] = {}
    for resource, taints in autopilot.taints.items():
        for taint in taints if resource in asked else ():
            if taint.effect in effects:
                values.setdefault(taint.key, {})[taint.value] = None
    return [{"key": key, "operator": "NotIn", "values": [*of]} for key, of in values.items()]


def _require(node: dict[str, Any], expressions: list[dict[str, Any]], where: str) -> None:
    selector, path = _map_of(node, _REQUIRED, where), f"{where}.{_REQUIRED}"
    terms = _list_of(selector, "nodeSelectorTerms", path)
    if not terms:
        terms.append({"matchExpressions": expressions})
        return
    for i, term in enumerate(terms):
        place = f"{path}.nodeSelectorTerms[{i}]"
        if not isinstance(term, dict):
            raise ComponentError(f"{place}: must be a map; correct it.")
        if not term.get("matchExpressions") and not term.get("matchFields"):
            continue  # matches no node; with an expression it would match many
        known = _list_of(term, "matchExpressions", place)
        known.extend(one for one in expressions if one not in known)


def _map_of(holder: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """The map under ``key``, made where there is none. Raises :class:`ComponentError`."""
    return _part_of(holder, key, dict[str, Any](), f"{where}.{key}: must be a map; correct it.")


def _list_of(holder: dict[str, Any], key: str, where: str) -> list[Any]:
    """The list under ``key``; as :func:`_map_of`."""
    return _part_of(holder, key, list[Any](), f"{where}.{key}: must be a list; correct it.")


def _part_of(holder: dict[str, Any], key: str, none: T, problem: str) -> T:
    found = none if holder.get(key) is None else holder[key]
    if not isinstance(found, type(none)):
        raise ComponentError(problem)
    holder[key] = found
    return found
