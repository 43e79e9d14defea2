"""How much of everything an object may have before a webhook looks at it in earnest. Pure.

Admission runs before validation, on one core for everybody: what one object makes it do, all others
wait for. Kubernetes itself bounds an object only by its bytes. The limits lie far above what
workloads have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = ["CONTAINERS", "ENTRIES", "REQUESTS", "VALUES", "of_pod", "of_text"]

VALUES: Final = 100_000
"""Objects and lists in a whole object."""
CONTAINERS: Final = 1024
"""Containers and init containers together; no kubelet starts so many in one pod."""
ENTRIES: Final = 4096
"""Of any other list of a pod; variables over all its containers."""
REQUESTS: Final = 16
"""Requests to the API server for one review."""


def of_text(raw: bytes | msgspec.Raw) -> str:
    """Why the object in ``raw`` (JSON) is refused before it is decoded: one sentence, or empty."""
    text = bytes(raw)
    return _sentence("the object", "objects and lists", text.count(b"{") + text.count(b"["), VALUES)


def of_pod(pod: Mapping[str, Any], *, claims: int = ENTRIES) -> str:
    """Why the pod is refused before anything is worked out about it: one sentence, or empty.
    ``claims``: how many of its resource claims can be looked up.
    """
    spec = pod.get("spec")
    main, init = _list(spec, "containers"), _list(spec, "initContainers")
    counted = [
        ("spec.containers, spec.initContainers", "containers", len(main) + len(init), CONTAINERS),
        ("spec.resourceClaims", "entries", len(_list(spec, "resourceClaims")), claims),
        ("spec.tolerations", "entries", len(_list(spec, "tolerations")), ENTRIES),
        ("spec.schedulingGates", "entries", len(_list(spec, "schedulingGates")), ENTRIES),
    ]
    if not any(found > most for *_, found, most in counted):
        env = sum(len(_list(container, "env")) for container in (*main, *init))
        counted.append(("env of all containers", "entries", env, ENTRIES))
    return " ".join(filter(None, (_sentence(*one) for one in counted)))


def _list(whole: object, key: str) -> list[Any]:
    found = whole.get(key) if isinstance(whole, dict) else None
    return found if isinstance(found, list) else []


def _sentence(where: str, what: str, found: int, most: int) -> str:
    return (
        f"{where}: {found} {what} are more than the {most} that a webhook goes through; use fewer."
        if found > most
        else ""
    )
