"""Objects with versions and their history: what etcd and the registry are to the real server.

Stored objects are never changed in place, so that pages and events may share them.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .patches import copied
from .selectors import Matches

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """One row of the table of what is served; ``status``: has a status subresource, and is written
    only there; ``custom``: changes of its spec are counted as generations."""

    group_version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    custom: bool = False

    @property
    def head(self) -> Object:
        """What each object begins with."""
        return {"apiVersion": self.group_version, "kind": self.kind}


PREFLIGHT = "preflight.nvsentinel.nvidia.com/v1alpha1"
RESOURCES = (
    Resource("v1", "namespaces", "Namespace", namespaced=False, status=True),
    Resource("v1", "nodes", "Node", namespaced=False, status=True),
    Resource("v1", "pods", "Pod", status=True),
    Resource("v1", "configmaps", "ConfigMap"),
    Resource("v1", "secrets", "Secret"),
    Resource("v1", "events", "Event"),
    Resource("batch/v1", "jobs", "Job", status=True),
    Resource("coordination.k8s.io/v1", "leases", "Lease"),
    Resource("scheduling.k8s.io/v1alpha1", "workloads", "Workload"),
    Resource("scheduling.k8s.io/v1alpha2", "workloads", "Workload"),
    Resource("scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup", status=True),
    Resource(PREFLIGHT, "preflightconfigs", "PreflightConfig", status=True, custom=True),
    Resource(PREFLIGHT, "nodehealths", "NodeHealth", namespaced=False, status=True, custom=True),
)


class ApiRefused(Exception):
    """An error as the server says it: HTTP status, reason, message,
    and the details of its Status.
    """

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        head = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        failure = {"message": message, "reason": reason, "details": details, "code": code}
        self.status = head | failure


@dataclass(frozen=True)
class StoredWrite:
    """One write: what was there before it and after it."""

    version: int
    resource: Resource
    before: Object | None
    after: Object | None

    def event(
        self, resource: Resource, namespace: str, matches: Matches
    ) -> tuple[str, Object] | None:
        """What a watch with this selection says of the write: type and object, or nothing."""
        meta = (self.after or self.before or {})["metadata"]
        if self.resource != resource or namespace not in {"", meta.get("namespace", "")}:
            return None
        was = self.before is not None and matches(self.before)
        if self.after is not None and matches(self.after):
            return "MODIFIED" if was else "ADDED", self.after
        # Gone, or no longer selected: as it was, at the new version.
        return ("DELETED", _at(self.before, self.version)) if self.before and was else None


@dataclass
class Store:
    """Every object at its newest version, and the writes that led there.

    ``objects`` are by resource, then by (namespace, name); the namespace of what has none is empty.
    """

    version: int = 1
    """Of the last write, counted over all resources, as etcd does."""
    compacted: int = 1
    """The oldest version from which a watch may begin."""
    objects: dict[Resource, dict[tuple[str, str], Object]] = field(default_factory=dict)
    history: list[StoredWrite] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new one, with every write."""
    _pages: dict[str, tuple[int, list[Object]]] = field(default_factory=dict)

    def compact(self) -> None:
        """Forget all history: older versions cannot be watched from, and lists that were begun
        cannot be ended.
        """
        self.compacted = self.version
        self.history.clear()
        self._pages.clear()
        self._notify()

    def since(self, version: int) -> list[StoredWrite]:
        """Every write after ``version``; ApiRefused where its history was compacted away."""
        if version < self.compacted:
            why = f"too old resource version: {version} ({self.compacted})"
            raise ApiRefused(410, "Expired", why)
        return self.history[version - self.compacted :]  # versions rise by one with each step

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        """The object as it is stored, not a copy; raises :class:`ApiRefused` with 404 for none."""
        try:
            return self.objects[resource][namespace, name]
        except KeyError:
            raise _refused(404, "NotFound", resource, name, "not found") from None

    def page(
        self, resource: Resource, namespace: str, matches: Matches, limit: int, token: str
    ) -> tuple[list[Object], Object]:
        """One page of a list, and the list's metadata. Later pages come from the same moment as the
        first.
        """
        if not token:
            items = sorted(self.objects.get(resource, {}).items())
            there = (item for (where, _), item in items if namespace in {"", where})
            version, matching = self.version, [item for item in there if matches(item)]
        elif token in self._pages:
            version, matching = self._pages[token]
        else:
            why = "The provided continue parameter is too old to display a consistent list"
            raise ApiRefused(410, "Expired", why)
        meta: Object = {"resourceVersion": str(version)}
        if limit and len(matching) > limit:
            meta |= {"continue": uuid.uuid4().hex, "remainingItemCount": len(matching) - limit}
            self._pages[meta["continue"]] = (version, matching[limit:])
        return matching[: limit or None], meta

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        """Store ``body`` with what the server sets (uid, time, versions, a generated name).

        Raises :class:`ApiRefused`: 422 without any name, 409 where the name is taken.
        """
        meta = {k: v for k, v in body.get("metadata", {}).items() if v is not None}
        if "name" not in meta and "generateName" in meta:
            end = random.choices("bcdfghjklmnpqrstvwxz2456789", k=5)
            meta["name"] = meta["generateName"] + "".join(end)
        if "name" not in meta:
            why = "Required value: name or generateName is required"
            raise _invalid(resource, "", "metadata.name", why)
        if (namespace, meta["name"]) in self.objects.get(resource, {}):
            raise _refused(409, "AlreadyExists", resource, meta["name"], "already exists")
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        if namespace:
            meta["namespace"] = namespace
        if resource.custom:
            meta["generation"] = 1
        created = copied(body) | resource.head | {"metadata": meta}
        if resource.status:
            created["status"] = {"phase": "Pending"} if resource.plural == "pods" else {}
        return self._write(resource, None, created)

    def update(
        self, resource: Resource, before: Object, body: Object, *, status: bool = False
    ) -> Object:
        """Replace ``before`` by ``body``; ``status`` says which of the two halves of the object
        may change.
        """
        old, name = before["metadata"], before["metadata"]["name"]
        meta = {k: v for k, v in body.get("metadata", {}).items() if v not in (None, {}, [])}
        if meta.get("name") != name:
            message = f"the name of the object ({meta.get('name')}) does not match the name on the URL ({name})"
            raise ApiRefused(400, "BadRequest", message)
        if meta.get("uid", old["uid"]) != old["uid"]:
            why = f'Invalid value: "{meta["uid"]}": field is immutable'
            raise _invalid(resource, name, "metadata.uid", why)
        if meta.get("resourceVersion", old["resourceVersion"]) != old["resourceVersion"]:
            raise _conflict(resource, name)
        fixed = ("uid", "creationTimestamp", "namespace", "deletionTimestamp", "generation")
        kept = {k: old[k] for k in fixed if k in old}
        meta |= kept | {"resourceVersion": old["resourceVersion"]}
        after = body | resource.head | {"metadata": meta}
        if status:
            after = before | {"status": after.get("status", {})}
        elif resource.status:
            after["status"] = before["status"]
        if after == before:
            return before
        if "generation" in old and after.get("spec") != before.get("spec"):
            after["metadata"] = after["metadata"] | {"generation": old["generation"] + 1}
        held = "finalizers" in after["metadata"]
        gone = {"deletionTimestamp", "finalizers"} <= old.keys() and not held
        return self._write(resource, before, None if gone else after)

    def delete(self, resource: Resource, before: Object, options: Object) -> Object:
        """Remove ``before``, or only mark it where finalizers or a kubelet must let go of it first.

        ``options`` are DeleteOptions; raises :class:`ApiRefused` with 409 where a precondition
        fails.
        """
        meta, wanted = before["metadata"], options.get("preconditions") or {}
        if any(wanted.get(key, meta[key]) != meta[key] for key in ("uid", "resourceVersion")):
            raise _conflict(resource, meta["name"])
        bound = resource.plural == "pods" and before.get("spec", {}).get("nodeName")
        ended = before.get("status", {}).get("phase") in {"Succeeded", "Failed"}
        free = not bound or ended or options.get("gracePeriodSeconds") == 0
        if free and not meta.get("finalizers"):
            return self._write(resource, before, None)
        if "deletionTimestamp" in meta:
            return before
        # A pod that is bound goes when its kubelet deletes it without grace.
        ends: Object = {"deletionTimestamp": _now()}
        if resource.custom:
            ends["generation"] = meta["generation"] + 1
        return self._write(resource, before, before | {"metadata": meta | ends})

    def _write(self, resource: Resource, before: Object | None, after: Object | None) -> Object:
        self.version += 1
        meta = (after or before or {})["metadata"]
        place = meta.get("namespace", ""), meta["name"]
        if after is None:
            del self.objects[resource][place]
        else:
            after = self.objects.setdefault(resource, {})[place] = _at(after, self.version)
        self.history.append(StoredWrite(self.version, resource, before, after))
        self._notify()
        return after or before or {}

    def _notify(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


def _at(item: Object, version: int) -> Object:
    return item | {"metadata": item["metadata"] | {"resourceVersion": str(version)}}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _refused(code: int, reason: str, resource: Resource, name: str, detail: str) -> ApiRefused:
    group = resource.group_version.rpartition("/")[0]
    qualified = f"{resource.plural}.{group}" if group else resource.plural
    message = f'{qualified} "{name}" {detail}'
    return ApiRefused(code, reason, message, name=name, group=group, kind=resource.plural)


def _conflict(resource: Resource, name: str) -> ApiRefused:
    detail = "has been modified; apply the changes to its latest version"
    return _refused(409, "Conflict", resource, name, detail)


def _invalid(resource: Resource, name: str, where: str, detail: str) -> ApiRefused:
    cause = {"reason": "FieldValueInvalid", "message": detail, "field": where}
    message = f'{resource.kind} "{name}" is invalid: {where}: {detail}'
    return ApiRefused(422, "Invalid", message, name=name, kind=resource.kind, causes=[cause])
