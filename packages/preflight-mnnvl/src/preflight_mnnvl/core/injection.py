"""The claim in a pod's template, as a JSONPatch on what is there; a second one is empty. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from preflight_kube.api.jsonpatch import Operation, add, pointer, remove, replace

from preflight_mnnvl.api.names import CLAIM, FABRIC_LABEL
from preflight_mnnvl.api.types import Container, ContainerPlace, PodSpec

_ROOT = "/spec/podSpec"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_FABRIC = (
    {"key": FABRIC_LABEL, "operator": "Exists"},
    # Feature discovery writes an empty label on a node that is in no clique.
    {"key": FABRIC_LABEL, "operator": "NotIn", "values": [""]},
)


def inject(
    pod: PodSpec, entry: Mapping[str, str], gpus: Sequence[ContainerPlace], *, fabric: bool
) -> list[Operation]:
    """Our claim in the pod and in the containers ``gpus``; ``fabric``: on nodes of a fabric."""
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
        return [add("/metadata/annotations", dict(wanted))] if wanted else []
    gone = [key for key in sorted(without) if key in annotations and key not in wanted]
    patch = [remove(_key(key)) for key in gone]
    return patch + [
        add(_key(key), value) for key, value in wanted.items() if annotations.get(key) != value
    ]


def _use(path: str, container: Container, *, uses: bool) -> list[Operation]:
    ours = [{"name": CLAIM}] if uses else []
    if container.resources is None:
        return [add(path, {"claims": ours})] if ours else []
    return _claims(f"{path}/claims", container.resources.claims, ours)


def _claims(
    path: str, claims: Sequence[Mapping[str, Any]] | None, ours: list[dict[str, str]]
) -> list[Operation]:
    if not claims:
        return [add(path, ours)] if ours else []
    others = [claim for claim in claims if claim.get("name") != CLAIM]
    wanted = [*others, *ours]
    if wanted == list(claims):
        return []
    if not wanted:
        return [remove(path)]
    if len(others) == len(claims):
        return [add(f"{path}/-", claim) for claim in ours]
    return [replace(path, wanted)]


def _affinity(affinity: Mapping[str, Any] | None) -> list[Operation]:
    """A node of a fabric is required by every term, but for those that match no node at all."""
    terms_of = {"nodeSelectorTerms": [{"matchExpressions": [*_FABRIC]}]}
    path, required = f"{_ROOT}/affinity", {_REQUIRED: terms_of}
    place: Any = affinity
    for key, whole in (
        ("nodeAffinity", {"nodeAffinity": required}),
        (_REQUIRED, required),
        ("nodeSelectorTerms", terms_of),
    ):
        if not isinstance(place, Mapping):
            return [add(path, whole)]
        place, path = place.get(key), f"{path}/{key}"
    if not isinstance(place, list):
        return [add(path, terms_of["nodeSelectorTerms"])]
    patch: list[Operation] = []
    for i, term in enumerate(place):
        if not isinstance(term, Mapping):
            continue
        expressions = term.get("matchExpressions")
        if not expressions:
            if term.get("matchFields"):
                patch.append(add(f"{path}/{i}/matchExpressions", [*_FABRIC]))
        elif isinstance(expressions, list):
            lacking = (each for each in _FABRIC if each not in expressions)
            patch += [add(f"{path}/{i}/matchExpressions/-", each) for each in lacking]
    return patch


def _key(key: str) -> str:
    return pointer("metadata", "annotations", key)
