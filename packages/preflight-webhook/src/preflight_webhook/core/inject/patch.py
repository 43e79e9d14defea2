"""From what should be to a JSONPatch (RFC 6902) on what is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from preflight_kube.api.jsonpatch import Operation, add, keys, pointer, remove, replace

from preflight_webhook.core.inject.injection import Injection


def encoded(patch: Sequence[Operation]) -> bytes:
    """A patch as an AdmissionReview carries it, a JSON string of base64; nothing for one that
    changes nothing.
    """
    return msgspec.json.encode(msgspec.json.encode(patch)) if patch else b""


class Present(NamedTuple):
    """Which lists and maps a pod has at all."""

    init: bool
    volumes: bool
    pull_secrets: bool
    labels: bool
    annotations: bool


def fresh(injection: Injection, there: Present) -> list[Operation]:
    """The patch for a pod that carries nothing of ours."""
    at = injection.position
    patch: list[Operation] = []
    if there.init:
        patch += [
            add(f"/spec/initContainers/{i}", c) for i, c in enumerate(injection.containers, at)
        ]
        patch += [add("/spec/initContainers/-", c) for c in injection.last]
    elif containers := injection.containers + injection.last:
        patch.append(add("/spec/initContainers", containers))
    secrets = [{"name": name} for name in injection.pull_secrets]
    if there.pull_secrets:
        patch += [add("/spec/imagePullSecrets/-", secret) for secret in secrets]
    elif secrets:
        patch.append(add("/spec/imagePullSecrets", secrets))
    if there.volumes:
        patch += injection.volumes
    elif injection.volumes:
        patch.append(add("/spec/volumes", [volume["value"] for volume in injection.volumes]))
    for key, entries, has in (
        ("labels", injection.labels, there.labels),
        ("annotations", injection.annotations, there.annotations),
    ):
        if has:
            patch += [add(_entry(key, name), value) for name, value in entries.items()]
        elif entries:
            patch.append(add(f"/metadata/{key}", entries))
    return patch


@lru_cache(maxsize=64)  # all of them ours
def _entry(key: str, name: str) -> str:
    return pointer("metadata", key, name)


def rebuilt(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[Operation]:
    """The patch between two whole pods that differ in what an injection adds at most."""
    patch: list[Operation] = []
    for section, key in (
        ("spec", "initContainers"),
        ("spec", "volumes"),
        ("spec", "imagePullSecrets"),
        ("metadata", "labels"),
        ("metadata", "annotations"),
    ):
        old, new = (now.get(section) or {}).get(key), (wanted.get(section) or {}).get(key)
        if old == new or (not old and not new):
            continue
        path = f"/{section}/{key}"
        if old is None:
            patch.append(add(path, new))
        elif isinstance(old, dict) and isinstance(new, dict):
            patch += [remove(path + pointer(k)) for k in old if k not in new]
            patch += [add(path + pointer(k), v) for k, v in new.items() if old.get(k) != v]
        else:
            patch.append(replace(path, new if new is not None else []))
    return patch


def applied(pod: dict[str, Any], patch: list[Operation]) -> dict[str, Any]:
    """``pod``, changed in place by a patch that was made for it here."""
    for operation in patch:
        *way, last = keys(operation["path"])
        there: Any = pod
        for part in way:
            there = there[int(part)] if isinstance(there, list) else there.setdefault(part, {})
        if operation["op"] == "remove":
            del there[last]
        elif isinstance(there, list):
            there.insert(len(there) if last == "-" else int(last), operation["value"])
        else:
            there[last] = operation["value"]
    return pod
