"""Kinds of objects that make pods: where each has its pod templates, and what its controller writes to the pods.

Pure. A kind is told by its API group as well: Volcano's Job is no Job of batch. Shapes are those of the projects' own API types: Kubernetes,
JobSet, LeaderWorkerSet, Kubeflow's training operator (kubeflow.org) and trainer (trainer.kubeflow.org), KubeRay, Volcano, Grove, AppWrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Final, NamedTuple

__all__ = ["KINDS", "Kind", "Object", "Template", "kind_of", "named", "runtime_of", "templates"]

Object = dict[str, Any]
Path = tuple[str, ...]


class Marks(NamedTuple):
    """What a controller writes to a pod: labels, annotations, variables; and the kind of the pod's owner (empty: the object's own)."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    owner: str = ""
    env: Mapping[str, str] = {}


Written = Callable[[Object, str, str], Marks]
"""Of an object, its name and the part of it that a template is for."""


class Template(NamedTuple):
    """One pod as it comes to admission, and what of its object it is (", worker"), empty where there is one only."""

    suffix: str
    pod: Object


class Kind(NamedTuple):
    """``group`` is empty for the core; ``versions`` are those that are known, newest first. In ``paths`` a star is every entry of a list,
    a percent sign every value of a map."""

    kind: str
    group: str
    versions: tuple[str, ...]
    plural: str
    paths: tuple[Path, ...]
    written: Written

    @property
    def title(self) -> str:
        """As kubectl has it where kinds of several groups share a name."""
        return f"{self.kind}.{self.group}" if self.kind == "Job" and self.group != "batch" else self.kind


def kind_of(item: Mapping[str, Any]) -> Kind | None:
    """The kind of an object, by group and kind; without an apiVersion the first of that name."""
    version = item.get("apiVersion")
    group = None if version is None else str(version).rpartition("/")[0]
    return next((one for one in _ALL if one.kind == item.get("kind") and group in (None, one.group)), None)


def named(word: str) -> Kind | None:
    """The kind that a person calls ``word``: kind or plural in any case, with its group where he likes (job.batch.volcano.sh)."""
    name, _, group = word.lower().partition(".")
    return next((one for one in _ALL if name in (one.kind.lower(), one.plural) and group in ("", one.group)), None)


def templates(item: Object, others: Iterable[Object]) -> Iterator[Template]:
    """The pods that ``item`` makes; ``others`` are the objects beside it, among which a TrainJob finds its runtime.

    Raises :class:`ValueError` with one sentence, without the object's name, where it has none.
    """
    kind = kind_of(item)
    if kind is None:
        return
    if kind.kind == "Pod":
        yield Template("", item)
        return
    if kind.kind == "AppWrapper":
        yield from _of_wrapper(item, others)
        return
    if kind.kind == "TrainJob":
        yield from _of_train_job(item, others)
        return
    found = False
    for path in kind.paths:
        for part, template in _at(item, path, ""):
            found = True
            yield Template(f", {part}" if part else "", _pod(item, kind, part, template))
    if not found:
        raise ValueError(f"has no pod template; it must be at {' or '.join('.'.join(path) for path in kind.paths)}")


def _pod(item: Object, kind: Kind, part: str, template: Object) -> Object:
    """A template with what the controller of ``kind`` writes to its pods; of several pods the first one. An owner's UID is not known yet."""
    name = _name(item)
    if kind.group == "grove.io":  # a clique: labels and annotations of its own, the pod's spec below its spec
        about = {key: template[key] for key in ("labels", "annotations") if template.get(key)}
        template = {"metadata": about, "spec": _map(template.get("spec")).get("podSpec")}
    marks = kind.written(item, name, part)
    given = _map(template.get("metadata"))
    metadata = dict(given)
    queued = kind.kind in _QUEUED and _QUEUE in _map(_map(item.get("metadata")).get("labels"))
    labels = {**marks.labels, _PODSET: part or "main"} if queued else marks.labels
    for section, written in (("labels", labels), ("annotations", marks.annotations)):
        if written:
            metadata[section] = {**_map(given.get(section)), **written}
    metadata["ownerReferences"] = [{"kind": marks.owner or kind.kind, "name": name, "uid": "", "controller": True}]
    spec = template.get("spec")
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": _with_env(spec, marks.env)}


