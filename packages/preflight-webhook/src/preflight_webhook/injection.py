"""The init containers that a pod gets, and the volumes they need.

The invariant: injection changes what the pod is checked with, never what it costs. An init container runs before the others, so it may
use what the pod reserves anyway (its *room*); asking for no more than that changes no effective request and no QoS class.

Every field that the API server would default is written out: what we inject is compared with what comes back when another webhook
has us called again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from preflight_proto import names

from .config import CheckConfig, Config
from .detection import effective, largest, limit_of, request_of, sidecars
from .objects import Load, Sized
from .quantities import UNIT, fractional_cpu, quantity_text

__all__ = ["Injection", "inject"]

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
_COMPUTE: Final = ("cpu", "memory")
Amounts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Injection:
    """What to add: ``containers`` at ``position`` among the init containers, ``volumes``, and ``labels``."""

    position: int
    containers: list[dict[str, Any]]
    volumes: list[dict[str, Any]]
    labels: dict[str, str]


def inject(
    load: Load, config: Config, checks: Sequence[CheckConfig], gpus: Mapping[str, int], network: Mapping[str, int]
) -> Injection:
    """The injection for a pod that carries none of our containers. ``gpus`` and ``network`` are what the scheduler reserves."""
    position = _position(load.init_containers, config.provider_init)
    before = load.init_containers[:position]
    requests, limits = _resources(load, before, config, {**gpus, **network})
    expected = sum(int(limits.get(name, "0")) for name in gpus)
    amounts = tuple(requests.items()), tuple(limits.items())
    return Injection(
        position,
        [_container(check, config, *amounts, expected) for check in checks],
        _volumes(config),
        {names.CHECKED_LABEL: "true"},
    )


def _position(init: Sequence[Sized], provider_globs: Sequence[str]) -> int:
    """Behind the last of the provider's own init containers, such as a network plugin's daemon that NCCL needs."""
    return max(
        (i + 1 for i, c in enumerate(init) if any(fnmatchcase(c.name, glob) for glob in provider_globs)), default=0
    )


def _resources(
    load: Load, before: Sequence[Sized], config: Config, devices: Mapping[str, int]
) -> tuple[dict[str, str], dict[str, str]]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    for name, reserved in devices.items():
        room = reserved - sidecars(before, name) // UNIT
        if config.gpu_count == "max":
            room = min(room, largest(load, name) // UNIT)
        if room > 0:
            requests[name] = limits[name] = str(room)
    # With resources of its own, the pod's QoS class and cost come from those alone.
    if load.resources is None or not (load.resources.requests or load.resources.limits):
        everyone = [*load.init_containers, *load.containers]
        guaranteed = _guaranteed(everyone)
        for name in _COMPUTE:
            request, limit = _compute(load, before, everyone, name, guaranteed=guaranteed)
            if request > 0:
                requests[name] = quantity_text(request)
            if limit > 0:
                limits[name] = quantity_text(limit)
    return requests, limits


def _compute(
    load: Load, before: Sequence[Sized], everyone: Sequence[Sized], name: str, *, guaranteed: bool
) -> tuple[int, int]:
    """(request, limit) of CPU or memory within the pod's room; 0 means unset."""
    request = effective(load, name) - sidecars(before, name)
    limit = 0
    if all(limit_of(c, name) > 0 for c in everyone):
        # A quota on limits counts them like requests, and refuses a container without one.
        limit = effective(load, name, limit_of) - sidecars(before, name, limit_of)
        request = min(request, limit)
    if guaranteed:
        request = limit = min(request, limit)
    if name == "cpu":
        request, limit = fractional_cpu(request), fractional_cpu(limit)
    return request, limit


def _guaranteed(containers: Sequence[Sized]) -> bool:
    return all(
        limit_of(c, name) > 0 and request_of(c, name) == limit_of(c, name) for c in containers for name in _COMPUTE
    )


@lru_cache(maxsize=1024)
def _container(check: CheckConfig, config: Config, requests: Amounts, limits: Amounts, expected: int) -> dict[str, Any]:
    """One init container; the pods of a job ask for the same, so it is made once for them. Nobody changes it."""
    mounts = [
        _mount(names.SOCKET_VOLUME, names.SOCKET_DIR, read_only=True),
        _mount(names.TMP_VOLUME, "/tmp", read_only=False),  # noqa: S108 (a mount path)
        # Holds the place of the token that would be mounted here: a check has no business with the API server.
        _mount(names.SERVICE_ACCOUNT_VOLUME, names.SERVICE_ACCOUNT_DIR, read_only=True),
    ]
    if config.platform_connector.auth.enabled:
        mounts.append(_mount(names.TOKEN_VOLUME, names.TOKEN_DIR, read_only=True))
    return {
        "name": names.container_name(check.name),
        "image": check.image,
        "imagePullPolicy": check.image_pull_policy,
        "env": _env(check, config, expected),
        "resources": {"requests": dict(requests), "limits": dict(limits)} if requests else {"limits": dict(limits)},
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
