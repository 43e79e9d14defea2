"""What a namespace's Pod Security level below privileged means for the checks: it forbids volumes
of type hostPath.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from preflight_webhook.config.config import CheckConfig, Config
from preflight_webhook.config.extra_volumes import host_paths

__all__ = ["CONFINED", "forbidden"]

_LEVEL: Final = (
    "the namespace's Pod Security level (label pod-security.kubernetes.io/enforce) forbids"
)
CONFINED: Final = (
    f"{_LEVEL} the hostPath volume through which checks report; set that label to privileged, or set onPodSecurityConflict: report-off to "
    "check without reports."
)


def forbidden(checks: Sequence[CheckConfig], config: Config) -> str | None:
    """Why a pod with ``checks`` is denied in a namespace whose Pod Security level is baseline or
    restricted: the API server would refuse it with a sentence about volumes that its author never
    wrote. None where the checks can do without."""
    return _forbidden(tuple(checks), config)


@lru_cache(maxsize=1024)
def _forbidden(checks: tuple[CheckConfig, ...], config: Config) -> str | None:
    for check in checks:
        if paths := host_paths(check.extra_volumes):
            return (
                f"{_LEVEL} the hostPath volumes of the check {check.name} (extraVolumes: {', '.join(paths)[:200]}); set that label to privileged, "
                "or have the operator leave that check or its extraVolumes out."
            )
    if config.platform_connector.enabled and config.on_pod_security_conflict == "deny":
        return CONFINED
    return None
