"""A Kubernetes Event about one container of one pod, as a body to create. Pure."""

from __future__ import annotations

from typing import Any

from preflight_kube.runtime import events
from preflight_kube.runtime.events import Regarding, timestamp
from preflight_proto import names

__all__ = ["event", "timestamp"]


def event(
    *,
    pod: str,
    namespace: str,
    uid: str,
    node: str,
    container: str,
    about: str,
    good: bool,
    reason: str,
    message: str,
    now: str,
) -> dict[str, Any]:
    """``about``: what tells this Event from others on the pod. ``now``: RFC 3339."""
    regarding = Regarding("v1", "Pod", pod, uid, namespace, f"spec.initContainers{{{container}}}")
    return events.event(
        names.MANAGED_BY,
        regarding,
        about=about,
        good=good,
        reason=reason,
        message=message,
        now=now,
        host=node,
    )
