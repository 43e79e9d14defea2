"""Labels and annotations by which workload controllers, schedulers and queues name the workload of
a pod. Pure.
"""

from __future__ import annotations

from typing import Final

# What workload controllers write.
JOB_NAME: Final = "batch.kubernetes.io/job-name"
JOB_INDEX: Final = "batch.kubernetes.io/job-completion-index"
JOBSET: Final = "jobset.sigs.k8s.io/"
"""The beginning of all that JobSet writes."""
LWS: Final = "leaderworkerset.sigs.k8s.io/"
"""The beginning of all that LeaderWorkerSet writes."""
TRAINING: Final = "training.kubeflow.org/"
"""The beginning of all that the training operator writes."""
NOT_COUNTED: Final = frozenset({"launcher", "evaluator"})
"""Roles of the training operator, in lower case, that no size counts: the one starts when the
workers run, the other talks to none of them.
"""
TRAINING_NODES: Final = "PET_NNODES"
"""A variable, of PyTorchJobs and TrainJobs: how many nodes, or least:most."""
GROVE_GANG: Final = "grove.io/podgang"
GROVE_CLIQUE: Final = "grove.io/podclique"
VOLCANO_JOB: Final = "volcano.sh/job-name"
VOLCANO_TASK: Final = "volcano.sh/task-spec"
# What schedulers and queues write.
VOLCANO_GROUP: Final = "scheduling.k8s.io/group-name"
COSCHEDULING_GROUP: Final = "scheduling.x-k8s.io/pod-group"
KAI_GROUP: Final = "pod-group-name"
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
KUEUE_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_COUNT: Final = "kueue.x-k8s.io/pod-group-total-count"
KUEUE_WORKLOAD: Final = "kueue.x-k8s.io/workload"
KUEUE_PODSET: Final = "kueue.x-k8s.io/podset"
KUEUE_PARENT: Final = "kueue.x-k8s.io/pod-suspending-parent"
