"""Rights of each account, down to the field: the chart's roles and policies are of it. Pure."""

from __future__ import annotations

from typing import Final

from preflight_kube.api.rights import (
    Account,
    Chart,
    Constraint,
    Right,
    certificate_account,
    leader,
    speaker,
)

from preflight_appwrapper.api import names

_LABEL: Final = f"o.?metadata.?labels[?'{names.LABEL}']"
_OWNER: Final = (
    "o.?metadata.?ownerReferences.orValue([]).exists(r, r.?controller.orValue(false)"
    f" && r.kind == '{names.KIND}' && r.apiVersion.startsWith('{names.GROUP}/')"
)
_LABELED: Final = Constraint(f"{_LABEL}.hasValue()", f"it has the label {names.LABEL}")
_OWNED: Final = Constraint(f"{_OWNER})", f"an {names.KIND} owns it")
_MADE: Final = (
    Constraint(
        f"{_OWNER} && r.name == {_LABEL}.orValue(''))", f"the {names.KIND} of that label owns it"
    ),
    Constraint(
        "!(request.?namespace.orValue('') in {excluded})", "AppWrappers of its namespace are judged"
    ),
)
_VERBS: Final = "get list watch create delete"

RIGHTS: Final = Chart(
    name="preflight-appwrapper",
    accounts=(
        Account(
            component="controller",
            rights=(
                Right(
                    resource=names.PLURAL,
                    group=names.GROUP,
                    verbs="get list watch patch",
                    fields=(f"metadata.finalizers[{names.FINALIZER}]",),
                    policy="controller-wrappers",
                ),
                Right(
                    resource=f"{names.PLURAL}/status",
                    group=names.GROUP,
                    verbs="update",
                    fields=("status",),
                    policy="controller-wrappers",
                ),
                # Components name their wrapper as an owner that waits for them, which takes this.
                Right(
                    resource=f"{names.PLURAL}/finalizers",
                    group=names.GROUP,
                    verbs="update",
                    policy="controller-wrappers",
                ),
                # Pods are deleted that a component's own controller has made, too.
                Right(resource="pods", verbs=_VERBS, fields=("*",), holds=(_LABELED,), gives=_MADE),
                Right(
                    each="wrappedKinds",
                    when="wrappedKinds",
                    verbs=_VERBS,
                    fields=("*",),
                    holds=(_LABELED, _OWNED),
                    gives=_MADE,
                    policy="controller-objects",
                ),
                Right(resource="nodes", verbs="list watch", when="monitors"),
                # Whether a component's pods have GPUs by their claims.
                Right(
                    resource=("resourceclaims", "resourceclaimtemplates"),
                    group="resource.k8s.io",
                    verbs="get",
                ),
                speaker(names.COMPONENT),
                leader("preflight-appwrapper"),
            ),
        ),
        Account(
            component="labeler",
            when="labelsNodes",
            rights=(
                Right(
                    resource="nodes",
                    verbs="list watch patch",
                    fields=("metadata.labels[{labelKey}]",),
                ),
                speaker(names.COMPONENT),
                leader("preflight-appwrapper-labeler"),
            ),
        ),
        Account(
            component="webhook",
            rights=(
                # Whether whoever creates a wrapper may create its components.
                Right(
                    resource="subjectaccessreviews", group="authorization.k8s.io", verbs="create"
                ),
            ),
        ),
        certificate_account(
            "{secret}",
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
            configuration="{configuration}",
        ),
    ),
)
