"""What is known about kinds of workloads: one object gives its pods, with what their controller
writes, and says how many start together.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from preflight_kube.api.workloads import grove, jobset, kubeflow, labels, leaderworkerset
from preflight_kube.api.workloads.model import dotted, places
from preflight_kube.api.workloads.sizes import MAX_SIZE, DeclaredSize
from preflight_kube.api.workloads.table import KINDS, kind_of, named, templates

POD = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
JOBSET: dict[str, Any] = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "train"},
    "spec": {
        "replicatedJobs": [
            {"name": "driver", "replicas": 1, "template": {"spec": {"template": POD}}},
            {
                "name": "workers",
                "replicas": 2,
                "template": {"spec": {"parallelism": 4, "template": POD}},
            },
        ]
    },
}


def of(api: str, kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


LWS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet")
BOTH = {"leaderTemplate": POD, "workerTemplate": POD}
RAY = {
    "headGroupSpec": {"template": POD},
    "workerGroupSpecs": [{"groupName": "g", "replicas": 3, "template": POD}, {}],
}


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        (of("v1", "Pod", **POD["spec"]), {"": 1}),
        (of("apps/v1", "Deployment", replicas=3, template=POD), {"spec.template": 3}),
        (of("apps/v1", "StatefulSet", template=POD), {"spec.template": 1}),
        (of("batch/v1", "Job", parallelism=4, completions=2, template=POD), {"spec.template": 2}),
        (of("batch/v1", "Job", parallelism="4", template=POD), {"spec.template": 1}),
        (of("batch/v1", "Job"), {}),
        (
            JOBSET,
            {
                "spec.replicatedJobs[0].template.spec.template": 1,
                "spec.replicatedJobs[1].template.spec.template": 8,
            },
        ),
        (
            of(
                "kubeflow.org/v1",
                "TFJob",
                tfReplicaSpecs={
                    "PS": {"template": POD},
                    "Worker": {"replicas": 2, "template": POD},
                },
            ),
            {"spec.tfReplicaSpecs.PS.template": 1, "spec.tfReplicaSpecs.Worker.template": 2},
        ),
        (
            of("ray.io/v1", "RayJob", rayClusterSpec=RAY, submitterPodTemplate=POD),
            {
                "spec.rayClusterSpec.headGroupSpec.template": 1,
                "spec.rayClusterSpec.workerGroupSpecs[0].template": 3,
                "spec.submitterPodTemplate": 1,
            },
        ),
        *(
            (
                of(*LWS, replicas=replicas, leaderWorkerTemplate={**BOTH, **size}),
                {
                    "spec.leaderWorkerTemplate.leaderTemplate": replicas,
                    "spec.leaderWorkerTemplate.workerTemplate": workers,
                },
            )
            for replicas, size, workers in ((2, {"size": 3}, 4), (1, {}, None))
        ),
    ],
    ids=lambda it: str(it.get("kind", "")),
)
def test_each_template_of_an_object_has_a_place_and_a_number_of_pods(
    item: dict[str, Any], wanted: dict[str, int | None]
) -> None:
    kind = kind_of(item)
    assert kind is not None
    found = list(places(item, kind))
    assert {dotted(one.keys): kind.pods(item, one.keys) for one in found} == wanted


@pytest.mark.parametrize("replicas", ["3", 1.5, True, [], {}])
def test_a_number_of_replicas_that_is_none_is_named_with_its_path(replicas: object) -> None:
    item = of("ray.io/v1", "RayCluster", workerGroupSpecs=[{"template": POD, "replicas": replicas}])
    kind = kind_of(item)
    assert kind is not None
    [place] = places(item, kind)
    with pytest.raises(ValueError, match=r"spec\.workerGroupSpecs\[0\]\.replicas is not a whole"):
        kind.pods(item, place.keys)


@pytest.mark.parametrize("title", KINDS)
def test_every_kind_is_found_by_its_name_and_by_its_objects(title: str) -> None:
    kind = named(title)
    assert kind is not None
    assert kind is named(f"{kind.plural}.{kind.group}" if kind.group else kind.plural)
    version = f"{kind.group}/{kind.versions[0]}" if kind.group else kind.versions[0]
    assert kind_of({"apiVersion": version, "kind": kind.kind}) is kind
    assert (
        kind_of({"apiVersion": f"elsewhere.example.com/{kind.versions[0]}", "kind": kind.kind})
        is None
    )


@pytest.mark.parametrize("title", [one for one in KINDS if one != "Pod"])
def test_an_object_without_a_template_says_where_it_must_be(title: str) -> None:
    kind = named(title)
    assert kind is not None
    empty = {
        "apiVersion": f"{kind.group}/{kind.versions[0]}",
        "kind": kind.kind,
        "metadata": {"name": "x"},
        "spec": {},
    }
    with pytest.raises(ValueError, match=r"has no|its pods are made of") as caught:
        list(templates(empty, ()))
    assert not str(caught.value).endswith(".")


def test_pods_of_a_jobset_have_its_labels_and_those_of_their_job() -> None:
    driver, worker = templates(JOBSET, ())
    assert (driver.suffix, worker.suffix) == (", driver", ", workers")
    found = worker.pod["metadata"]["labels"]
    assert found[f"{labels.JOBSET}jobset-name"] == "train"
    assert found[f"{labels.JOBSET}replicatedjob-name"] == "workers"
    assert found[labels.JOB_NAME] == "train-workers-0"
    assert worker.pod["metadata"]["ownerReferences"][0]["kind"] == "Job"


@pytest.mark.parametrize(
    ("item", "section", "mark"),
    [
        (of("batch/v1", "Job", template=POD), "labels", {labels.KUEUE_PODSET: "main"}),
        (
            of("kubeflow.org/v1", "PyTorchJob", pytorchReplicaSpecs={"Worker": {"template": POD}}),
            "labels",
            {labels.KUEUE_PODSET: "worker"},
        ),
        (
            of(*LWS, leaderWorkerTemplate={"workerTemplate": POD}),
            "annotations",
            {labels.KUEUE_PARENT: "leaderworkerset.x-k8s.io/leaderworkerset"},
        ),
    ],
)
def test_pods_of_what_has_the_label_of_a_queue_have_what_kueue_writes(
    item: dict[str, Any], section: str, mark: dict[str, str]
) -> None:
    queued = {**item, "metadata": {"name": "x", "labels": {labels.KUEUE_QUEUE: "research"}}}
    [alone], [pod] = templates(item, ()), templates(queued, ())
    assert mark.items() <= pod.pod["metadata"][section].items()
    assert not mark.keys() & alone.pod["metadata"].get(section, {}).keys()


def test_an_appwrapper_has_the_pods_of_its_components_and_passes_over_what_has_none() -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    components = [{"template": service}, {"template": JOBSET}]
    wrapper = {"kind": "AppWrapper", "metadata": {"name": "w"}, "spec": {"components": components}}
    assert [one.suffix for one in templates(wrapper, ())] == [
        ", JobSet train, driver",
        ", JobSet train, workers",
    ]
    components[1] = {"template": {**JOBSET, "spec": {}}}
    with pytest.raises(ValueError, match="its component JobSet train has no pod template"):
        list(templates(wrapper, ()))


def test_a_train_job_is_made_of_the_runtime_beside_it() -> None:
    job = {
        "kind": "TrainJob",
        "metadata": {"name": "t", "namespace": "ml"},
        "spec": {"runtimeRef": {"name": "torch"}},
    }
    runtime = {
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "torch"},
        "spec": {"template": JOBSET},
    }
    assert [one.suffix for one in templates(job, [runtime])] == [", driver", ", workers"]
    with pytest.raises(
        ValueError, match="its pods are made of the ClusterTrainingRuntime torch, which is not here"
    ):
        list(templates(job, ()))


@pytest.mark.parametrize(
    ("type_", "spec", "size"),
    [
        (jobset.JobSet, JOBSET["spec"], DeclaredSize(count=9)),
        (
            leaderworkerset.LeaderWorkerSet,
            {"leaderWorkerTemplate": {"size": 4}},
            DeclaredSize(count=4),
        ),
        (kubeflow.TrainJob, {"trainer": {"numNodes": 8}}, DeclaredSize(count=8)),
        (kubeflow.TrainJob, {}, DeclaredSize(unknown="it has no spec.trainer.numNodes")),
        (
            grove.PodGang,
            {"podgroups": [{"minReplicas": 2}, {"minReplicas": 1}]},
            DeclaredSize(count=3, least=True),
        ),
    ],
)
def test_an_object_says_how_many_of_its_pods_start_together(
    type_: Any, spec: Any, size: DeclaredSize
) -> None:
    item = msgspec.convert({"metadata": {"name": "x"}, "spec": spec}, type_)
    assert item.size("x") == size


def test_a_size_that_is_beyond_all_is_not_taken() -> None:
    item = msgspec.convert(
        {"metadata": {"name": "x"}, "spec": {"trainer": {"numNodes": MAX_SIZE + 1}}},
        kubeflow.TrainJob,
    )
    assert (
        item.size("x").unknown
        == f"its size {MAX_SIZE + 1} is more than the {MAX_SIZE} that a gang can have"
    )
