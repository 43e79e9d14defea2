"""An API server of a dictionary, with what matters to the controller: versions, finalizers,
preconditions; and one who acts on it.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from preflight_computedomain.api.names import FINALIZER
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain
from preflight_computedomain.core import template
from preflight_computedomain.core.reconcile import DomainAction, reconcile, sweep

NAMESPACE = "team-a"


class Refused(Exception):
    """The request failed, and the step ends."""


class Died(BaseException):
    """The controller ended after this request."""


@dataclass
class World:
    """One namespace. ``requests``: the controller's, as words; ``dies_after``: that many more, then
    :class:`Died`.
    """

    domains: dict[str, dict[str, Any]] = field(default_factory=dict)
    templates: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    dies_after: int | None = None
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    # --- what users do

    def create_domain(self, name: str, wants: str, mode: str = "Single") -> None:
        spec = {"channel": {"resourceClaimTemplate": {"name": wants}, "allocationMode": mode}}
        metadata = {"name": name, "namespace": NAMESPACE, "uid": f"uid-{next(self.numbers)}"}
        self.domains.setdefault(name, self._written({"metadata": metadata, "spec": spec}))

    def create_template(self, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        if name in self.templates:
            raise Refused(f"{name} exists")
        made = copy.deepcopy(body)
        made["metadata"]["uid"] = f"uid-{next(self.numbers)}"
        self.templates[name] = self._written(made)

    def delete(self, objects: dict[str, dict[str, Any]], name: str) -> None:
        if name in objects:
            objects[name]["metadata"].setdefault("deletionTimestamp", "2026-05-01T00:00:00Z")
            self._written(objects[name])
            self._collect(objects, name)

    def finalizers(self, objects: dict[str, dict[str, Any]], name: str, kept: list[str]) -> None:
        objects[name]["metadata"]["finalizers"] = kept
        self._written(objects[name])
        self._collect(objects, name)

    # --- what the controller sees and does

    def domain(self, name: str) -> ComputeDomain:
        return msgspec.json.decode(json.dumps(self.domains[name]).encode(), type=ComputeDomain)

    def seen(self) -> list[ClaimTemplate]:
        return [
            msgspec.json.decode(json.dumps(one).encode(), type=ClaimTemplate)
            for one in self.templates.values()
        ]

    def look(self, name: str) -> None:
        """One step of the controller about the ComputeDomain ``name``, as far as it gets."""
        if name not in self.domains:
            return
        domain = self.domain(name)
        said = reconcile(
            domain,
            [
                one
                for one in self.seen()
                if one.metadata.name == domain.template or self.labeled(one, domain)
            ],
        )
        self._act(said.actions, name)

    def look_everywhere(self) -> None:
        for name in list(self.domains):
            self.look(name)
        known = {one["metadata"]["uid"] for one in self.domains.values()}
        for one in self.seen():
            if template.owner(one) not in known:
                self._act(sweep(one), "")

    @staticmethod
    def labeled(one: ClaimTemplate, domain: ComputeDomain) -> bool:
        return domain.metadata.uid in one.metadata.labels.values()

    def _act(self, actions: tuple[DomainAction, ...], name: str) -> None:
        try:
            for action in actions:
                self._one(action, name)
                self.requests.append(action.kind)
                if self.dies_after is not None:
                    self.dies_after -= 1
                    if self.dies_after < 0:
                        raise Died
        except Refused:
            pass

    def _one(self, action: DomainAction, name: str) -> None:
        match action.kind:
            case "AddFinalizer":
                if "deletionTimestamp" in self.domains[name]["metadata"]:
                    raise Refused
                before = self.domains[name]["metadata"].get("finalizers", [])
                self.finalizers(self.domains, name, [*before, FINALIZER])
            case "RemoveFinalizer":
                before = self.domains[name]["metadata"]["finalizers"]
                self.finalizers(self.domains, name, [one for one in before if one != FINALIZER])
            case "WriteStatus":
                self.domains[name]["status"] = {"status": action.status}
            case "CreateTemplate":
                self.create_template(dict(action.body))
            case "PatchTemplate":
                self._merge(action.name, action.body)
            case "DeleteTemplate":
                self._same(action.name, action.uid)
                self.delete(self.templates, action.name)
            case "ReleaseTemplate":
                about = self._same(action.name, action.uid)["metadata"]
                patch = template.released(about.get("finalizers", []), about["resourceVersion"])
                self._merge(action.name, patch)
            case "ConfirmGone":
                if any(
                    one.metadata.name == action.name and template.owner(one) == action.uid
                    for one in self.seen()
                ):
                    raise Refused
            case "ConfirmNoDomain":
                if any(one["metadata"]["uid"] == action.uid for one in self.domains.values()):
                    raise Refused

    def _same(self, name: str, uid: str) -> dict[str, Any]:
        if name not in self.templates:
            return {"metadata": {"resourceVersion": ""}}
        if self.templates[name]["metadata"]["uid"] != uid:
            raise Refused
        return self.templates[name]

    def _merge(self, name: str, patch: Mapping[str, Any]) -> None:
        if name not in self.templates:
            return
        metadata = self.templates[name]["metadata"]
        if patch["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            raise Refused
        metadata.setdefault("labels", {}).update(patch["metadata"].get("labels", {}))
        if "finalizers" in patch["metadata"]:
            metadata["finalizers"] = patch["metadata"]["finalizers"] or []
        self._written(self.templates[name])
        self._collect(self.templates, name)

    def _written(self, made: dict[str, Any]) -> dict[str, Any]:
        made["metadata"]["resourceVersion"] = str(next(self.numbers))
        return made

    @staticmethod
    def _collect(objects: dict[str, dict[str, Any]], name: str) -> None:
        metadata = objects[name]["metadata"]
        if "deletionTimestamp" in metadata and not metadata.get("finalizers"):
            del objects[name]
