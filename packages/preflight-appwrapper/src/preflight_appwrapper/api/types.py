"""The fields of Kubernetes objects that are read here, and no others. Pure.

Every Struct is filled by :func:`lenient`, which never raises: a wrapper that was edited by hand, or
a pod that cannot be decoded, still has to be deleted in the end. Texts that anybody may write
without a limit have one here.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec
from preflight_kube.api.quantities import parse_quantity
from preflight_kube.text import shared
from preflight_proto.devices import IMPLICIT

from preflight_appwrapper.api.names import CLAIMED, MANAGER

T = TypeVar("T")
Phase = Literal[
    "",
    "Suspended",
    "Resuming",
    "Running",
    "Suspending",
    "Resetting",
    "Succeeded",
    "Failed",
    "Terminating",
]
ClaimRef = tuple[str, str]
"""Kind and name of a ResourceClaim or ResourceClaimTemplate of the wrapper's namespace."""
Time = Annotated[datetime, msgspec.Meta(tz=True)]
"""A time with its zone, which all of Kubernetes' times have."""
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
DEPLOYED: Final[tuple[Phase, ...]] = ("Resuming", "Running", "Resetting")
"""Phases of a wrapper that runs, or will again by itself."""
MOST_FINALIZERS: Final = 64
"""Of an AppWrapper; all are written back when ours is."""
MOST_MESSAGE: Final = 4096
"""Characters; also what a kubelet keeps of one termination message."""
_MOST_NAME: Final = 1024
_OPTIONAL: Final[dict[str, Any]] = {
    "resettingCount": 0,
    "migrationCount": 0,
    "observedGeneration": 0,
    "uid": "",
    "replicas": None,
    "annotations": {},
}
"""Fields of a status that need not be written, with what they say where they are not."""
_MOST_INT: Final = 2**31 - 1


class _Object(msgspec.Struct, rename="camel", frozen=True, kw_only=True, gc=False):
    """Keys in camel case. None of them can be part of a cycle."""


def _cut(struct: msgspec.Struct, name: str, most: int) -> None:
    value = getattr(struct, name)
    if len(value) > most:
        msgspec.structs.force_setattr(struct, name, value[: most - 1] + "…")


def _clamped(value: int) -> int:
    return min(max(value, 0), _MOST_INT)


class OwnerReference(_Object, frozen=True, kw_only=True):
    """metav1.OwnerReference."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None

    def __post_init__(self) -> None:
        for name in ("api_version", "kind", "name", "uid"):  # one owner's pods share its texts
            msgspec.structs.force_setattr(self, name, shared(getattr(self, name)))


class Metadata(_Object, frozen=True, kw_only=True):
    """metav1.ObjectMeta, as far as it is read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    created: datetime | None = msgspec.field(name="creationTimestamp", default=None)
    deletion_timestamp: datetime | None = None
    finalizers: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        """Namespace and name, as a work queue has them."""
        return self.namespace, self.name

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the object; None where nobody does."""
        for owner in self.owner_references:
            if owner.controller:
                return owner
        return None


class Condition(_Object, frozen=True, kw_only=True):
    """metav1.Condition."""

    type: str = ""
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: Time | None = None
    observed_generation: int = 0

    def __post_init__(self) -> None:
        _cut(self, "message", MOST_MESSAGE)
        _cut(self, "reason", _MOST_NAME)
        _cut(self, "type", _MOST_NAME)


class PodSet(_Object, frozen=True, kw_only=True):
    """Equal pods of a component; ``path`` is where in it their template is."""

    path: str = ""
    replicas: int | None = None
    annotations: dict[str, str] = {}

    @property
    def count(self) -> int:
        """Pods: 1 where nothing is said, never below 0."""
        return 1 if self.replicas is None else _clamped(self.replicas)


class SchedulingGate(_Object, frozen=True, kw_only=True):
    """A name that a pod waits for before it is scheduled."""

    name: str = ""


class PodSetInfo(_Object, frozen=True, kw_only=True):
    """Kueue's wishes for the pods of one pod set."""

    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()


