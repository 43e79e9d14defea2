"""Carries out what :mod:`~.core.reconcile` decides, in order, until a request fails.

Every write says which version it is about, so that one by a leader who has not noticed that he
leads no more, or of an object made anew, is refused. The caches have each answer at once, and the
next action begins from them.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """Carries out one plan. ``client``: fenced by the leadership. ``uid``: of the ComputeDomain;
    empty to sweep what has none.
    """

    def __init__(
        self,
        client: Client,
        caches: tuple[Cache[ComputeDomain], Cache[ClaimTemplate]],
        namespace: str,
        uid: str = "",
    ) -> None:
        self._client, self._namespace, self._uid = client, namespace, uid
        self._domains, self._templates = caches

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
        if (domain := self._domains.get(self._uid)) is None:
            raise Blocked("the ComputeDomain has gone meanwhile")
        return domain

    async def _patch_domain(self, change: dict[str, Any], part: str = "") -> None:
        about = self._own().metadata
        metadata = {"uid": about.uid, "resourceVersion": about.resource_version}
        body = {**change, "metadata": {**change.get("metadata", {}), **metadata}}
        path = namespaced(DOMAINS, self._namespace, about.name) + part
        answer = await self._client.merge_patch(path, body)
        self._domains.wrote(msgspec.json.decode(answer, type=ComputeDomain))

    async def _let_go(self) -> None:
        about = self._own().metadata
        with suppress(NotFound):  # somebody else has removed it
            await self._patch_domain(template.released(about.finalizers, about.resource_version))
        if not set(about.finalizers) - {FINALIZER}:
            self._domains.deleted(self._uid)

    # --- templates

    def _at(self, name: str = "") -> str:
        return namespaced(TEMPLATES, self._namespace, name)

    def _took(self, answer: bytes) -> None:
        self._templates.wrote(msgspec.json.decode(answer, type=ClaimTemplate))

    async def _create(self, name: str, body: Mapping[str, Any]) -> None:
        try:
            self._took(await self._client.create(self._at(), body))
        except Conflict as error:
            if error.reason != "AlreadyExists":
                raise
            raise Blocked(f"ResourceClaimTemplate {name} has been made meanwhile") from None

    async def _delete(self, name: str, uid: str) -> None:
        answer = b'{"kind":"Status"}'
        with suppress(NotFound):
            answer = await self._client.delete(self._at(name), uid=uid)
        if msgspec.json.decode(answer, type=_Kind).kind == "Status":  # nothing held it
            self._templates.deleted(uid)
        else:
            self._took(answer)

    async def _release(self, name: str, uid: str) -> None:
        if (there := self._templates.get(uid)) is None:
            return  # gone with its deletion
        finalizers = there.metadata.finalizers
        patch = template.released(finalizers, there.metadata.resource_version)
        answer = b""
        with suppress(NotFound):
            answer = await self._client.merge_patch(self._at(name), patch)
        if answer and set(finalizers) - {FINALIZER}:
            self._took(answer)
        else:
            self._templates.deleted(uid)

    async def _confirm_gone(self, name: str, owner: str) -> None:
        there = await self._client.get_or_none(self._at(name), ClaimTemplate)
        if there is not None and template.owner(there) == owner:
            self._templates.wrote(there)
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
