"""A pod that is created: what it becomes, or why not. One pure function, top to bottom.

What is ours is rebuilt from the pod as it came, never found and skipped: a second call gives an
empty patch, whoever came between. A container's environment cannot change after admission: so its
variables refer to annotations that the Binding writes; one that is not there gives no GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from preflight_kube.api import jsonpatch
from preflight_kube.text import one_line
from preflight_proto.devices import IMPLICIT

from preflight_gpu_scheduler.api import allocation, messages, names
from preflight_gpu_scheduler.api.claim import Claim
from preflight_gpu_scheduler.config import Config

Operation = dict[str, Any]
Entry = dict[str, Any]
_TOLERATION: Final = {
    "key": names.MANAGED_TAINT,
    "operator": "Equal",
    "value": "true",
    "effect": "NoSchedule",
}
_DEFAULT_SCHEDULER: Final = "default-scheduler"
CUDA: Final = "CUDA_VISIBLE_DEVICES"
NVIDIA: Final = "NVIDIA_VISIBLE_DEVICES"


def _reference(variable: str, annotation: str) -> Entry:
    # The API server writes the version into what is stored; without it a second call would see
    # another entry than the first one made.
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}
    return {"name": variable, "valueFrom": {"fieldRef": field}}


REFERENCES: Final = (
    _reference(NVIDIA, names.NVIDIA_ANNOTATION),
    _reference(CUDA, names.CUDA_ANNOTATION),
    {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"},
)
VOID: Final = ({"name": NVIDIA, "value": "void"},)


class AdmissionVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """``refused``: why the pod is not created, empty where it is; then ``patch`` is empty too."""

    patch: tuple[Operation, ...] = ()
    refused: str = ""
    warnings: tuple[str, ...] = ()


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class _Container(msgspec.Struct, rename="camel"):
    name: str = ""
    env: list[dict[str, Any]] | None = None
    resources: _Resources | None = None
    restart_policy: str | None = None


class _Entry(msgspec.Struct, rename="camel"):
    name: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None
    tolerations: list[dict[str, Any]] | None = None
    scheduling_gates: list[_Entry] | None = None
    resource_claims: list[_Entry] | None = None


class _About(msgspec.Struct):
    annotations: dict[str, str] | None = None


class _Shape(msgspec.Struct):
    """The parts that must have the right type for the rest to be read as it is."""

    spec: _Spec
    metadata: _About = msgspec.field(default_factory=_About)


def admit(
    pod: Mapping[str, Any],
    claim: Claim | None,
    config: Config,
    *,
    gpu_entries: Collection[str] = (),
) -> AdmissionVerdict:
    """``pod``: the object as it came. ``claim``: the one that it names, None where that is not
    there. ``gpu_entries``: its ``resourceClaims`` (by name) that are for GPUs. Never raises."""
    try:
        shape = msgspec.convert(dict(pod), _Shape)
    except (msgspec.ValidationError, RecursionError) as error:
        return AdmissionVerdict(refused=messages.misfit(error, "the pod"))
    spec, annotations = shape.spec, shape.metadata.annotations or {}
    if (name := annotations.get(names.CLAIM_ANNOTATION)) is None:
        return _without_claim(spec, annotations, config)
    if refused := " ".join(_refusals(spec, name, claim, config, gpu_entries)):
        return AdmissionVerdict(refused=refused)
    return _with_claim(pod["spec"], spec, annotations, claim, config)


def _refusals(
    spec: _Spec, name: str, claim: Claim | None, config: Config, gpu_entries: Collection[str]
) -> Iterator[str]:
    """Everything that speaks against the pod, one sentence each."""
    where, beside = f"annotation {names.CLAIM_ANNOTATION}", "beside a GpuClaim"
    if not names.is_object_name(name):
        yield f"{where}: {_shown(name)} is not the name of a GpuClaim; write the claim's name."
    elif claim is None and config.missing_claim == "deny":
        yield f"{where}: there is no GpuClaim {name} in this namespace; create it first."
    if spec.node_name:
        yield "spec.nodeName: is set, and the scheduler is what gives this pod its GPUs; remove it."
    scheduler = spec.scheduler_name or _DEFAULT_SCHEDULER
    if scheduler not in {_DEFAULT_SCHEDULER, config.scheduler_name}:
        yield (
            f"spec.schedulerName: is {_shown(scheduler)}, and only {config.scheduler_name} knows GpuClaims; "
            "remove it, or the claim."
        )
    implicit = [IMPLICIT + device_class for device_class in config.gpu_classes]
    init = spec.init_containers or ()
    others = (_of_plugin(container, implicit) for container in (*spec.containers, *init))
    for resource in sorted(set[str]().union(*others)):
        yield f"{_shown(resource)}: is asked for {beside}, and would be other GPUs than the claim's; remove one of the two."
    for entry in spec.resource_claims or ():
        if entry.name in gpu_entries:
            yield f"spec.resourceClaims: {_shown(entry.name)} asks for GPUs {beside}; remove one of the two."
    resource = config.count_resource
    if claim is not None and resource:
        asked, count = allocation.total(spec.containers, init, resource), claim.count
        if asked not in {0, count}:
            number = "not a whole number" if asked is None else str(asked)
            yield f"{resource}: is {number}, and GpuClaim {name} is for {count}; leave it out, it is added."


def _with_claim(
    raw: Mapping[str, Any],
    spec: _Spec,
    annotations: Mapping[str, str],
    claim: Claim | None,
    config: Config,
) -> AdmissionVerdict:
    forged = (key for key in names.FORGEABLE if key in annotations)
    patch = [jsonpatch.remove(jsonpatch.pointer("metadata", "annotations", key)) for key in forged]
    patch += _variables(spec, REFERENCES)
    resource, main, init = config.count_resource, spec.containers, spec.init_containers or ()
    if claim is not None and resource and main and allocation.total(main, init, resource) == 0:
        resources = dict(raw["containers"][0].get("resources") or {})
        for part in ("limits", "requests"):
            resources[part] = {**(resources.get(part) or {}), resource: str(claim.count)}
        patch.append(jsonpatch.add("/spec/containers/0/resources", resources))
    if _TOLERATION not in (spec.tolerations or ()):
        tolerations = [*(spec.tolerations or ()), _TOLERATION]
        patch.append(jsonpatch.add("/spec/tolerations", tolerations))
    gates, ours = raw.get("schedulingGates") or [], {"name": names.GATE}
    if (claim is None or claim.gang is not None) and ours not in gates:
        patch.append(jsonpatch.add("/spec/schedulingGates", [*gates, ours]))
    scheduler = config.scheduler_name
    if spec.scheduler_name == scheduler:
        return AdmissionVerdict(patch=tuple(patch))
    patch.append(jsonpatch.add("/spec/schedulerName", scheduler))
    warning = f"spec.schedulerName: set to {scheduler}, as the pod names a GpuClaim"
    return AdmissionVerdict(patch=tuple(patch), warnings=(warning,))


def _without_claim(spec: _Spec, annotations: Mapping[str, str], config: Config) -> AdmissionVerdict:
    allocated = annotations.get(names.ALLOCATED_ANNOTATION)
    if allocated is not None and allocation.parse_allocated(allocated) is None:
        why = f"{_shown(allocated)} is not <node>:<id>,<id>; write e.g. node-a:0,1."
        return AdmissionVerdict(refused=f"annotation {names.ALLOCATED_ANNOTATION}: {why}")
    # As it was written, in that order.
    entries = ({"name": CUDA, "value": allocated.partition(":")[2]},) if allocated else ()
    patch = _variables(spec, entries, guard=config.guard_others)
    return AdmissionVerdict(patch=tuple(patch))


def _variables(spec: _Spec, entries: Sequence[Entry], *, guard: bool = False) -> list[Operation]:
    """``guard``: no container says itself which GPUs it sees. One that asks a device plugin gets
    the plugin's variable, over which the container's own would win.
    """
    patch: list[Operation] = []
    kinds = {"initContainers": spec.init_containers or (), "containers": spec.containers}
    for kind, containers in kinds.items():
        for n, container in enumerate(containers):
            now = container.env or []
            wanted = with_variables(now, (*(VOID if guard else ()), *entries))
            if guard and _of_plugin(container):
                wanted.remove(VOID[0])
            if now != wanted:
                patch.append(jsonpatch.add(f"/spec/{kind}/{n}/env", wanted))
    return patch


def with_variables(env: Sequence[Entry], entries: Sequence[Entry]) -> list[Entry]:
    """``env`` with exactly ``entries``: the first of a name is replaced in place, further ones of
    it go, others are appended in order.
    """
    left = {entry["name"]: entry for entry in entries}
    result, ours = list[Entry](), frozenset(left)
    for entry in env:
        if str(name := entry.get("name")) not in ours:
            result.append(entry)
        elif name in left:
            result.append(left.pop(name))
    return [*result, *left.values()]


def _of_plugin(container: _Container, implicit: Sequence[str] = ()) -> set[str]:
    return {
        key
        for part in allocation.resource_lists(container)
        for key, amount in part.items()
        if (key.startswith(names.PLUGIN_RESOURCES) or key in implicit)
        and str(amount) not in {"0", ""}
    }


def claim_of(pod: Mapping[str, Any]) -> str:
    """The name of the claim that a pod names as it came; empty where there is none."""
    match pod:
        case {"metadata": {"annotations": {names.CLAIM_ANNOTATION: str(name)}}}:
            return name if names.is_object_name(name) else ""
    return ""


def _shown(text: str) -> str:
    return f'"{one_line(text, 60)}"'
