"""Rights of controller and webhook, down to the field: the chart's roles and policies are made of
it. Pure.

Nobody may delete: what no PodClique needs is left to the garbage collector.
"""

from __future__ import annotations

from dataclasses import replace
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

from preflight_mnnvl.api import names

_LABELS: Final = tuple(
    f"metadata.labels[{key}]"
    for key in (*names.IDENTITY, names.MANAGED, names.MANAGED_BY, names.INSTANCE, names.PODGANG)
)
_OURS: Final = Constraint(
    f"o.metadata.?labels[?'{names.MANAGED}'].orValue('') == 'true'"
    f" && o.metadata.?labels[?'{names.MANAGED_BY}'].orValue('') == '{names.MANAGED_BY_US}'",
    f"it has the labels {names.MANAGED} and {names.MANAGED_BY} of this service",
)
_OWNERS: Final = Constraint(
    "o.metadata.?ownerReferences.orValue([]).all(r, r.kind in ['PodGang', 'PodCliqueSet'])",
    "its owners are PodGangs and PodCliqueSets",
)
_SETS: Final = Right(resource="podcliquesets", group=names.GROVE_GROUP, verbs="list watch")
_NODES: Final = Right(resource="nodes", verbs="list watch")  # who carries the fabric's label
_TEMPLATES: Final = Right(
    resource="resourceclaimtemplates", group=names.RESOURCE_GROUP, verbs="list watch"
)
_DOMAINS: Final = Right(
    resource="computedomains",
    group=names.COMPUTE_DOMAIN_GROUP,
    verbs="list watch patch",
    fields=("metadata.ownerReferences", f"metadata.labels[{names.PODGANG}]"),
    holds=(_OURS,),
    gives=(_OWNERS,),
    policy="computedomains",
)
_CLAIMS: Final = replace(
    _DOMAINS,
    resource="resourceclaims",
    group=names.RESOURCE_GROUP,
    when="literal",
    policy="resourceclaims",
)
_NEW_DOMAIN: Final = (
    Constraint(
        "o.metadata.name.endsWith('-cd') && o.?spec.?numNodes.orValue(1) == 0",
        "its name ends with -cd, and its numNodes are 0",
    ),
)
_NEW_CLAIM: Final = (
    Constraint(
        "o.metadata.name.endsWith('-mnnvl-claim') && !has(o.spec.devices.config)"
        f" && o.?spec.?devices.?requests.orValue([]).all(r, r.name == '{names.CLAIM}'"
        " && !r.?adminAccess.orValue(false) && !r.?exactly.?adminAccess.orValue(false))",
        f"its name ends with -mnnvl-claim, and it asks for {names.CLAIM} alone",
    ),
)


def _made(right: Right, new: tuple[Constraint, ...], *more: str) -> Right:
    fields = ("spec", "metadata.ownerReferences", *_LABELS, *more)
    return replace(right, verbs="create", fields=fields, gives=(*right.gives, *new))


def _guarded(right: Right, when: str) -> Right:
    """The right that OwnerReferencesPermissionEnforcement asks for where an owner is written."""
    never = Constraint("false", "nobody deletes it by this account")
    return replace(right, verbs="delete", fields=(), holds=(never,), gives=(), when=when)


RIGHTS: Final = Chart(
    name="preflight-mnnvl",
    accounts=(
        Account(
            component="controller",
            rights=(
                # Which PodCliques live, what was decided about them, and who their set is.
                replace(_SETS, resource=("podcliques", "podcliquesets")),
                Right(
                    resource="podgangs",
                    group=names.SCHEDULER_GROUP,
                    verbs="list watch patch",
                    fields=tuple(
                        f"metadata.annotations[{key}]" for key in (names.ADOPTED, names.ONE_FABRIC)
                    ),
                    policy="podgangs",
                ),
                Right(
                    resource="podgangs/finalizers",
                    group=names.SCHEDULER_GROUP,
                    verbs="update",
                    when="guarded",
                    policy="podgangs",
                ),
                _DOMAINS,
                _made(_DOMAINS, _NEW_DOMAIN, f"metadata.annotations[{names.RECREATED}]"),
                _guarded(_DOMAINS, "guarded"),
                _TEMPLATES,  # whether the driver has made a domain's
                _CLAIMS,
                # Whether the pods of a PodGang share one fabric.
                replace(_TEMPLATES, resource=("resourceclaims", "resourceslices"), when="!literal"),
                _made(_CLAIMS, _NEW_CLAIM, "status"),  # empty, as every new claim has it
                _guarded(_CLAIMS, "guardedLiteral"),
                _NODES,
                speaker(names.MANAGED_BY_US),
                leader("preflight-mnnvl"),
            ),
        ),
        Account(
            component="webhook",
            rights=(
                # A set that is not mirrored yet is read by itself.
                replace(_SETS, verbs="get list watch"),
                # Which classes a PodClique's own claims ask for.
                replace(
                    _TEMPLATES, resource=("resourceclaims", "resourceclaimtemplates"), verbs="get"
                ),
                # What has the name of a domain, its template or its claim already.
                replace(_DOMAINS, verbs="list watch", fields=(), holds=(), gives=()),
                replace(_TEMPLATES, when="!literal"),
                replace(_TEMPLATES, resource="resourceclaims", when="literal"),
                replace(_TEMPLATES, resource="deviceclasses", when="!literal"),
                _NODES,
            ),
        ),
        certificate_account(
            "{webhookSecret}", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"
        ),
    ),
)