class Component(_Object, frozen=True, kw_only=True):
    """``template`` is the complete manifest, as it was written."""

    template: Any = None
    pod_sets: tuple[PodSet, ...] = ()
    pod_set_infos: tuple[PodSetInfo, ...] = ()
    annotations: dict[str, str] = {}


class AppWrapperSpec(_Object, frozen=True, kw_only=True):
    """The wrapped components, whether it may run, and which controller is in charge of it."""

    components: tuple[Component, ...] = ()
    suspend: bool = False
    managed_by: str | None = None


class ComponentStatus(_Object, frozen=True, kw_only=True):
    """``uid`` is ours, and absent where another CRD prunes it."""

    name: str = ""
    kind: str = ""
    api_version: str = ""
    pod_sets: tuple[PodSet, ...] = ()
    conditions: tuple[Condition, ...] = ()
    uid: str = ""

    @property
    def expected(self) -> int:
        """Pods that there should be of it."""
        return sum(pod_set.count for pod_set in self.pod_sets)


class AppWrapperStatus(_Object, frozen=True, kw_only=True):
    """The phase that it has reached; how often it was reset, and evacuated in a row."""

    phase: str = ""
    resetting_count: int = 0
    conditions: tuple[Condition, ...] = ()
    component_status: tuple[ComponentStatus, ...] = ()
    migration_count: int = 0

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "resetting_count", _clamped(self.resetting_count))
        msgspec.structs.force_setattr(self, "migration_count", _clamped(self.migration_count))
        _cut(self, "phase", _MOST_NAME)

    @property
    def expected(self) -> int:
        """Pods that there should be."""
        return sum(component.expected for component in self.component_status)


class AppWrapper(_Object, frozen=True, kw_only=True):
    """One wrapper; what could not be read of it has its default."""

    metadata: Metadata = Metadata()
    spec: AppWrapperSpec = AppWrapperSpec()
    status: AppWrapperStatus = AppWrapperStatus()

    @property
    def ours(self) -> bool:
        """Say whether this controller looks after it."""
        return self.spec.managed_by in {None, "", MANAGER}


class _Resources(_Object, frozen=True, kw_only=True):
    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class _Container(_Object, frozen=True, kw_only=True):
    name: str = ""
    resources: _Resources = _Resources()
    restart_policy: str = ""


class Running(_Object, frozen=True, kw_only=True):
    """A container's state."""

    started_at: Time | None = None


class Terminated(_Object, frozen=True, kw_only=True):
    """A container's state; ``message`` is what it has left behind."""

    exit_code: int = 0
    reason: str = ""
    message: str = ""
    started_at: Time | None = None
    finished_at: Time | None = None

    def __post_init__(self) -> None:
        _cut(self, "message", MOST_MESSAGE)
        _cut(self, "reason", _MOST_NAME)


class _State(_Object, frozen=True, kw_only=True):
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(_Object, frozen=True, kw_only=True):
    """``last_state``: of its run before."""

    name: str = ""
    state: _State = _State()
    last_state: _State = _State()


class _ClaimEntry(_Object, frozen=True, kw_only=True):
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(_Object, frozen=True, kw_only=True):
    """As far as a decision asks for it."""

    node_name: str = ""
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    resource_claims: tuple[_ClaimEntry, ...] = ()

    @property
    def claims(self) -> list[ClaimRef]:
        """The claims and claim templates that it names."""
        entries = self.resource_claims
        claims = [("ResourceClaimTemplate", it.resource_claim_template_name) for it in entries]
        claims += [("ResourceClaim", entry.resource_claim_name) for entry in entries]
        return [ref for ref in claims if ref[1]]

    @property
    def sidecars(self) -> frozenset[str]:
        """Names of init containers that run beside the others, and are stopped after them."""
        inits = self.init_containers
        return frozenset(init.name for init in inits if init.restart_policy == "Always")

    def only(self, resources: Iterable[str]) -> PodSpec:
        """The same, in one container, with what is asked of these alone."""
        return _asking(self.node_name, tuple(name for name in resources if self.asks(name)))

    def asks(self, resource: str) -> bool:
        """Say whether a container, or sidecar, requests any ``resource``, or that device class."""
        return any(
            _positive(amounts.get(resource)) or _positive(amounts.get(IMPLICIT + resource))
            for container in (*self.containers, *self.init_containers)
            for amounts in (container.resources.requests, container.resources.limits)
        )


