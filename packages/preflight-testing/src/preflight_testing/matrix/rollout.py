"""The checks of a rollout that only observes, as the mistakes of `e2e/matrix/observe.toml` meet
them: with their settings by reference, or written out with a mistake. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from .mistake import Mistake

SETTINGS: Final = "check-settings"
"""The ConfigMap of each namespace."""
RIGHT: Final = {
    "dcgm-diag": {
        "DCGM_HOSTENGINE_ADDR": "{address}:5555",
        "DCGM_DIAG_LEVEL": "1",
        "PLATFORM_CONNECTOR_SOCKET": "unix:///var/run/nvsentinel/nvsentinel.sock",
        "PROCESSING_STRATEGY": "EXECUTE_REMEDIATION",
    },
    "nccl-loopback": {},
    "nccl-allreduce": {"GANG_TIMEOUT": "60s", "PREFLIGHT_STATE_DIR": "/var/lib/preflight"},
}
"""By check, what the webhook sets itself and a row may have otherwise. The rest comes with the
whole ConfigMap, which never wins over a variable that is set."""


def _check(name: str, check: str) -> dict[str, Any]:
    return {"name": name, "image": f"preflight-{check}:e2e", "enforcement": "observe"}


def _by_reference(name: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": SETTINGS, "key": name}}}


CHECKS: Final = [
    {
        **_check(check, check),
        "onInconclusive": "block",
        "container": {
            "env": [_by_reference(name) for name in right],
            "envFrom": [{"configMapRef": {"name": SETTINGS}}],
        },
    }
    for check, right in RIGHT.items()
]
"""The checks of a configuration that is taken."""


def written_out(row: Mistake) -> dict[str, Any]:
    """A check in a configuration that is refused, under a name of its own: with its variables as an
    operator writes them.
    """
    return {**_check(row.id, row.check), **row.config}
