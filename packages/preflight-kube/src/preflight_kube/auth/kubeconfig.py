"""A kubeconfig as kubectl reads it: how files are merged, and what the current context says.
Pure: texts come in parsed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

Entry = dict[str, Any]
_FILES: Final = frozenset(
    {"certificate-authority", "client-certificate", "client-key", "tokenFile"}
)
"""The fields of clusters and users that name files: relative to the kubeconfig
that they stand in.
"""
_LISTS: Final = {"clusters": "cluster", "users": "user", "contexts": "context"}


class KubeconfigError(Exception):
    """The kubeconfig cannot be used; one sentence for a person, without its full stop."""


class KubeconfigContext(NamedTuple):
    """What the current context names; names of files are whole, ``folder`` is where the user's
    kubeconfig lies.
    """

    cluster: Entry
    user: Entry
    folder: Path


def chosen(documents: Iterable[tuple[Path, Any]]) -> KubeconfigContext:
    """The cluster and the user of the current context, of documents by the path of each, in
    kubectl's order.

    The first that has an entry of a name decides the whole of it, and the first that names a
    context decides which is current. Raises :class:`KubeconfigError` naming what is missing.
    """
    current = ""
    merged: dict[str, dict[str, tuple[Entry, Path]]] = {kind: {} for kind in _LISTS}
    for path, document in documents:
        if document is None:
            continue
        if not isinstance(document, dict):
            raise KubeconfigError(
                f"{path}: is not a kubeconfig; it must be a map with clusters, users and contexts"
            )
        current = current or str(document.get("current-context") or "")
        for kind, inner in _LISTS.items():
            for name, entry in _entries(document, kind, inner, path):
                merged[kind].setdefault(name, (entry, path.parent))
    if not current:
        raise KubeconfigError(
            "no current-context is set; choose one by `kubectl config use-context NAME`"
        )
    context, _ = _named(merged, "contexts", current, "current-context")
    cluster, at = _named(
        merged, "clusters", str(context.get("cluster") or ""), f"context {current}"
    )
    user: Entry = {}
    folder = at
    if context.get("user"):
        user, folder = _named(merged, "users", str(context["user"]), f"context {current}")
    if not cluster.get("server"):
        raise KubeconfigError(f"cluster {context.get('cluster')} has no server; set its URL")
    if not _is_url(str(cluster["server"])):
        raise KubeconfigError(
            f'cluster {context.get("cluster")} has the server "{cluster["server"]!s:.80}", which is no URL; set one such as https://HOST:6443'
        )
    return KubeconfigContext(_located(cluster, at), _located(user, folder), folder)


def _is_url(server: str) -> bool:
    try:
        parts = urlsplit(server)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and host != b""


def _entries(
    document: Mapping[str, Any], kind: str, inner: str, path: Path
) -> Iterable[tuple[str, Entry]]:
    listed = document.get(kind) or []
    if not isinstance(listed, list):
        raise KubeconfigError(f"{path}: {kind} must be a list")
    for item in listed:
        entry = item.get(inner) if isinstance(item, dict) else None
        if (
            not isinstance(item, dict)
            or not isinstance(item.get("name"), str)
            or not isinstance(entry or {}, dict)
        ):
            raise KubeconfigError(f"{path}: an entry of {kind} is not a name with a {inner}")
        yield item["name"], entry or {}


def _named(
    merged: Mapping[str, Mapping[str, tuple[Entry, Path]]], kind: str, name: str, by: str
) -> tuple[Entry, Path]:
    if name in merged[kind]:
        return merged[kind][name]
    known = ", ".join(merged[kind]) or "none"
    raise KubeconfigError(f'{by} names "{name}", which is not among its {kind} ({known})')


def _located(entry: Entry, folder: Path) -> Entry:
    return {
        key: str(folder / value) if key in _FILES and value else value
        for key, value in entry.items()
    }
