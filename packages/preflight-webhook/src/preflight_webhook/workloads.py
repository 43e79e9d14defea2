"""Kubernetes objects in files or in a cluster, as `explain` takes them: the pods that they make, and what those need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import yaml
from preflight_proto.policy import KIND as POLICY
from preflight_proto.policy import PreflightConfig

from . import claims
from .claims import Claim, Ref

__all__ = ["KINDS", "Found", "Object", "documents", "found_in", "needed"]

Object = dict[str, Any]

_TEMPLATE: Final = ("spec", "template")
_PATHS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "Deployment": (_TEMPLATE,),
    "ReplicaSet": (_TEMPLATE,),
    "StatefulSet": (_TEMPLATE,),
    "DaemonSet": (_TEMPLATE,),
    "Job": (_TEMPLATE,),
    "CronJob": (("spec", "jobTemplate", "spec", "template"),),
    "LeaderWorkerSet": (
        ("spec", "leaderWorkerTemplate", "leaderTemplate"),
        ("spec", "leaderWorkerTemplate", "workerTemplate"),
    ),
    "JobSet": (("spec", "replicatedJobs", "*", "template", "spec", "template"),),
}
"""Where the pod templates of each kind are; a star is every entry of a list."""

KINDS: Final[Mapping[str, str]] = {
    "Pod": "/api/v1/namespaces/{}/pods/",
    **{kind: f"/apis/apps/v1/namespaces/{{}}/{kind.lower()}s/" for kind in list(_PATHS)[:4]},
    "Job": "/apis/batch/v1/namespaces/{}/jobs/",
    "CronJob": "/apis/batch/v1/namespaces/{}/cronjobs/",
    "LeaderWorkerSet": "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets/",
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets/",
}
"""Where a cluster has each kind."""
_CONFINING: Final = frozenset({"baseline", "restricted"})


class Found(NamedTuple):
    """One pod or pod template. ``claims``: what is known of those that it names; ``confined``: its namespace allows no hostPath;
    ``policies``: the PreflightConfigs of its namespace."""

    what: str
    namespace: str
    pod: Object
    claims: dict[Ref, Claim | None]
    confined: bool
    policies: tuple[PreflightConfig, ...] = ()


def documents(text: str, where: str) -> list[Object]:
    """The objects in YAML or JSON documents. Raises :class:`ValueError` with one sentence."""
    try:
        made = [d for d in yaml.safe_load_all(text) if isinstance(d, dict)]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" line {mark.line + 1}" if mark else ""
        raise ValueError(
            f"{where}:{place} is not YAML ({getattr(error, 'problem', None) or error}); mend it there."
        ) from None
    return [item for d in made for item in (d.get("items") or [] if d.get("kind") == "List" else [d])]


def found_in(objects: Iterable[Object], where: str) -> list[Found]:
    """The pods that the objects make. Claims, templates, namespaces and PreflightConfigs among them are taken into account.

    Raises :class:`ValueError` with one sentence when there is no pod.
    """
    objects = list(objects)
    known: dict[tuple[str, Ref], Claim | None] = {}
    policies: dict[str, list[PreflightConfig]] = {}
    confined = set()
    for item in objects:
        namespace, name = _place(item)
        if item.get("kind") in {"ResourceClaim", "ResourceClaimTemplate"}:
            known[namespace, Ref(f"{item['kind'].lower()}s", name)] = claims.read(item)
        elif item.get("kind") == POLICY:
            policies.setdefault(namespace, []).append(_policy(item, name))
        level = ((item.get("metadata") or {}).get("labels") or {}).get("pod-security.kubernetes.io/enforce")
        if item.get("kind") == "Namespace" and level in _CONFINING:
            confined.add(name)
    found = []
    for item in objects:
        namespace, name = _place(item)
        here = {ref: claim for (at, ref), claim in known.items() if at == namespace}
        for suffix, pod in _pods(item):
            what = f"{item.get('kind')} {name or '(no name)'}{suffix}"
            found.append(Found(what, namespace, pod, here, namespace in confined, tuple(policies.get(namespace, ()))))
    if not found:
        kinds = ", ".join(sorted({str(item.get("kind")) for item in objects})) or "nothing"
        raise ValueError(f"{where}: no pod in it (found {kinds}); give a Pod or one of {', '.join(_PATHS)}.")
    return found


def needed(found: Found, get: Callable[[str], Object | None]) -> dict[Ref, Claim | None]:
    """The claims that a pod names, read from a cluster by ``get`` (path → object), which may raise."""
    spec = found.pod.get("spec")
    entries = (spec.get("resourceClaims") if isinstance(spec, dict) else None) or []
    refs = [
        Ref(plural, entry[key])
        for entry in entries
        for key, plural in (("resourceClaimTemplateName", claims.TEMPLATES), ("resourceClaimName", claims.CLAIMS))
        if entry.get(key)
    ]
    known = {}
    for ref in refs:
        made = get(f"/apis/resource.k8s.io/v1/namespaces/{found.namespace}/{ref.plural}/{ref.name}")
        known[ref] = None if made is None else claims.read(made)
    return known


def _policy(item: Object, name: str) -> PreflightConfig:
    try:
        return msgspec.json.decode(msgspec.json.encode(item), type=PreflightConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{POLICY} {name or '(no name)'}: cannot be read ({error}); mend it there.") from None


def _place(item: Object) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return metadata.get("namespace") or "default", metadata.get("name") or ""


def _pods(item: Object) -> Iterator[tuple[str, Object]]:
    if item.get("kind") == "Pod":
        yield "", item
        return
    for path in _PATHS.get(str(item.get("kind")), ()):
        for suffix, template in _at(item, path, ""):
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template.get("metadata") or {}}
            yield suffix, {**pod, "spec": template.get("spec")}


def _at(item: Any, path: tuple[str, ...], suffix: str) -> Iterator[tuple[str, Object]]:
    """What stands at ``path``, with a name that tells several apart."""
    if not path:
        yield suffix, item if isinstance(item, dict) else {}
    elif path[0] == "*":
        for i, one in enumerate(item if isinstance(item, list) else []):
            yield from _at(one, path[1:], f"{suffix}, {one.get('name', i) if isinstance(one, dict) else i}")
    else:
        there = item.get(path[0]) if isinstance(item, dict) else None
        if path[0] == "leaderTemplate" and there is None:
            return  # workers alone
        named = f", {path[0].removesuffix('Template')}" if path[0] in {"leaderTemplate", "workerTemplate"} else ""
        yield from _at(there if there is not None else {}, path[1:], suffix + named)