@lru_cache(maxsize=4096)
def _asking(node: str, resources: tuple[str, ...]) -> PodSpec:
    """One for all pods of a node that ask for the same."""
    limits: dict[str, str | int | float] = dict.fromkeys(resources, 1)
    kept = (_Container(resources=_Resources(limits=limits)),) if resources else ()
    return PodSpec(node_name=node, containers=kept)


class _PodStatus(_Object, frozen=True, kw_only=True):
    phase: str = "Unknown"
    reason: str = ""
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(_Object, frozen=True, kw_only=True):
    """As far as a decision asks for it. ``component``: its number, where that is written on it."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: _PodStatus = _PodStatus()
    component: int = -1

    @property
    def name(self) -> str:
        """Within its namespace."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """The uid of this very pod."""
        return self.metadata.uid

    @property
    def node(self) -> str:
        """Empty while it is not scheduled."""
        return self.spec.node_name

    @property
    def going(self) -> bool:
        """It is being deleted, and counts as neither pending nor running."""
        return self.metadata.deletion_timestamp is not None

    @property
    def owner(self) -> str:
        """The uid of its controller."""
        controller = self.metadata.controller
        return controller.uid if controller else ""

    def asks(self, resource: str) -> bool:
        """Say whether it asks for more than none of ``resource``, a claim's device class too."""
        claimed = self.metadata.annotations.get(CLAIMED, "").split(",")
        return resource in claimed or self.spec.asks(resource)


def _positive(quantity: str | float | None) -> bool:
    if not isinstance(quantity, str):
        return quantity is not None and quantity > 0
    try:
        return parse_quantity(quantity) > 0
    except ValueError:
        return False


# --- decoding that does not give up an object for one bad field

_FAILS: Final = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)


def lenient(type_: type[T], raw: object) -> T:
    """``raw`` as the Struct ``type_``, every field of which has a default. Never raises. Where it
    cannot be read as a whole, it is read field by field and item by item: what cannot be read has
    its default, and a Struct in a list keeps its place, for some lists run parallel to others.
    """
    (value,) = _readable(type_, raw)
    assert isinstance(value, type_)
    return value


def _readable(wanted: Any, raw: object) -> tuple[Any, ...]:
    """``raw`` as ``wanted``, alone in a tuple; an empty one where nothing of it can be read."""
    try:
        return (msgspec.convert(raw, wanted),)
    except _FAILS:
        pass
    parts = get_args(wanted)
    if isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
        given = raw if isinstance(raw, dict) else {}
        values = {
            field.name: value
            for field in msgspec.structs.fields(wanted)
            if given.get(field.encode_name) is not None
            for value in _readable(field.type, given[field.encode_name])
        }
        return (wanted(**values),)
    if get_origin(wanted) is tuple and isinstance(raw, list | tuple):
        return (tuple(value for item in raw for value in _readable(parts[0], item)),)
    if get_origin(wanted) is dict and isinstance(raw, dict):
        named = [(key, item) for key, item in raw.items() if isinstance(key, str)]
        return ({key: value for key, item in named for value in _readable(parts[1], item)},)
    return ()


def wrapper_from(raw: object) -> AppWrapper:
    """The AppWrapper in plain data. Never raises: what cannot be read has its default."""
    return lenient(AppWrapper, raw)


def written(status: AppWrapperStatus) -> Any:
    """``status`` as the API server wants it: optional fields only where they say something."""
    return _without_defaults(msgspec.to_builtins(status))


def _without_defaults(raw: Any) -> Any:
    if isinstance(raw, dict):
        return {
            key: _without_defaults(value)
            for key, value in raw.items()
            if key not in _OPTIONAL or value not in (_OPTIONAL[key], None)
        }
    return [_without_defaults(item) for item in raw] if isinstance(raw, list | tuple) else raw
