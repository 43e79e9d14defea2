"""Changes of a new AppWrapper: who made it, the default queue, and pod sets that Kueue
cannot know. Pure.
"""

from __future__ import annotations

import re
from typing import Any, Final

from preflight_kube.api.jsonpatch import Operation, add, pointer

from preflight_appwrapper.api.names import LONGEST_VALUE
from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.validation import QUEUE_LABEL, USER_ID_LABEL, USER_LABEL

_OTHERS: Final = re.compile(r"[^-_.A-Za-z0-9]")


def label_value(text: str) -> str:
    """``text`` as the value of a label: others than ``-_.A-Za-z0-9`` become ``_``."""
    return _OTHERS.sub("_", text[:LONGEST_VALUE]).strip("-_.")


def patch(
    wrapper: AppWrapper, *, user: str, uid: str, default_queue: str = "", labeled: bool
) -> list[Operation]:
    """A JSON Patch; what the user wrote into our two labels is replaced. ``labeled``: the object
    has a map of labels.

    Never ``status``, and no owner: an object that is being created has no uid.
    """
    labels = {USER_LABEL: label_value(user), USER_ID_LABEL: label_value(uid)}
    if default_queue and QUEUE_LABEL not in wrapper.metadata.labels:
        labels[QUEUE_LABEL] = default_queue
    wanted = {
        key: value for key, value in labels.items() if wrapper.metadata.labels.get(key) != value
    }
    ops = [add(pointer("metadata", "labels", key), it) for key, it in wanted.items()]
    if wanted and not labeled:
        ops = [add("/metadata/labels", wanted)]
    for i, component in enumerate(wrapper.spec.components):
        if component.pod_sets or podsets.kueue_knows(component.template):
            continue
        found = podsets.readable(component.template)
        if found:
            value = [{"path": one.path, "replicas": one.count} for one in found]
            ops.append(add(f"/spec/components/{i}/podSets", value))
    return ops


def annotated(raw: dict[str, Any], key: str, value: str) -> Operation:
    """The operation of a JSON Patch that gives the object ``raw`` this annotation."""
    metadata = raw.get("metadata")
    if isinstance(metadata, dict) and isinstance(metadata.get("annotations"), dict):
        return add(pointer("metadata", "annotations", key), value)
    return add("/metadata/annotations", {key: value})
