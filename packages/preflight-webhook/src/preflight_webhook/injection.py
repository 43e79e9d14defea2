"""The init containers that a pod gets, and the volumes they need.

The invariant: injection changes what the pod is checked with, never what it costs. An init container runs before the others, so it may
use what the pod reserves anyway (its *room*); asking for no more than that changes no effective request and no QoS class.

Every field that the API server would default is written out: what we inject is compared with what comes back when another webhook
has us called again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from preflight_proto import names
from preflight_proto.roster import FILE as ROSTER_FILE

from .config import CheckConfig, Config
from .detection import COMPUTE, Account, Step
from .quantities import UNIT, fractional_cpu, quantity_text

__all__ = ["Injection", "inject", "place"]

UID: Final = 65532  # no user of any image; the check's files are world-readable
_SECURITY: Final = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "privileged": False,
    "readOnlyRootFilesystem": True,
    "runAsGroup": UID,
    "runAsNonRoot": True,
    "runAsUser": UID,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_FIELDS: Final = (
    (names.ENV_NODE_NAME, "spec.nodeName"),
    (names.ENV_NODE_IP, "status.hostIP"),
    (names.ENV_POD_NAME, "metadata.name"),
    (names.ENV_POD_UID, "metadata.uid"),
    (names.ENV_POD_IP, "status.podIP"),
)


@dataclass(frozen=True, slots=True)
class Injection:
    """What to add: ``containers`` at ``position`` among the init containers, ``volumes``, ``labels`` and ``annotations``."""

    position: int = 0
    containers: list[dict[str, Any]] = field(default_factory=list)
    volumes: list[dict[str, Any]] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)


def inject(
    config: Config,
    checks: Sequence[CheckConfig],
    accounts: Mapping[str, Account],
    devices: Mapping[str, int],
    *,
    position: int,
    compute_of: int,
    gang_config_map: str | None,
) -> Injection:
    """The checks for a pod that carries none of our containers.

    ``accounts`` and ``devices`` are what the scheduler reserves; ``compute_of`` is the number of containers from which CPU and
    memory of the pod come (0: from resources of its own); ``gang_config_map`` is the gang's where the pod takes part in one.
    """
    requests, limits = _resources(config, accounts, devices, compute_of)
    resources = {"requests": requests, "limits": limits} if requests else {"limits": limits}
    expected = sum(int(limits.get(name, "0")) for name in config.gpu_detection.resource_names)
    volumes = _volumes(config)
    return Injection(
        position,
        [{**_container(check, config, expected), "resources": resources} for check in checks],
        volumes if gang_config_map is None else [*volumes, *_gang_volumes(gang_config_map)],
        {names.CHECKED_LABEL: "true"},
    )


def place(init: Sequence[Step], provider_globs: Sequence[str]) -> int:
    """Where the checks stand: behind the last of the provider's own init containers, such as a network plugin's daemon
    that NCCL needs."""
    return max(
        (i + 1 for i, c in enumerate(init) if any(fnmatchcase(c.name, glob) for glob in provider_globs)), default=0
    )


def _resources(
    config: Config, accounts: Mapping[str, Account], devices: Mapping[str, int], compute_of: int
) -> tuple[dict[str, str], dict[str, str]]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, reserved in devices.items():
        account = accounts[name]
        room = reserved - account.requests.held // UNIT
        if config.gpu_count == "max":
            room = min(room, account.largest // UNIT)
        if room > 0:
            requests[name] = limits[name] = str(room)
    # With resources of its own, the pod's QoS class and cost come from those alone.
    if compute_of:
        guaranteed = all(accounts[name].equal == compute_of for name in COMPUTE)
        for name in COMPUTE:
            request, limit = _compute(name, accounts[name], compute_of, guaranteed=guaranteed)
            if request > 0:
                requests[name] = quantity_text(request)
            if limit > 0:
                limits[name] = quantity_text(limit)
    return requests, limits


def _compute(name: str, account: Account, everyone: int, *, guaranteed: bool) -> tuple[int, int]:
    """(request, limit) of CPU or memory within the pod's room; 0 means unset."""
    request, limit = account.requests.room, 0
    if account.limited == everyone:
        # A quota on limits counts them like requests, and refuses a container without one.
        limit = account.limits.room
        request = min(request, limit)
    if guaranteed:
        request = limit = min(request, limit)
    if name == "cpu":
        request, limit = fractional_cpu(request), fractional_cpu(limit)
    return request, limit


