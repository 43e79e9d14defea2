"""When a request of a resource claim (DRA) is for GPUs: one rule for the webhook, which decides by
it, and for the gang controller's audit, which looks at what came of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

__all__ = ["IMPLICIT", "is_for_gpus"]

IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
"""With a device class's name behind it, an extended resource that every class has, wherever
DRAExtendedResource is on (Kubernetes 1.36: by default): a pod gets such devices without a claim."""


def is_for_gpus(
    alternatives: Iterable[str | None], classes: Collection[str], *, admin: bool
) -> bool:
    """Whether a request gives a pod GPUs, or may.

    ``alternatives``: device classes of those that the scheduler may take, or has taken;
    ``classes``: the device classes of GPUs; ``admin``: whether it asks for administrative access
    (``adminAccess``), which gives a pod no device of its own.
    """
    return not admin and any(name in classes for name in alternatives)
