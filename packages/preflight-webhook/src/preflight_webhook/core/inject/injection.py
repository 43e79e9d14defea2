"""The init containers that a pod gets, and the volumes they need.

The invariant: injection changes what the pod is checked with, never what it costs. An init
container runs before the others, so it may use what the pod reserves anyway (its *room*); asking
for no more than that changes no effective request and no QoS class.

Every field that the API server would default is written out: what we inject is compared with what
comes back when another webhook has us called again.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from preflight_kube.api.jsonpatch import Operation, add
from preflight_kube.api.quantities import (
    UNIT,
    fractional_cpu,
    parse_quantity,
    quantity_text,
    whole_bytes,
    whole_millicores,
)
from preflight_proto import names
from preflight_proto.roster import FILE as ROSTER_FILE

from preflight_webhook.config import extra_volumes as extras
from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.core.decision import UnreadEnvFrom
from preflight_webhook.core.detect.devices import NO_GPU, PodDevices
from preflight_webhook.core.detect.resources import (
    COMPUTE,
    Demand,
    InjectionPoint,
    ResourceTally,
    StartStep,
    matches,
)
from preflight_webhook.core.inject import inheritance
from preflight_webhook.core.inject.inheritance import ContainerSettings, EmptyVolume, Inherited

_encode = msgspec.json.Encoder().encode
_UID: Final = 65532  # no user of any image; the check's files are world-readable
SECURITY: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsGroup": _UID,
    "runAsNonRoot": True,
    "runAsUser": _UID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_FIELDS: Final = (
    (names.ENV_NODE_NAME, "spec.nodeName"),
    (names.ENV_NODE_IP, "status.hostIP"),
    (names.ENV_POD_NAME, "metadata.name"),
    (names.ENV_POD_UID, "metadata.uid"),
    (names.ENV_POD_IP, "status.podIP"),
)


class Injection(msgspec.Struct):
    """What to add: ``containers`` at ``position`` among the init containers and ``last`` behind all
    of them, ``volumes`` (operations on a pod that has some), ``labels``, ``annotations``, and names
    of ``pull_secrets``."""

    position: int = 0
    containers: list[msgspec.Raw] = []
    last: list[msgspec.Raw] = []
    volumes: list[Operation] = []
    pull_secrets: list[str] = []
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class WorkloadTraits(NamedTuple):
    """Facts of a pod that decide about its checks' containers, not their resources.

    ``settings`` and whether GPUs are given (``gpus``): of the containers (the first ``containers``
    of them) and init containers, where any check inherits; ``empty``: the pod's emptyDirs;
    ``reports``: whether the connector's socket may be mounted; ``named_devices``: whether variables
    of the operator's say which GPUs a container sees; ``profiled``: whether checks need an AppArmor
    profile of their own.
    """

    settings: tuple[ContainerSettings, ...] = ()
    gpus: tuple[bool, ...] = ()
    containers: int = 0
    empty: tuple[EmptyVolume, ...] = ()
    reports: bool = True
    named_devices: bool = False
    profiled: bool = False


class CheckTemplate(NamedTuple):
    """The checks of pods that differ in no more than CPU, memory and gang, at ``position`` and at
    ``last`` among the init containers. ``containers``: of each check its placement, its JSON up to
    its resources, which stand last, and which of ``shares`` it gets; ``volumes``: by name, as they
    are added.
    """

    position: int
    last: int
    containers: list[tuple[str, bytes, int]]
    shares: list[_Granted]
    volumes: dict[str, Operation]
    pull_secrets: list[str]
    own: Mapping[str, Demand]
    warnings: list[str]
    unseen: list[UnreadEnvFrom]


_ALWAYS: Final = frozenset({"gpu", "network", "mirrored"})
"""Kinds of devices that every check gets."""


def inject(
    template: CheckTemplate,
    first: InjectionPoint,
    last: InjectionPoint,
    containers: int,
    gang_config_map: str | None,
) -> Injection:
    """The checks for a pod that carries none of our containers: CPU and memory as reserved from
    where they stand, by how many ``containers`` and init containers. ``gang_config_map``: the
    gang's, where the pod takes part in one.
    """
    texts = [
        _encode(_resources(share, first if share.is_first else last, template.own, containers))
        for share in template.shares
    ]
    placed: dict[str, list[msgspec.Raw]] = {"first": [], "last": []}
    for placement, container, share in template.containers:
        placed[placement].append(msgspec.Raw(b'%s,"resources":%s}' % (container, texts[share])))
    volumes = template.volumes
    if gang_config_map is not None:
        volumes = {**volumes, names.GANG_VOLUME: _gang_volume(gang_config_map)}
    return Injection(
        template.position,
        placed["first"],
        placed["last"],
        [*volumes.values()],
        template.pull_secrets,
        {names.CHECKED_LABEL: names.CHECKED},
    )


def template(  # noqa: PLR0917
    config: Config,
    checks: Sequence[CheckConfig],
    workload: WorkloadTraits,
    devices: PodDevices,
    places: tuple[InjectionPoint, InjectionPoint],
    own: Mapping[str, Demand],
    pull_secrets: Collection[str],
) -> CheckTemplate:
    """Template for pods with these ``devices``, resources of their ``own`` (`spec.resources`), by
    name, and ``pull_secrets``. ``places``: where checks stand, first or last. Raises
    :class:`BadReview` when a security context is none.
    """
    secrets = [
        name for name in dict.fromkeys(config.check_image_pull_secrets) if name not in pull_secrets
    ]
    of = CheckTemplate(places[0].position, places[1].position, [], [], {}, secrets, own, [], [])
    sources = inheritance.sources(workload.settings, workload.gpus, workload.containers)
    ipc_lock = inheritance.locks_memory(workload.settings)
    for check in checks:
        share = _granted(config, check, devices, places, workload)
        if share not in of.shares:  # the same of most
            of.shares.append(share)
        inherited = inheritance.inherit(check, config, sources, workload.empty)
        case = _Case(check, config, workload, share.gpus, inherited, ipc_lock)
        text = _encode(_container(case))[:-1]
        of.containers.append((check.placement, text, of.shares.index(share)))
        for volume in _volumes(case):
            of.volumes[volume.name] = _added({"name": volume.name, **volume.source})
        if inherited is not None:
            of.warnings.extend(inherited.warnings)
            of.unseen.extend(inherited.unseen)
    for extra in extras.volumes([volume for check in checks for volume in check.extra_volumes]):
        of.volumes[extra["name"]] = _added(extra)
    return of


def _added(volume: Mapping[str, Any]) -> Operation:
    return add("/spec/volumes/-", msgspec.Raw(_encode(volume)))


def place(init: Sequence[StartStep], provider_globs: Sequence[str]) -> int:
    """Where the checks stand: behind the last of the provider's own init containers, such as a
    network plugin's daemon that NCCL needs."""
    return max((i + 1 for i, c in enumerate(init) if matches(c.name, provider_globs)), default=0)


