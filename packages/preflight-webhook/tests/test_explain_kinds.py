"""Every kind of object that makes GPU pods is explained, by kind and API group, with its gang; what
cannot be read stops nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from said import said

SPEC = "{containers: [{name: node, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}"
TEMPLATE = f"{{spec: {SPEC}}}"
RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {name: torch}
spec:
  mlPolicy: {numNodes: 1, torch: {}}
  template: {spec: {replicatedJobs: [
    {name: dataset, template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}, spec: {template: {spec: {containers: [{name: node, image: i}]}}}}},
    {name: node, template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}, spec: {template: {spec: {containers: [{name: node, image: i}]}}}}}]}}
---
"""
TRAIN_JOB = "spec: {runtimeRef: {name: torch}, trainer: {numNodes: 4, resourcesPerNode: {limits: {nvidia.com/gpu: 8}}}}"


def training(specs: str) -> str:
    return f"spec: {{{specs}: {{Master: {{replicas: 1, template: {TEMPLATE}}}, Worker: {{replicas: 3, template: {TEMPLATE}}}}}}}"


RAY = f"headGroupSpec: {{template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}, workerGroupSpecs: [{{groupName: gpus, replicas: 2, template: {TEMPLATE}}}]"

# apiVersion, kind, what stands below, {the pod's name in words: (result, start of its gang, or
# nothing)}
OBJECTS = {
    "kubeflow.org/v1 PyTorchJob": (
        training("pytorchReplicaSpecs"),
        {", Master": ("injected", "train (by kubeflow, 4 members)"), ", Worker": ("injected", "train (by kubeflow, 4 members)")},
    ),
    "kubeflow.org/v1 TFJob": (training("tfReplicaSpecs"), {", Master": ("injected", "train (by kubeflow, size not")}),
    "kubeflow.org/v1 XGBoostJob": (training("xgbReplicaSpecs"), {", Worker": ("injected", "train (by kubeflow, size not")}),
    "kubeflow.org/v1 PaddleJob": (training("paddleReplicaSpecs"), {", Worker": ("injected", "train (by kubeflow, size not")}),
    "kubeflow.org/v1 JAXJob": (training("jaxReplicaSpecs"), {", Worker": ("injected", "train (by kubeflow, size not")}),
    "kubeflow.org/v2beta1 MPIJob": (
        f"spec: {{mpiReplicaSpecs: {{Launcher: {{template: {{spec: {{containers: [{{name: c, image: i}}]}}}}}}, Worker: {{template: {TEMPLATE}}}}}}}",
        {", Launcher": ("no-gpu", ""), ", Worker": ("injected", "train (by kubeflow, ")},
    ),
    "trainer.kubeflow.org/v1alpha1 TrainJob": (
        TRAIN_JOB,
        {", dataset": ("stamped", "train (by jobset, "), ", node": ("injected", "train (by kubeflow, 4 members)")},
    ),
    "ray.io/v1 RayCluster": (f"spec: {{{RAY}}}", {", head": ("no-gpu", ""), ", gpus": ("injected", "")}),
    "ray.io/v1 RayJob": (f"spec: {{rayClusterSpec: {{{RAY}}}}}", {", head": ("no-gpu", ""), ", gpus": ("injected", "")}),
    "ray.io/v1 RayService": (f"spec: {{rayClusterConfig: {{{RAY}}}}}", {", gpus": ("injected", "")}),
    "batch.volcano.sh/v1alpha1 Job": (
        f"spec: {{tasks: [{{name: w, replicas: 2, template: {TEMPLATE}}}]}}",
        {", w": ("injected", "train-UID (by volcano, ")},
    ),
    "grove.io/v1alpha1 PodCliqueSet": (
        f"spec: {{template: {{cliques: [{{name: prefill, spec: {{replicas: 2, podSpec: {SPEC}}}}}]}}}}",
        {", prefill": ("injected", "train-0 (by grove, ")},
    ),
    "workload.codeflare.dev/v1beta2 AppWrapper": (
        f"spec: {{components: [{{template: {{apiVersion: v1, kind: Service}}}}, {{template: {{apiVersion: batch/v1, kind: Job, metadata: {{name: j}}, spec: {{completionMode: Indexed, template: {TEMPLATE}}}}}}}]}}",
        {", Job j": ("injected", "j (by job, ")},
    ),
    "batch/v1 Job": (f"spec: {{template: {TEMPLATE}}}", {"": ("injected", "")}),
    "apps/v1 ReplicaSet": (f"spec: {{template: {TEMPLATE}}}", {"": ("injected", "")}),
    "apps/v1 DaemonSet": (f"spec: {{template: {TEMPLATE}}}", {"": ("injected", "")}),
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "config.yaml"
    file.write_text(
        "checks: [{name: dcgm-diag, image: d}]\ngangDiscovery: {optIn: [kubeflow, lws, jobset, grove, job]}"
    )
    return str(file)


@pytest.mark.parametrize("of", OBJECTS)
def test_each_template_s_pod_is_explained_with_its_gang(of: str, config: str) -> None:
    below, expected = OBJECTS[of]
    version, kind = of.split()
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: train}}\n{below}"
    done = said("explain", "--brief", "--config", config, "-f", "-", stdin=RUNTIME + text)
    assert (done.status, done.err) == (0, "")
    title = f"Job.{version.partition('/')[0]}" if version.startswith("batch.volcano") else kind
    told = {
        one.partition(":")[0].removeprefix(f"{title} train"): one
        for one in done.out.strip().split("\n\n")
    }
    for suffix, (result, gang) in expected.items():
        assert told[suffix].splitlines()[0].endswith(f": {result}, if its namespace is opted in"), (
            told
        )
        gangs = [line for line in told[suffix].splitlines() if line.startswith("  gang: ")]
        assert [line.startswith(f"  gang: {gang}") for line in gangs] == ([True] if gang else []), (
            gangs
        )


