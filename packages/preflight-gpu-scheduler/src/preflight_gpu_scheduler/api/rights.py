"""What each account of the GPU scheduler may do, down to the field: the chart's roles and policies
are made of it.
"""

from __future__ import annotations

from typing import Final

from preflight_kube.api.rights import (
    OWN_NODE,
    Account,
    Chart,
    Constraint,
    Right,
    certificate_account,
    leader,
    speaker,
)

from preflight_gpu_scheduler.api import names

__all__ = ["RIGHTS"]

_CLAIMS: Final = Right(resource="gpuclaims", group=names.GROUP, verbs="list watch")
_STATUSES: Final = Right(resource="gpunodestatuses", group=names.GROUP, verbs="list watch")
_NODES: Final = Right(resource="nodes", verbs="list watch")
_LOCKS: Final = Right(
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
_OWN: Final = Constraint(
    f"o.metadata.name in {OWN_NODE}", "its name is that of the token's own node"
)


def _annotations(*keys: str) -> tuple[str, ...]:
    return tuple(f"metadata.annotations[{key}]" for key in keys)


RIGHTS: Final = Chart(
    name="preflight-gpu-scheduler",
    accounts=(
        Account(
            component="scheduler",
            rights=(
                _CLAIMS,
                _STATUSES,
                _NODES,
                Right(resource="pods", verbs="get list watch"),
                Right(
                    resource="pods/binding",
                    verbs="create",
                    fields=(
                        "target",
                        *_annotations(
                            names.ALLOCATED_ANNOTATION,
                            names.NVIDIA_ANNOTATION,
                            names.CUDA_ANNOTATION,
                        ),
                        # The API server's PodTopologyLabels writes these two, from the node's.
                        "metadata.labels[topology.kubernetes.io/zone]",
                        "metadata.labels[topology.kubernetes.io/region]",
                    ),
                    policy="scheduler-bindings",
                ),
                _LOCKS,
                leader("gpu-scheduler-kube"),
            ),
        ),
        Account(
            component="controller",
            rights=(
                _CLAIMS,
                # A node's status goes when the node has gone.
                Right(resource="gpunodestatuses", group=names.GROUP, verbs="list watch delete"),
                _NODES,
                Right(
                    resource="pods",
                    verbs="get list watch patch",
                    fields=(
                        *_annotations(
                            names.RESERVED_ANNOTATION,
                            names.RECLAIMED_ANNOTATION,
                            names.NUDGED_ANNOTATION,
                        ),
                        f"spec.schedulingGates[-{names.GATE}]",
                    ),
                ),
                Right(
                    resource="nodes/status",
                    verbs="patch",
                    fields=("status.capacity[{count}]",),
                    when="count",
                ),
                Right(
                    resource="gpuclaims/status",
                    group=names.GROUP,
                    verbs="patch",
                    fields=("status",),
                ),
                speaker("gpu-scheduler-controller"),
                Right(
                    resource="podgroups",
                    group=("scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"),
                    verbs="list watch",
                ),
                _LOCKS,
                leader("gpu-scheduler-controller"),
            ),
        ),
        Account(
            component="agent",
            rights=(
                _NODES,
                # RBAC knows no selectors: the agent asks for the pods of its node alone.
                Right(resource="pods", verbs="list watch"),
                Right(resource="resourceslices", group="resource.k8s.io", verbs="list watch"),
                Right(
                    resource="gpunodestatuses",
                    group=names.GROUP,
                    verbs="get create",
                    fields=("spec.nodeName",),
                    holds=(_OWN,),
                    gives=(
                        Constraint(
                            "o.?spec.?nodeName.orValue('') == o.metadata.name",
                            "spec.nodeName is its name",
                        ),
                    ),
                    policy="agents",
                ),
                Right(
                    resource="gpunodestatuses/status",
                    group=names.GROUP,
                    verbs="patch",
                    fields=("status",),
                    holds=(_OWN,),
                    policy="agents",
                ),
                # Whose the GPUs are that a pod says it has.
                Right(
                    resource="leases",
                    group="coordination.k8s.io",
                    verbs="get",
                    namespace="{lockNamespace}",
                ),
            ),
        ),
        Account(
            component="webhook",
            rights=(
                Right(resource="gpuclaims", group=names.GROUP, verbs="get list watch"),
                Right(
                    resource=("resourceclaims", "resourceclaimtemplates"),
                    group="resource.k8s.io",
                    verbs="get",
                ),
            ),
        ),
        certificate_account("{secret}", "mutatingwebhookconfigurations"),
    ),
)
