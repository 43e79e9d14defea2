"""A Kubernetes Event about one container of one pod, as a body to create.

Pure. Its name follows from what it is about, so creating it a second time is a conflict: whoever leads next does not say it again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final

from preflight_proto import names

__all__ = ["event", "printable", "timestamp"]

_MAX_MESSAGE: Final = 1024  # the API server's own limit for an Event's message


def timestamp(at: datetime) -> str:
    """A time in UTC as an Event has it (RFC 3339)."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


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
    digest = hashlib.sha256(f"{uid}\0{about}".encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod[:200]}.{digest}", "namespace": namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod,
            "namespace": namespace,
            "uid": uid,
            "fieldPath": f"spec.initContainers{{{container}}}",
        },
        "type": "Normal" if good else "Warning",
        "reason": reason,
        "message": printable(message)[:_MAX_MESSAGE],
        "source": {"component": names.MANAGED_BY, "host": node},
        "reportingComponent": names.MANAGED_BY,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


def printable(text: str) -> str:
    """``text`` with a space for each character that no terminal should get."""
    return "".join(c if c.isprintable() else " " for c in text)
