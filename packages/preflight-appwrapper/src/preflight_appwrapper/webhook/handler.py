"""Answers to the API server before an AppWrapper is stored: who made it is written into it, and
what must not be is denied. Whether its author may create each component is asked for as that user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from preflight_kube.admission.review import AdmissionRequest, Response, UserInfo
from preflight_kube.admission.reviews import Application, Unavailable
from preflight_kube.api.jsonpatch import Operation, add, pointer
from preflight_kube.api.kinds import Kind, RESTMapping
from preflight_kube.api.workloads.model import at
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime.discovery import RESTMapper
from preflight_kube.runtime.retry import cause_of
from preflight_kube.runtime.writes import gather
from preflight_proto.printable import printable

from preflight_appwrapper.api.names import LONGEST_VALUE
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import AppWrapper, Component, PodSet, wrapper_from
from preflight_appwrapper.core import podsets
from preflight_appwrapper.core.marks import MARK, is_judged, mark
from preflight_appwrapper.core.validation import (
    QUEUE_LABEL,
    USER_ID_LABEL,
    USER_LABEL,
    ValidationResult,
    created,
    limits,
    updated,
)

MUTATE: Final = "/mutate-workload-codeflare-dev-v1beta2-appwrapper"
VALIDATE: Final = "/validate-workload-codeflare-dev-v1beta2-appwrapper"
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_NOT_MARKED: Final = (
    "spec.components: are not what was judged: another webhook has changed them since, or clocks differ by more than "
    "five minutes; have webhooks that change AppWrappers called before appwrapper-preflight, or set the clocks."
)
_OTHERS: Final = re.compile(r"[^-_.A-Za-z0-9]")


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
            answer = await self._marked_again(request, raw, wrapper)
            ops = kept(request.old(dict[str, Any]), wrapper) if answer.allowed else []
            return replace(answer, patch=[*answer.patch, *ops]) if ops else answer
        labels = at(raw, ("metadata", "labels"))
        user, queue = request.user_info, self._rules.default_queue
        ops = patch(
            wrapper, user=user.username, uid=user.uid, default_queue=queue, labeled=bool(labels)
        )
        if self._rules.mark_key and not (await self._judged(wrapper, request)).problems:
            ops.append(annotated(raw, MARK, self._mark(request, wrapper, datetime.now(UTC))))
        elif MARK in wrapper.metadata.annotations:
            # A good one, perhaps: this port gives it to whoever asks in the name of somebody else.
            ops.append(annotated(raw, MARK, ""))
        return Response(patch=ops)

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
        templates = (component.template for component in wrapper.spec.components)
        return mark(self._rules.mark_key, request.namespace, templates, at)

    async def validate(self, request: AdmissionRequest) -> Response:
        """Judge whether it may be stored; what has a mark was judged when it got it."""
        wrapper = wrapper_from(request.new(dict[str, Any]))
        if request.operation == "UPDATE":
            old = wrapper_from(request.old(dict[str, Any]))
            return _answer(ValidationResult(problems=tuple(updated(old, wrapper))))
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
        kinds = (podsets.group_kind(component.template) for component in wrapper.spec.components)
        served = await self._kinds.all(kinds)
        judged = created(wrapper, self._rules, namespace=request.namespace, served=served)
        user = request.user_info
        if user.username in self._rules.trusted_users:
            return judged

        async def ask(kind: Kind, resource: str) -> tuple[Kind, bool]:
            body = review(user, request.namespace, kind, resource)
            return kind, (await self._client.ask(_REVIEWS, body, SubjectAccessReview)).granted

        granted = dict(await gather(ask(kind, known.resource) for kind, known in served.items()))
        refused = refusals(wrapper, user, request.namespace, served, granted)
        return replace(judged, problems=(*judged.problems, *refused))


def _answer(judged: ValidationResult) -> Response:
    if judged.problems:
        return Response.denied(" ".join(judged.problems), code=403, warnings=judged.warnings)
    return Response(warnings=judged.warnings)


# --- changes of a new wrapper


def label_value(text: str) -> str:
    """``text`` as the value of a label: others than ``-_.A-Za-z0-9`` become ``_``."""
    return _OTHERS.sub("_", text[:LONGEST_VALUE]).strip("-_.")


def patch(
    wrapper: AppWrapper, *, user: str, uid: str, default_queue: str = "", labeled: bool
) -> list[Operation]:
    """A JSON Patch; what the user wrote into our two labels is replaced. ``labeled``: has some."""
    labels = {USER_LABEL: label_value(user), USER_ID_LABEL: label_value(uid)}
    if default_queue and QUEUE_LABEL not in wrapper.metadata.labels:
        labels[QUEUE_LABEL] = default_queue
    wanted = {
        key: value for key, value in labels.items() if wrapper.metadata.labels.get(key) != value
    }
    ops = [add(pointer("metadata", "labels", key), value) for key, value in wanted.items()]
    if wanted and not labeled:
        ops = [add("/metadata/labels", wanted)]
    ops += [
        add(f"/spec/components/{i}/podSets", declared)
        for i, component in enumerate(wrapper.spec.components)
        if not component.pod_sets and (declared := _written(component))
    ]
    return ops


def _written(component: Component) -> list[dict[str, Any]]:
    """The pod sets that are written into a component, of a kind that Kueue does not know."""
    if podsets.kueue_knows(component.template):
        return []
    return _declared(podsets.readable(component.template))


def _declared(pod_sets: Iterable[PodSet]) -> list[dict[str, Any]]:
    """Pod sets as they stand in the object."""
    return [{"path": known.path, "replicas": known.count} for known in pod_sets]


def kept(raw: dict[str, Any], new: AppWrapper) -> list[Operation]:
    """Return what keeps that which we and Kueue have written into the components of the wrapper
    ``raw``: a manifest that is applied once more has none of it, and a list is replaced as a whole.
    Kueue takes its own away as it suspends.
    """
    old, ops = wrapper_from(raw), list[Operation]()
    for i, (before, after) in enumerate(
        zip(old.spec.components, new.spec.components, strict=False)
    ):
        if before.template != after.template:
            continue
        keys = []
        sets = _declared(before.pod_sets)
        if sets and not after.pod_sets and sets == _written(before):
            keys.append("podSets")
        if before.pod_set_infos and not after.pod_set_infos and not new.spec.suspend:
            keys.append("podSetInfos")
        of = ("spec", "components", i)
        ops += [add(pointer(*map(str, of), key), at(raw, (*of, key))) for key in keys]
    return ops


def annotated(raw: dict[str, Any], key: str, value: str) -> Operation:
    """The operation of a JSON Patch that gives the object ``raw`` this annotation."""
    if isinstance(at(raw, ("metadata", "annotations")), dict):
        return add(pointer("metadata", "annotations", key), value)
    return add("/metadata/annotations", {key: value})


# --- no wrapper creates for its author what they may not create by themselves


class SubjectAccessReview(msgspec.Struct, frozen=True):
    """An answer, without the authorizer's own reason, which names roles of others."""

    status: dict[str, Any] = {}

    @property
    def granted(self) -> bool:
        """Say whether the right is there."""
        return self.status.get("allowed") is True and not self.status.get("denied")


def review(user: UserInfo, namespace: str, kind: Kind, resource: str) -> dict[str, Any]:
    """The SubjectAccessReview to create: whether the user may create objects of a kind."""
    who: dict[str, Any] = {"user": user.username, "uid": user.uid, "groups": [*user.groups]}
    if user.extra:
        who["extra"] = {key: list(values) for key, values in user.extra.items()}
    what = {"group": kind[0], "version": kind[1], "resource": resource}
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {**who, "resourceAttributes": {"namespace": namespace, "verb": "create", **what}},
    }


def refusals(
    wrapper: AppWrapper,
    user: UserInfo,
    namespace: str,
    served: Mapping[Kind, RESTMapping],
    granted: Mapping[Kind, bool],
) -> Iterator[str]:
    """Yield a sentence for each component that may not be created, of those that are served."""
    for i, component in enumerate(wrapper.spec.components):
        kind = podsets.group_kind(component.template)
        if kind in served and not granted.get(kind):
            what = f"{served[kind].resource}.{kind[0]}".rstrip(".")
            who = printable(user.username, 120)
            yield f"spec.components[{i}].template: {who} may not create {what} in {namespace}; ask for that right."
