"""The jobs of the training operator (kubeflow.org), and the trainer's TrainJobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from typing import Final

import msgspec

from preflight_kube.api.workloads.labels import NOT_COUNTED, TRAINING, TRAINING_NODES
from preflight_kube.api.workloads.model import (
    Keys,
    Object,
    PodMarks,
    WorkloadKind,
    map_of,
    maps,
    name_of,
    replicas,
    whole,
)
from preflight_kube.api.workloads.sizes import (
    DeclaredSize,
    Roles,
    Section,
    SizedObject,
    added,
    counted,
)

_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE: Final = "node"
"""The trainer's container in a runtime."""


def _of_training(item: Object, name: str, part: str) -> PodMarks:
    labels = {
        f"{TRAINING}job-name": name,
        f"{TRAINING}replica-type": part.lower(),
        f"{TRAINING}replica-index": "0",
    }
    spec = map_of(item.get("spec"))
    if item.get("kind") == "MPIJob":
        labels[f"{TRAINING}job-role"] = part.lower()
    env = {}
    if item.get("kind") == "PyTorchJob":
        elastic = map_of(spec.get("elasticPolicy"))
        members = sum(
            whole(map_of(replica_spec).get("replicas"), 1)
            for replica_spec in map_of(spec.get("pytorchReplicaSpecs")).values()
        )
        least, most = elastic.get("minReplicas", members), elastic.get("maxReplicas", members)
        env = {TRAINING_NODES: f"{least}:{most}" if elastic else str(members)}
    return PodMarks(labels, {}, "", env)


def _pods(item: Object, keys: Keys) -> int:
    """``keys``: spec, the map of roles, a role, template."""
    return replicas(item, *keys[:-1], "replicas")


def runtime_of(item: Object) -> tuple[str, str]:
    """(kind, name) of the runtime that a TrainJob names."""
    ref = map_of(map_of(item.get("spec")).get("runtimeRef"))
    return str(ref.get("kind") or "ClusterTrainingRuntime"), str(ref.get("name") or "")


def _jobset_of(item: Object, others: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """A TrainJob is a JobSet made of its runtime's template, with what it says of its trainer."""
    kind, wanted = runtime_of(item)

    def place(of: Object) -> object:
        return kind != "TrainingRuntime" or map_of(of.get("metadata")).get("namespace")

    named = (it for it in others if it.get("kind") == kind and name_of(it) == wanted)
    runtime = next((it for it in named if place(it) == place(item)), None)
    if runtime is None:
        raise ValueError(
            f"its pods are made of the {kind} {wanted or '(no name)'}, which is not here; give it with another -f "
            f"(kubectl get {kind.lower()} {wanted} -o yaml)"
        )
    spec, of_runtime = map_of(item.get("spec")), map_of(runtime.get("spec"))
    trainer, policy = map_of(spec.get("trainer")), map_of(of_runtime.get("mlPolicy"))
    jobset = deepcopy(map_of(map_of(of_runtime.get("template")).get("spec")))
    nodes = whole(trainer.get("numNodes"), whole(policy.get("numNodes"), 1))
    for job in maps(jobset.get("replicatedJobs")):
        template = map_of(job.get("template"))
        labels = map_of(map_of(template.get("metadata")).get("labels"))
        if labels.get(_STEP, job.get("name")) not in ("trainer", _NODE):
            continue
        pod = map_of(map_of(map_of(template.get("spec")).get("template")).get("spec"))
        for container in maps(pod.get("containers")):
            if container.get("name") != _NODE:
                continue
            if trainer.get("resourcesPerNode") is not None:
                container["resources"] = trainer["resourcesPerNode"]
            env = [*(container.get("env") or []), *(trainer.get("env") or [])]
            if policy.get("torch") is not None:
                env.append({"name": TRAINING_NODES, "value": str(nodes)})
            container["env"] = env
    about = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": item.get("metadata"),
    }
    yield "", {**about, "spec": jobset}


class _Replicas(Section, kw_only=True):
    replicas: int = 1


class _ElasticPolicy(Section, kw_only=True):
    min_replicas: int | None = None


class _TrainingJobSpec(Section, kw_only=True):
    """One of the maps, by the kind of job; of a PyTorchJob whether it begins with fewer workers."""

    pytorch_replica_specs: Roles[_Replicas] = msgspec.field(default_factory=dict)
    mpi_replica_specs: Roles[_Replicas] = msgspec.field(default_factory=dict)
    tf_replica_specs: Roles[_Replicas] = msgspec.field(default_factory=dict)
    xgb_replica_specs: Roles[_Replicas] = msgspec.field(default_factory=dict)
    paddle_replica_specs: Roles[_Replicas] = msgspec.field(default_factory=dict)
    jax_replica_specs: Roles[_Replicas] = msgspec.field(default_factory=dict)
    elastic_policy: _ElasticPolicy | None = None


class TrainingJob(SizedObject, kw_only=True):
    """kubeflow.org PyTorchJob, MPIJob, TFJob, XGBoostJob, PaddleJob, JAXJob."""

    spec: _TrainingJobSpec = msgspec.field(default_factory=_TrainingJobSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        elastic = self.spec.elastic_policy
        least = elastic.min_replicas if elastic is not None else None
        maps = (part for part in msgspec.structs.astuple(self.spec) if isinstance(part, dict))
        roles = ((role.lower(), part.replicas) for specs in maps for role, part in specs.items())
        return added(
            (
                min(count, least) if role == "worker" and least is not None else count
                for role, count in roles
                if role not in NOT_COUNTED
            ),
            "replica specs",
            least=least is not None,
        )


class _Trainer(Section, kw_only=True):
    num_nodes: int | None = None


class _TrainJobSpec(Section, kw_only=True):
    trainer: _Trainer = msgspec.field(default_factory=_Trainer)


class TrainJob(SizedObject, kw_only=True):
    """trainer.kubeflow.org TrainJob; without numNodes its runtime decides, and the pods say it
    (PET_NNODES).
    """

    spec: _TrainJobSpec = msgspec.field(default_factory=_TrainJobSpec)

    def size(self, gang: str) -> DeclaredSize:
        """How many pods of ``gang`` start together, by this object."""
        return counted(self.spec.trainer.num_nodes, "spec.trainer.numNodes")


def _training(kind: str, specs: str, *versions: str) -> WorkloadKind:
    return WorkloadKind(
        kind,
        "kubeflow.org",
        versions or ("v1",),
        f"{kind.lower()}s",
        (("spec", specs, "%", "template"),),
        _of_training,
        pods=_pods,
    )


JOBS: Final = (
    _training("PyTorchJob", "pytorchReplicaSpecs"),
    _training("TFJob", "tfReplicaSpecs"),
    _training("XGBoostJob", "xgbReplicaSpecs"),
    _training("PaddleJob", "paddleReplicaSpecs"),
    _training("JAXJob", "jaxReplicaSpecs"),
    _training("MPIJob", "mpiReplicaSpecs", "v2beta1", "v1"),
)
TRAIN_JOB: Final = WorkloadKind(
    "TrainJob", "trainer.kubeflow.org", ("v1alpha1",), "trainjobs", inner=_jobset_of
)
