"""Names of the API: group, kind, labels, annotations, paths. Pure."""

from __future__ import annotations

from typing import Final

COMPONENT: Final = "preflight-appwrapper"
"""The writer's name in Events and in managed fields."""
GROUP: Final = "workload.codeflare.dev"
API_VERSION: Final = f"{GROUP}/v1beta2"
KIND: Final = "AppWrapper"
PLURAL: Final = "appwrappers"
WRAPPERS: Final = f"/apis/{API_VERSION}/{PLURAL}"
LABEL: Final = f"{GROUP}/appwrapper"
"""On every component and every pod of it: the wrapper's name."""
LONGEST_VALUE: Final = 63
"""Characters of a label's value, and so of a wrapper's name."""
FINALIZER: Final = f"{GROUP}/finalizer"
MANAGER: Final = f"{GROUP}/appwrapper-controller"
"""``spec.managedBy`` of the wrappers that are ours; empty is ours, too."""
PREFIX: Final = f"{GROUP}.appwrapper/"
"""Begins the annotations: a dot before ``appwrapper``."""
CLAIMED: Final = PREFIX + "claimed-devices"
"""Annotation of a pod: the device classes of its claims, of those that nodes are marked for."""
INDEX: Final = PREFIX + "component-index"
"""Annotation of a pod: of which component it is, whatever stands between the two."""


def wrapper_path(namespace: str, name: str) -> str:
    """The path of an AppWrapper at the API server."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/{PLURAL}/{name}"
