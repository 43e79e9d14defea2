"""Answers to the API server before an AppWrapper is stored: who made it is written into it, and
what must not be is denied.

Whoever creates a wrapper must be allowed to create each of its components: that is asked for as
that very user.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from msgspec.structs import replace
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Application, Unavailable
from preflight_kube.api.kinds import Kind
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime.discovery import RESTMapper
from preflight_kube.runtime.retry import cause_of
from preflight_kube.runtime.writes import gather

from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, wrapper_from
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.marks import MARK, is_judged, mark
from preflight_appwrapper.core.validation import ValidationResult, created, limits, updated
from preflight_appwrapper.webhook.access import SubjectAccessReview, refusals, reviews
from preflight_appwrapper.webhook.mutate import annotated, patch

MUTATE: Final = "/mutate-workload-codeflare-dev-v1beta2-appwrapper"
VALIDATE: Final = "/validate-workload-codeflare-dev-v1beta2-appwrapper"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_NOT_MARKED: Final = (
    "spec.components: are not what was judged: another webhook has changed them since, or clocks differ by more than "
    "five minutes; have webhooks that change AppWrappers called before appwrapper-preflight, or set the clocks."
)


class Reviewer:
    """``client`` may create SubjectAccessReviews and read what is served."""

    def __init__(self, client: Client, rules: WrapperRules) -> None:
        self._client, self._rules, self._kinds = client, rules, RESTMapper(client)

    @property
    def applications(self) -> dict[str, Application]:
        """By path."""
        return {MUTATE: self.mutate, VALIDATE: self.validate}

    async def mutate(self, request: AdmissionRequest) -> Response:
        """Patch a new wrapper; the mark is its author's, or of whoever has changed it."""
        if request.operation not in {"CREATE", "UPDATE"}:
            return Response()
        raw = request.new(dict[str, Any])
        wrapper = wrapper_from(raw)
        if request.operation == "UPDATE":
            return await self._marked_again(request, raw, wrapper)
        metadata = raw.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        made = patch(
            wrapper,
            user=request.user_info.username,
            uid=request.user_info.uid,
            default_queue=self._rules.default_queue,
            labeled=bool(labels),
        )
        if self._rules.mark_key and not (await self._judged(wrapper, request)).problems:
            made.append(annotated(raw, MARK, self._mark(request, wrapper, datetime.now(UTC))))
        elif MARK in wrapper.metadata.annotations:
            # A good one, perhaps: this port gives it to whoever asks in the name of somebody else.
            made.append(annotated(raw, MARK, ""))
        return Response(patch=made)

    async def _marked_again(
        self, request: AdmissionRequest, raw: dict[str, Any], wrapper: AppWrapper
    ) -> Response:
        """A good mark stays, whatever is written over it; else whoever writes it is judged."""
        key, written = self._rules.mark_key, wrapper.metadata.annotations.get(MARK)
        old = wrapper_from(request.old(dict[str, Any])).metadata
        before = old.annotations.get(MARK)
        if not key or before == written or old.deletion_timestamp:
            return Response()
        if before is not None and is_judged(key, replace(wrapper, metadata=old)):
            return Response(patch=[annotated(raw, MARK, before)])
        judged = await self._judged(wrapper, request)
        if judged.problems:
            return _answer(judged)
        at = old.created or datetime.now(UTC)  # not the new one's: that is the user's to write
        return Response(patch=[annotated(raw, MARK, self._mark(request, wrapper, at))])

    def _mark(self, request: AdmissionRequest, wrapper: AppWrapper, at: datetime) -> str:
        templates = (one.template for one in wrapper.spec.components)
        return mark(self._rules.mark_key, request.namespace, templates, at)

    async def validate(self, request: AdmissionRequest) -> Response:
        """Judge whether it may be stored; what has a mark was judged when it got it."""
        wrapper = wrapper_from(request.new(dict[str, Any]))
        if request.operation == "UPDATE":
            old = wrapper_from(request.old(dict[str, Any]))
            return _answer(ValidationResult(problems=updated(old, wrapper)))
        if request.operation != "CREATE":
            return Response()
        key = self._rules.mark_key
        if key and is_judged(key, wrapper):
            return _answer(created(wrapper, self._rules, namespace=request.namespace))
        judged = await self._judged(wrapper, request)
        if key and not judged.problems:
            return Response.denied(_NOT_MARKED, code=403)
        return _answer(judged)

    async def _judged(self, wrapper: AppWrapper, request: AdmissionRequest) -> ValidationResult:
        """All that can be said of a new wrapper; raises :class:`Unavailable`."""
        if beyond := limits(wrapper):
            return ValidationResult(problems=beyond)
        try:
            return await self._asked(wrapper, request)
        except KubeError as error:
            raise Unavailable(
                f"the AppWrapper cannot be judged, because the API server does not say what is needed: {cause_of(error)}; try again"
            ) from None

    async def _asked(self, wrapper: AppWrapper, request: AdmissionRequest) -> ValidationResult:
        components = wrapper.spec.components
        kinds = [podsets.group_kind(one.template) for one in components]
        served = await self._kinds.all(kinds)
        judged = created(wrapper, self._rules, namespace=request.namespace, served=served)
        user = request.user_info
        if user.username in self._rules.trusted_users:
            return judged
        wanted = reviews(wrapper, user, request.namespace, served)

        async def ask(kind: Kind, body: dict[str, Any]) -> tuple[Kind, bool]:
            return kind, (await self._client.ask(_REVIEWS, body, SubjectAccessReview)).granted

        once = {kinds[i]: body for i, body in wanted.items()}
        answers = dict(await gather(ask(kind, body) for kind, body in once.items()))
        refused = refusals(wanted, {i: answers[kinds[i]] for i in wanted})
        return replace(judged, problems=(*judged.problems, *refused))


def _answer(judged: ValidationResult) -> Response:
    if judged.problems:
        return Response.denied(" ".join(judged.problems), code=403, warnings=judged.warnings)
    return Response(warnings=judged.warnings)
