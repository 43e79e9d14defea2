"""Whether the pods of a namespace are to be checked, by its label and the
configured lists. Pure.
"""

from __future__ import annotations

from collections.abc import Collection

import msgspec
from preflight_proto import names

__all__ = ["Namespace", "opted_in"]


class _Metadata(msgspec.Struct, gc=False):
    name: str
    labels: dict[str, str] | None = None


class Namespace(msgspec.Struct, gc=False):
    """Of its labels only ours is kept."""

    metadata: _Metadata

    def __post_init__(self) -> None:
        label = (self.metadata.labels or {}).get(names.NAMESPACE_LABEL)
        self.metadata.labels = {} if label is None else {names.NAMESPACE_LABEL: label}


def opted_in(namespace: Namespace, listed: Collection[str], excluded: Collection[str]) -> bool:
    """Whether a namespace is labelled or ``listed``, and neither ``excluded`` nor switched off."""
    label = (namespace.metadata.labels or {}).get(names.NAMESPACE_LABEL)
    if namespace.metadata.name in excluded or label == names.NAMESPACE_DISABLED:
        return False
    return label == names.NAMESPACE_ENABLED or namespace.metadata.name in listed