_QUEUE: Final = "kueue.x-k8s.io/queue-name"
_PODSET: Final = "kueue.x-k8s.io/podset"
_QUEUED: Final = frozenset({"Job", "JobSet"})
"""Kinds whose pods Kueue labels with their pod set, once it admits what has the label of a queue."""


def _with_env(spec: Any, env: Mapping[str, str]) -> Any:
    if not env or not isinstance(spec, dict) or not isinstance(spec.get("containers"), list):
        return spec
    added = [{"name": name, "value": value} for name, value in env.items()]
    made = [
        {**one, "env": [*(one.get("env") or []), *added]} if isinstance(one, dict) else one
        for one in spec["containers"]
    ]
    return {**spec, "containers": made}


def _at(item: Any, path: Path, part: str) -> Iterator[tuple[str, Object]]:
    """What is at ``path``, with the part that it is for; nothing where it is not there."""
    if not path:
        if isinstance(item, dict):
            yield part, item
    elif path[0] == "*":
        for i, one in enumerate(item if isinstance(item, list) else []):
            name = (one.get("name") or one.get("groupName")) if isinstance(one, dict) else None
            yield from _at(one, path[1:], str(name or i))
    elif path[0] == "%":
        for name, one in _map(item).items():
            yield from _at(one, path[1:], str(name))
    elif isinstance(item, dict) and item.get(path[0]) is not None:
        yield from _at(item[path[0]], path[1:], _PARTS.get(path[0], part))


_PARTS: Final = {
    "leaderTemplate": "leader",
    "workerTemplate": "worker",
    "headGroupSpec": "head",
    "submitterPodTemplate": "submitter",
}


# --- what controllers write


def _nothing(_: Object, __: str, ___: str) -> Marks:
    return Marks()


def _of_deployment(_: Object, __: str, ___: str) -> Marks:
    return Marks(owner="ReplicaSet")


def _of_job(item: Object, name: str, _: str) -> Marks:
    return _job_marks(_map(item.get("spec")), name, "NonIndexed")


def _of_cron_job(item: Object, name: str, _: str) -> Marks:
    template = _map(_map(item.get("spec")).get("jobTemplate"))
    return _job_marks(_map(template.get("spec")), f"{name}-1", "NonIndexed")


def _job_marks(spec: Object, name: str, mode: str) -> Marks:
    index = {_COMPLETION: "0"} if (spec.get("completionMode") or mode) == "Indexed" else {}
    return Marks({"batch.kubernetes.io/job-name": name, **index}, index, "Job")


_COMPLETION: Final = "batch.kubernetes.io/job-completion-index"


def _of_jobset(item: Object, name: str, part: str) -> Marks:
    jobs = _maps(_map(item.get("spec")).get("replicatedJobs"))
    job: Object = next((one for one in jobs if one.get("name") == part), {})
    inner = _job_marks(_map(_map(job.get("template")).get("spec")), f"{name}-{part}-0", "Indexed")
    own = {"jobset-name": name, "replicatedjob-name": part, "group-name": str(job.get("groupName") or "default")}
    marks = {f"jobset.sigs.k8s.io/{key}": value for key, value in own.items()}
    return Marks({**inner.labels, **marks}, {**inner.annotations, **marks}, "Job")


def _of_lws(item: Object, name: str, part: str) -> Marks:
    size = _map(_map(item.get("spec")).get("leaderWorkerTemplate")).get("size") or 1
    labels = {"name": name, "group-index": "0", "worker-index": "0" if part == "leader" else "1"}
    prefix = "leaderworkerset.sigs.k8s.io/"
    return Marks({prefix + key: value for key, value in labels.items()}, {f"{prefix}size": str(size)}, "StatefulSet")


