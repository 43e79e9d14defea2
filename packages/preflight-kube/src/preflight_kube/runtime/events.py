"""A Kubernetes Event about any object, as a body to create.

Pure. Its name follows from what it is about, so creating it a second time is a conflict: whoever
leads next does not say it again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any, Final, NamedTuple

from preflight_kube.text import printable

_MAX_MESSAGE: Final = 1024  # the API server's own limit for an Event's message


class Regarding(NamedTuple):
    """The object that an Event is about; ``namespace`` is empty for one of the cluster. ``field``
    names a part of it.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    namespace: str = ""
    field: str = ""


def timestamp(at: datetime) -> str:
    """A time in UTC as an Event has it (RFC 3339, whole seconds)."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def event(
    component: str,
    regarding: Regarding,
    *,
    about: str,
    good: bool,
    reason: str,
    message: str,
    now: str,
    host: str = "",
) -> dict[str, Any]:
    """``component`` says it. ``about``: what tells this Event from others on the object. ``now``:
    RFC 3339. ``host``: the node that it came from.

    Create it in the namespace of its metadata: that of the object, or ``default`` for one of the
    cluster.
    """
    digest = hashlib.sha256(f"{regarding.uid}\0{about}".encode()).hexdigest()[:16]
    involved = {
        "apiVersion": regarding.api_version,
        "kind": regarding.kind,
        "name": regarding.name,
        "namespace": regarding.namespace,
        "uid": regarding.uid,
        "fieldPath": regarding.field,
    }
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{regarding.name[:200].rstrip('-.')}.{digest}",
            "namespace": regarding.namespace or "default",
        },
        "involvedObject": {key: value for key, value in involved.items() if value},
        "type": "Normal" if good else "Warning",
        "reason": reason,
        "message": printable(message)[:_MAX_MESSAGE],
        "source": {"component": component, "host": host} if host else {"component": component},
        "reportingComponent": component,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
