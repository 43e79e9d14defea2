"""One label of our own on each node, made from its conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final

import msgspec
from preflight_kube.api import jsonpatch
from preflight_kube.api.node_health import code_of, makes_sick

from preflight_appwrapper.config import NodeHealthConfig

HELD: Final = "HELD"
"""The label's value for a node that is to be left, and that the brake has wait."""


class NodeCondition(msgspec.Struct, frozen=True):
    """Of a node; its heartbeats are not changes."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str
    uid: str
    labels: dict[str, str] = {}


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()


class LabeledNode(msgspec.Struct, frozen=True):
    """A node, as far as its label follows from it."""

    metadata: _NodeMetadata
    status: _Status = _Status()

    def only(self, health: NodeHealthConfig) -> LabeledNode:
        """The same node with this label alone, and the first condition that speaks against it."""
        about = self.metadata
        kept = dict(islice(about.labels.items(), 1))  # whether there are labels at all is read
        if health.key in about.labels:
            kept = {health.key: about.labels[health.key]}
        bad = (o for o in self.status.conditions if makes_sick(o.type, o.status, health.conditions))
        metadata = _NodeMetadata(name=about.name, uid=about.uid, labels=kept)
        return LabeledNode(metadata=metadata, status=_Status(conditions=tuple(islice(bad, 1))))


def wanted(conditions: Iterable[NodeCondition], health: NodeHealthConfig) -> str:
    """The label's value; empty: there should be none."""
    bad = any(makes_sick(one.type, one.status, health.conditions) for one in conditions)
    return health.value if bad else ""


def code(conditions: Iterable[NodeCondition], health: NodeHealthConfig) -> str:
    """The first condition that speaks against the node, with its error code; empty for none."""
    bad = (one for one in conditions if makes_sick(one.type, one.status, health.conditions))
    first = next(bad, None)
    if first is None:
        return ""
    return f"{code_of(first.reason, first.message) or 'no code'} of condition {first.type}"


def patch(uid: str, labels: Mapping[str, str], key: str, value: str) -> list[jsonpatch.Operation]:
    """What sets the label to ``value``, or removes it, on the node with this uid, if needed."""
    if labels.get(key, "") == value:
        return []
    about = [jsonpatch.test("/metadata/uid", uid)]
    where = jsonpatch.pointer("metadata", "labels", key)
    if not value:
        return [*about, jsonpatch.test(where, labels[key]), jsonpatch.remove(where)]
    if labels:
        return [*about, jsonpatch.add(where, value)]
    whole = jsonpatch.pointer("metadata", "labels")
    return [*about, jsonpatch.test(whole, None), jsonpatch.add(whole, {key: value})]
