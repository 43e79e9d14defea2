"""Rights of the GPU scheduler, down to the field: the chart's roles and policies follow."""

from __future__ import annotations

from functools import partial
from typing import Final

from preflight_kube.api import rights as kit

from preflight_gpu_scheduler.api import names

_ours = partial(kit.Right, group=names.GROUP)
_CLAIMS: Final = _ours(resource="gpuclaims", verbs="list watch")
_STATUSES: Final = _ours(resource="gpunodestatuses", verbs="list watch")
_NODES: Final = kit.Right(resource="nodes", verbs="list watch")
_DRA: Final = "resource.k8s.io"
_NAMED: Final = "o.?spec.?nodeName.orValue('') == o.metadata.name"
_LOCKS: Final = kit.Right(
    resource="leases",
    group="coordination.k8s.io",
    verbs="get list watch create patch delete",
    namespace="{lockNamespace}",
    fields=(
        "spec",
        f"metadata.labels[{names.MANAGED_LABEL}]",
        f"metadata.labels[{names.POD_UID_LABEL}]",
        f"metadata.annotations[{names.PREFIX}*]",
    ),
)
_OWN: Final = kit.Constraint(
    f"o.metadata.name in {kit.OWN_NODE}", "its name is that of the token's own node"
)


def _annotations(*keys: str) -> tuple[str, ...]:
    return tuple(f"metadata.annotations[{key}]" for key in keys)


_BOUND: Final = (names.ALLOCATED_ANNOTATION, names.NVIDIA_ANNOTATION, names.CUDA_ANNOTATION)
_BINDING: Final = (
    "target",
    *_annotations(*_BOUND),
    # The API server's PodTopologyLabels writes these two, from the node's.
    "metadata.labels[topology.kubernetes.io/zone]",
    "metadata.labels[topology.kubernetes.io/region]",
)
_TOLD: Final = (names.RESERVED_ANNOTATION, names.RECLAIMED_ANNOTATION, names.NUDGED_ANNOTATION)
_POD: Final = (*_annotations(*_TOLD), f"spec.schedulingGates[-{names.GATE}]")
_GROUPS: Final = ("scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh")
RIGHTS: Final = kit.Chart(
    name="preflight-gpu-scheduler",
    accounts=(
        kit.Account(
            component="scheduler",
            rights=(
                _CLAIMS,
                _STATUSES,
                _NODES,
                kit.Right(resource="pods", verbs="get list watch"),
                kit.Right(
                    resource="pods/binding",
                    verbs="create",
                    fields=_BINDING,
                    policy="scheduler-bindings",
                ),
                _LOCKS,
                kit.leader("gpu-scheduler-kube"),
            ),
        ),
        kit.Account(
            component="controller",
            rights=(
                _CLAIMS,
                # A node's status goes when the node has gone.
                _ours(resource="gpunodestatuses", verbs="list watch delete"),
                _NODES,
                kit.Right(resource="pods", verbs="get list watch patch", fields=_POD),
                kit.Right(
                    resource="nodes/status",
                    verbs="patch",
                    fields=("status.capacity[{count}]",),
                    when="count",
                ),
                _ours(resource="gpuclaims/status", verbs="patch", fields=("status",)),
                kit.speaker("gpu-scheduler-controller"),
                kit.Right(resource="podgroups", group=_GROUPS, verbs="list watch"),
                _LOCKS,
                kit.leader("gpu-scheduler-controller"),
            ),
        ),
        kit.Account(
            component="agent",
            rights=(
                _NODES,
                # RBAC knows no selectors: the agent asks for the pods of its node alone.
                kit.Right(resource="pods", verbs="list watch"),
                kit.Right(resource="resourceslices", group=_DRA, verbs="list watch"),
                _ours(
                    resource="gpunodestatuses",
                    verbs="get create",
                    fields=("spec.nodeName",),
                    holds=(_OWN,),
                    gives=(kit.Constraint(_NAMED, "spec.nodeName is its name"),),
                    policy="agents",
                ),
                _ours(
                    resource="gpunodestatuses/status",
                    verbs="patch",
                    fields=("status",),
                    holds=(_OWN,),
                    policy="agents",
                ),
                # Whose the GPUs are that a pod says it has.
                kit.Right(
                    resource="leases",
                    group="coordination.k8s.io",
                    verbs="get",
                    namespace="{lockNamespace}",
                ),
            ),
        ),
        kit.Account(
            component="webhook",
            rights=(
                _ours(resource="gpuclaims", verbs="get list watch"),
                kit.Right(
                    resource=("resourceclaims", "resourceclaimtemplates"), group=_DRA, verbs="get"
                ),
            ),
        ),
        kit.certificate_account("{secret}", "mutatingwebhookconfigurations"),
    ),
)