def _of_training(item: Object, name: str, part: str) -> Marks:
    prefix = "training.kubeflow.org/"
    labels = {f"{prefix}job-name": name, f"{prefix}replica-type": part.lower(), f"{prefix}replica-index": "0"}
    spec = _map(item.get("spec"))
    if item.get("kind") == "MPIJob":
        labels[f"{prefix}job-role"] = part.lower()
    env = {}
    if item.get("kind") == "PyTorchJob":
        elastic = _map(spec.get("elasticPolicy"))
        members = sum(_whole(_map(one).get("replicas"), 1) for one in _map(spec.get("pytorchReplicaSpecs")).values())
        least, most = elastic.get("minReplicas", members), elastic.get("maxReplicas", members)
        env = {"PET_NNODES": f"{least}:{most}" if elastic else str(members)}
    return Marks(labels, {}, "", env)


def _of_volcano(item: Object, name: str, part: str) -> Marks:
    group = f"{name}-{_map(item.get('metadata')).get('uid') or 'UID'}"  # which only the cluster knows
    return Marks(
        {"volcano.sh/job-name": name, "volcano.sh/task-spec": part}, {"scheduling.k8s.io/group-name": group}, "Job"
    )


def _of_ray(item: Object, name: str, part: str) -> Marks:
    if part == "submitter":
        return Marks({"batch.kubernetes.io/job-name": name}, {}, "Job")
    node = "head" if part == "head" else "worker"
    return Marks({"ray.io/cluster": name, "ray.io/node-type": node, "ray.io/group": part}, {}, "RayCluster")


def _of_grove(_: Object, name: str, part: str) -> Marks:
    return Marks({"grove.io/podgang": f"{name}-0", "grove.io/podclique": f"{name}-0-{part}"}, {}, "PodClique")


# --- objects whose templates are elsewhere


def _of_wrapper(item: Object, others: Iterable[Object]) -> Iterator[Template]:
    components = _maps(_map(item.get("spec")).get("components"))
    if not components:
        raise ValueError("has no component; list them at spec.components")
    for i, component in enumerate(components):
        inner = component.get("template")
        kind = kind_of(inner) if isinstance(inner, dict) else None
        if not isinstance(inner, dict) or kind is None:
            continue  # a Service or a ConfigMap, as likely as not
        try:
            for one in templates(inner, others):
                yield Template(f", {kind.title} {_name(inner) or i}{one.suffix}", one.pod)
        except ValueError as error:
            raise ValueError(f"its component {kind.title} {_name(inner) or i} {error}") from None


_STEP: Final = "trainer.kubeflow.org/trainjob-ancestor-step"
_NODE: Final = "node"
"""The trainer's container in a runtime."""


def runtime_of(item: Object) -> tuple[str, str]:
    """(kind, name) of the runtime that a TrainJob names."""
    ref = _map(_map(item.get("spec")).get("runtimeRef"))
    return str(ref.get("kind") or "ClusterTrainingRuntime"), str(ref.get("name") or "")


def _of_train_job(item: Object, others: Iterable[Object]) -> Iterator[Template]:
    """A TrainJob is a JobSet made of its runtime's template, with what it says of its trainer."""
    kind, wanted = runtime_of(item)
    space = _map(item.get("metadata")).get("namespace")
    runtime = next(
        (
            one
            for one in others
            if one.get("kind") == kind
            and _name(one) == wanted
            and (kind != "TrainingRuntime" or _map(one.get("metadata")).get("namespace") == space)
        ),
        None,
    )
    if runtime is None:
        raise ValueError(
            f"its pods are made of the {kind} {wanted or '(no name)'}, which is not here; give it with another -f "
            f"(kubectl get {kind.lower()} {wanted} -o yaml)"
        )
    spec, of_runtime = _map(item.get("spec")), _map(runtime.get("spec"))
    trainer, policy = _map(spec.get("trainer")), _map(of_runtime.get("mlPolicy"))
    made = deepcopy(_map(_map(of_runtime.get("template")).get("spec")))
    nodes = _whole(trainer.get("numNodes"), _whole(policy.get("numNodes"), 1))
    for job in _maps(made.get("replicatedJobs")):
        template = _map(job.get("template"))
        labels = _map(_map(template.get("metadata")).get("labels"))
        if labels.get(_STEP, job.get("name")) not in ("trainer", _NODE):
            continue
        pod = _map(_map(_map(template.get("spec")).get("template")).get("spec"))
        for container in _maps(pod.get("containers")):
            if container.get("name") != _NODE:
                continue
            if trainer.get("resourcesPerNode") is not None:
                container["resources"] = trainer["resourcesPerNode"]
            env = [*(container.get("env") or []), *(trainer.get("env") or [])]
            if policy.get("torch") is not None:
                env.append({"name": "PET_NNODES", "value": str(nodes)})
            container["env"] = env
    about = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": item.get("metadata")}
    yield from templates({**about, "spec": made}, ())


