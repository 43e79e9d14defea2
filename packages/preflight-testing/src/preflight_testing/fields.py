"""Every field of every kind, by the OpenAPI of a real API server: which of them somebody may write.

A right is a row of a service's table: what has ``resource``, ``verbs``, ``group``, ``fields``,
``names``, ``namespace`` and ``each``.
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from .apiserver import ApiServer
from .helm import Object

OURS = {"managedFields", "resourceVersion", "generation"}
"""Fields of metadata that the API server itself keeps, whatever a client sends."""
NEW = {"uid", "creationTimestamp", "name", "generateName"}
"""Fields of metadata in which two new objects differ."""
RBAC, ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{{}}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{{}}/rolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


class Tried(NamedTuple):
    """Paths of fields: those that were written, and those that a policy refused."""

    accepted: set[str]
    refused: set[str]


class RightCase(NamedTuple):
    """One right of one account, and by which of its verbs it is tried: create or update."""

    component: str
    right: Any
    verb: str

    def __str__(self) -> str:
        return f"{self.component}-{self.right.resource.replace('/', '-')}-{self.verb}"


def rows(chart: Any, words: Mapping[str, str]) -> Iterator[RightCase]:
    """Of a service's table: every right that writes. ``words``: what the chart's helpers say, and a
    resource for those that stand for a list.
    """

    def filled(text: str) -> str:
        return re.sub(r"\{(\w+)\}", lambda match: words[match[1]], text)

    for account in chart.accounts:
        for each in account.rights:
            if each.group == "authorization.k8s.io":
                continue  # a question, of which nothing is stored
            right = replace(
                each,
                resource=words.get(each.each, each.resource),
                namespace=filled(each.namespace),
                names=tuple(map(filled, each.names)),
                fields=tuple(map(filled, each.fields)),
            )
            verbs = set(right.verbs.split())
            for verb, by in (("create", {"create"}), ("update", {"update", "patch"})):
                if verbs & by:
                    yield RightCase(account.component, right, verb)


def example(row: RightCase, component: str = "") -> tuple[str, Object]:
    """Where an object is of a kind that all services write, and the object: a Lease, a Secret, a
    webhook's configuration, an Event of ``component``.
    """
    resource, namespace = row.right.resource, row.right.namespace or "default"
    about = {"name": row.right.names[0] if row.right.names else "e"}
    body: Object
    match resource:
        case "leases":
            version, kind = "coordination.k8s.io/v1", "Lease"
            body = {"spec": {"holderIdentity": "x"}}
        case "secrets":
            version, kind = "v1", "Secret"
            body = {"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}
        case "events":
            version, kind, about["namespace"] = "v1", "Event", namespace
            body = {
                "involvedObject": {"kind": "Any", "name": "x", "namespace": namespace},
                "source": {"component": component},
                "reportingComponent": component,
            }
        case _:
            version, namespace = "admissionregistration.k8s.io/v1", ""
            kind = f"{'Mutating' if resource.startswith('mutating') else 'Validating'}WebhookConfiguration"
            hook = {
                "name": "a.example.com",
                "clientConfig": {"url": "https://example.com/x"},
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
            body = {"webhooks": [hook]}
    root = f"/apis/{version}" if "/" in version else "/api/v1"
    where = f"{root}/namespaces/{namespace}" if namespace else root
    return f"{where}/{resource}", {"apiVersion": version, "kind": kind, "metadata": about, **body}


def kept(whole: Object, fields: Iterable[str]) -> Object:
    """What is left of an object without ``fields`` and without what the API server keeps."""
    if "*" in fields:
        return {}
    left = copy.deepcopy(whole)
    for key in OURS:
        left["metadata"].pop(key, None)
    spared = {field[1:] for field in fields if field[0] == "!"}
    for field in fields:
        path, _, key = field.partition("[")
        inner, _, rest = key.partition("]")
        *above, last = path.split(".")
        at = left
        for part in above:
            at = at.get(part, {})
        if field[0] == "!" or last not in at:
            continue
        if inner in {"", "-*"}:
            del at[last]
        elif inner == "*":
            for item in at[last]:
                *way, end = rest.strip(".").split(".")
                inside = item
                for part in way:
                    inside = inside.get(part, {})
                inside.pop(end, None)
        elif isinstance(at[last], list):
            name = inner.lstrip("-")
            at[last] = [i for i in at[last] if (i["name"] if isinstance(i, dict) else i) != name]
        else:
            pattern = re.compile(re.escape(inner).replace(r"\*", ".*"))
            at[last] = {
                k: v
                for k, v in at[last].items()
                if not pattern.fullmatch(k) or f"{path}[{k}]" in spared
            }
        if last in at and not at[last]:
            del at[last]
    return left


class Answer(NamedTuple):
    """``policy``: the last part of the name of the policy that refused the request; else empty."""

    status: int
    body: Any
    policy: str = ""

    @property
    def words(self) -> str:
        """Why the request was refused; else empty."""
        return str(self.body.get("message", "")) if self.status >= 400 else ""


class Fields:
    """Every field of a kind, by the OpenAPI of the API server, each with values to try."""

    TEXTS = ("x", "10.0.0.1", "2026-01-01T00:00:00Z", "Always", "Exists", "example.com/x", "eA==")

    def __init__(self, document: Object) -> None:
        self._known = document["components"]["schemas"]

    def kind(self, item: Object) -> str:
        """The name of the schema of an object's kind."""
        group, kind = item["apiVersion"].rpartition("/")[0], item["kind"]
        for name, schema in self._known.items():
            kinds = schema.get("x-kubernetes-group-version-kind", ())
            known = {(each["group"], each["kind"]) for each in kinds}
            if (group, kind) in known and "metadata" in schema.get("properties", {}):
                return str(name)
        raise KeyError(f"{kind} of {group or 'the core'}")

    def changes(self, kind: str, now: Object, depth: int = 6) -> Iterator[tuple[str, list[Any]]]:
        """Each path, with what the whole object may be when this field alone is another."""
        yield from self._object(self._known[kind], now, depth)

    def _object(self, schema: Object, now: Object, depth: int) -> Iterator[tuple[str, list[Any]]]:
        for key, each in schema.get("properties", {}).items():
            for path, values in self._value(each, now.get(key), depth - 1):
                yield f"{key}{path}", [{**now, key: value} for value in values]
            if key in now and key not in schema.get("required", ()):
                yield f"{key} left out", [{k: v for k, v in now.items() if k != key}]

    def _value(self, schema: Object, now: Any, depth: int) -> Iterator[tuple[str, list[Any]]]:
        schema = self._resolved(schema)
        if depth < 0:
            return
        if schema.get("type") == "array":
            yield from self._array(schema, now or [], depth)
        elif "properties" in schema:
            for path, values in self._object(schema, now or {}, depth):
                yield f".{path}", values
        elif schema.get("type") == "object":
            present = now or {}
            value = self._samples(schema.get("additionalProperties", {}))
            yield ".*", [{**present, "example.com/more": sample} for sample in value]
            for key in present:
                yield f".{key} left out", [{k: v for k, v in present.items() if k != key}]
                other = [sample for sample in [*value, "7"] if sample != present[key]]
                yield f".{key}", [{**present, key: sample} for sample in other]
        else:
            yield "", [sample for sample in self._samples(schema) if sample != now]

    def _array(self, schema: Object, now: list[Any], depth: int) -> Iterator[tuple[str, list[Any]]]:
        item = self._resolved(schema["items"])
        if now:
            yield " shorter", [now[1:]]
        yield " longer", [[*now, sample] for sample in self._samples(item)]
        if "properties" in item:
            first = now[0] if now else {}
            for path, values in self._object(item, first, depth - 1):
                yield f"[0].{path}", [[value, *now[1:]] for value in values]

    def _resolved(self, schema: Object) -> Object:
        if "allOf" in schema:
            schema = schema | schema["allOf"][0]
        reference = schema.get("$ref", "").rpartition("/")[2]
        return self._known[reference] if reference else schema

    def _samples(self, schema: Object) -> list[Any]:
        schema = self._resolved(schema)
        match schema.get("type"):
            case "string":
                return list(schema.get("enum", self.TEXTS))
            case "integer" | "number":
                return [1, 7]
            case "boolean":
                return [True, False]
            case "array":
                return [[sample] for sample in self._samples(schema["items"])]
            case "object" if "properties" in schema:
                least = {
                    key: self._samples(each)[0]
                    for key, each in schema["properties"].items()
                    if key in schema.get("required", ())
                }
                more = {"name": "x"} if "name" in schema["properties"] else {}
                return [least, {**least, **more}, {**least, "key": "x", "operator": "Exists"}]
            case "object":
                return [{"example.com/more": text} for text in self.TEXTS]
        return ["x", 1]  # a number or a text


