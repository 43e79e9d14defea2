"""Objects with versions, their history, and who is looking: what etcd and the registry are to the real server.

Stored objects are never changed in place, so that pages and events may share them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import uuid
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """One row of the table of what is served."""

    group_version: str
    """``v1`` or ``batch/v1``."""
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    """Has a status subresource: status is then written there and nowhere else."""

    @property
    def root(self) -> str:
        return ("/api/" if "/" not in self.group_version else "/apis/") + self.group_version


RESOURCES = (
    Resource("v1", "namespaces", "Namespace", namespaced=False, status=True),
    Resource("v1", "nodes", "Node", namespaced=False, status=True),
    Resource("v1", "pods", "Pod", status=True),
    Resource("v1", "configmaps", "ConfigMap"),
    Resource("v1", "secrets", "Secret"),
    Resource("v1", "events", "Event"),
    Resource("v1", "serviceaccounts", "ServiceAccount"),
    Resource("batch/v1", "jobs", "Job", status=True),
    Resource("coordination.k8s.io/v1", "leases", "Lease"),
    Resource("scheduling.k8s.io/v1alpha1", "workloads", "Workload"),
    Resource("scheduling.k8s.io/v1alpha2", "workloads", "Workload"),
    Resource("scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup", status=True),
)


class Refused(Exception):
    """An error as the server says it: HTTP status, reason, message, and details of its Status."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": code,
        }


@dataclass(frozen=True)
class Step:
    """One write: what was there before it and after it."""

    version: int
    resource: Resource
    before: Object | None
    after: Object | None


Matches = Callable[[Object], bool]