# --- the table

_TEMPLATE: Final[Path] = ("spec", "template")


def _ray(*start: str) -> tuple[Path, ...]:
    return ("spec", *start, "headGroupSpec", "template"), ("spec", *start, "workerGroupSpecs", "*", "template")


def _training(kind: str, specs: str, *versions: str) -> Kind:
    return Kind(
        kind, "kubeflow.org", versions or ("v1",), f"{kind.lower()}s", (("spec", specs, "%", "template"),), _of_training
    )


_ALL: Final = (
    Kind("Pod", "", ("v1",), "pods", (), _nothing),
    Kind("Deployment", "apps", ("v1",), "deployments", (_TEMPLATE,), _of_deployment),
    Kind("ReplicaSet", "apps", ("v1",), "replicasets", (_TEMPLATE,), _nothing),
    Kind("StatefulSet", "apps", ("v1",), "statefulsets", (_TEMPLATE,), _nothing),
    Kind("DaemonSet", "apps", ("v1",), "daemonsets", (_TEMPLATE,), _nothing),
    Kind("Job", "batch", ("v1",), "jobs", (_TEMPLATE,), _of_job),
    Kind("CronJob", "batch", ("v1",), "cronjobs", (("spec", "jobTemplate", "spec", "template"),), _of_cron_job),
    Kind(
        "JobSet",
        "jobset.x-k8s.io",
        ("v1alpha2",),
        "jobsets",
        (("spec", "replicatedJobs", "*", "template", "spec", "template"),),
        _of_jobset,
    ),
    Kind(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io",
        ("v1",),
        "leaderworkersets",
        (("spec", "leaderWorkerTemplate", "leaderTemplate"), ("spec", "leaderWorkerTemplate", "workerTemplate")),
        _of_lws,
    ),
    _training("PyTorchJob", "pytorchReplicaSpecs"),
    _training("TFJob", "tfReplicaSpecs"),
    _training("XGBoostJob", "xgbReplicaSpecs"),
    _training("PaddleJob", "paddleReplicaSpecs"),
    _training("JAXJob", "jaxReplicaSpecs"),
    _training("MPIJob", "mpiReplicaSpecs", "v2beta1", "v1"),
    Kind("TrainJob", "trainer.kubeflow.org", ("v1alpha1",), "trainjobs", (), _nothing),
    Kind("RayCluster", "ray.io", ("v1", "v1alpha1"), "rayclusters", _ray(), _of_ray),
    Kind(
        "RayJob",
        "ray.io",
        ("v1", "v1alpha1"),
        "rayjobs",
        (*_ray("rayClusterSpec"), ("spec", "submitterPodTemplate")),
        _of_ray,
    ),
    Kind("RayService", "ray.io", ("v1", "v1alpha1"), "rayservices", _ray("rayClusterConfig"), _of_ray),
    Kind("Job", "batch.volcano.sh", ("v1alpha1",), "jobs", (("spec", "tasks", "*", "template"),), _of_volcano),
    Kind(
        "PodCliqueSet", "grove.io", ("v1alpha1",), "podcliquesets", (("spec", "template", "cliques", "*"),), _of_grove
    ),
    Kind("AppWrapper", "workload.codeflare.dev", ("v1beta2",), "appwrappers", (), _nothing),
)
KINDS: Final = tuple(one.title for one in _ALL)
"""What people may give, as they write it."""


def _name(item: Mapping[str, Any]) -> str:
    return str(_map(item.get("metadata")).get("name") or "")


def _map(value: Any) -> Object:
    return value if isinstance(value, dict) else {}


def _maps(value: Any) -> list[Object]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise
