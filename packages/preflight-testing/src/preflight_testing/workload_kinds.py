"""Definitions of kinds that train and serve, with just the fields that are used here: Kubeflow's,
JobSet, LeaderWorkerSet, and Ray's.
"""

from __future__ import annotations

from typing import Any

from .grove_kinds import CONDITIONS, kind

CONDITIONED = {"conditions": CONDITIONS}
REPLICAS = {str: {"replicas": int, "restartPolicy": str, "template": object}}
CLUSTER = {
    "rayVersion": str,
    "headGroupSpec": {"rayStartParams": object, "template": object},
    "workerGroupSpecs": [
        {"groupName": str, "replicas": int, "rayStartParams": object, "template": object}
    ],
}
TORCH = {"pytorchReplicaSpecs": REPLICAS, "runPolicy": {"suspend": bool, "backoffLimit": int}}
MPI = {"mpiReplicaSpecs": REPLICAS, "runPolicy": {"suspend": bool}, "slotsPerWorker": int}
REPLICATED = [{"name": str, "replicas": int, "template": object}]
TRAIN = {"suspend": bool, "runtimeRef": {"name": str, "kind": str}, "trainer": object}
RAY_JOB = {"entrypoint": str, "suspend": bool, "backoffLimit": int, "rayClusterSpec": CLUSTER}
LEADER_WORKER = {"size": int, "leaderTemplate": object, "workerTemplate": object}

WORKLOADS: list[dict[str, Any]] = [
    kind("kubeflow.org/v1", "PyTorchJob", "pytorchjobs", TORCH, CONDITIONED),
    kind("kubeflow.org/v1", "MPIJob", "mpijobs", MPI, CONDITIONED),
    kind(
        *("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets"),
        {"suspend": bool, "replicatedJobs": REPLICATED},
        {**CONDITIONED, "terminalState": str},
    ),
    kind("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs", TRAIN, CONDITIONED),
    kind("ray.io/v1", "RayCluster", "rayclusters", CLUSTER, {"state": str, **CONDITIONED}),
    kind(
        *("ray.io/v1", "RayJob", "rayjobs", RAY_JOB),
        {"jobDeploymentStatus": str, "jobStatus": str, "message": str},
    ),
    kind(
        *("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets"),
        {"replicas": int, "leaderWorkerTemplate": LEADER_WORKER},
        {"replicas": int, "readyReplicas": int, **CONDITIONED},
    ),
]
