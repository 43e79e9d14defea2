"""Problems for which AppWrappers are denied, and warnings, each with its path. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from preflight_kube.admission.limits import REQUESTS
from preflight_kube.api.kinds import Kind, RESTMapping
from preflight_kube.api.workloads.model import at, map_of
from preflight_proto.printable import printable

from preflight_appwrapper.api.names import GROUP, KIND, LABEL, LONGEST_VALUE
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import MOST_FINALIZERS, AppWrapper, Component, PodSet
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.components import LONGEST_NAME, ComponentError, named, possible_name
from preflight_appwrapper.core.parameters import FAULT_TOLERANCE, parameters

USER_LABEL: Final = f"{GROUP}/user"
USER_ID_LABEL: Final = f"{GROUP}/userid"
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
_QUEUED: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,60})")
"""Names with room for a hyphen and the number of one of :data:`podsets.MOST_POD_SETS`."""
_LEAST_TTL: Final = 300
_MOST_PROBLEMS: Final = 64
_MOST_BYTES: Final = 1024 * 1024
"""Bytes of all templates as JSON: an API server stores 1.5 MiB, with the status."""


class ValidationResult(msgspec.Struct, frozen=True, kw_only=True):
    """``problems``: why it is denied, one sentence each; ``warnings``: what it is allowed with."""

    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def created(
    wrapper: AppWrapper,
    rules: WrapperRules,
    *,
    namespace: str,
    served: Mapping[Kind, RESTMapping] | None = None,
) -> ValidationResult:
    """Judge a new wrapper. ``served``: its kinds that the API server has; None: not asked."""
    if beyond := limits(wrapper):
        return ValidationResult(problems=beyond)
    problems = [
        *_of_name_and_size(wrapper),
        *_of_components(wrapper, namespace, served, rules.wrapped),
        *_of_pod_sets(wrapper),
    ]
    return ValidationResult(
        problems=tuple(problems[:_MOST_PROBLEMS]), warnings=tuple(_warnings(wrapper, rules))
    )


def limits(wrapper: AppWrapper) -> tuple[str, ...]:
    """Return what is beyond a limit, before any other work; :mod:`.admission.limits` has others."""
    if (count := len(wrapper.metadata.finalizers)) > MOST_FINALIZERS:
        return (
            f"metadata.finalizers: has {count} items, and the controller reads AppWrappers with {MOST_FINALIZERS} at most; remove some.",
        )
    kinds = {podsets.group_kind(component.template) for component in wrapper.spec.components}
    versions = {kind[:2] for kind in kinds}
    if len(kinds) + len(versions) > REQUESTS:
        return (
            f"spec.components: has {len(kinds)} kinds of {len(versions)} API groups and versions, and {REQUESTS} in all are asked about; split it into several AppWrappers.",
        )
    return ()


def _of_name_and_size(wrapper: AppWrapper) -> Iterator[str]:
    name = wrapper.metadata.name
    if len(name) > LONGEST_VALUE:
        yield (
            f"metadata.name: has {len(name)} characters, and as the value of a label it can have {LONGEST_VALUE}; choose a shorter one."
        )
    elif name and QUEUE_LABEL in wrapper.metadata.labels and not _QUEUED.fullmatch(name):
        yield (
            f'metadata.name: Kueue calls pod sets "{printable(name, 63)}-0", which must be a label of DNS, and would never '
            "admit it; choose a name of at most 61 characters without dots."
        )
    if not wrapper.spec.components:
        yield "spec.components: is empty; wrap at least one resource that makes pods."
    size = len(msgspec.json.encode([component.template for component in wrapper.spec.components]))
    if size > _MOST_BYTES:
        yield f"spec.components: have {size} bytes, and {_MOST_BYTES} can be stored beside a status; put large data into a ConfigMap or an image."


def _of_components(
    wrapper: AppWrapper,
    namespace: str,
    served: Mapping[Kind, RESTMapping] | None,
    wrapped: frozenset[str],
) -> Iterator[str]:
    indexes: dict[tuple[str, str, str], int] = {}
    for i, component in enumerate(wrapper.spec.components):
        where = f"spec.components[{i}].template"
        try:
            name = named(wrapper, i, "xxxxx")
        except ComponentError as error:
            yield str(error)
            continue
        if len(name.name) > LONGEST_NAME:
            yield f"{where}.metadata.name: has {len(name.name)} characters, and a name can have {LONGEST_NAME}; choose a shorter one."
        elif not possible_name(name.name):
            yield f'{where}.metadata.name: "{printable(name.name, 63)}" cannot be the name of an object; choose another one.'
        group, version, kind = podsets.group_kind(component.template)
        if (group, kind) == (GROUP, KIND):
            yield f"{where}: is an AppWrapper itself; wrap its components directly."
        if (group, kind) == ("trainer.kubeflow.org", "TrainJob"):
            yield f"{where}: is a TrainJob, whose pods cannot be told from here, so that its quota would be given back while they run; wrap the JobSet that its runtime describes."
        other = at(component.template, ("metadata", "namespace"))
        if other not in (None, "", namespace):
            yield f"{where}.metadata.namespace: is {printable(str(other), 63)}, and only the wrapper's own, {namespace}, is possible; remove it."
        yield from _of_kind((group, version, kind), served, where, wrapped)
        if at(component.template, ("metadata", "labels", LABEL)) not in (
            None,
            wrapper.metadata.name,
        ):
            yield f"{where}.metadata.labels: {LABEL} has another value than the wrapper's name; remove it."
        fixed = at(component.template, ("metadata", "name"))
        if isinstance(fixed, str) and fixed:
            first = indexes.setdefault((group, kind, name.name), i)
            if first != i:
                yield f"{where}: is {kind} {printable(name.name, 63)}, as spec.components[{first}] is; rename one of the two."


def _of_kind(
    kind: Kind, served: Mapping[Kind, RESTMapping] | None, where: str, wrapped: frozenset[str]
) -> Iterator[str]:
    if served is None:
        return
    shown = printable(f"{kind[0]}/{kind[1]} {kind[2]}".removeprefix("/"), 120)
    known = served.get(kind)
    if known is None:
        yield f"{where}: the API server does not serve {shown}; install what defines it, or correct apiVersion and kind."
    elif not known.namespaced:
        yield f"{where}: {shown} belongs to the whole cluster, and a component to a namespace; create it beside the wrapper."
    elif wrapped and f"{known.resource}.{kind[0]}".rstrip(".") not in wrapped:
        yield f"{where}: {shown} is not among the kinds that the controller may create; have an administrator add it to wrappedKinds, or create it beside the wrapper."


def _of_pod_sets(wrapper: AppWrapper) -> Iterator[str]:
    total = 0
    for i, component in enumerate(wrapper.spec.components):
        where = f"spec.components[{i}]"
        declared = component.pod_sets
        try:
            inferred = podsets.inferred(component.template)
        except podsets.PodSetError as error:
            inferred = ()
            yield f"{where}.template: {error}."
        total += max(len(declared), len(inferred))
        yield from _of_declared(component, wrapper.metadata.name, where)
        if declared and inferred and podsets.kueue_knows(component.template):
            yield from _differences(declared, inferred, where)
        elif not declared:
            for pod_set in inferred:
                place = f"{where}.{pod_set.path}"
                yield from _of_template(component, pod_set.path, wrapper.metadata.name, place)
    if wrapper.spec.components and total == 0:
        yield "spec.components: makes no pods; declare podSets for the component that does, or wrap a kind whose pods are known."
    if total > podsets.MOST_POD_SETS:
        yield f"spec.components: has {total} pod sets, and Kueue takes {podsets.MOST_POD_SETS}; split it into several AppWrappers."


def _of_declared(component: Component, name: str, where: str) -> Iterator[str]:
    paths: dict[str, int] = {}
    for j, pod_set in enumerate(component.pod_sets):
        here, path = f"{where}.podSets[{j}]", pod_set.path
        if paths.setdefault(path, j) != j:
            yield f"{here}.path: {printable(path, 120)} is in podSets[{paths[path]}] already; remove one of the two."
            continue
        if pod_set.replicas is not None and not 0 <= pod_set.replicas < 2**31:
            yield f"{here}.replicas: is {pod_set.replicas}; set a number of pods from 0 to {2**31 - 1}."
        yield from _of_template(component, path, name, f"{here}.path")


def _of_template(component: Component, path: str, name: str, where: str) -> Iterator[str]:
    try:
        template = podsets.pod_template(component.template, path)
    except podsets.PodSetError as error:
        yield f"{where}: {error}."
        return
    if at(template, ("metadata", "labels", LABEL)) not in (None, name):
        yield f"{where}: the pod template's label {LABEL} has another value than the wrapper's name; remove it."


def _differences(
    declared: tuple[PodSet, ...], inferred: tuple[PodSet, ...], where: str
) -> Iterator[str]:
    known = {pod_set.path: pod_set.count for pod_set in declared}
    wanted = {pod_set.path: pod_set.count for pod_set in inferred}
    for path, count in wanted.items():
        if path not in known:
            yield f"{where}.podSets: has none at {path}, where this kind makes {count} pods; add it, or declare none at all."
        elif known[path] != count:
            yield f"{where}.podSets: says {known[path]} pods at {path}, and the template {count}; make them equal."
    for path in known if wanted else ():
        if path and path not in wanted:
            yield f"{where}.podSets: {printable(path, 120)} makes no pods of this kind; remove it."


def _warnings(wrapper: AppWrapper, rules: WrapperRules) -> Iterator[str]:
    yield from (problem for _, problem in parameters(wrapper.metadata.annotations, rules).problems)
    for i, component in enumerate(wrapper.spec.components):
        where = f"spec.components[{i}]"
        if component.pod_sets and not podsets.kueue_knows(component.template):
            yield from _differences(component.pod_sets, podsets.readable(component.template), where)
        below = map_of(at(component.template, ("metadata", "annotations")))
        lost = FAULT_TOLERANCE & component.annotations.keys() or FAULT_TOLERANCE & below.keys()
        if lost:
            yield f"{where}: the annotation {min(lost)} says nothing there; write it into the wrapper's own metadata."
        yield from _job_warnings(component.template, where)
        if QUEUE_LABEL in map_of(at(component.template, ("metadata", "labels"))):
            yield f"{where}.template.metadata.labels: {QUEUE_LABEL} would queue this component by itself; write it on the wrapper."


def _job_warnings(template: object, where: str) -> Iterator[str]:
    kind = podsets.group_kind(template)[0::2]
    if kind == ("ray.io", "RayJob"):
        ends = at(template, ("spec", "shutdownAfterJobFinishes")) is True
        if not ends and at(template, ("spec", "deletionStrategy")) is None:
            yield f"{where}.template.spec.shutdownAfterJobFinishes: leaves the cluster running when the job has ended, so that the AppWrapper never succeeds and holds its quota; set true."
    if kind == ("kubeflow.org", "MPIJob"):
        policies = [("spec", "runPolicy", "cleanPodPolicy"), ("spec", "cleanPodPolicy")]
        if not any(at(template, keys) in ("All", "Running") for keys in policies):
            yield f"{where}.template.spec.runPolicy.cleanPodPolicy: leaves workers running when the launcher has ended, so that the AppWrapper never succeeds and holds its quota; set Running."
    if kind != ("batch", "Job"):
        return
    ttl = at(template, ("spec", "ttlSecondsAfterFinished"))
    if isinstance(ttl, int) and not isinstance(ttl, bool) and ttl < _LEAST_TTL:
        yield f"{where}.template.spec.ttlSecondsAfterFinished: is {ttl} s, so that the Job may be gone before its end is seen; set at least {_LEAST_TTL}."
    if at(template, ("spec", "suspend")) is True:
        yield f"{where}.template.spec.suspend: is true, and nobody here will change it; remove it."


def updated(old: AppWrapper, new: AppWrapper) -> Iterator[str]:
    """Say why the change is denied: Kueue's fields, annotations and other labels may change."""
    again = "cannot be changed; create another AppWrapper."
    if len(old.spec.components) != len(new.spec.components):
        yield f"spec.components: the number of components {again}"
    pairs = zip(old.spec.components, new.spec.components, strict=False)
    for i, pair in enumerate(pairs):
        templates = [component.template for component in pair]
        pod_sets = [[(known.path, known.count) for known in each.pod_sets] for each in pair]
        if templates[0] != templates[1]:
            yield f"spec.components[{i}].template: {again}"
        if pod_sets[0] != pod_sets[1]:
            yield f"spec.components[{i}].podSets: {again}"
    if (old.spec.managed_by or "") != (new.spec.managed_by or ""):
        yield f"spec.managedBy: {again}"
    for label in (USER_LABEL, USER_ID_LABEL):
        if old.metadata.labels.get(label) != new.metadata.labels.get(label):
            yield f"metadata.labels: {label} says who created it and cannot be changed; leave it as it was."
