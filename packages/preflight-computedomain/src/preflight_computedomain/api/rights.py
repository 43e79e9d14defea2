"""Rights of controller and plugin, down to the field, for roles and policies. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from preflight_kube.api.rights import OWN_NODE, Account, Chart, Constraint, Right, leader, speaker

from preflight_computedomain.api import names

_DRA: Final = "resource.k8s.io"
_LABELS: Final = (f"metadata.labels[{names.LABEL}]", f"metadata.labels[{names.TARGET_LABEL}]")
_OURS: Final = Constraint(
    "o.?spec.?spec.?devices.?config.orValue([]).exists(c,"
    f" c.?opaque.?driver.orValue('') == '{names.DRIVER}'"
    f" && c.?opaque.?parameters.?kind.orValue('') == '{names.CHANNEL_CONFIG}')",
    f"its configuration is a {names.CHANNEL_CONFIG} of {names.DRIVER}",
)
"""By its configuration, which nobody can change; the controller writes the labels itself."""
_ALONE: Final = Constraint(
    "size(o.?spec.?spec.?devices.?requests.orValue([])) == 1"
    " && o.?spec.?spec.?devices.?requests.orValue([]).all(r,"
    f" r.?exactly.?deviceClassName.orValue('') == '{names.CHANNEL_CLASS}'"
    " && r.?exactly.?allocationMode.orValue('ExactCount') == 'ExactCount'"
    " && r.?exactly.?count.orValue(1) <= 1 && !r.?exactly.?adminAccess.orValue(false))"
    " && size(o.?spec.?spec.?devices.?config.orValue([])) == 1"
    " && size(o.?spec.?metadata.?labels.orValue({})) == 0"
    " && size(o.?spec.?metadata.?annotations.orValue({})) == 0",
    f"it asks for one device of {names.CHANNEL_CLASS} alone",
)
_TEMPLATES: Final = Right(
    resource="resourceclaimtemplates",
    group=_DRA,
    verbs="get list watch patch delete",
    fields=(f"metadata.finalizers[{names.FINALIZER}]", *_LABELS),
    holds=(_OURS,),
    policy="templates",
)
_OWN_NAME: Final = (
    f"{OWN_NODE}.exists(n, o.metadata.name == n + '-{names.DRIVER}'"
    " || (n.size() > 227 && o.metadata.name.startsWith(n.substring(0, 150))"
    f" && o.metadata.name.endsWith('-{names.DRIVER}')))"
)
_OWN_SLICE: Final = (
    Constraint(f"o.?spec.?driver.orValue('') == '{names.DRIVER}'", f"its driver is {names.DRIVER}"),
    Constraint(
        f"o.?spec.?nodeName.orValue('') in {OWN_NODE} && !o.?spec.?allNodes.orValue(false)"
        " && !has(o.spec.nodeSelector) && !o.?spec.?perDeviceNodeSelection.orValue(false)",
        "it names the token's own node, and no other selection",
    ),
)
_AS_MADE: Final = (
    # Into the pool of another node the scheduler would take a slice of this one.
    Constraint(
        f"o.?spec.?pool.?name.orValue('') in {OWN_NODE}", "its pool is of the token's own node"
    ),
    Constraint(
        "!has(o.spec.sharedCounters)"
        f" && o.?spec.?devices.orValue([]).all(d, d.name == '{names.DEVICE}')"
        " && size(o.?spec.?devices.orValue([])) <= 1",
        f"it has the device {names.DEVICE} alone or none, and no sharedCounters",
    ),
    Constraint(_OWN_NAME, f"its name is that of the token's own node, and -{names.DRIVER}"),
)
_SLICES: Final = Right(
    resource="resourceslices",
    group=_DRA,
    verbs="list watch create",
    fields=("spec", "metadata.ownerReferences"),
    holds=_OWN_SLICE,
    gives=_AS_MADE,
    policy="slices",
)

RIGHTS: Final = Chart(
    name="preflight-computedomain",
    when="on",
    accounts=(
        Account(
            component="controller",
            rights=(
                Right(
                    resource=names.PLURAL,
                    group=names.GROUP,
                    verbs="list watch patch",
                    fields=(
                        f"metadata.finalizers[{names.FINALIZER}]",
                        f"metadata.annotations[{names.GRANTED}]",
                    ),
                    policy="finalizers",
                ),
                Right(
                    resource=f"{names.PLURAL}/status",
                    group=names.GROUP,
                    verbs="patch",
                    fields=("status",),
                    policy="finalizers",
                ),
                # Who is active in which NVLink clique.
                Right(
                    resource=("resourceclaims", "resourceslices"), group=_DRA, verbs="list watch"
                ),
                _TEMPLATES,
                replace(
                    _TEMPLATES,
                    verbs="create",
                    fields=("spec", *_TEMPLATES.fields),
                    gives=(_ALONE,),
                ),
                speaker("compute-domain-controller"),
                leader("compute-domain-controller"),
            ),
        ),
        Account(
            component="kubelet-plugin",
            rights=(
                # A claim, when the kubelet asks for it, and whether its ComputeDomain is there.
                Right(resource="resourceclaims", group=_DRA, verbs="get"),
                Right(resource=names.PLURAL, group=names.GROUP, verbs="list"),
                _SLICES,
                # It is written as a whole, so labels and annotations that others gave it go.
                replace(
                    _SLICES,
                    verbs="update",
                    fields=(*_SLICES.fields, "metadata.labels", "metadata.annotations"),
                ),
                # What is there may be wrong: the plugin takes it away.
                replace(_SLICES, verbs="delete", fields=(), gives=()),
                Right(resource="nodes", verbs="get"),  # to which the slice belongs
            ),
        ),
    ),
)
