"""What a Node says against its GPUs: conditions from HealthEvents, the operator's annotation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
from preflight_kube.api.node_health import cut_short, gpus_named, makes_sick

from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.types import Node

_MOST_REASON: Final = 200


class Complaints(msgspec.Struct, frozen=True, kw_only=True):
    """Why GPUs of the node are not given: ``all`` for no GPU of it, ``by_uuid`` for this one."""

    all: str = ""
    by_uuid: dict[str, str] = {}

    def about(self, uuid: str) -> str:
        """Why this GPU is not given; empty where nothing speaks against it."""
        return self.by_uuid.get(uuid, "") or self.all


def complaints(node: Node, node_conditions: Collection[str]) -> Complaints:
    """A condition that holds and whose message names GPUs is about those; one that matches
    ``node_conditions`` and names none, or was cut short, is about all of the node.
    """
    everything, by_uuid = "", dict[str, str]()
    for condition in node.status.conditions or ():
        why = f"node condition {condition.type}"[:_MOST_REASON]
        named = gpus_named(condition.message)
        for uuid in named:
            by_uuid.setdefault(uuid, why)
        of_node = not named and makes_sick(condition.type, condition.status, node_conditions)
        if of_node or cut_short(condition.message):
            everything = everything or why
    for uuid in node.annotation(names.UNHEALTHY_ANNOTATION).split(","):
        if uuid.strip():
            by_uuid.setdefault(uuid.strip(), f"annotation {names.UNHEALTHY_ANNOTATION}")
    return Complaints(all=everything, by_uuid=by_uuid)
