"""Carries out what :mod:`~.core.reconcile` decides, in order, until a request fails.

Every write says which version it is about, so that one by a leader who has not noticed that he
leads no more, or of an object made anew, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound
from preflight_kube.runtime.cache import Cache

from preflight_computedomain.api.names import DOMAINS, FINALIZER, GRANTED, TEMPLATES, namespaced
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain, Identified
from preflight_computedomain.core import template
from preflight_computedomain.core.reconcile import DomainAction


class Blocked(Exception):
    """The cluster is not as the plan needs it; it is decided anew when that changes. A clause."""


class Applier:
    """Carries out one plan. ``client``: fenced by the leadership. ``caches``: get the answers.
    ``domain``: None to sweep what has none. ``seen``: the templates that the plan was decided from.
    """

    def __init__(
        self,
        client: Client,
        caches: tuple[Cache[ComputeDomain], Cache[ClaimTemplate]],
        namespace: str,
        domain: ComputeDomain | None,
        seen: Iterable[ClaimTemplate],
    ) -> None:
        self._client, self._namespace, self._domain = client, namespace, domain
        self._domains, self._known = caches
        self._templates = {item.metadata.name: item for item in seen}

    async def apply(self, action: DomainAction) -> None:
        """Raises :class:`Blocked`, and KubeError for what the API server refuses."""
        name, uid = action.name, action.uid
        match action.kind:
            case "AddFinalizer":
                finalizers = [*self._own().metadata.finalizers, FINALIZER]
                await self._patch_domain({"metadata": {"finalizers": finalizers}})
            case "RemoveFinalizer":
                await self._let_go()
            case "WriteStatus":
                await self._patch_domain({"status": {"status": action.status}}, "/status")
            case "GrantCliques":
                annotations = {GRANTED: action.status or None}
                await self._patch_domain({"metadata": {"annotations": annotations}})
            case "CreateTemplate":
                await self._create(name, action.body)
            case "PatchTemplate":
                self._took(await self._client.merge_patch(self._at(name), action.body))
            case "DeleteTemplate":
                await self._delete(name, uid)
            case "ReleaseTemplate":
                await self._release(name, uid)
            case "ConfirmGone":
                await self._confirm_gone(name, uid)
            case "ConfirmNoDomain":
                await self._confirm_no_domain(uid)

    # --- the ComputeDomain

    def _own(self) -> ComputeDomain:
        assert self._domain is not None  # sweeps have no action about one
        return self._domain

    async def _patch_domain(self, change: dict[str, Any], part: str = "") -> None:
        about = self._own().metadata
        metadata = {"uid": about.uid, "resourceVersion": about.resource_version}
        body = {**change, "metadata": {**change.get("metadata", {}), **metadata}}
        path = namespaced(DOMAINS, self._namespace, about.name) + part
        answer = await self._client.merge_patch(path, body)
        self._domain = msgspec.json.decode(answer, type=ComputeDomain)
        self._domains.wrote(self._domain)

    async def _let_go(self) -> None:
        about = self._own().metadata
        kept = [name for name in about.finalizers if name != FINALIZER]
        with suppress(NotFound):  # somebody else has removed it
            await self._patch_domain({"metadata": {"finalizers": kept or None}})
        if [*about.finalizers] == [FINALIZER]:
            self._domains.deleted(about.uid)

    # --- templates

    def _at(self, name: str = "") -> str:
        return namespaced(TEMPLATES, self._namespace, name)

    def _took(self, answer: bytes) -> None:
        item = msgspec.json.decode(answer, type=ClaimTemplate)
        self._templates[item.metadata.name] = item
        self._known.wrote(item)

    def _lost(self, name: str, uid: str) -> None:
        self._templates.pop(name, None)
        self._known.deleted(uid)

    async def _create(self, name: str, body: Mapping[str, Any]) -> None:
        try:
            self._took(await self._client.create(self._at(), body))
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            raise Blocked(f"ResourceClaimTemplate {name} has been made meanwhile") from None

    async def _delete(self, name: str, uid: str) -> None:
        try:
            answer = await self._client.delete(self._at(name), uid=uid)
        except NotFound:
            self._lost(name, uid)
            return
        if msgspec.json.decode(answer, type=_Kind).kind == "Status":  # nothing held it
            self._lost(name, uid)
        else:
            self._took(answer)

    async def _release(self, name: str, uid: str) -> None:
        there = self._templates.get(name)
        if there is None or there.metadata.uid != uid:
            return  # gone with its deletion
        finalizers = there.metadata.finalizers
        patch = template.released(finalizers, there.metadata.resource_version)
        answer = b""
        with suppress(NotFound):
            answer = await self._client.merge_patch(self._at(name), patch)
        if answer and set(finalizers) - {FINALIZER}:
            self._took(answer)
        else:
            self._lost(name, uid)

    async def _confirm_gone(self, name: str, owner: str) -> None:
        there = await self._client.get_or_none(self._at(name), ClaimTemplate)
        if there is not None and template.owner(there) == owner:
            self._known.wrote(there)
            held = ", ".join(there.metadata.finalizers) or "nothing"
            raise Blocked(f"ResourceClaimTemplate {name} is still there, held by {held}")

    async def _confirm_no_domain(self, uid: str) -> None:
        unread: list[str] = []
        pages = self._client.pages(
            namespaced(DOMAINS, self._namespace),
            Identified,
            on_unreadable=lambda item: unread.append(item.metadata.name),
        )
        async for page, _ in pages:
            if any(item.metadata.uid == uid for item in page):
                raise Blocked(f"ComputeDomain {uid} is there after all")
        if unread:
            names = ", ".join(unread[:5])
            raise KubeError(f"{self._namespace}: ComputeDomains that cannot be read ({names}).")


class _Kind(msgspec.Struct):
    kind: str = ""