@lru_cache(maxsize=256)
def _container(check: CheckConfig, config: Config, expected: int) -> dict[str, Any]:
    """One init container but for its resources. Made once; nobody changes it."""
    mounts = [
        _mount(names.SOCKET_VOLUME, names.SOCKET_DIR, read_only=True),
        _mount(names.TMP_VOLUME, "/tmp", read_only=False),  # noqa: S108 (a mount path)
        # Holds the place of the token that would be mounted here: a check has no business with the API server.
        _mount(names.SERVICE_ACCOUNT_VOLUME, names.SERVICE_ACCOUNT_DIR, read_only=True),
    ]
    if config.platform_connector.auth.enabled:
        mounts.append(_mount(names.TOKEN_VOLUME, names.TOKEN_DIR, read_only=True))
    if check.gang_wide:
        mounts.append(_mount(names.GANG_VOLUME, names.GANG_DIR, read_only=True))
        mounts.append(_mount(names.STATE_VOLUME, names.STATE_DIR, read_only=False))
    return {
        "name": names.container_name(check.name),
        "image": check.image,
        "imagePullPolicy": check.image_pull_policy,
        "env": _env(check, config, expected),
        "volumeMounts": mounts,
        "terminationMessagePath": names.RESULT_PATH,
        "terminationMessagePolicy": "File",
        "securityContext": _SECURITY,
    }


def _env(check: CheckConfig, config: Config, expected: int) -> list[dict[str, Any]]:
    """The environment of one check. The fields come first: `$(NODE_IP)` in a later value refers to them."""
    values = {
        names.ENV_CONNECTOR_SOCKET: names.SOCKET_URI,
        names.ENV_EXPECTED_GPUS: str(expected),
        names.ENV_PROCESSING_STRATEGY: config.processing_strategy,
        names.ENV_GATE: check.enforcement,
        names.ENV_CHECK_TIMEOUT: check.timeout or config.check_timeout,
        names.ENV_ON_INCONCLUSIVE: check.on_inconclusive or "",
    }
    if config.platform_connector.auth.enabled:
        values[names.ENV_CONNECTOR_TOKEN_PATH] = names.TOKEN_PATH
    if check.name == names.DCGM_DIAG:
        values[names.ENV_DCGM_LEVEL] = str(config.dcgm.diag_level)
        values[names.ENV_DCGM_HOSTENGINE] = config.dcgm.hostengine_addr
    if check.name == names.NCCL_LOOPBACK and config.nccl.loopback_threshold_g_bps is not None:
        values[names.ENV_LOOPBACK_THRESHOLD] = f"{config.nccl.loopback_threshold_g_bps:g}"
    if check.gang_wide:
        values[names.ENV_GANG_TIMEOUT] = config.gang_timeout
        values[names.ENV_GANG_CONFIG_DIR] = names.GANG_DIR
        values[names.ENV_STATE_DIR] = names.STATE_DIR
        if config.nccl.allreduce_threshold_g_bps is not None:
            values[names.ENV_ALLREDUCE_THRESHOLD] = f"{config.nccl.allreduce_threshold_g_bps:g}"
    values |= {var.name: var.value for var in check.env}
    fields = [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in _FIELDS
        if name not in values
    ]
    return [*fields, *({"name": name, "value": value} for name, value in values.items() if value)]


def _mount(volume: str, path: str, *, read_only: bool) -> dict[str, Any]:
    return {"name": volume, "mountPath": path, "readOnly": True} if read_only else {"name": volume, "mountPath": path}


@lru_cache(maxsize=16)
def _volumes(config: Config) -> list[dict[str, Any]]:
    connector = config.platform_connector
    volumes: list[dict[str, Any]] = [
        {"name": names.SOCKET_VOLUME, "hostPath": {"path": connector.socket_dir, "type": "DirectoryOrCreate"}},
        {"name": names.TMP_VOLUME, "emptyDir": {}},
        {"name": names.SERVICE_ACCOUNT_VOLUME, "emptyDir": {}},
    ]
    if connector.auth.enabled:
        token = {
            "audience": connector.auth.audience,
            "expirationSeconds": connector.auth.expiration_seconds,
            "path": "token",
        }
        volumes.append(
            {
                "name": names.TOKEN_VOLUME,
                "projected": {"sources": [{"serviceAccountToken": token}], "defaultMode": 0o644},
            }
        )
    return volumes


def _gang_volumes(config_map: str) -> list[dict[str, Any]]:
    """What a gang-wide check waits for, and the place where it writes the generation that it joined.

    The annotation stands last: of two sources with one file name the kubelet takes the later, and the annotation alone decides.
    """
    roster = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{names.ROSTER_ANNOTATION}']"}
    sources = [
        {"configMap": {"name": config_map, "optional": True}},
        {"downwardAPI": {"items": [{"path": ROSTER_FILE, "fieldRef": roster}]}},
    ]
    return [
        {"name": names.GANG_VOLUME, "projected": {"sources": sources, "defaultMode": 0o644}},
        {"name": names.STATE_VOLUME, "emptyDir": {}},
    ]
