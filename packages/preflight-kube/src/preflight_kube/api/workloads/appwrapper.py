"""AppWrappers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from preflight_kube.api.workloads.model import Object, WorkloadKind, map_of, maps

__all__ = ["KIND"]


def _components(item: Object, _: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    components = maps(map_of(item.get("spec")).get("components"))
    if not components:
        raise ValueError("has no component; list them at spec.components")
    for number, component in enumerate(components):
        if isinstance(inner := component.get("template"), dict):
            yield str(number), inner


KIND: Final = WorkloadKind(
    "AppWrapper", "workload.codeflare.dev", ("v1beta2",), "appwrappers", inner=_components
)
