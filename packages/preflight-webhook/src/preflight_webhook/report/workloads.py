"""Kubernetes objects in files or of a cluster, as `explain` takes them: the pods that they make,
and what those need.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
from preflight_kube.api.workloads.model import Object, map_of, maps, name_of
from preflight_kube.api.workloads.table import KINDS, kind_of, templates
from preflight_kube.files.yaml_document import MANIFEST, DocumentError, read
from preflight_proto.policy import KIND as POLICY
from preflight_proto.policy import PreflightConfig

from preflight_webhook.core.detect import claims
from preflight_webhook.core.detect.claims import DeviceClaim, Ref

__all__ = ["Object"]

_CONFINING: Final = frozenset({"baseline", "restricted"})
_START: Final = re.compile(r"^---(?=\s|$)", re.MULTILINE)


class FoundPod(NamedTuple):
    """One pod or pod template. ``claims``: what is known of those that it names; ``confined``: its
    namespace allows no hostPath; ``policies``: the PreflightConfigs of its namespace; ``labels``:
    of its namespace, None where they are not known."""

    what: str
    namespace: str
    pod: Object
    claims: dict[Ref, DeviceClaim | None]
    confined: bool
    policies: tuple[PreflightConfig, ...] = ()
    labels: dict[str, str] | None = None


def documents(text: str, where: str) -> tuple[list[Object], list[str]]:
    """(objects in YAML or JSON documents, one sentence for each document that cannot be read)."""
    objects: list[Object] = []
    problems: list[str] = []
    for line, part in _parts(text):
        try:
            document = read(part, MANIFEST)
        except DocumentError as error:
            problems += [f"{where}: {_placed(problem, line)}" for problem in error.problems]
            continue
        if document is None:
            continue
        if not isinstance(document, dict):
            kind = "a list" if isinstance(document, list) else "a single value"
            problems.append(
                f"{where}: line {line}: the document is {kind}, no object; give an object with kind and metadata."
            )
            continue
        items = document.get("items") if str(document.get("kind", "")).endswith("List") else None
        objects += (
            [item for item in items if isinstance(item, dict)]
            if isinstance(items, list)
            else [document]
        )
    return objects, problems


def _placed(problem: str, first: int) -> str:
    """``problem`` by the lines of the file. ``first``: of the document in it."""
    if (within := re.match(r"line (\d+)", problem)) is None:
        return f"line {first}: {problem.replace('the file:', 'the document', 1)}"
    return f"line {first - 1 + int(within[1])}{problem[within.end() :]}"


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) of each document: one that cannot be read shall not hide the
    next.
    """
    starts = [match.start() for match in _START.finditer(text)]
    for start, end in zip([0, *starts], [*starts, len(text)], strict=True):
        part = text[start:end]
        if part.strip() and not all(
            line.startswith(("#", "%")) or not line.strip() for line in part.splitlines()
        ):
            yield text.count("\n", 0, start) + 1, part


def found_in(objects: Iterable[Object], where: str) -> tuple[list[FoundPod], list[str]]:
    """(the pods that the objects make, one sentence for each object that cannot be read).

    Claims, templates, namespaces and PreflightConfigs among them are taken into account.
    """
    objects, problems = list(objects), []
    known: dict[tuple[str, Ref], DeviceClaim | None] = {}
    policies: dict[str, list[PreflightConfig]] = {}
    labels: dict[str, dict[str, str]] = {}
    pods = []
    for item in objects:
        namespace, name = _place(item)
        try:
            if item.get("kind") in {"ResourceClaim", "ResourceClaimTemplate"}:
                known[namespace, Ref(f"{item['kind'].lower()}s", name)] = claims.read(item)
            elif item.get("kind") == POLICY:
                policies.setdefault(namespace, []).append(_policy(item))
            elif item.get("kind") == "Namespace":
                given = map_of(map_of(item.get("metadata")).get("labels"))
                labels[name] = {str(key): str(value) for key, value in given.items()}
        except (ValueError, TypeError, AttributeError) as error:
            problems.append(
                f"{item.get('kind')} {name or '(no name)'}: cannot be read ({error}); correct it."
            )
    for item in objects:
        namespace, name = _place(item)
        kind = kind_of(item)
        if kind is None:
            continue
        here = {ref: claim for (at, ref), claim in known.items() if at == namespace}
        level = labels.get(namespace, {}).get("pod-security.kubernetes.io/enforce")
        what = f"{kind.title} {name or '(no name)'}"
        own, around = tuple(policies.get(namespace, ())), labels.get(namespace)
        try:
            for suffix, pod in templates(item, objects):
                pods.append(
                    FoundPod(what + suffix, namespace, pod, here, level in _CONFINING, own, around)
                )
        except ValueError as error:
            problems.append(f"{what}: {error}.")
    if not pods and not problems:
        kinds = ", ".join(sorted({str(item.get("kind")) for item in objects})) or "nothing"
        problems.append(f"{where}: no pod in it (found {kinds}); give one of {', '.join(KINDS)}.")
    return pods, problems


def references(pod: Object) -> list[Ref]:
    """The claims and templates that a pod names."""
    return [
        Ref(plural, str(entry[key]))
        for entry in maps(map_of(pod.get("spec")).get("resourceClaims"))
        for key, plural in (
            ("resourceClaimTemplateName", claims.TEMPLATES),
            ("resourceClaimName", claims.CLAIMS),
        )
        if entry.get(key)
    ]


def _policy(item: Object) -> PreflightConfig:
    try:
        return msgspec.json.decode(msgspec.json.encode(item), type=PreflightConfig)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _place(item: Object) -> tuple[str, str]:
    return str(map_of(item.get("metadata")).get("namespace") or "default"), name_of(item)
