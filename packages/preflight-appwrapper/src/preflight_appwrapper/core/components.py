"""A component's manifest as it is created: labels, the owner, what Kueue wants in the pods, and
affinities that keep those that ask for a resource off nodes marked as sick. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any, Final

from msgspec import Struct
from preflight_kube.api.kinds import controller_reference
from preflight_kube.api.workloads.model import map_of

from preflight_appwrapper.api.names import API_VERSION, CLAIMED, INDEX, KIND, LABEL
from preflight_appwrapper.api.rules import Autopilot, Effect, WrapperRules
from preflight_appwrapper.api.types import AppWrapper, ClaimRef, PodSetInfo, PodSpec, lenient
from preflight_appwrapper.core import podsets

LONGEST_NAME: Final = 253
"""Characters of any object's name."""
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
    metadata = map_of(template.get("metadata"))
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
    """The object to create, of a manifest that :func:`named` has taken; ``claims``: device classes
    of those read. Raises :class:`ComponentError`.
    """
    where = f"spec.components[{index}]"
    component = wrapper.spec.components[index]
    try:
        manifest: dict[str, Any] = deepcopy(component.template)
    except RecursionError:
        problem = f"{where}.template: is nested too deeply; make it flatter."
        raise ComponentError(problem) from None
    metadata = _map_of(manifest, "metadata", f"{where}.template")
    namespace = wrapper.metadata.namespace
    if metadata.get("namespace") not in (None, "", namespace):
        raise ComponentError(
            f"{where}.template.metadata.namespace: {str(metadata['namespace'])[:60]} is not the wrapper's own, {namespace}; remove it."
        )
    metadata |= {"namespace": namespace, "name": name}
    for key in ("generateName", "resourceVersion"):  # an exported manifest has one of the latter
        metadata.pop(key, None)
    _merge(metadata, "labels", {LABEL: wrapper.metadata.name}, f"{where}.template.metadata")
    _own(metadata, wrapper, where)
    known = wrapper.status.component_status
    try:
        sets = known[index].pod_sets if index < len(known) else podsets.pod_sets(component)
    except podsets.PodSetError as error:
        raise ComponentError(f"{where}.podSets: {error}.") from None
    for i, pod_set in enumerate(sets):
        info = component.pod_set_infos[i] if i < len(component.pod_set_infos) else PodSetInfo()
        path = f"{where}.{pod_set.path}"
        try:
            template = podsets.pod_template(manifest, pod_set.path)
        except podsets.PodSetError as error:
            raise ComponentError(f"{path}: {error}.") from None
        _fill(template, info, wrapper.metadata.name, rules=rules, claims=claims, where=path)
        _map_of(template["metadata"], "annotations", f"{path}.metadata")[INDEX] = str(index)
    return manifest


def _own(metadata: dict[str, Any], wrapper: AppWrapper, where: str) -> None:
    owners = metadata.get("ownerReferences") or []
    if not isinstance(owners, list) or any(
        not isinstance(owner, dict) or owner.get("controller") for owner in owners
    ):
        raise ComponentError(
            f"{where}.template.metadata.ownerReferences: names another controller, or is not a list; remove it."
        )
    metadata["ownerReferences"] = [
        *owners,
        controller_reference(API_VERSION, KIND, wrapper.metadata),
    ]


def _fill(
    template: dict[str, Any],
    info: PodSetInfo,
    owner: str,
    *,
    rules: WrapperRules,
    claims: Mapping[ClaimRef, Collection[str]],
    where: str,
) -> None:
    metadata, spec = _map_of(template, "metadata", where), template["spec"]
    if info.annotations:
        _merge(metadata, "annotations", info.annotations, f"{where}.metadata")
    _merge(metadata, "labels", {**info.labels, LABEL: owner}, f"{where}.metadata")
    if info.node_selector:
        _merge(spec, "nodeSelector", info.node_selector, f"{where}.spec")
    if info.tolerations:
        _list_of(spec, "tolerations", f"{where}.spec").extend(deepcopy(list(info.tolerations)))
    if info.scheduling_gates:
        gates = _list_of(spec, "schedulingGates", f"{where}.spec")
        for name in dict.fromkeys(gate.name for gate in info.scheduling_gates):
            if not any(isinstance(gate, dict) and gate.get("name") == name for gate in gates):
                gates.append({"name": name})
    if rules.scheduler_name and not spec.get("schedulerName"):
        spec["schedulerName"] = rules.scheduler_name
    asked, claimed = _asked(lenient(PodSpec, spec), rules.autopilot, claims)
    if claimed:
        _map_of(metadata, "annotations", f"{where}.metadata")[CLAIMED] = ",".join(claimed)
    if rules.autopilot.inject:
        _inject(spec, rules.autopilot, asked, f"{where}.spec")


def _merge(holder: dict[str, Any], key: str, added: Mapping[str, str], where: str) -> None:
    values = _map_of(holder, key, where)
    for name, value in added.items():
        if name in values and values[name] != value:
            raise ComponentError(
                f'{where}.{key}: "{name}" is "{str(values[name])[:60]}" in the template and must be "{value[:60]}"; remove it there.'
            )
        values[name] = value


def _asked(
    pod: PodSpec, autopilot: Autopilot, claims: Mapping[ClaimRef, Collection[str]]
) -> tuple[set[str], list[str]]:
    """Marked resources that a pod may ask for (by an unread claim: any); those of its claims."""
    marked = autopilot.taints
    claimed = sorted({key for ref in pod.claims for key in claims.get(ref, ()) if key in marked})
    unread = any(ref not in claims for ref in pod.claims)
    asked = {key for key in marked if pod.asks(key) or (unread and "/" not in key)}
    return asked.union(claimed), claimed


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
        term = {"weight": autopilot.weight, "preference": {"matchExpressions": preferred}}
        if term not in terms:
            terms.append(term)


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
        known.extend(expression for expression in expressions if expression not in known)


def _map_of(holder: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """The map under ``key``, made where there is none. Raises :class:`ComponentError`."""
    holder[key] = part = {} if holder.get(key) is None else holder[key]
    if not isinstance(part, dict):
        raise ComponentError(f"{where}.{key}: must be a map; correct it.")
    return part


def _list_of(holder: dict[str, Any], key: str, where: str) -> list[Any]:
    """The list under ``key``; as :func:`_map_of`."""
    holder[key] = part = [] if holder.get(key) is None else holder[key]
    if not isinstance(part, list):
        raise ComponentError(f"{where}.{key}: must be a list; correct it.")
    return part
