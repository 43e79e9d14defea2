"""What the API server asks before an AppWrapper is stored: who made it is written into it, and what
must not be is denied.

Whoever creates a wrapper must be allowed to create each of its components: that is asked for as
that very user.
"""

from __future__ import annotations

from typing import Any, Final

import anyio
import msgspec
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Application, Unavailable
from preflight_kube.client import Client, KubeError
from preflight_kube.refusals import cause_of

from .. import podsets
from ..kinds import ServedKinds
from ..objects import AppWrapper, wrapper_from
from ..rules import WrapperRules
from .access import SubjectAccessReviewStatus, UserInfo, refusals, reviews
from .defaulting import patch
from .validation import ValidationResult, created, updated

__all__ = ["MUTATE", "VALIDATE", "Reviewer"]

MUTATE: Final = "/mutate-workload-codeflare-dev-v1beta2-appwrapper"
VALIDATE: Final = "/validate-workload-codeflare-dev-v1beta2-appwrapper"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_MOST_ASKED: Final = 64
"""Components that are asked about; one with more is denied for its number of pod sets, or makes no
pods with nearly all of them.
"""


class _Asked(msgspec.Struct):
    status: SubjectAccessReviewStatus = SubjectAccessReviewStatus()


class Reviewer:
    """``client`` may create SubjectAccessReviews and read what is served."""

    def __init__(self, client: Client, rules: WrapperRules) -> None:
        self._client, self._rules, self._kinds = client, rules, ServedKinds(client)

    @property
    def applications(self) -> dict[str, Application]:
        """By path."""
        return {MUTATE: self.mutate, VALIDATE: self.validate}

    async def mutate(self, request: AdmissionRequest) -> Response:
        """What a new wrapper gets."""
        if request.operation != "CREATE":
            return Response()
        raw = request.new(dict[str, Any])
        wrapper = wrapper_from(raw)
        metadata = raw.get("metadata")
        labels = metadata.get("labels") if isinstance(metadata, dict) else None
        made = patch(
            wrapper,
            user=request.user_info.username,
            uid=request.user_info.uid,
            default_queue=self._rules.default_queue,
            labeled=bool(labels),
        )
        return Response(patch=made)

    async def validate(self, request: AdmissionRequest) -> Response:
        """Whether it may be stored."""
        wrapper = wrapper_from(request.new(dict[str, Any]))
        if request.operation == "UPDATE":
            return _answer(
                ValidationResult(
                    problems=updated(wrapper_from(request.old(dict[str, Any])), wrapper)
                )
            )
        if request.operation != "CREATE":
            return Response()
        try:
            return _answer(await self._created(wrapper, request))
        except KubeError as error:
            raise Unavailable(
                f"the AppWrapper cannot be judged, because the API server does not say what is needed: {cause_of(error)}; try again"
            ) from None

    async def _created(self, wrapper: AppWrapper, request: AdmissionRequest) -> ValidationResult:
        asked = wrapper.spec.components[:_MOST_ASKED]
        served = await self._kinds.all(podsets.group_kind(one.template) for one in asked)
        judged = created(wrapper, self._rules, namespace=request.namespace, served=served)
        info = request.user_info
        user = UserInfo(username=info.username, uid=info.uid, groups=info.groups, extra=info.extra)
        wanted = reviews(
            msgspec.structs.replace(
                wrapper, spec=msgspec.structs.replace(wrapper.spec, components=asked)
            ),
            user,
            request.namespace,
            served,
        )
        answers: dict[int, SubjectAccessReviewStatus] = {}
        failed: list[KubeError] = []

        async def ask(index: int, body: dict[str, Any]) -> None:
            try:
                answers[index] = (await self._client.ask(_REVIEWS, body, _Asked)).status
            except KubeError as error:
                failed.append(error)

        async with anyio.create_task_group() as group:
            for index, body in wanted.items():
                group.start_soon(ask, index, body)
        if failed:
            raise failed[0]
        return msgspec.structs.replace(
            judged, problems=(*judged.problems, *refusals(wanted, answers))
        )


def _answer(judged: ValidationResult) -> Response:
    if judged.problems:
        return Response.denied(" ".join(judged.problems), code=403, warnings=judged.warnings)
    return Response(warnings=judged.warnings)
