"""One mistake of an operator in a rollout that only observes, a row of ``e2e/matrix/observe.toml``.

It holds no pod back, and it is named: by the webhook's validation before any pod exists
(``refused``), or by the check, in its log, its termination message, and so in an Event and a
metric. Each check's own tests run its rows as processes, under ``GATE=observe``; the webhook's
tests look at ``refused``. ``e2e/tests/cluster/test_observe_on_a_cluster.py`` runs them as pods of
one release, whose checks have their settings by reference.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec


class Mistake(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``config``: what stands in the webhook's configuration besides the check's name and image;
    ``refused``: a text of the sentence that refuses it, empty where only the pod can tell.

    ``env``: what the check is given in place of what is right; ``without``: programs that its image
    lacks; ``socket``: whether the platform connector's socket is there; ``node``: what differs on
    the node from a healthy one. ``outcome`` and ``code``: how the check ends, with exit status 0;
    ``says``: a text of its log. No ``outcome``: the configuration is refused, so no pod gets to see
    it. ``no_pod``: why it is not run as a pod, though its check runs as a process.
    """

    id: str
    mistake: str
    check: Literal["dcgm-diag", "nccl-loopback", "nccl-allreduce"]
    config: dict[str, Any] = {}
    refused: str = ""
    env: dict[str, str] = {}
    without: tuple[str, ...] = ()
    socket: bool = True
    node: dict[str, Any] = {}
    outcome: Literal["", "passed", "skipped", "failed", "misconfigured", "inconclusive"] = ""
    code: str = ""
    says: str = ""
    no_pod: str = ""


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
