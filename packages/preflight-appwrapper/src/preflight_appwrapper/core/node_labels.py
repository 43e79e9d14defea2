"""One label of our own on each node, made from its conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final

import msgspec
from preflight_kube.api import jsonpatch
from preflight_kube.api.node_health import NodeCondition, code_of, makes_sick

from preflight_appwrapper.api.names import COMPONENT
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.core.decode import LabeledMetadata

HELD: Final = "HELD"
"""The label's value for a node that is to be left, and that the brake has wait."""


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()


class _ManagedFields(msgspec.Struct, frozen=True):
    manager: str = ""
    time: datetime | None = None


class LabeledNodeMetadata(LabeledMetadata, frozen=True, rename="camel"):
    """Also who wrote to the node, and when; our account writes the label alone."""

    managed_fields: tuple[_ManagedFields, ...] = ()


class LabeledNode(msgspec.Struct, frozen=True):
    """A node, as far as its label follows from it."""

    metadata: LabeledNodeMetadata
    status: _Status = _Status()

    def age(self, now: datetime) -> float:
        """Seconds since the label was written; 0 where nothing says when."""
        by = (entry.time for entry in self.metadata.managed_fields if entry.manager == COMPONENT)
        return max(0.0, (now - max(filter(None, by), default=now)).total_seconds())

    def only(self, health: NodeHealthConfig) -> LabeledNode:
        """The same node with this label alone, and the first condition that speaks against it."""
        about = self.metadata
        kept = dict(islice(about.labels.items(), 1))  # whether there are labels at all is read
        if health.key in about.labels:
            kept = {health.key: about.labels[health.key]}
        bad = first_bad(self.status.conditions, health)
        if bad is not None:  # a time alone changes nothing
            bad = msgspec.structs.replace(bad, last_transition_time=None)
        metadata = LabeledNodeMetadata(name=about.name, uid=about.uid, labels=kept)
        return LabeledNode(metadata=metadata, status=_Status((bad,) if bad else ()))


def first_bad(
    conditions: Iterable[NodeCondition], health: NodeHealthConfig
) -> NodeCondition | None:
    """The first condition that speaks against a node; None: it has no label."""
    return next((o for o in conditions if makes_sick(o.type, o.status, health.conditions)), None)


def code(conditions: Iterable[NodeCondition], health: NodeHealthConfig) -> str:
    """The first condition that speaks against the node, with its error code; empty for none."""
    bad = first_bad(conditions, health)
    return f"{code_of(bad.reason, bad.message) or 'no code'} of condition {bad.type}" if bad else ""


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