class Impersonator:
    """An API server that is asked in others' names.

    ``release``: what the policies' names begin with. ``admin``: an administrator whom they exempt.
    """

    def __init__(self, server: ApiServer, release: str = "", admin: str = "") -> None:
        self.server = server
        self._release, self._admin = release, admin
        self._fields: dict[str, Fields] = {}

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        user: str = "",
        groups: Sequence[str] = (),
        node: str = "",
        media: str = "",
    ) -> Answer:
        """As ``user`` (the administrator where there is none, nobody for ``-``) with a token of
        ``node``. ``media``: the body's type, where its shape does not say it.
        """
        patch = "json-patch" if isinstance(body, list) else "strategic-merge-patch"
        shape = f"application/{patch}+json" if method == "PATCH" else "application/json"
        headers = [("Content-Type", media or shape)]
        if user != "-":
            headers.append(("Authorization", f"Bearer {self.server.token}"))
        if not user and self._admin:
            user, groups = self._admin, ("system:masters", *groups)
        if user not in {"", "-"}:
            headers.append(("Impersonate-User", user))
            headers += [("Impersonate-Group", group) for group in ("system:authenticated", *groups)]
        if node:
            headers.append(("Impersonate-Extra-authentication.kubernetes.io%2Fnode-name", node))
        # Without spaces: the API server compares the bytes of a RawExtension.
        content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        answer, text = self.server.exchange(method, path, content, headers)
        parsed = Answer(answer.status, json.loads(text) if text.startswith(b"{") else {})
        policy = parsed.words.partition("ValidatingAdmissionPolicy '")[2].partition("'")[0]
        return parsed._replace(policy=policy.removeprefix(f"{self._release}-"))

    def create(self, path: str, body: Object) -> Object:
        """As the administrator; AssertionError where it cannot be."""
        answer = self.ask("POST", path, body)
        assert answer.status == 201, answer.body
        created: Object = answer.body
        return created

    def until(self, holds: Callable[[Answer], bool], ask: Callable[[], Answer]) -> None:
        """A policy or a right takes a moment to be in force."""
        end = time.monotonic() + 60
        while not holds(answer := ask()):
            assert time.monotonic() < end, answer
            time.sleep(0.1)

    def until_refused(self, policy: str, ask: Callable[[], Answer]) -> None:
        """Ask until ``policy`` is in force."""
        self.until(lambda answer: answer.policy == policy, ask)

    def fields(self, path: str) -> Fields:
        """Of the group and version that serve ``path``."""
        parts = path.split("/")[1 : 3 if path.startswith("/api/") else 4]
        document = f"/openapi/v3/{'/'.join(parts)}"
        if document not in self._fields:
            self._fields[document] = Fields(self.ask("GET", document).body)
        return self._fields[document]

    def install(self, objects: Iterable[Object]) -> None:
        """Create the definitions, roles and policies of a rendered chart."""
        for o in objects:
            if o["kind"] in PATHS:
                self.create(PATHS[o["kind"]].format(o["metadata"].get("namespace")), o)

    def updates(self, path: str, now: Object, right: Any, user: str, *, node: str = "") -> Tried:
        """Change every field of the object ``now`` at ``path`` that the administrator can change,
        as ``user``.

        Raises AssertionError where something is written that the right does not name.
        """
        tried = Tried(set(), set())
        subresource = f"{path}/status" if right.resource.endswith("/status") else path
        subresource += "?dryRun=All"
        before = kept(now, right.fields)
        schema = self.fields(path)
        for field, values in schema.changes(schema.kind(now), now):
            section = field.partition(".")[0].partition("[")[0].partition(" ")[0]
            for value in values:
                verb, change = "PUT", value
                if "patch" in right.verbs:
                    verb, change = "PATCH", [{"op": "remove", "path": f"/{section}"}]
                    if section in value:
                        change = [{"op": "add", "path": f"/{section}", "value": value[section]}]
                free = self.ask(verb, subresource, change)
                if free.status != 200 or kept(free.body, ()) == kept(now, ()):
                    continue
                held = self.ask(verb, subresource, change, user=user, node=node)
                foreign = kept(free.body, right.fields) != before
                assert held.policy or held.status == 200, f"{field}: {held}"
                if held.policy:
                    tried.refused.add(field)
                else:
                    assert not foreign or kept(held.body, right.fields) == before, field
                    tried.accepted.add(field)
                break
        return tried

    def creates(self, path: str, start: Object, right: Any, user: str, *, node: str = "") -> Tried:
        """Create ``start`` and every object that differs from it in one field, as ``user``.

        Raises AssertionError where something is written that the right does not name.
        """
        tried = Tried(set(), set())
        where = f"{path}?dryRun=All"

        def left(item: Object) -> Object:
            about = {k: v for k, v in item["metadata"].items() if k not in NEW}
            return kept({**item, "metadata": about}, (*right.fields, "status"))

        base = self.ask("POST", where, start, user=user, node=node)
        assert base.status == 201, base
        schema = self.fields(path)
        for field, values in schema.changes(schema.kind(start), start, 4):
            for value in values:
                if self.ask("POST", where, value).status != 201:
                    continue
                held = self.ask("POST", where, value, user=user, node=node)
                assert held.policy or held.status == 201, f"{field}: {held}"
                if held.policy:
                    tried.refused.add(field)
                    break
                assert left(held.body) == left(base.body), field
                tried.accepted.add(field)
                break
        return tried

    def tries(self, row: RightCase, path: str, body: Object, user: str, *, node: str = "") -> Tried:
        """All of one row: every field of ``body``, which is created at ``path``; another namespace,
        another object, another node. The last two are refused, as is every field that the row does
        not name.
        """
        right, new = row.right, row.verb == "create"
        name = body["metadata"]["name"]
        suffix = "/status" if right.resource.endswith("/status") else ""

        def ask(where: str, whole: Object, change: Any, node: str = node) -> Answer:
            changed = {**whole, "metadata": {**whole["metadata"], **change}}
            if new:
                return self.ask("POST", f"{where}?dryRun=All", changed, user=user, node=node)
            at = f"{where}/{whole['metadata']['name']}{suffix}?dryRun=All"
            if "patch" not in right.verbs:
                return self.ask("PUT", at, changed, user=user, node=node)
            patch = [{"op": "add", "path": f"/metadata/{k}", "value": v} for k, v in change.items()]
            return self.ask("PATCH", at, patch, user=user, node=node)

        with ExitStack() as created:
            if not new:
                body = self.there(path, body, created)
            good = 201 if new else 200
            self.until(lambda answer: answer.status == good, lambda: ask(path, body, {}))
            if "*" not in right.fields and not (
                suffix and "." in right.group and not right.group.endswith("k8s.io")
            ):
                foreign = {"finalizers": ["example.com/foreign"]}
                self.until(lambda answer: bool(answer.policy), lambda: ask(path, body, foreign))
            tried = (
                self.creates(path, body, right, user, node=node)
                if new
                else self.updates(f"{path}/{name}", body, right, user, node=node)
            )
            if right.namespace:
                where = re.sub("/namespaces/[^/]+/", "/namespaces/default/", path)
                elsewhere = {**body, "metadata": {**body["metadata"], "namespace": "default"}}
                if not new:
                    elsewhere = self.there(where, elsewhere, created)
                assert ask(where, elsewhere, {}).status == 403, "another namespace"
            if right.names:
                another = {**body, "metadata": {**body["metadata"], "name": "another"}}
                if not new:
                    another = self.there(path, another, created)
                assert ask(path, another, {}).status == 403, "another object"
            if any("node-name" in held.cel for held in right.holds):
                for other in ("", "another"):
                    assert ask(path, body, {}, node=other).policy, f"node {other!r}"
            return tried

    def there(self, path: str, body: Object, created: ExitStack) -> Object:
        """The object as it is, created where it is missing; and gone with ``created``."""
        about = {k: v for k, v in body["metadata"].items() if k not in {"uid", *OURS}}
        answer = self.ask("POST", path, {**body, "metadata": about})
        assert answer.status in {201, 409}, answer
        at = f"{path}/{body['metadata']['name']}"
        if answer.status == 201:
            created.callback(self.ask, "DELETE", at)
        if "status" in body and answer.status == 201:
            patch = [{"op": "add", "path": "/status", "value": body["status"]}]
            changed = self.ask("PATCH", f"{at}/status", patch)
            assert changed.status == 200, changed
        item: Object = self.ask("GET", at).body
        return item
