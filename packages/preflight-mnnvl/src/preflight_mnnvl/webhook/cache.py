"""What reviews are decided by, by namespace and name: sets, what has names of ours, and what the
cluster can do. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from preflight_mnnvl.api.names import GROVE_GROUP
from preflight_mnnvl.api.types import (
    BadObject,
    ComputeDomain,
    Metadata,
    Part,
    PodCliqueSet,
    decode_pod,
)
from preflight_mnnvl.config import Config
from preflight_mnnvl.core.support import ClusterFacts, judge
from preflight_mnnvl.metrics import Metrics

__all__ = ["AdmissionCache", "trimmed"]

_ENDS: Final[dict[Part, str]] = {
    "domain": "-cd",
    "template": "-mnnvl-claim",
    "claim": "-mnnvl-claim",
}


class AdmissionCache:
    """``taken``: ComputeDomains, and claim templates or claims, that may have names of ours."""

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self._config, self._metrics = config, metrics
        self.sets: dict[str, dict[str, PodCliqueSet]] = {}
        self.taken: dict[str, dict[str, Metadata]] = {}
        self.support = judge(ClusterFacts(), config)
        self.sets_are_level: Callable[[], bool] = lambda: True

    def facts(self, facts: ClusterFacts) -> None:
        """Take in what the cluster can do now."""
        self.support = judge(facts, self._config)
        self._metrics.support(self.support.ok, self.support.fabric_nodes)

    def set_(self, found: PodCliqueSet, *, gone: bool = False) -> None:
        """Take in a PodCliqueSet as it is now, or (``gone``) was."""
        meta = found.metadata
        here = self.sets.setdefault(meta.namespace, {})
        if not gone:
            here[meta.name] = trimmed(found)
        elif (there := here.get(meta.name)) is not None and there.metadata.uid == meta.uid:
            del here[meta.name]
        if not here:
            del self.sets[meta.namespace]

    def part(self, part: Part, found: ComputeDomain, *, gone: bool = False) -> None:
        """Take in an object as it is now, or (``gone``) was; one with another name is passed
        over.
        """
        meta = found.metadata
        if not meta.name.endswith(_ENDS[part]):
            return
        here = self.taken.setdefault(meta.namespace, {})
        if not gone:
            here[meta.name] = meta
        elif (there := here.get(meta.name)) is not None and there.uid == meta.uid:
            del here[meta.name]
        if not here:
            del self.taken[meta.namespace]


def trimmed(set_: PodCliqueSet) -> PodCliqueSet:
    """Cut a set to what is read of it and of its pods' templates: whole ones would take hundreds of
    megabytes.
    """
    for clique in set_.cliques:
        try:
            pod = decode_pod(clique.spec.pod_spec)
        except BadObject:
            continue
        pod.affinity = None
        clique.spec.pod_spec = msgspec.Raw(msgspec.json.encode(pod))
        clique.labels = None
    set_.metadata.labels = None
    set_.metadata.annotations = {
        key: value
        for key, value in (set_.metadata.annotations or {}).items()
        if key.startswith(f"{GROVE_GROUP}/")
    }
    return set_
