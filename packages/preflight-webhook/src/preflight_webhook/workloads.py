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
        where = f"namespaces/{found.namespace}/{ref.plural}/{ref.name}"
        there = (get(f"{claims.GROUP}/{version}/{where}") for version in claims.VERSIONS)
        made = next((one for one in there if one is not None), None)
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
    kind = str(item.get("kind"))
    if kind == "Pod":
        yield "", item
        return
    for path in _PATHS.get(kind, ()):
        for suffix, template in _at(item, path, ""):
            metadata = _written(item, kind, suffix.removeprefix(", "), template.get("metadata"))
            yield suffix, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template.get("spec")}


def _written(item: Object, kind: str, part: str, metadata: Any) -> Object:
    """A template's metadata with what the controller of ``kind`` writes to the pods of its ``part``: by that their gang is known.

    Of several pods it is the first one's; an owner's UID is not known yet.
    """
    _, name = _place(item)
    labels, annotations, owner = _WRITTEN[kind](item, name, part) if kind in _WRITTEN else ({}, {}, kind)
    given = metadata if isinstance(metadata, dict) else {}
    made = dict(given)
    if labels:
        made["labels"] = {**(given.get("labels") or {}), **labels}
    if annotations:
        made["annotations"] = {**(given.get("annotations") or {}), **annotations}
    made["ownerReferences"] = [{"kind": owner, "name": name, "uid": "", "controller": True}]
    return made


_Marks = tuple[dict[str, str], dict[str, str], str]
"""Labels and annotations, and the kind of the owner."""


def _of_job(item: Object, name: str, _: str) -> _Marks:
    return *_job_marks(_spec(item), name, "NonIndexed"), "Job"


def _of_cron_job(item: Object, name: str, _: str) -> _Marks:
    template = (_spec(item).get("jobTemplate") or {}) if isinstance(_spec(item).get("jobTemplate"), dict) else {}
    return *_job_marks(_spec(template), f"{name}-1", "NonIndexed"), "Job"


def _job_marks(spec: Object, name: str, mode: str) -> tuple[dict[str, str], dict[str, str]]:
    index = {_COMPLETION: "0"} if (spec.get("completionMode") or mode) == "Indexed" else {}
    return {"batch.kubernetes.io/job-name": name, **index}, index


def _of_jobset(item: Object, name: str, part: str) -> _Marks:
    jobs = [one for one in _spec(item).get("replicatedJobs") or () if isinstance(one, dict)]
    job: Object = next((one for one in jobs if one.get("name") == part), {})
    template = job.get("template")
    labels, annotations = _job_marks(
        _spec(template if isinstance(template, dict) else {}), f"{name}-{part}-0", "Indexed"
    )
    own = {
        "jobset-name": name,
        "replicatedjob-name": part,
        "group-name": str(job.get("groupName") or "default"),
    }
    marks = {f"jobset.sigs.k8s.io/{key}": value for key, value in own.items()}
    return {**labels, **marks}, {**annotations, **marks}, "Job"


def _of_lws(item: Object, name: str, part: str) -> _Marks:
    template = _spec(item).get("leaderWorkerTemplate")
    size = (template.get("size") if isinstance(template, dict) else None) or 1
    index = "0" if part == "leader" else "1"
    labels = {"name": name, "group-index": "0", "worker-index": index}
    prefix = "leaderworkerset.sigs.k8s.io/"
    return {prefix + key: value for key, value in labels.items()}, {f"{prefix}size": str(size)}, "StatefulSet"


def _of_deployment(_: Object, __: str, ___: str) -> _Marks:
    return {}, {}, "ReplicaSet"


_COMPLETION: Final = "batch.kubernetes.io/job-completion-index"
_WRITTEN: Final[Mapping[str, Callable[[Object, str, str], _Marks]]] = {
    "Job": _of_job,
    "CronJob": _of_cron_job,
    "JobSet": _of_jobset,
    "LeaderWorkerSet": _of_lws,
    "Deployment": _of_deployment,
}
"""Keys as in the webhook's sources; of any other kind the owner is all that is written."""


def _spec(item: Object) -> Object:
    found = item.get("spec")
    return found if isinstance(found, dict) else {}


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
