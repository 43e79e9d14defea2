"""The mistakes of ``matrix/observe.toml`` as pods of one release on a cluster: each row has a
namespace of its own.

The checks of the release take their settings from a ConfigMap of the pod's namespace, as an
operator may have them do, so nobody can judge them beforehand and each namespace has one mistake.
That the webhook refuses a mistake that it can see is seen when all are written out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from preflight_testing.helm import Values
from preflight_testing.matrix.mistake import RIGHT, SETTINGS, Mistake

from .lab import GANG_VALUES, injector_values

REASONS: Final = {
    "passed": "PreflightPassed",
    "misconfigured": "PreflightMisconfigured",
    "inconclusive": "PreflightInconclusive",
}
"""The Event of each outcome."""
A_FILE: Final = "/etc/hostname"
"""In every container, by its kubelet."""
WITHOUT_FAKES: Final = "/opt/venv/bin:/usr/local/bin:/usr/bin:/bin"
"""PATH of an image that no tool has been put into."""


def as_pod(row: Mistake) -> bool:
    """Whether the row is run as a pod."""
    return bool(row.outcome) and not row.no_pod


def settings(row: Mistake, address: str) -> dict[str, Any]:
    """The ConfigMap of the row's namespace; ``address``: of its node. dcgm-diag, which every pod
    gets, is right unless the row is about it.
    """
    right = {
        name: value.format(address=address)
        for check in RIGHT.values()
        for name, value in check.items()
    }
    path = {"PATH": WITHOUT_FAKES} if row.without else {}
    wrong = {name: value.format(file=A_FILE) for name, value in row.env.items()}
    return {"metadata": {"name": SETTINGS}, "data": {**right, **path, **wrong}}


def values(checks: Iterable[dict[str, Any]], **gang: Any) -> Values:
    """Of a release with these ``checks``, of which a pod asks for one besides dcgm-diag; ``gang``:
    what differs for the controller.
    """
    alone = {key: value for key, value in injector_values({}).items() if key != "checks"}
    return {
        "global": {"preflight": {"checks": list(checks)}},
        "preflight-injector": {**alone, "podSelection": {"enabled": True}},
        "preflight-gang": {**GANG_VALUES, **gang},
    }


def pod(row: Mistake, name: str, node: str, image: str) -> dict[str, Any]:
    """A pod with one GPU of ``node`` that asks for the row's check; of a gang of two where that is
    what the check needs.
    """
    gang = {"app.kubernetes.io/gang-id": name, "app.kubernetes.io/gang-size": "2"}
    return {
        "metadata": {
            "name": name,
            "labels": gang if row.check == "nccl-allreduce" else {},
            "annotations": {"nvsentinel.nvidia.com/preflight-checks": row.check},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "command": ["true"],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                }
            ],
        },
    }