class _Granted(NamedTuple):
    """Devices that a check gets: amounts of resources, claims, and how many GPUs that makes, None
    where it is not known: the variables may say which, and no resource how many. ``most``: that it
    may have of CPU and memory (:func:`_most`).
    """

    is_first: bool
    amounts: dict[str, str]
    claims: list[dict[str, str]]
    gpus: int | None
    most: list[tuple[int | None, int | None]]


def _granted(
    config: Config,
    check: CheckConfig,
    devices: PodDevices,
    places: tuple[InjectionPoint, InjectionPoint],
    workload: WorkloadTraits,
) -> _Granted:
    """Those that the check can test: beside whole GPUs a pod may have slices, which would bend what
    it finds.
    """
    is_first = check.placement == "first"
    accounts = places[not is_first].accounts
    amounts, claims, gpus, known = dict[str, str](), list[dict[str, str]](), 0, True
    for name, (kind, reserved) in devices.resources.items():
        if kind not in _ALWAYS and kind not in check.supports:
            continue
        account = accounts[name]
        room = (reserved or 0) - account.requests.held // UNIT
        if config.gpu_count == "max":
            room = min(room, account.largest // UNIT)
        if room <= 0:
            continue
        amounts[name] = str(room)
        if kind == "gpu":
            gpus += room
        elif kind != "network":  # how many devices that makes, nobody knows here
            known = False
    for name, (kind, number) in devices.claims.items():
        if kind in _ALWAYS or kind in check.supports:
            claims.append({"name": name})
            if kind not in NO_GPU:
                gpus, known = gpus + (number or 0), known and number is not None
    number = gpus if known and (gpus or not workload.named_devices) else None
    return _Granted(is_first, amounts, claims, number, _most(check))


def _resources(
    share: _Granted, place: InjectionPoint, own: Mapping[str, Demand], everyone: int
) -> dict[str, Any]:
    """Resources of a check's container."""
    accounts = place.accounts
    requests, limits = dict(share.amounts), dict(share.amounts)
    guaranteed = not own and accounts["cpu"].equal == accounts["memory"].equal == everyone
    for name, most in zip(COMPUTE, share.most, strict=True):
        account = accounts[name]
        if name in own:
            request, limit = _within(name, account, own[name], most)
        else:
            bound = account.limits.room if account.limited == everyone else None
            larger = account.largest if guaranteed else None
            request, limit = _compute(name, account.requests.room, bound, most, larger)
        if request:
            requests[name] = request
        if limit:
            limits[name] = limit
    resources = {"requests": requests, "limits": limits, "claims": share.claims}
    # What is empty does not come back from the API server.
    return {key: value for key, value in resources.items() if value}


def _most(check: CheckConfig) -> list[tuple[int | None, int | None]]:
    """The most (request, limit) of CPU and of memory that the operator lets a check have, in
    nano-units; None: as much as the pod has.
    """
    sides = check.resources.requests, check.resources.limits
    amounts = [[getattr(side, name) for side in sides] for name in COMPUTE]
    read = [[None if of is None else parse_quantity(str(of)) for of in pair] for pair in amounts]
    return [(request, limit) for request, limit in read]


def _compute(
    name: str,
    room: int,
    bound: int | None,
    most: tuple[int | None, int | None],
    largest: int | None,
) -> tuple[str, str]:
    """(request, limit) of CPU or memory within the pod's ``room``, and no more than ``most``; empty
    means unset. ``bound``: the room below the limits, where all containers have one; ``largest``:
    the most that one of them requests, of a Guaranteed pod.
    """
    request, limit = _at_most(room, most[0]), 0
    if bound is not None:
        # A quota on limits counts them like requests, and refuses a container without one.
        limit = _at_most(bound, most[1])
        request = min(request, limit)
    if largest is not None:
        # Whole cores of a Guaranteed pod are pinned. As many as one container of the workload gets
        # are there for it anyway; the sum of several may not be, and the kubelet would refuse the
        # pod.
        if name == "cpu" and request != largest:
            request = fractional_cpu(request)
        limit = request
    return _written(name, request, limit)


def _within(
    name: str, account: ResourceTally, own: Demand, most: tuple[int | None, int | None]
) -> tuple[str, str]:
    """(request, limit) of a check in a pod whose own resources say what it costs and which QoS
    class it has.

    Without amounts of its own a container may use all that the pod may, so they are only there to
    hold it to ``most``. Together, containers may request no more than the pod, and each is limited
    to no more than it.
    """
    limit = 0 if most[1] is None else min(most[1], own.limit or most[1])
    least = [bound for bound in (most[0], limit) if bound]
    request = max(min(*least, own.request - account.requests.held), 0) if least else 0
    return _written(name, request, limit)


def _written(name: str, request: int, limit: int) -> tuple[str, str]:
    """A limit alone would be a request, too."""
    whole = whole_millicores if name == "cpu" else whole_bytes
    request, limit = whole(request), whole(limit)
    most = quantity_text(limit) if limit > 0 else ""
    if request == limit:
        return most, most
    return quantity_text(request) if request > 0 or most else "", most


def _at_most(amount: int, most: int | None) -> int:
    return amount if most is None else min(amount, most)


class _Case(NamedTuple):
    """Facts that decide about a check's container. ``expected``: GPUs, None where not known;
    ``ipc_lock``: whether it may lock memory.
    """

    check: CheckConfig
    config: Config
    workload: WorkloadTraits = WorkloadTraits()
    expected: int | None = None
    inherited: Inherited | None = None
    ipc_lock: bool = False

    @property
    def sends_token(self) -> bool:
        """Whether the connector wants to know who reports."""
        return self.workload.reports and self.config.platform_connector.auth.enabled

    @property
    def maps_topologies(self) -> bool:
        """Whether NCCL's topology file is chosen by the node's instance type."""
        topology = self.config.nccl_topology
        mapped = bool(topology.instance_type_mapping) or not topology.enable_fallback
        return self.check.nccl and mapped


class _Volume(NamedTuple):
    name: str
    path: str
    source: dict[str, Any]
    read_only: bool = True


def _field(path: str) -> dict[str, str]:
    return {"apiVersion": "v1", "fieldPath": path}


def _shown(files: Mapping[str, str]) -> list[dict[str, Any]]:
    """The pod's own annotations as files, by name; items of a downwardAPI."""
    return [
        {"path": file, "fieldRef": _field(f"metadata.annotations['{annotation}']")}
        for file, annotation in files.items()
    ]


def _projected(*sources: dict[str, Any]) -> dict[str, Any]:
    return {"projected": {"sources": [*sources], "defaultMode": 0o644}}


_EMPTY: Final[dict[str, Any]] = {"emptyDir": {}}
_NODE_FILES: Final = _shown(
    {
        posixpath.basename(names.INSTANCE_TYPE_PATH): names.INSTANCE_TYPE_ANNOTATION,
        posixpath.basename(names.TOPOLOGY_PATH): names.TOPOLOGY_ANNOTATION,
    }
)
_GANG_FILES: Final = _shown(
    {ROSTER_FILE: names.ROSTER_ANNOTATION, names.TOPOLOGY_FILE: names.TOPOLOGY_ANNOTATION}
)


def _volumes(case: _Case) -> Iterator[_Volume]:
    """Those of ours that a check gets."""
    check, connector = case.check, case.config.platform_connector
    if case.workload.reports:
        folder = {"hostPath": {"path": connector.socket_dir, "type": "DirectoryOrCreate"}}
        yield _Volume(names.SOCKET_VOLUME, names.SOCKET_DIR, folder)
    yield _Volume(names.TMP_VOLUME, "/tmp", _EMPTY, read_only=False)  # noqa: S108
    # In the place of the token that would be mounted here: a check has no business with the API
    # server.
    yield _Volume(names.SERVICE_ACCOUNT_VOLUME, names.SERVICE_ACCOUNT_DIR, _EMPTY)
    if case.sends_token:
        auth = connector.auth
        token = {"audience": auth.audience, "expirationSeconds": auth.expiration_seconds}
        source = _projected({"serviceAccountToken": {**token, "path": "token"}})
        yield _Volume(names.TOKEN_VOLUME, names.TOKEN_DIR, source)
    if check.gang_wide:
        yield _Volume(names.GANG_VOLUME, names.GANG_DIR, {})  # of each gang another
        # Where a check writes the generation of the gang that it joined.
        yield _Volume(names.STATE_VOLUME, names.STATE_DIR, _EMPTY, read_only=False)
    if case.maps_topologies:
        source = {"downwardAPI": {"items": _NODE_FILES, "defaultMode": 0o644}}
        yield _Volume(names.NODE_VOLUME, names.NODE_DIR, source)
    # A container gets 64 MiB of it, which NCCL outgrows; where the workload brings a larger one,
    # that one is used.
    if check.nccl and not (case.inherited and names.SHM_DIR in case.inherited.mounts):
        memory = {"emptyDir": {"medium": "Memory"}}
        yield _Volume(names.SHM_VOLUME, names.SHM_DIR, memory, read_only=False)


def _gang_volume(config_map: str) -> Operation:
    """The annotations stand last: of two sources with one file name the kubelet takes the later,
    and the annotation alone decides. Roster and topology are in one volume, so that the check sees
    both or neither.
    """
    roster = {"configMap": {"name": config_map, "optional": True}}
    files = _projected(roster, {"downwardAPI": {"items": _GANG_FILES}})
    return _added({"name": names.GANG_VOLUME, **files})


def _container(case: _Case) -> dict[str, Any]:
    """One init container but for its resources."""
    check, inherited = case.check, case.inherited
    mounts: list[dict[str, Any]] = []
    for volume in _volumes(case):
        mount = {"name": volume.name, "mountPath": volume.path}
        mounts.append({**mount, "readOnly": True} if volume.read_only else mount)
    mounts += extras.mounts(check.extra_volume_mounts)
    env = _env(case)
    if case.workload.named_devices:
        env += [variable.entry for variable in case.config.device_variables.variables]
    if inherited is not None:
        ours = {entry["name"] for entry in env}
        env += [entry for entry in inherited.env if entry["name"] not in ours]
        there = {mount["mountPath"] for mount in mounts}
        mounts += [m for m in inherited.mounts.values() if m["mountPath"] not in there]
    security = SECURITY
    if case.ipc_lock and check.nccl:
        security = {**SECURITY, "capabilities": {"add": ["IPC_LOCK"], "drop": ["ALL"]}}
    if case.workload.profiled:  # not named elsewhere: a node without AppArmor would refuse the pod
        security = {"appArmorProfile": {"type": "RuntimeDefault"}, **security}
    container = {
        "name": names.container_name(check.name),
        "image": check.image,
        "imagePullPolicy": check.image_pull_policy,
        "env": env,
        "volumeMounts": mounts,
        "terminationMessagePath": names.RESULT_PATH,
        "terminationMessagePolicy": "File",
        "securityContext": overlaid(security, check.security_context),
    }
    laid = overlaid(container, check.container)
    # Of our volumes a pod gets those that its checks need there: what an operator mounts of others
    # would make the API server refuse it.
    present = {mount["name"] for mount in mounts}
    if laid.get("volumeMounts"):
        laid["volumeMounts"] = [mount for mount in laid["volumeMounts"] if mount["name"] in present]
    return laid


def variables_of(check: CheckConfig, config: Config) -> list[dict[str, Any]]:
    """The environment that a check gets of us and of the operator, in its order."""
    own = {"env": check.container["env"]} if check.container.get("env") else {}
    env: list[dict[str, Any]] = overlaid({"env": _env(_Case(check, config))}, own)["env"]
    return env


def _env(case: _Case) -> list[dict[str, Any]]:
    """The environment of one check; what is empty is left out. The fields come first: `$(NODE_IP)`
    in a later value refers to them.
    """
    check, config = case.check, case.config
    values = {
        names.ENV_CONNECTOR_SOCKET: names.SOCKET_URI if case.workload.reports else names.SOCKET_OFF,
        names.ENV_EXPECTED_GPUS: _number(case.expected),
        names.ENV_PROCESSING_STRATEGY: config.processing_strategy,
        names.ENV_GATE: check.enforcement,
        names.ENV_CHECK_TIMEOUT: check.timeout or config.check_timeout,
        names.ENV_ON_INCONCLUSIVE: check.on_inconclusive or "",
        names.ENV_CONNECTOR_TOKEN_PATH: names.TOKEN_PATH if case.sends_token else "",
    }
    if check.name == names.DCGM_DIAG:
        values[names.ENV_DCGM_LEVEL] = str(config.dcgm.diag_level)
        values[names.ENV_DCGM_HOSTENGINE] = ",".join(config.dcgm.engines)
    if check.name == names.NCCL_LOOPBACK:
        values[names.ENV_LOOPBACK_THRESHOLD] = _number(config.nccl.loopback_threshold_g_bps)
    if check.gang_wide:
        values[names.ENV_GANG_TIMEOUT] = config.gang_timeout
        values[names.ENV_GANG_CONFIG_DIR] = names.GANG_DIR
        values[names.ENV_STATE_DIR] = names.STATE_DIR
        values[names.ENV_ALLREDUCE_THRESHOLD] = _number(config.nccl.allreduce_threshold_g_bps)
    if case.maps_topologies:
        topology = config.nccl_topology
        mapping = sorted(topology.instance_type_mapping.items())
        values[names.ENV_INSTANCE_TYPE_PATH] = names.INSTANCE_TYPE_PATH
        values[names.ENV_TOPOLOGY_PATH] = names.TOPOLOGY_PATH
        values[names.ENV_TOPOLOGY_MAP] = ",".join(f"{kind}={file}" for kind, file in mapping)
        values[names.ENV_TOPOLOGY_FALLBACK] = "" if topology.enable_fallback else "false"
    values |= {var.name: var.value for var in check.env}
    fields = [
        {"name": name, "valueFrom": {"fieldRef": _field(path)}}
        for name, path in _FIELDS
        if name not in values
    ]
    return [*fields, *({"name": name, "value": value} for name, value in values.items() if value)]


def _number(of: float | None) -> str:
    return "" if of is None else f"{of:g}"


_KEYS: Final = {
    "env": "name",
    "volumeMounts": "mountPath",
}
"""Lists whose entries are known by a field, as in Kubernetes' strategic merge patch; other lists
are replaced.
"""


def overlaid(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``under`` with ``over`` on top: maps merge, keyed lists merge by key, null removes, anything
    else replaces.
    """
    merged = dict(under)
    for key, value in over.items():
        there = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(there, Mapping):
            merged[key] = overlaid(there, value)
        elif key in _KEYS and isinstance(value, list) and isinstance(there, list):
            merged[key] = [*{entry[_KEYS[key]]: entry for entry in [*there, *value]}.values()]
        else:
            merged[key] = value
    return merged
