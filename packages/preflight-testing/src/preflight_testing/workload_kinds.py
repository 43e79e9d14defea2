"""Definitions of kinds that train and serve, with just the fields that are used here: Kubeflow's,
JobSet, LeaderWorkerSet, and Ray's.
"""

from __future__ import annotations

from typing import Any

from .grove_kinds import CONDITIONS, INTEGER, TEXT, crd

Json = dict[str, Any]

KEPT: Json = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
FLAG: Json = {"type": "boolean"}


def _object(**fields: Json) -> Json:
    return {"type": "object", "properties": fields}


def _list(**fields: Json) -> Json:
    return {"type": "array", "items": _object(**fields)}


def _kind(spec: Json, **status: Json) -> Json:
    return _object(spec=spec, status=_object(**status))


REPLICA: Json = _object(replicas=INTEGER, restartPolicy=TEXT, template=KEPT)
REPLICAS: Json = {"type": "object", "additionalProperties": REPLICA}
CLUSTER: Json = _object(
    rayVersion=TEXT,
    headGroupSpec=_object(rayStartParams=KEPT, template=KEPT),
    workerGroupSpecs=_list(groupName=TEXT, replicas=INTEGER, rayStartParams=KEPT, template=KEPT),
)

WORKLOADS: list[Json] = [
    crd(
        "kubeflow.org",
        "PyTorchJob",
        "pytorchjobs",
        {
            "v1": _kind(
                _object(
                    pytorchReplicaSpecs=REPLICAS,
                    runPolicy=_object(suspend=FLAG, backoffLimit=INTEGER),
                ),
                conditions=CONDITIONS,
            )
        },
    ),
    crd(
        "kubeflow.org",
        "MPIJob",
        "mpijobs",
        {
            "v1": _kind(
                _object(
                    mpiReplicaSpecs=REPLICAS,
                    runPolicy=_object(suspend=FLAG),
                    slotsPerWorker=INTEGER,
                ),
                conditions=CONDITIONS,
            )
        },
    ),
    crd(
        "jobset.x-k8s.io",
        "JobSet",
        "jobsets",
        {
            "v1alpha2": _kind(
                _object(
                    suspend=FLAG, replicatedJobs=_list(name=TEXT, replicas=INTEGER, template=KEPT)
                ),
                conditions=CONDITIONS,
                terminalState=TEXT,
            )
        },
    ),
    crd(
        "trainer.kubeflow.org",
        "TrainJob",
        "trainjobs",
        {
            "v1alpha1": _kind(
                _object(suspend=FLAG, runtimeRef=_object(name=TEXT, kind=TEXT), trainer=KEPT),
                conditions=CONDITIONS,
            )
        },
    ),
    crd(
        "ray.io",
        "RayCluster",
        "rayclusters",
        {"v1": _kind(CLUSTER, state=TEXT, conditions=CONDITIONS)},
    ),
    crd(
        "ray.io",
        "RayJob",
        "rayjobs",
        {
            "v1": _kind(
                _object(
                    entrypoint=TEXT, suspend=FLAG, backoffLimit=INTEGER, rayClusterSpec=CLUSTER
                ),
                jobDeploymentStatus=TEXT,
                jobStatus=TEXT,
                message=TEXT,
            )
        },
    ),
    crd(
        "leaderworkerset.x-k8s.io",
        "LeaderWorkerSet",
        "leaderworkersets",
        {
            "v1": _kind(
                _object(
                    replicas=INTEGER,
                    leaderWorkerTemplate=_object(
                        size=INTEGER, leaderTemplate=KEPT, workerTemplate=KEPT
                    ),
                ),
                replicas=INTEGER,
                readyReplicas=INTEGER,
                conditions=CONDITIONS,
            )
        },
    ),
]
