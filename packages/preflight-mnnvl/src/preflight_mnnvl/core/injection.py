"""The claim in a pod's template, as a JSONPatch (RFC 6902) on what is there. Pure.

Built anew each time: ours from an earlier pass is taken out and put in again, after what is there,
so that a second pass changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from preflight_kube.api.jsonpatch import pointer

from preflight_mnnvl.api.names import CLAIM, FABRIC_LABEL
from preflight_mnnvl.api.types import Container, ContainerPlace, PodSpec

__all__ = ["annotate", "inject"]

Operation = dict[str, Any]
_ROOT = "/spec/podSpec"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def inject(
    pod: PodSpec, entry: Mapping[str, str], gpus: Sequence[ContainerPlace], *, fabric: bool
) -> list[Operation]:
    """Our claim in the pod and in the containers ``gpus``, and nowhere else; ``fabric``: only on
    nodes of a fabric. Without any such container, nothing of ours.
    """
    patch = _claims(f"{_ROOT}/resourceClaims", pod.resource_claims, [dict(entry)] if gpus else [])
    uses = {(place.list, place.position) for place in gpus}
    for where, i, container in pod.everyone():
        patch += _use(f"{_ROOT}/{where}/{i}/resources", container, uses=(where, i) in uses)
    return patch + _affinity(pod.affinity) if fabric and gpus else patch


def annotate(
    annotations: Mapping[str, str] | None, wanted: Mapping[str, str], without: Collection[str] = ()
) -> list[Operation]:
    """The annotations ``wanted`` on an object that has ``annotations``, and none of ``without``."""
    if annotations is None:
        return [_add("/metadata/annotations", dict(wanted))] if wanted else []
    patch = [
        {"op": "remove", "path": _key(key)}
        for key in sorted(without)
        if key in annotations and key not in wanted
    ]
    return patch + [
        _add(_key(key), value) for key, value in wanted.items() if annotations.get(key) != value
    ]


def _use(path: str, container: Container, *, uses: bool) -> list[Operation]:
    ours = [{"name": CLAIM}] if uses else []
    if container.resources is None:
        return [_add(path, {"claims": ours})] if ours else []
    return _claims(f"{path}/claims", container.resources.claims, ours)


def _claims(
    path: str, claims: Sequence[Mapping[str, Any]] | None, ours: list[dict[str, str]]
) -> list[Operation]:
    if not claims:
        return [_add(path, ours)] if ours else []
    others = [claim for claim in claims if claim.get("name") != CLAIM]
    wanted = [*others, *ours]
    if wanted == list(claims):
        return []
    if not wanted:
        return [{"op": "remove", "path": path}]
    if len(others) == len(claims):
        return [_add(f"{path}/-", claim) for claim in ours]
    return [{"op": "replace", "path": path, "value": wanted}]


def _affinity(affinity: Mapping[str, Any] | None) -> list[Operation]:
    """A node of a fabric is required, in addition to what every term requires. A term without any
    requirement matches no node, and stays so.
    """
    ours = {"key": FABRIC_LABEL, "operator": "Exists"}
    terms_of = {"nodeSelectorTerms": [{"matchExpressions": [ours]}]}
    path = f"{_ROOT}/affinity"
    place: Any = affinity
    required = {_REQUIRED: terms_of}
    for key, whole in (
        ("nodeAffinity", {"nodeAffinity": required}),
        (_REQUIRED, required),
        ("nodeSelectorTerms", terms_of),
    ):
        if not isinstance(place, Mapping):
            return [_add(path, whole)]
        place, path = place.get(key), f"{path}/{key}"
    if not isinstance(place, list):
        return [_add(path, terms_of["nodeSelectorTerms"])]
    patch: list[Operation] = []
    for i, term in enumerate(place):
        if not isinstance(term, Mapping) or not (
            term.get("matchExpressions") or term.get("matchFields")
        ):
            continue
        expressions = term.get("matchExpressions")
        if not expressions:
            patch.append(_add(f"{path}/{i}/matchExpressions", [ours]))
        elif isinstance(expressions, list) and ours not in expressions:
            patch.append(_add(f"{path}/{i}/matchExpressions/-", ours))
    return patch


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _key(key: str) -> str:
    return pointer("metadata", "annotations", key)