@dataclass
class Store:
    version: int = 1
    compacted: int = 1
    objects: dict[Resource, dict[tuple[str, str], Object]] = field(default_factory=dict)
    history: list[Step] = field(default_factory=list)
    _pages: dict[str, tuple[int, list[Object]]] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new one, with every write."""

    def compact(self) -> None:
        """Forget all history: older versions cannot be watched from, and lists that were begun cannot be ended."""
        self.compacted = self.version
        self.history.clear()
        self._pages.clear()
        self._tell()

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        try:
            return self.objects[resource][namespace, name]
        except KeyError:
            kind, group = resource.plural, resource.group_version.rpartition("/")[0]
            message = f'{kind}{group and "."}{group} "{name}" not found'
            raise Refused(404, "NotFound", message, name=name, group=group, kind=kind) from None

    def page(
        self, resource: Resource, namespace: str, matches: Matches, limit: int, token: str
    ) -> tuple[list[Object], int, str, int]:
        """One page: items, version of the whole list, token of the next page ("" at the end), how many remain.

        Later pages come from the same moment as the first.
        """
        if token:
            if token not in self._pages:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
            version, found = self._pages[token]
        else:
            version = self.version
            found = [
                item
                for (where, _), item in sorted(self.objects.get(resource, {}).items())
                if namespace in {"", where} and matches(item)
            ]
        items, rest = (found[:limit], found[limit:]) if limit else (found, [])
        if not rest:
            return items, version, "", 0
        after = {"v": "double", "rv": version, "after": items[-1]["metadata"]["uid"], "is": uuid.uuid4().hex}
        following = base64.urlsafe_b64encode(json.dumps(after).encode()).decode()
        self._pages[following] = (version, rest)
        return items, version, following, len(rest)

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        meta = dict(body.get("metadata") or {})
        if not meta.get("name") and meta.get("generateName"):
            alphabet = "bcdfghjklmnpqrstvwxz2456789"
            meta["name"] = meta["generateName"] + "".join(random.choices(alphabet, k=5))
        name = meta.get("name")
        if not name:
            message = f'{resource.kind} "" is invalid: metadata.name: Required value: name or generateName is required'
            raise Refused(422, "Invalid", message, kind=resource.kind, causes=[{"field": "metadata.name"}])
        if meta.get("resourceVersion"):
            raise Refused(400, "BadRequest", "resourceVersion should not be set on objects to be created")
        if (namespace, name) in self.objects.get(resource, {}):
            message = f'{resource.plural} "{name}" already exists'
            raise Refused(409, "AlreadyExists", message, name=name, kind=resource.plural)
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()} | ({"namespace": namespace} if namespace else {})
        made = deepcopy(body) | {"apiVersion": resource.group_version, "kind": resource.kind, "metadata": meta}
        if resource.status:
            made.pop("status", None)
        if resource.plural == "pods":
            made["status"] = {"phase": "Pending"}
        return self._write(resource, None, made)

    def update(self, resource: Resource, before: Object, body: Object, *, status: bool = False) -> Object:
        """Replace ``before`` by ``body``; ``status`` tells which of the two halves of the object may change."""
        old, meta = before["metadata"], dict(body.get("metadata") or {})
        kind, name = resource.kind, old["name"]
        if meta.get("name") != name:
            message = f"the name of the object ({meta.get('name')}) does not match the name on the URL ({name})"
            raise Refused(400, "BadRequest", message)
        if meta.get("uid", old["uid"]) != old["uid"]:
            message = f'{kind} "{name}" is invalid: metadata.uid: Invalid value: "{meta["uid"]}": field is immutable'
            raise Refused(422, "Invalid", message, name=name, kind=kind, causes=[{"field": "metadata.uid"}])
        if meta.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
            raise conflict(resource, name)
        kept = ("uid", "creationTimestamp", "namespace", "deletionTimestamp", "resourceVersion")
        after = deepcopy(body) | {"apiVersion": resource.group_version, "kind": kind}
        after["metadata"] = meta | {field: old[field] for field in kept if field in old}
        if status:
            after = before | {"status": after.get("status", {})}
        elif resource.status:
            after = {k: v for k, v in after.items() if k != "status"} | {
                k: before[k] for k in ("status",) if k in before
            }
        if after == before:
            return before
        if "deletionTimestamp" in old and not meta.get("finalizers") and old.get("finalizers"):
            self._write(resource, before, None)
            return after
        return self._write(resource, before, after)

    def delete(self, resource: Resource, before: Object, options: Object) -> Object:
        meta, wanted = before["metadata"], options.get("preconditions") or {}
        for key in ("uid", "resourceVersion"):
            if wanted.get(key, meta[key]) != meta[key]:
                raise conflict(resource, meta["name"])
        # A pod that is bound goes when its kubelet says so.
        bound = resource.plural == "pods" and before.get("spec", {}).get("nodeName")
        waits = bound and options.get("gracePeriodSeconds") != 0 and not _ended(before)
        if not waits and not meta.get("finalizers"):
            self._write(resource, before, None)
            return before
        if "deletionTimestamp" in meta:
            return before
        return self._write(resource, before, before | {"metadata": meta | {"deletionTimestamp": now()}})

    def _write(self, resource: Resource, before: Object | None, after: Object | None) -> Object:
        self.version += 1
        kept = self.objects.setdefault(resource, {})
        meta = (after or before or {})["metadata"]
        where = meta.get("namespace", ""), meta["name"]
        if after is None:
            del kept[where]
        else:
            after = kept[where] = after | {"metadata": meta | {"resourceVersion": str(self.version)}}
        self.history.append(Step(self.version, resource, before, after))
        self._tell()
        return after or before or {}

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()

    def since(self, version: int) -> list[Step]:
        """Every write after ``version``; Refused where its history was compacted away."""
        if version < self.compacted:
            raise Refused(410, "Expired", f"too old resource version: {version} ({self.compacted})")
        return self.history[version - self.compacted :]  # versions rise by one with each step


def event(step: Step, resource: Resource, namespace: str, matches: Matches) -> tuple[str, Object] | None:
    """What a watch with this selection says of ``step``: its type and object, or nothing."""
    some = step.after or step.before or {}
    if step.resource != resource or namespace not in {"", some["metadata"].get("namespace", "")}:
        return None
    was, is_ = (state is not None and matches(state) for state in (step.before, step.after))
    if is_ and step.after is not None:
        return ("MODIFIED" if was else "ADDED"), step.after
    if was and step.before is not None:  # gone, or no longer selected: its last selected state, at the new version
        return "DELETED", step.before | {"metadata": step.before["metadata"] | {"resourceVersion": str(step.version)}}
    return None


def conflict(resource: Resource, name: str) -> Refused:
    message = (
        f'Operation cannot be fulfilled on {resource.plural} "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    return Refused(409, "Conflict", message, name=name, kind=resource.plural)


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _ended(pod: Object) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}
