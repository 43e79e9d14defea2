"""The configuration file, whose schema is one Struct; and kube-scheduler's, which follows."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from preflight_kube.api.node_health import SICK, TypePatterns
from preflight_kube.files.configfile import ConfigError
from preflight_proto.durations import parse_duration

from preflight_gpu_scheduler.api import messages, names

__all__ = ["ConfigError"]

Namespace = Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Label = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        max_length=317,
    ),
]
Countable = Annotated[
    str,
    Meta(
        pattern=r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$",
        max_length=317,
        description="An extended resource, e.g. gpu.scheduling/gpu; empty for none.",
    ),
]
Duration = Annotated[str, Meta(description="A Go duration, e.g. 30s.")]
Text = Annotated[str, Meta(min_length=1, max_length=253)]

_BOUNDS: Final = {
    "staleAfter": (1.0, 86400.0),
    "gangBind": (1.0, 600.0),
    "gangMaxWait": (0.0, 86400.0),
    "bindBudget": (1.0, 600.0),
    "sweep": (1.0, 3600.0),
    "heartbeat": (1.0, 3600.0),
}
"""Least and most seconds of each duration."""
EXTENDER_PORT: Final = 9443
_SPARE: Final = 5.0
"""Seconds between the end of what a bind may take and the end of the scheduler's patience."""
_LEAST_TIMEOUT: Final = 30


class Config(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """The configuration of all parts.

    ``lockNamespace`` holds the leases of all GPUs. ``reservationSeconds``: how long a pod that is
    not bound keeps GPUs. ``countResource``: empty for none. ``staleAfter``: without a change of a
    GpuNodeStatus for so long its node takes no pods; and the GPU of a pod that vanished is free at
    last. ``missingNodeStatus``: whether a node without one is refused, or assumed to have 16 GPUs.
    ``devicePlugin``: whether a node on which a device plugin or DRA driver hands out GPUs too is
    refused. ``bindBudget``: what one bind may take, below the ``httpTimeout`` of the scheduler's
    extender; ``gangBind``: how long a member's bind waits for the others. ``gangMaxWait``: from
    then on free GPUs are kept for a gang that waits. ``nodeConditions`` (``*`` for any
    characters): those that speak against all GPUs of a node where they name none.
    """

    lock_namespace: Namespace = names.LOCK_NAMESPACE
    scheduler_name: Text = names.SCHEDULER_NAME
    count_resource: Countable = names.COUNT_RESOURCE
    reservation_seconds: Annotated[int, Meta(ge=5, le=3600)] = 60
    stale_after: Duration = "90s"
    missing_node_status: Literal["refuse", "assume16"] = "refuse"
    device_plugin: Literal["refuse", "ignore"] = "refuse"
    gang_bind: Duration = "20s"
    gang_max_wait: Duration = "5m"
    bind_budget: Duration = "10s"
    sweep: Duration = "30s"
    heartbeat: Duration = "30s"
    missing_claim: Literal["wait", "deny"] = "wait"
    guard_others: bool = False
    gpu_classes: Annotated[tuple[Label, ...], Meta(max_length=64)] = ("gpu.nvidia.com",)
    node_conditions: TypePatterns = SICK
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    def seconds(self, field: str) -> float:
        """The duration ``field`` (by its Python name)."""
        return _seconds(getattr(self, field))


_seconds = lru_cache(parse_duration)  # asked for at every call of the scheduler


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of :class:`Config`."""
    return msgspec.json.schema(Config)


def of(raw: object) -> Config:
    """The configuration in a file's data. Raises :class:`ConfigError` with every problem."""
    raw = {} if raw is None else raw
    meant = _meaning(raw) if isinstance(raw, dict) else []
    try:
        config = msgspec.convert(raw, Config)
    except msgspec.ValidationError as error:
        wrong = messages.misfits(Config, raw, error, "the file")
        raise ConfigError([*wrong, *meant]) from None
    if meant:
        raise ConfigError(meant)
    return config


def _meaning(raw: dict[Any, Any]) -> list[str]:
    """List problems of durations that the schema cannot say, where they are texts."""
    problems, seconds = list[str](), dict[str, float]()
    defaults = msgspec.to_builtins(Config())
    given = {**defaults, **raw}
    for key, (least, most) in _BOUNDS.items():
        if not isinstance(text := given[key], str):
            continue
        try:
            value = parse_duration(text)
        except ValueError as error:
            problems.append(f"{key}: {error}.")
            continue
        if least <= value <= most:
            seconds[key] = value
            continue
        between = f"is not between {least:g} s and {most:g} s; set e.g. {defaults[key]}."
        problems.append(f'{key}: "{text:.40}" {between}')
    if seconds.get("heartbeat", 0.0) * 2 > seconds.get("staleAfter", math.inf):
        late = "so that one that comes late empties the node; set three times heartbeat"
        problems.append(f"staleAfter: is less than two heartbeats, {late}.")
    reservation = given["reservationSeconds"]
    if isinstance(reservation, int) and seconds.get("gangBind", 0.0) >= reservation:
        gathers = "so that a gang's GPUs are taken back while it gathers; lower it"
        problems.append(f"gangBind: is not below reservationSeconds, {gathers}.")
    return problems


def scheduler_config(
    config: Config,
    *,
    kubeconfig: str = "",
    namespace: str = "kube-system",
    port: int = EXTENDER_PORT,
) -> dict[str, Any]:
    """The KubeSchedulerConfiguration with which the stock kube-scheduler asks our extender.
    ``kubeconfig``: a file; empty for the pod's ServiceAccount. ``namespace``: where the
    scheduler's own lease is.
    """
    # A call may take as long as a gang's gathering and one bind together.
    timeout = math.ceil(config.seconds("gang_bind") + config.seconds("bind_budget") + _SPARE)
    counted = [{"name": config.count_resource, "weight": 5}] if config.count_resource else []
    strategy = {"type": "MostAllocated", "resources": [*counted, {"name": "cpu", "weight": 1}]}
    access = {"kubeconfig": kubeconfig} if kubeconfig else {}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,  # the free GPUs may be outside of a sample
        "clientConnection": {"qps": 500, "burst": 1000, **access},
        "leaderElection": {
            "leaderElect": True,
            "resourceNamespace": namespace,
            "resourceName": "gpu-scheduler-kube",
        },
        "profiles": [
            {
                "schedulerName": config.scheduler_name,
                "pluginConfig": [
                    {"name": "NodeResourcesFit", "args": {"scoringStrategy": strategy}}
                ],
            }
        ],
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 10,
                "httpTimeout": f"{max(_LEAST_TIMEOUT, timeout)}s",
                "nodeCacheCapable": True,
                "ignorable": False,
            }
        ],
    }
