"""Carries out what :mod:`~.core.reconcile` decides: one request for each action, in order, and the
first that fails ends the plan.

Every write says which version it is about, so that one by a leader who has not noticed that he
leads no more, or of an object made anew, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec
from preflight_kube.client.client import Client, Conflict, KubeError, NotFound

from preflight_computedomain.api.names import FINALIZER, GROUP, PLURAL, VERSION
from preflight_computedomain.api.types import ClaimTemplate, ComputeDomain
from preflight_computedomain.controller.cache import Latest
from preflight_computedomain.core import template
from preflight_computedomain.core.reconcile import (
    Action,
    AddFinalizer,
    ConfirmGone,
    ConfirmNoDomain,
    CreateTemplate,
    DeleteTemplate,
    MendTemplate,
    ReleaseTemplate,
    RemoveFinalizer,
    WriteStatus,
)

__all__ = ["DOMAINS", "TEMPLATES", "Blocked", "DomainActor", "LastAnswers", "Place"]

DOMAINS: Final = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
TEMPLATES: Final = "/apis/resource.k8s.io/v1/resourceclaimtemplates"
Place = tuple[str, str]
"""Namespace and name."""
_DOMAIN: Final = msgspec.json.Decoder(ComputeDomain)
_TEMPLATE: Final = msgspec.json.Decoder(ClaimTemplate)


class Blocked(Exception):
    """What is there is not what the step needs; it is looked at again when that changes. One
    clause.
    """


class LastAnswers:
    """What is known of ComputeDomains and templates beyond the mirrors: the API server's last
    answers.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.domains: Latest[Place, ComputeDomain] = Latest()
        self.templates: Latest[Place, ClaimTemplate] = Latest()

    def forget(self) -> None:
        """Drop what the mirrors have long caught up with."""
        self.domains.forget(self.clock())
        self.templates.forget(self.clock())


def _path(collection: str, namespace: str, name: str = "") -> str:
    group, _, plural = collection.rpartition("/")
    return f"{group}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


class DomainActor:
    """``client``: fenced by the leadership. ``written`` is called with the name of each action that
    was carried out.
    """

    def __init__(
        self, client: Client, known: LastAnswers, written: Callable[[str], None] = lambda _: None
    ) -> None:
        self._client, self._known, self._written = client, known, written

    async def act(
        self,
        namespace: str,
        domain: ComputeDomain | None,
        seen: Iterable[ClaimTemplate],
        actions: Iterable[Action],
    ) -> None:
        """``domain``: None to sweep what has none. ``seen``: what ``actions`` were decided from.

        Raises :class:`Blocked`, and KubeError for what the API server refuses.
        """
        run = _Run(
            self._client, self._known, namespace, domain, {one.metadata.name: one for one in seen}
        )
        for action in actions:
            await run.one(action)
            self._written(type(action).__name__)


class _Run:
    def __init__(
        self,
        client: Client,
        known: LastAnswers,
        namespace: str,
        domain: ComputeDomain | None,
        templates: dict[str, ClaimTemplate],
    ) -> None:
        self._client, self._known, self._namespace = client, known, namespace
        self._domain, self._templates = domain, templates

    async def one(self, action: Action) -> None:
        if isinstance(action, AddFinalizer):
            await self._finalizers([*self._own().metadata.finalizers, FINALIZER])
        elif isinstance(action, RemoveFinalizer):
            await self._let_go()
        elif isinstance(action, WriteStatus):
            await self._patch_domain({"status": {"status": action.status}}, "/status")
        elif isinstance(action, CreateTemplate):
            await self._create(action.body)
        elif isinstance(action, MendTemplate):
            self._took(
                action.name, await self._client.merge_patch(self._at(action.name), action.patch)
            )
        elif isinstance(action, DeleteTemplate):
            await self._delete(action.name, action.uid)
        elif isinstance(action, ReleaseTemplate):
            await self._release(action.name, action.uid)
        elif isinstance(action, ConfirmGone):
            await self._confirm_gone(action)
        else:
            await self._confirm_no_domain(action)

    # --- the ComputeDomain

    def _own(self) -> ComputeDomain:
        assert self._domain is not None  # sweeps have no action about one
        return self._domain

    async def _patch_domain(self, change: dict[str, Any], part: str = "") -> None:
        about = self._own().metadata
        metadata = {
            **change.pop("metadata", {}),
            "uid": about.uid,
            "resourceVersion": about.resource_version,
        }
        path = _path(DOMAINS, self._namespace, about.name) + part
        answer = await self._client.merge_patch(path, {**change, "metadata": metadata})
        self._domain = _DOMAIN.decode(answer)
        self._known.domains.answered(
            (self._namespace, about.name), self._domain, self._known.clock()
        )

    async def _finalizers(self, kept: list[str]) -> None:
        await self._patch_domain({"metadata": {"finalizers": kept or None}})

    async def _let_go(self) -> None:
        about = self._own().metadata
        with suppress(NotFound):  # somebody else has removed it
            await self._finalizers([one for one in about.finalizers if one != FINALIZER])
        if [*about.finalizers] == [FINALIZER]:
            self._known.domains.gone((self._namespace, about.name), about.uid, self._known.clock())

    # --- templates

    def _at(self, name: str = "") -> str:
        return _path(TEMPLATES, self._namespace, name)

    def _took(self, name: str, answer: bytes) -> None:
        found = _TEMPLATE.decode(answer)
        self._templates[name] = found
        self._known.templates.answered((self._namespace, name), found, self._known.clock())

    def _lost(self, name: str, uid: str) -> None:
        self._templates.pop(name, None)
        self._known.templates.gone((self._namespace, name), uid, self._known.clock())

    async def _create(self, body: dict[str, Any]) -> None:
        name = body["metadata"]["name"]
        try:
            self._took(name, await self._client.create(self._at(), body))
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
            self._took(name, answer)

    async def _release(self, name: str, uid: str) -> None:
        there = self._templates.get(name)
        if there is None or there.metadata.uid != uid:
            return  # gone with its deletion
        kept = [one for one in there.metadata.finalizers if one != FINALIZER]
        patch = template.released(there.metadata.finalizers, there.metadata.resource_version)
        try:
            answer = await self._client.merge_patch(self._at(name), patch)
        except NotFound:
            self._lost(name, uid)
            return
        if kept:
            self._took(name, answer)
        else:
            self._lost(name, uid)

    async def _confirm_gone(self, action: ConfirmGone) -> None:
        there = await self._client.get_or_none(self._at(action.name), ClaimTemplate)
        if there is not None and template.owner(there) == action.owner:
            self._known.templates.answered(
                (self._namespace, action.name), there, self._known.clock()
            )
            held = ", ".join(there.metadata.finalizers) or "nothing"
            raise Blocked(f"ResourceClaimTemplate {action.name} is still there, held by {held}")

    async def _confirm_no_domain(self, action: ConfirmNoDomain) -> None:
        unread: list[str] = []
        pages = self._client.pages(
            _path(DOMAINS, action.namespace),
            _Named,
            on_unreadable=lambda one: unread.append(one.metadata.name),
        )
        async for found, _ in pages:
            if any(one.metadata.uid == action.uid for one in found):
                raise Blocked(f"ComputeDomain {action.uid} is there after all")
        if unread:
            raise KubeError(
                f"{action.namespace}: ComputeDomains that cannot be read ({', '.join(unread[:5])})."
            )


class _Kind(msgspec.Struct):
    kind: str = ""


class _Uid(msgspec.Struct):
    uid: str


class _Named(msgspec.Struct):
    metadata: _Uid
