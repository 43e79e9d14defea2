"""The objects that know the size of a gang: those of known kinds are the Kubernetes layer's, the
others are described by the configuration.

Pure. Pods know which object it is; API versions are discovered.
"""

from __future__ import annotations

from typing import Any

import msgspec
from preflight_kube.api.workloads.sizes import DeclaredSize, SizedMetadata, SizedObject, counted

from preflight_gang.api.expression import Expression, NoNumber

__all__ = ["SizedKind", "sized_by"]


class SizedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A resource, and the Struct that reads it."""

    group: str
    resource: str
    kind: str
    type: type[SizedObject]


class _Labeled(SizedMetadata, kw_only=True):
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


def sized_by(expression: Expression) -> type[SizedObject]:
    """Objects whose size ``expression`` says; of them nothing but that is kept."""

    class Configured(SizedObject, kw_only=True):
        metadata: _Labeled
        spec: Any = None
        status: Any = None
        declared: DeclaredSize = DeclaredSize()

        def __post_init__(self) -> None:
            about = {"labels": self.metadata.labels, "annotations": self.metadata.annotations}
            try:
                self.declared = counted(
                    expression.value({"metadata": about, "spec": self.spec, "status": self.status}),
                    "pods",
                    least=True,
                )
            except NoNumber as error:
                self.declared = DeclaredSize(unknown=str(error))
            self.spec = self.status = None
            self.metadata.labels, self.metadata.annotations = {}, {}

        def size(self, gang: str) -> DeclaredSize:
            return self.declared

    return Configured
