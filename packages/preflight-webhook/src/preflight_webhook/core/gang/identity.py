"""From a pod to its :class:`~preflight_proto.stamp.Stamp`: which gang it belongs to, decided here
and nowhere else.
"""

from __future__ import annotations

from typing import Final

from preflight_proto import names
from preflight_proto.stamp import VERSION, Stamp, configmap_name, encode_stamp, gang_hash

from preflight_webhook.api.types import Pod
from preflight_webhook.config.config import GangDiscovery
from preflight_webhook.core.gang.sources import GangIdentity, controller_of, sources

__all__ = ["identify", "marks", "ordered", "stamp"]

_ROLES: Final = ("training.kubeflow.org/job-role", "training.kubeflow.org/replica-type")
_LWS: Final = "leaderworkerset.sigs.k8s.io/name"
_NOT_SCHEDULED_TOGETHER: Final = frozenset({"labels", "kueue", "kueueWorkload"})
"""Sources under which a StatefulSet that starts its pods one by one can run; a gang scheduler would
never start it.
"""


def identify(pod: Pod, config: GangDiscovery) -> GangIdentity | None:
    """The pod's gang by the first source that knows one, or None."""
    for source in sources(config):
        if gang := source(pod, config):
            return gang
    return None


def ordered(pod: Pod, gang: GangIdentity, config: GangDiscovery) -> str:
    """Why this member starts before or after others instead of with them, or nothing.

    Such a member would wait in its init containers for members that wait for it to run.
    """
    labels = pod.metadata.labels or {}
    for key in _ROLES:
        if labels.get(key, "").lower() == "launcher":
            return "an MPI launcher may be started only when its workers run"
    if (
        gang.source in _NOT_SCHEDULED_TOGETHER
        and not config.parallel_stateful_sets
        and _LWS not in labels
    ):
        maker = controller_of(pod)
        if maker is not None and maker.kind == "StatefulSet":
            return (
                "a StatefulSet may start its pods one after the other (set gangDiscovery.parallelStatefulSets "
                "where all of them are podManagementPolicy: Parallel)"
            )
    return ""


def stamp(namespace: str, gang: GangIdentity, *, takes_part: bool) -> Stamp:
    """What the gang controller learns about a member."""
    return Stamp(
        v=VERSION,
        id=gang.id,
        source=gang.source,
        config_map=configmap_name(namespace, gang.id, gang.source),
        takes_part=takes_part,
        object=gang.object,
        size=gang.size,
    )


def marks(namespace: str, stamp: Stamp) -> tuple[dict[str, str], dict[str, str]]:
    """(labels, annotations) of a member. An empty roster means: no answer yet."""
    annotations = {names.GANG_ANNOTATION: encode_stamp(stamp)}
    if stamp.takes_part:
        annotations[names.ROSTER_ANNOTATION] = ""
    return {names.GANG_LABEL: gang_hash(namespace, stamp.id, stamp.source)}, annotations