def test_a_kind_of_another_group_is_not_taken_for_ours() -> None:
    done = said(
        "explain",
        "-f",
        "-",
        stdin="apiVersion: example.com/v1\nkind: Job\nmetadata: {name: x}\nspec: {}",
    )
    assert (
        done.status,
        done.err.startswith("standard input: no pod in it (found Job); give one of Pod, "),
    ) == (
        2,
        True,
    )


def test_an_elastic_job_has_no_one_size(config: str) -> None:
    text = OBJECTS["kubeflow.org/v1 PyTorchJob"][0].replace(
        "spec: {", "spec: {elasticPolicy: {minReplicas: 1, maxReplicas: 4}, ", 1
    )
    done = said(
        "explain",
        "--brief",
        "--config",
        config,
        "-f",
        "-",
        stdin=f"apiVersion: kubeflow.org/v1\nkind: PyTorchJob\nmetadata: {{name: t}}\n{text}",
    )
    assert "gang: t (by kubeflow, size not known at admission)" in done.out


GOOD = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: good}}\nspec: {SPEC}\n"
BAD = {
    "kind: Pod\nmetadata: {name: odd}\nspec: 5": "Pod odd: is not a pod",
    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {}": "Deployment d: has no pod template; it must be at spec.template",
    "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: v}\nspec: {template: {}}": "Job.batch.volcano.sh v: has no pod template",
    "apiVersion: trainer.kubeflow.org/v1alpha1\nkind: TrainJob\nmetadata: {name: t}\nspec: {runtimeRef: {name: torch}}": "made of the ClusterTrainingRuntime torch, which is not here; give it with another -f",
    "kind: PreflightConfig\nmetadata: {name: p}\nspec: {enforcement: perhaps}\nstatus: 5": "PreflightConfig p: ",
    "kind: ResourceClaim\nmetadata: [1]\nspec: 5": "",
}


@pytest.mark.parametrize("bad", BAD)
def test_one_object_that_cannot_be_read_does_not_stop_the_others(bad: str) -> None:
    for text in (f"{bad}\n---\n{GOOD}", f"{GOOD}---\n{bad}\n"):
        done = said("explain", "--brief", "-f", "-", stdin=text)
        assert "Pod good: injected" in done.out
        assert done.status == (2 if BAD[bad] else 0)
        assert BAD[bad] in done.err


def test_a_preflight_config_that_cannot_be_read_counts_in_its_own_namespace_alone() -> None:
    config = "kind: PreflightConfig\nmetadata: {name: p, namespace: other}\nspec: {enforcement: perhaps}\n---\n"
    done = said(
        "explain",
        "--brief",
        "-f",
        "-",
        stdin=config + GOOD + "---\n" + GOOD.replace("good", "its, namespace: other"),
    )
    assert (done.status, "Pod good: injected" in done.out, "Pod its" in done.out) == (
        2,
        True,
        False,
    )
    assert done.err.startswith("PreflightConfig p: ")


def test_all_problems_of_all_files_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text("a: [\n---\n- b\n")
    files = [str(tmp_path / name) for name in ("bad.yaml", "absent.yaml", "good.yaml")]
    done = said("explain", "--brief", *(word for file in files for word in ("-f", file)))
    assert (done.status, len(done.err.splitlines()), "Pod good: injected" in done.out) == (
        2,
        2,
        True,
    )
