"""Access reviews: no AppWrapper creates for its author what they may not create by themselves.
Pure: bodies and answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from preflight_kube.admission.review import UserInfo
from preflight_kube.api.kinds import Kind, RESTMapping
from preflight_proto.printable import printable

from preflight_appwrapper.api.types import AppWrapper
from preflight_appwrapper.core import podsets


class _Access(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class SubjectAccessReview(msgspec.Struct, frozen=True):
    """An answer, without the authorizer's own reason, which names roles of others."""

    status: _Access = _Access()

    @property
    def granted(self) -> bool:
        """Say whether the right is there."""
        return self.status.allowed and not self.status.denied


def reviews(
    wrapper: AppWrapper, user: UserInfo, namespace: str, served: Mapping[Kind, RESTMapping]
) -> dict[int, dict[str, Any]]:
    """By component: the SubjectAccessReview to create. One that is not served is denied without."""
    found: dict[int, dict[str, Any]] = {}
    who: dict[str, Any] = {"user": user.username, "uid": user.uid, "groups": [*user.groups]}
    if user.extra:
        who["extra"] = {key: list(values) for key, values in user.extra.items()}
    for i, component in enumerate(wrapper.spec.components):
        group, version, kind = podsets.group_kind(component.template)
        known = served.get((group, version, kind))
        if known is None:
            continue
        what = {"group": group, "version": version, "resource": known.resource}
        wanted = {"namespace": namespace, "verb": "create", **what}
        found[i] = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**who, "resourceAttributes": wanted},
        }
    return found


def refusals(asked: Mapping[int, dict[str, Any]], answers: Mapping[int, bool]) -> tuple[str, ...]:
    """One sentence for each component that may not be created; one without an answer may not."""
    said = []
    for i, body in asked.items():
        if answers.get(i):
            continue
        wanted = body["spec"]["resourceAttributes"]
        what = f"{wanted['resource']}.{wanted['group']}".rstrip(".")
        why = "" if i in answers else " (nobody answered whether that is allowed)"
        user = printable(body["spec"]["user"], 120)
        said.append(
            f"spec.components[{i}].template: {user} may not create {what} in {wanted['namespace']}{why}; ask for that right."
        )
    return tuple(said)
