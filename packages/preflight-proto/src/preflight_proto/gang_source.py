"""A kind of gang that only the configuration knows: how a pod names it, and which object says how
many pods it has.

Webhook and gang controller read the same shape. The webhook stamps pods by ``podLabel`` or
``podAnnotation``, whose value is the name of the object in the pod's namespace; the controller
reads that object, and ``size`` finds the number of pods in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

BUILT_IN: Final = (
    *(
        "schedulingGroup",
        "workloadRef",
        "volcano",
        "coscheduling",
        "kai",
        "osmo",
        "owner",
        "kueue",
        "labels",
    ),
    *("kubeflow", "lws", "jobset", "grove", "kueueWorkload", "job"),
)
"""Sources that the webhook knows without configuration; no configured one may have their
names.
"""

_KEY: Final = r"^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$"
Key = Annotated[
    str, Meta(pattern=_KEY, max_length=317, description="The name of a label or an annotation.")
]
Group = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$",
        max_length=253,
        description="An API group, e.g. scheduling.example.com.",
    ),
]


class GangSource(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """``name`` is what stamps, logs and metrics call it. ``group``, ``resource`` (the plural) and
    ``kind`` are the object's.
    """

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z][a-zA-Z0-9]*$", max_length=50)]
    group: Group
    resource: Annotated[
        str,
        Meta(pattern=r"^[a-z][a-z0-9]*$", max_length=63, description="The plural, e.g. podgroups."),
    ]
    kind: Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]*$", max_length=63)]
    size: Annotated[
        str, Meta(description="E.g. spec.minMember or spec.roles[].replicas.", min_length=1)
    ]
    pod_label: Key | None = None
    pod_annotation: Key | None = None


def problems(raw: Any, path: str) -> list[str]:
    """What a schema cannot say of the list ``raw`` at ``path``; one sentence each, none where the
    schema is not kept at all.
    """
    try:
        sources: Sequence[GangSource] = msgspec.convert(raw, tuple[GangSource, ...])
    except msgspec.ValidationError:
        return []
    errors = []
    for i, source in enumerate(sources):
        if source.name in BUILT_IN:
            errors.append(f"{path}[{i}].name: {source.name} is built in; choose another name.")
        if source.name in {other.name for other in sources[:i]}:
            errors.append(
                f"{path}[{i}].name: {source.name} is taken by another source; choose another name."
            )
        if (source.pod_label is None) == (source.pod_annotation is None):
            what = (
                "both podLabel and podAnnotation"
                if source.pod_label
                else "neither podLabel nor podAnnotation"
            )
            errors.append(
                f"{path}[{i}]: has {what}; set the one by which a pod names its {source.kind}."
            )
    return errors
