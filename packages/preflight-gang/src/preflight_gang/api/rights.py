"""Rights of the controller, down to the field: the chart's roles and policies are made of it. Pure.

Right to change a pod is, by itself, the right to change any image: of pods that the webhook has
stamped it is our own annotations, but for those that the webhook writes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from preflight_kube.api import node_health
from preflight_kube.api.rights import Account, Chart, Constraint, Right, leader, speaker
from preflight_proto import names, policy

from preflight_gang.api.sources import BUILT_IN
from preflight_gang.api.types import GANG_ID_ANNOTATION, GANG_SOURCE_ANNOTATION

_STAMPED: Final = Constraint(
    f"[o.?metadata.?labels.orValue({{}})].exists(l, '{names.CHECKED_LABEL}' in l"
    f" || '{names.GANG_LABEL}' in l)",
    f"it has the label {names.CHECKED_LABEL} or {names.GANG_LABEL}",
)
_RECORD: Final = Constraint(
    "o.?metadata.?name.orValue('').startsWith('preflight-')"
    f" && o.?metadata.?labels[?'{names.MANAGED_BY_LABEL}'].orValue('') == '{names.MANAGED_BY}'",
    f"its name begins with preflight- and its label {names.MANAGED_BY_LABEL} is, and was,"
    f" {names.MANAGED_BY}",
)
_RECORDS: Final = Right(
    resource="configmaps",
    verbs="get list watch create",
    fields=(
        *("data", "binaryData", f"metadata.labels[{names.MANAGED_BY_LABEL}]"),
        *(f"metadata.annotations[{key}]" for key in (GANG_ID_ANNOTATION, GANG_SOURCE_ANNOTATION)),
        "metadata.ownerReferences",
    ),
    holds=(_RECORD,),
)
_SIZED: Final = dict.fromkeys(
    (kind.group, kind.resource) for kinds in BUILT_IN.values() for kind in kinds
)
_GROUPS: Final = dict.fromkeys(group for group, _ in _SIZED)

RIGHTS: Final = Chart(
    name="preflight-gang",
    accounts=(
        Account(
            component="controller",
            name="{name}",
            rights=(
                # Members of gangs and their checks' results.
                Right(
                    resource="pods",
                    verbs="list watch patch",
                    fields=(
                        f"metadata.annotations[{names.PREFIX}*]",
                        f"!metadata.annotations[{names.GANG_ANNOTATION}]",
                    ),
                    holds=(_STAMPED,),
                ),
                _RECORDS,
                # It is written as a whole, so what others gave it goes.
                replace(
                    _RECORDS,
                    verbs="update",
                    fields=(
                        *("data", "binaryData", "metadata.labels", "metadata.annotations"),
                        *("metadata.ownerReferences", "metadata.finalizers[-*]"),
                    ),
                ),
                # One that somebody has made immutable is made anew; and where
                # OwnerReferencesPermissionEnforcement is on, who may say whose an object is.
                replace(_RECORDS, verbs="delete", fields=()),
                # Instance type and topology, which a container cannot read; and which are sick.
                Right(resource="nodes", verbs="list watch"),
                Right(resource="namespaces", verbs="list watch"),  # which are opted in
                # What claims GPU pods without checks have: read page by page, and not kept.
                Right(
                    resource=("deviceclasses", "resourceclaims", "resourceclaimtemplates"),
                    group="resource.k8s.io",
                    verbs="list",
                    when="auditsClaims",
                ),
                Right(resource=policy.PLURAL, group=policy.GROUP, verbs="list watch"),
                Right(
                    resource=f"{policy.PLURAL}/status",
                    group=policy.GROUP,
                    verbs="update",
                    fields=("status",),
                ),
                Right(
                    resource=node_health.PLURAL,
                    group=policy.GROUP,
                    verbs="list watch create",
                    fields=("spec.nodeUID", "metadata.ownerReferences"),
                    gives=(
                        Constraint(
                            "o.?metadata.?ownerReferences.orValue([]).all(r, r.kind == 'Node'"
                            " && r.name == o.metadata.name)",
                            "its owner is the node of its name",
                        ),
                    ),
                ),
                Right(
                    resource=f"{node_health.PLURAL}/status",
                    group=policy.GROUP,
                    verbs="update",
                    fields=("status",),
                ),
                speaker(names.MANAGED_BY),
                # Objects that know the size of a gang; one that is not installed is not missed.
                *(
                    Right(
                        resource=tuple(each for of, each in _SIZED if of == group),
                        group=group,
                        verbs="list watch",
                    )
                    for group in _GROUPS
                ),
                Right(verbs="list watch", each="sources"),
                leader("preflight-gang"),
            ),
        ),
    ),
)
