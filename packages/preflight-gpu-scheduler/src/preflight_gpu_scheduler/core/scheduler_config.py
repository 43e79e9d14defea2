"""The KubeSchedulerConfiguration with which the stock kube-scheduler asks our extender. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from preflight_gpu_scheduler.config import Config

__all__ = ["EXTENDER_PORT", "scheduler_config"]

EXTENDER_PORT: Final = 9443
_SPARE: Final = 5.0
"""Seconds between the end of what a bind may take and the end of the scheduler's patience."""
_LEAST_TIMEOUT: Final = 30


def scheduler_config(
    config: Config,
    *,
    kubeconfig: str = "",
    namespace: str = "kube-system",
    port: int = EXTENDER_PORT,
    leader_elect: bool = True,
    lease: str = "gpu-scheduler-kube",
) -> dict[str, Any]:
    """``kubeconfig``: a file; empty for the pod's ServiceAccount. ``namespace``: where the
    scheduler's own lease is.

    All nodes are looked at: of a sample, as the scheduler takes it by default, the free GPUs may be
    outside. A call may take as long as a gang's gathering and one bind together.
    """
    timeout = max(
        _LEAST_TIMEOUT,
        math.ceil(config.seconds("gang_bind") + config.seconds("bind_budget") + _SPARE),
    )
    counted = [{"name": config.count_resource, "weight": 5}] if config.count_resource else []
    strategy = {"type": "MostAllocated", "resources": [*counted, {"name": "cpu", "weight": 1}]}
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "percentageOfNodesToScore": 100,
        "clientConnection": {
            "qps": 500,
            "burst": 1000,
            **({"kubeconfig": kubeconfig} if kubeconfig else {}),
        },
        "leaderElection": {
            "leaderElect": leader_elect,
            "resourceNamespace": namespace,
            "resourceName": lease,
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
                "bindVerb": "bind",
                "weight": 10,
                "httpTimeout": f"{timeout}s",
                "nodeCacheCapable": True,
                "ignorable": False,
            }
        ],
    }
