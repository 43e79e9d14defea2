"""`revalidate`: the Job that tests a repaired node, and what its end says; against an API double,
where nobody runs it and its end is played.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from preflight_proto import names
from preflight_proto.devices import GROUP, VERSIONS
from preflight_proto.result import Result, encode_result
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.apidouble.http import ApiAnswer, ApiRequest
from preflight_testing.apidouble.store import RESOURCES, Resource
from preflight_webhook.config.config import Config, parse
from preflight_webhook.core.admit import decide
from preflight_webhook.report import revalidate, revalidation
from preflight_webhook.report.revalidation import CannotRevalidate
from said import Said, said

Json = dict[str, Any]

CONFIG = """
checks: [{name: dcgm-diag, image: d}, {name: nccl-loopback, image: l}]
"""
GANG = """
checks: [{name: dcgm-diag, image: d}, {name: nccl-allreduce, image: a}]
skipNcclWithoutNetwork: false
"""
CLAIMS = """
checks: [{name: dcgm-diag, image: d}]
gpuDetection: {deviceClasses: [gpu.nvidia.com]}
"""
SICK = {
    "type": "DcgmDiagnosticMemory",
    "status": "True",
    "message": "ErrorCode:DCGM_FR_MEMORY GPU_UUID:GPU-1 bad;ErrorCode:DCGM_FR_MEMORY GPU_UUID:GPU-2 bad",
}
READY = {"type": "Ready", "status": "True"}
HOOKS = Resource(
    "admissionregistration.k8s.io/v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
NODES = Resource("v1", "nodes", "Node", namespaced=False)
"""Whose statuses are written with them."""


def node(name: str = "bad", *conditions: Json, gpus: int = 8, **spec: Any) -> Json:
    return {
        "metadata": {"name": name, "labels": {}},
        "spec": spec,
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus), "cpu": "8"},
            "conditions": [READY, *conditions],
        },
    }


def made(config: str, *nodes: Json, **more: Any) -> Json:
    return revalidation.job("job", nodes or (node(),), parse(config), **more)


def pod_of(job: Json) -> Json:
    template: Json = job["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", **template}


def checks_of(job: Json, config: str) -> list[str]:
    """The checks that the webhook gives to the Job's pods."""
    return decide(msgspec.json.encode(pod_of(job)), "ml", parse(config)).checks


# --- the Job


def test_the_pod_asks_for_all_gpus_of_the_node_and_goes_nowhere_else() -> None:
    spec = made(CONFIG)["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    [term] = required["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["bad"]}]}


def test_the_webhook_gives_it_the_checks_of_any_pod() -> None:
    assert checks_of(made(CONFIG), CONFIG) == ["dcgm-diag", "nccl-loopback"]
    assert checks_of(made(GANG), GANG) == ["dcgm-diag"]
    assert checks_of(made(GANG, node(), node("good")), GANG) == ["dcgm-diag", "nccl-allreduce"]


def test_it_tolerates_the_cordon_and_every_taint_but_those_of_a_node_that_is_gone() -> None:
    taints = [
        {"key": "sick", "value": "yes", "effect": "NoSchedule"},
        {"key": "sick", "effect": "NoExecute"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    ]
    spec = made(CONFIG, node(taints=taints, unschedulable=True))["spec"]["template"]["spec"]
    assert [(one["key"], one["effect"], one["operator"]) for one in spec["tolerations"]] == [
        ("node.kubernetes.io/unschedulable", "NoSchedule", "Exists"),
        ("sick", "NoExecute", "Exists"),
        ("sick", "NoSchedule", "Exists"),
    ]


def test_two_nodes_make_a_gang_of_two_one_pod_on_each() -> None:
    job = made(GANG, node(), node("good"))
    assert (job["spec"]["parallelism"], job["spec"]["completions"]) == (2, 2)
    decision = decide(msgspec.json.encode(pod_of(job)), "ml", parse(GANG))
    assert decision.stamp is not None
    assert (decision.stamp.id, decision.stamp.size, decision.stamp.takes_part) == ("job", 2, True)
    affinity = job["spec"]["template"]["spec"]["affinity"]
    [apart] = affinity["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_workloads_own_settings_reach_the_checks_and_its_placement_does_not() -> None:
    like = {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "ib0", names.GANG_ANNOTATION: "forged"}},
        "spec": {
            "nodeName": "elsewhere",
            "nodeSelector": {"pool": "a"},
            "runtimeClassName": "nvidia",
            "containers": [
                {
                    "name": "train",
                    "image": "huge",
                    "env": [{"name": "NCCL_IB_HCA", "value": "mlx5"}],
                    "resources": {"limits": {"nvidia.com/gpu": "1", "rdma/ib": "4", "cpu": "64"}},
                }
            ],
        },
    }  # fmt: skip
    pod = pod_of(made(GANG, node(), node("good"), like=like))
    assert pod["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "ib0"}
    assert pod["spec"]["runtimeClassName"] == "nvidia"
    assert not {"nodeName", "nodeSelector"} & pod["spec"].keys()
    [container] = pod["spec"]["containers"]
    assert container["image"] == "d"
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/ib": "4"}
    patch = json.dumps(decide(msgspec.json.encode(pod), "ml", parse(GANG)).patch)
    assert "NCCL_IB_HCA" in patch


@pytest.mark.parametrize(
    ("spec", "annotations"),
    [
        ({"schedulingGroup": {"podGroupName": "train"}}, {}),
        ({"workloadRef": {"name": "train", "podGroup": "workers"}}, {}),
        ({"schedulerName": "volcano"}, {"scheduling.k8s.io/group-name": "train"}),
        ({"schedulerName": "kai-scheduler"}, {"pod-group-name": "train"}),
        ({}, {"kueue.x-k8s.io/pod-group-name": "train"}),
        ({}, {"team/job": "train"}),
    ],
)
def test_the_run_is_a_gang_of_its_own_whatever_gang_the_workload_is(
    spec: Json, annotations: Json
) -> None:
    source = "{name: ours, group: g.example, resource: teams, kind: Team, size: spec.size, podAnnotation: team/job}"
    config = GANG + f"gangDiscovery: {{sources: [{source}]}}"
    like = {"metadata": {"annotations": annotations}, "spec": {"containers": [{}], **spec}}
    job = made(config, node(), node("good"), like=like)
    stamp = decide(msgspec.json.encode(pod_of(job)), "ml", parse(config)).stamp
    assert stamp is not None
    assert (stamp.source, stamp.id, stamp.size) == ("labels", "job", 2)


@pytest.mark.parametrize(
    "annotation",
    [
        names.GPU_CLAIM_ANNOTATION,  # it would share the GPUs that the workload has
        "container.apparmor.security.beta.kubernetes.io/train",  # the pod has no such container
    ],
)
def test_an_annotation_about_the_workload_alone_stays_behind(annotation: str) -> None:
    like = {
        "metadata": {"annotations": {annotation: "x", "a/b": "c"}},
        "spec": {"containers": [{}]},
    }
    assert pod_of(made(CONFIG, like=like))["metadata"]["annotations"] == {"a/b": "c"}


MPI = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: bench, namespace: ml}
spec:
  mpiReplicaSpecs:
    Launcher: {template: {spec: {containers: [{name: mpirun, image: i}]}}}
    Worker:
      template:
        spec:
          runtimeClassName: nvidia
          containers:
            - {name: daemon, image: i, resources: {limits: {cpu: 1}}}
            - {name: train, image: i, env: [{name: NCCL_IB_HCA, value: mlx5}], resources: {limits: {nvidia.com/gpu: 8, rdma/ib: 4}}}
"""


def test_of_a_workload_that_pod_and_container_count_which_get_gpus(
    played: Played, tmp_path: Path
) -> None:
    played.configure(CONFIG)
    file = tmp_path / "mpi.yaml"
    file.write_text(MPI)
    done = ran("-f", str(file), "--dry-run")
    spec = yaml.safe_load(done.out)["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    [container] = spec["containers"]
    assert container["env"] == [{"name": "NCCL_IB_HCA", "value": "mlx5"}]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "rdma/ib": "4"}


def test_without_a_workload_it_asks_for_the_nodes_network_once_where_pods_share_it() -> None:
    one = node()
    one["status"]["allocatable"] |= {"vpc.amazonaws.com/efa": "16", "rdma/shared": "1k"}
    [container] = made(CONFIG, one)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "16",
        "rdma/shared": "1",
    }


def test_what_the_run_itself_starts_is_in_an_image_of_ours() -> None:
    """A check of somebody else may have no shell and no Python in its image."""
    config = "checks: [{name: theirs, image: t}, {name: dcgm-diag, image: d}]"
    job = made(config)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "d"
    cleared = revalidation.farewell(job, node("bad", SICK), "GPU-2", parse(config))
    assert cleared is not None
    [container] = cleared["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "d"


def test_a_node_that_is_not_ready_is_refused() -> None:
    dead = node()
    dead["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    with pytest.raises(CannotRevalidate, match="Node bad is not ready"):
        made(CONFIG, dead)


# --- GPUs by claims


def claim(config: str, one: Json, devices: dict[str, list[str]], gpu: str = "") -> Json | None:
    return revalidation.claim_template("job", one, devices, parse(config), gpu)


def test_gpus_that_claims_hand_out_are_claimed_all_or_the_one() -> None:
    slices = {"gpu.nvidia.com": ["GPU-1", "GPU-2"]}
    whole = claim(CLAIMS, node(gpus=0), slices)
    assert whole is not None
    [request] = whole["spec"]["spec"]["devices"]["requests"]
    # A driver taints the GPU that has had an error, which is the one to be tested.
    tolerated = [{"operator": "Exists"}]
    whole_gpus = {"deviceClassName": "gpu.nvidia.com", "count": 2, "tolerations": tolerated}
    assert request["exactly"] == whole_gpus
    one = claim(CLAIMS, node(gpus=0), slices, "GPU-2")
    assert one is not None
    [request] = one["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["count"] == 1
    assert "GPU-2" in json.dumps(request["exactly"]["selectors"])
    job = made(CLAIMS, node(gpus=0), claim=one)
    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"limits": {}, "claims": [{"name": "gpus"}]}


def test_a_gpu_may_be_asked_for_in_any_case_and_one_that_is_not_there_is_refused_by_name() -> None:
    slices = {"gpu.nvidia.com": ["GPU-1", "GPU-12"]}
    one = claim(CLAIMS, node(gpus=0), slices, "gpu-12")
    assert one is not None
    [request] = one["spec"]["spec"]["devices"]["requests"]
    assert 'uuid == "GPU-12"' in json.dumps(request["exactly"]["selectors"]).replace("\\", "")
    with pytest.raises(CannotRevalidate, match="--gpu GPU: node bad has GPU-1, GPU-12; name one"):
        claim(CLAIMS, node(gpus=0), slices, "GPU")


def test_gpus_by_number_need_no_claim_and_none_of_them_can_be_asked_for() -> None:
    assert claim(CONFIG, node(), {}) is None
    with pytest.raises(CannotRevalidate, match="hands its GPUs out by number"):
        claim(CONFIG, node(), {}, "GPU-1")
    with pytest.raises(CannotRevalidate, match="no GPU to hand out"):
        claim(CONFIG, node(gpus=0), {})


# --- the other node


def test_the_other_node_is_alike_ready_schedulable_and_nothing_speaks_against_it() -> None:
    config = parse(GANG)
    alike = node("z")
    alike["metadata"]["labels"] = {names.INSTANCE_TYPE_LABEL: "p5"}
    mine = node()
    mine["metadata"]["labels"] = {names.INSTANCE_TYPE_LABEL: "p5"}
    others = [
        mine,
        node("a", SICK),
        node("b", unschedulable=True),
        node("c", gpus=4),
        node("d", taints=[{"key": "x", "effect": "NoSchedule"}]),
    ]
    assert revalidation.partner_of(mine, others, config) is None
    assert revalidation.partner_of(mine, [*others, node("y")], config) == node("y")
    assert revalidation.partner_of(mine, [*others, node("y"), alike], config, {"z"}) == alike


# --- what it says, and how it ends


class Played:
    """An API double with the injector's release, and the end of the Job as it is played."""

    def __init__(self, double: ApiDouble) -> None:
        self.double, self.outcomes = double, {"dcgm-diag": "passed", "nccl-loopback": "passed"}
        self.codes: dict[str, int] = {}
        self.code = "CODE"
        self.ends = "Complete"
        self.clears = True
        self.unscheduled = ""
        self.suspended = 0  # looks

    def configure(self, config: str) -> None:
        self.double.create(
            "configmaps",
            {"metadata": {"name": "inj", "namespace": "home"}, "data": {"config.yaml": config}},
        )

    def posted(self, where: str) -> list[Json]:
        asked = [one for one in self.double.requests if one.method == "POST"]
        return [one.json() for one in asked if where in one.path]

    @property
    def created(self) -> list[Json]:
        return self.posted("/namespaces/ml/")

    def fault(self, request: ApiRequest) -> ApiAnswer | None:
        if request.method != "GET":
            return None
        if request.path == "/api/v1/namespaces/ml/pods":
            return ApiAnswer(200, {"kind": "PodList", "items": [self.pod()]})
        if request.path.startswith("/apis/batch/v1/namespaces/ml/jobs/"):
            if self.suspended:
                self.suspended -= 1
                held = {"type": "Suspended", "status": "True", "message": "Job suspended"}
                return ApiAnswer(200, {"metadata": {}, "status": {"conditions": [held]}})
            ended = [{"type": self.ends, "status": "True", "message": "it took too long"}]
            return ApiAnswer(200, {"metadata": {}, "status": {"conditions": ended}})
        if request.path == "/api/v1/nodes/bad" and self.created and self.clears:
            return ApiAnswer(200, node("bad", {**SICK, "status": "False"}, unschedulable=True))
        return None

    def pod(self) -> Json:
        pod: Json = {"metadata": {"name": "p"}, "spec": {"nodeName": "bad"}, "status": {}}
        if self.unscheduled:
            why = {"type": "PodScheduled", "status": "False", "message": self.unscheduled}
            return {**pod, "spec": {}, "status": {"conditions": [why]}}
        pod["status"]["initContainerStatuses"] = [
            {
                "name": names.container_name(check),
                "state": {"terminated": self.ended(check, outcome)},
            }
            for check, outcome in self.outcomes.items()
        ]
        return pod

    def ended(self, check: str, outcome: str) -> Json:
        about: Json = {"check": check, "outcome": outcome, "code": self.code, "reason": "why."}
        result = Result(v=1, gated=True, duration=1.0, **about)
        return {
            "exitCode": self.codes.get(check, int(outcome == "failed")),
            "message": encode_result(result).decode(),
        }


@pytest.fixture
def played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Played]:
    """A parameter is the version of the API of claims that the cluster serves."""
    served = f"{GROUP}/{getattr(request, 'param', VERSIONS[0])}"
    others = [one for one in RESOURCES if one.plural != "nodes"]
    slices = Resource(served, "resourceslices", "ResourceSlice", namespaced=False)
    templates = Resource(served, "resourceclaimtemplates", "ResourceClaimTemplate")
    claims = Resource(served, "resourceclaims", "ResourceClaim")
    double = ApiDouble([*others, NODES, HOOKS, slices, templates, claims])
    made = Played(double)
    hook = {
        "metadata": {"name": "inj", "labels": {"app.kubernetes.io/name": "preflight-injector"}},
        "webhooks": [{"clientConfig": {"service": {"name": "inj", "namespace": "home"}}}],
    }
    opted = {names.NAMESPACE_LABEL: names.NAMESPACE_ENABLED}
    with double:
        for plural, body in (
            ("mutatingwebhookconfigurations", hook),
            ("namespaces", {"metadata": {"name": "ml", "labels": opted}}),
            ("namespaces", {"metadata": {"name": "home"}}),
            ("nodes", node("bad", SICK, unschedulable=True)),
        ):
            double.create(plural, body)
        double.fault = made.fault
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", double.url)))
        monkeypatch.setattr(revalidate, "_LOOK", 0.01)
        monkeypatch.setattr(revalidate, "_CLEARING", 2)
        yield made


def ran(*arguments: str) -> Said:
    return said("revalidate", "bad", "-n", "ml", *arguments)


def test_what_passes_is_cleared_and_it_says_how_the_node_gets_work_again(played: Played) -> None:
    played.configure(CONFIG)
    done = ran()
    assert (done.status, done.err) == (0, "")
    assert "bad: against it: DcgmDiagnosticMemory (GPU-1, GPU-2)\n" in done.out
    assert "bad: dcgm-diag: passed\nbad: nccl-loopback: passed\n" in done.out
    assert done.out.endswith(
        "bad has passed, and nothing stands against it; `kubectl uncordon bad` gives it work again.\n"
    )
    assert [one["kind"] for one in played.created] == ["Job"]


def test_a_check_that_fails_is_exit_1_and_its_words_are_told(played: Played) -> None:
    played.configure(CONFIG)
    played.outcomes["nccl-loopback"], played.ends = "failed", "Failed"
    done = ran()
    assert done.status == 1
    assert "bad: nccl-loopback: failed (CODE): why.\n" in done.out
    assert "bad has not passed, and what stands against it stays" in done.out


def test_a_check_that_could_not_judge_is_no_pass_though_it_lets_pods_start(played: Played) -> None:
    played.configure(CONFIG)
    played.outcomes["dcgm-diag"] = "inconclusive"
    assert ran().status == 1


@pytest.mark.parametrize(
    ("code", "status"), [("GPU_IN_USE", 1), ("GPU_SHARED", 1), ("ONE_GPU", 0), ("MIG", 0)]
)
def test_a_check_that_could_not_run_is_no_pass_and_one_with_nothing_to_test_is_no_failure(
    played: Played, code: str, status: int
) -> None:
    played.configure(CONFIG)
    played.code, played.outcomes["dcgm-diag"] = code, "skipped"
    done = ran()
    assert (done.status, f"bad: dcgm-diag: skipped ({code}): why." in done.out) == (status, True)


def test_a_run_in_which_no_check_ran_is_no_pass(played: Played) -> None:
    played.configure(CONFIG)
    played.outcomes = {}
    assert ran().status == 1


def test_a_condition_that_no_test_of_the_run_clears_is_named_and_exit_1(
    played: Played,
) -> None:
    played.configure(CONFIG)
    played.clears = False
    done = ran()
    assert done.status == 1
    assert "bad has passed, and DcgmDiagnosticMemory (GPU-1, GPU-2) stays" in done.out


def test_what_stands_against_a_gpu_that_was_replaced_is_cleared_beside_the_connector(
    played: Played,
) -> None:
    played.configure(CONFIG)
    played.clears = False
    assert "-replaced: GPU-2 was replaced\n" in ran("--replaced", "gpu-2").out  # in any case
    [job] = played.posted("/apis/batch/v1/namespaces/home/jobs")
    spec = job["spec"]["template"]["spec"]
    [container] = spec["containers"]
    program = ["python3", "-m", "preflight_proto.check.replaced"]
    assert container["command"] == [*program, "GPU-2", "dcgm-diag=DcgmDiagnosticMemory"]
    assert container["image"] == "d"
    assert names.SOCKET_VOLUME in {one["name"] for one in container["volumeMounts"]}
    assert {one["name"] for one in container["volumeMounts"]} == {
        one["name"] for one in spec["volumes"]
    }
    assert "resources" not in container
    assert "preflight.nvsentinel" not in json.dumps(job["spec"]["template"])


def test_a_gpu_that_was_replaced_is_cleared_where_claims_hand_gpus_out(
    played: Played,
) -> None:
    played.configure(CLAIMS)
    played.clears, played.outcomes = False, {"dcgm-diag": "passed"}
    sliced(played.double, "bad")
    done = ran("--gpu", "GPU-bad", "--replaced", "GPU-2")
    assert "GPU-2 was replaced\n" in done.out
    [job] = played.posted("/apis/batch/v1/namespaces/home/jobs")
    spec = job["spec"]["template"]["spec"]
    assert "resourceClaims" not in spec
    [container] = spec["containers"]
    assert (container["image"], "resources" in container) == ("d", False)


def test_a_gpu_that_nothing_stands_against_needs_no_farewell(played: Played) -> None:
    played.configure(CONFIG)
    done = ran("--replaced", "GPU-9")
    assert done.status == 0
    assert "--replaced GPU-9: nothing stands against it.\n" in done.out


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--replaced", "GPU"], "--replaced GPU: is a part of GPU-1, GPU-2; write the whole UUID."),
        (["--replaced=-2"], "--replaced -2: is a part of GPU-2; write the whole UUID."),
    ],
)
def test_what_cannot_be_cleared_as_it_is_asked_is_refused_before_anything_runs(
    played: Played, options: list[str], why: str
) -> None:
    played.configure(CONFIG)
    done = ran(*options)
    assert (done.status != 0, played.created) == (True, [])
    assert why in done.err


def test_a_job_that_a_queue_holds_is_said_to_wait_for_it(played: Played) -> None:
    played.configure(CONFIG)
    played.suspended = 3
    assert ran().out.count("is suspended, as a queue (Kueue) does") == 1


def test_pods_that_the_webhook_would_deny_are_announced() -> None:
    config = CONFIG + "dcgm: {hostengineAddr: engine.dcgm.svc:5555}"
    aliases = [{"ip": "10.0.0.1", "hostnames": ["engine.dcgm.svc"]}]
    like = {"spec": {"hostAliases": aliases, "containers": [{}]}}
    run = revalidate.PlannedRun("ml", [node()], parse(config), made(config, like=like), None)
    assert any("will be denied: the pod's own settings" in line for line in run.announced())


def test_why_a_pod_waits_is_told_in_the_schedulers_words(played: Played) -> None:
    played.configure(CONFIG)
    played.unscheduled, played.ends = "1 Insufficient nvidia.com/gpu.", "Failed"
    done = ran()
    assert done.status == 1
    assert "p waits: 1 Insufficient nvidia.com/gpu.\n" in done.out
    assert "bad has not passed (it took too long)" in done.out


def test_a_gangs_check_runs_beside_a_node_that_is_well_or_is_said_to_be_left_out(
    played: Played,
) -> None:
    played.configure(GANG)
    played.outcomes = {"dcgm-diag": "passed"}
    assert "nccl-allreduce: left out, as no second node fits" in ran().out
    played.double.create("nodes", node("good"))
    done = ran()
    assert "nccl-allreduce: beside good\n" in done.out
    assert played.created[-1]["spec"]["parallelism"] == 2
    assert "nccl-allreduce: left out" in ran("--with", "-").out


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (GANG.replace("skipNcclWithoutNetwork: false", ""), "the pod requests no network device"),
        (GANG + "gangDiscovery: {method: volcano}", "the pod belongs to no gang"),
    ],
)
def test_a_check_that_the_pods_will_not_get_is_said_to_be_left_out(config: str, why: str) -> None:
    nodes = [node(), node("good")]
    run = revalidate.PlannedRun("ml", nodes, parse(config), made(config, *nodes), None)
    lines = [line for line in run.announced() if line.startswith("nccl-allreduce")]
    assert len(lines) == 1
    assert lines[0].startswith(f"nccl-allreduce: left out, as {why}")


def test_gpus_that_come_by_a_claim_are_known_to_be_tested() -> None:
    config = CLAIMS.replace("}]", "}, {name: nccl-allreduce, image: a}]", 1)
    nodes = [node(gpus=0), node("good", gpus=0)]
    for one in nodes:
        one["status"]["allocatable"]["rdma/ib"] = "8"
    template = claim(config, nodes[0], {"gpu.nvidia.com": ["GPU-1"]})
    job = made(config, *nodes, claim=template)
    run = revalidate.PlannedRun("ml", nodes, parse(config), job, template)
    assert "nccl-allreduce: beside good" in run.announced()


@pytest.mark.parametrize(
    "asks",
    [
        {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
        {"containers": [{}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]},
    ],
    ids=["number", "claim"],
)
def test_a_gangs_check_runs_beside_a_node_whose_gpus_are_free_where_there_is_one(
    played: Played, asks: Json
) -> None:
    played.configure(GANG + CLAIMS.partition("\n")[2].partition("\n")[2])
    played.outcomes = {"dcgm-diag": "passed"}
    for name in ("busy", "free"):
        played.double.create("nodes", node(name))
    about = {"name": "other", "namespace": "home"}
    played.double.create("pods", {"metadata": about, "spec": {"nodeName": "busy", **asks}})
    assert "nccl-allreduce: beside free\n" in ran().out


def test_where_the_release_cannot_be_read_no_option_is_advised_that_there_is_not(
    played: Played,
) -> None:
    done = ran()
    assert "ConfigMap inj in namespace home: is not there, or has no config.yaml; " in done.err
    assert "--config" not in done.err


def test_a_workload_that_is_no_pod_is_the_api_server_s_to_refuse(
    played: Played, tmp_path: Path
) -> None:
    played.configure(CONFIG)
    file = tmp_path / "pod.yaml"
    file.write_text("kind: Pod\nspec: {volumes: 5, containers: [{name: c, image: i}]}")
    assert ran("-f", str(file)).status == 0


def test_a_dry_run_prints_what_it_would_create_and_creates_nothing(played: Played) -> None:
    played.configure(CONFIG)
    done = ran("--dry-run")
    assert (done.status, played.created) == (0, [])
    assert yaml.safe_load(done.out)["kind"] == "Job"


@pytest.mark.parametrize(
    ("played", "version"), [(one, one) for one in VERSIONS], indirect=["played"]
)
def test_a_claim_for_one_gpu_goes_with_its_job(played: Played, version: str) -> None:
    played.configure(CLAIMS)
    said_of = {"attributes": {"uuid": {"string": "GPU-1"}}}
    device = {"name": "gpu-1", **({"basic": said_of} if version == "v1beta1" else said_of)}
    body = {"driver": "gpu.nvidia.com", "nodeName": "bad", "devices": [device]}
    played.double.create("resourceslices", {"metadata": {"name": "s"}, "spec": body})
    played.outcomes = {"dcgm-diag": "passed"}
    assert ran("--gpu", "GPU-1").status == 0
    template, job = played.created
    assert (template["kind"], job["kind"]) == ("ResourceClaimTemplate", "Job")
    assert template["apiVersion"] == f"{GROUP}/{version}"
    [asked] = template["spec"]["spec"]["devices"]["requests"]
    assert (asked if version == "v1beta1" else asked["exactly"])["count"] == 1
    [patch] = [one for one in played.double.requests if one.method == "PATCH"]
    [owner] = patch.json()["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Job", job["metadata"]["name"])


def sliced(double: ApiDouble, *nodes: str) -> None:
    """Give each of these nodes a GPU that claims hand out."""
    for each in nodes:
        device = {"name": "gpu", "attributes": {"uuid": {"string": f"GPU-{each}"}}}
        body = {"driver": "gpu.nvidia.com", "nodeName": each, "devices": [device]}
        double.create("resourceslices", {"metadata": {"name": each}, "spec": body})


def test_one_gpu_alone_has_no_gang(played: Played) -> None:
    played.configure(CLAIMS.replace("}]", "}, {name: nccl-allreduce, image: a}]", 1))
    played.double.create("nodes", node("good"))
    sliced(played.double, "bad", "good")
    _, job = yaml.safe_load_all(ran("--gpu", "GPU-bad", "--dry-run").out)
    assert job["spec"]["parallelism"] == 1
    refused = ran("--gpu", "GPU-bad", "--with", "good")
    assert refused.status == 2
    assert "--with good: has no GPU GPU-bad" in refused.err


@pytest.mark.parametrize("played", ["v1", "v1beta1"], indirect=True)
def test_what_else_a_driver_makes_of_gpus_is_not_counted_as_gpus(
    played: Played, request: pytest.FixtureRequest
) -> None:
    played.configure(CLAIMS)
    played.double.create("nodes", node("worse", gpus=0))
    devices = []
    for kind in ("gpu", "vfio", "mig"):  # vfio: the same GPU, for a virtual machine
        of = {"uuid": {"string": f"{kind}-1"}, "type": {"string": kind}}
        about = {"attributes": of}
        basic = request.node.callspec.params["played"] == "v1beta1"
        devices.append({"name": kind, **({"basic": about} if basic else about)})
    body = {"driver": "gpu.nvidia.com", "nodeName": "worse", "devices": devices}
    played.double.create("resourceslices", {"metadata": {"name": "s"}, "spec": body})
    template, _ = yaml.safe_load_all(said("revalidate", "worse", "-n", "ml", "--dry-run").out)
    [asked] = template["spec"]["spec"]["devices"]["requests"]
    assert asked.get("exactly", asked)["count"] == 1


def test_the_other_node_has_as_many_gpus_to_claim(played: Played) -> None:
    played.configure(CLAIMS.replace("}]", "}, {name: nccl-allreduce, image: a}]", 1))
    for name in ("worse", "cpu", "good"):
        played.double.create("nodes", node(name, gpus=0))
    sliced(played.double, "worse", "good")
    _, job = yaml.safe_load_all(said("revalidate", "worse", "-n", "ml", "--dry-run").out)
    affinity = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    assert "good" in json.dumps(affinity)
    assert "cpu" not in json.dumps(affinity)


def test_the_gpus_that_a_workload_claims_are_among_those_of_the_node(
    played: Played, tmp_path: Path
) -> None:
    played.configure(CLAIMS)
    sliced(played.double, "bad")
    for name, of in (("gpu", "gpu.nvidia.com"), ("nic", "nic.example")):
        asked = {"name": name, "exactly": {"deviceClassName": of}}
        template = {"spec": {"devices": {"requests": [asked]}}}
        about = {"name": name, "namespace": "ml"}
        played.double.create("resourceclaimtemplates", {"metadata": about, "spec": template})
    file, claims = tmp_path / "pod.yaml", [{"name": "gpu"}, {"name": "nic"}]
    named = [{**each, "resourceClaimTemplateName": each["name"]} for each in claims]
    container = {"name": "c", "image": "i", "resources": {"claims": claims}}
    pod = {"kind": "Pod", "spec": {"containers": [container], "resourceClaims": named}}
    file.write_text(json.dumps(pod))
    _, job = yaml.safe_load_all(ran("--gpu", "GPU-bad", "-f", str(file), "--dry-run").out)
    spec = job["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["resourceClaims"]] == ["nic", "gpus"]
    assert spec["containers"][0]["resources"]["claims"] == [{"name": "nic"}, {"name": "gpus"}]


@pytest.mark.parametrize("played", ["v1alpha3"], indirect=True)
def test_where_no_claims_are_known_gpus_are_handed_out_by_number(played: Played) -> None:
    played.configure(CLAIMS)
    played.outcomes = {"dcgm-diag": "passed"}
    assert ran().status == 0
    assert [one["kind"] for one in played.created] == ["Job"]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["none", "-n", "ml"], 2, "none: the cluster has no such node"),
        (["bad", "-n", "default"], 2, "namespace default is not opted in"),
        (["bad", "-n", "ml", "--with", "bad"], 2, "is the node itself"),
        (["bad", "-n", "ml", "--gpu", "GPU-1"], 1, "hands its GPUs out by number"),
        (["bad", "-n", "ml", "-f", "/nowhere"], 2, "/nowhere: No such file"),
    ],
)
def test_what_cannot_be_tested_is_refused_in_a_sentence_and_nothing_is_created(
    played: Played, arguments: list[str], status: int, words: str
) -> None:
    played.configure(CONFIG)
    done = said("revalidate", *arguments)
    assert (done.status, done.out, played.created) == (status, "", [])
    assert words in done.err
    assert len(done.err.splitlines()) == 1


def test_who_may_not_create_jobs_is_told_which_right_is_missing(played: Played) -> None:
    played.configure(CONFIG)
    words = (
        'jobs.batch is forbidden: User "intern" cannot create resource "jobs" in API group "batch"'
    )

    def refuse(request: ApiRequest) -> ApiAnswer | None:
        if request.method == "POST":
            return ApiAnswer(403, {"kind": "Status", "reason": "Forbidden", "message": words})
        return None

    played.double.fault = refuse
    done = ran()
    assert done.status == 1
    assert words in done.err


def test_checks_that_only_observe_clear_nothing_and_it_says_so() -> None:
    config: Config = parse(CONFIG + "processingStrategy: STORE_ONLY")
    run = revalidate.PlannedRun("ml", [node()], config, made(CONFIG), None)
    assert "dcgm-diag: only observes as it is configured, and clears nothing" in run.announced()


# --- what docs/revalidation ships for NVSentinel

SHIPPED = Path(__file__).resolve().parents[3] / "docs" / "revalidation"


def granted() -> set[tuple[str, str, str]]:
    """(namespace, resource, verb) of rights.yaml; no namespace: in all of them."""
    return {
        (role["metadata"].get("namespace", ""), resource, verb)
        for role in yaml.safe_load_all((SHIPPED / "rights.yaml").read_text())
        for rule in role.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(request: ApiRequest) -> tuple[str, str, str]:
    """The same of what was asked; namespaces are those of the double."""
    parts = request.path.split("/")[3 if request.path.startswith("/api/") else 4 :]
    inside = parts[0] == "namespaces" and len(parts) > 2
    where = {"ml": "gpu-validation", "home": "preflight"}[parts[1]] if inside else ""
    resource, *name = parts[2:] if inside else parts
    read = "get" if name else "list"
    verb = {"GET": read, "POST": "create", "PATCH": "patch"}[request.method]
    return where, resource, verb


def test_the_shipped_account_may_do_what_the_command_does_and_nothing_else(
    played: Played, tmp_path: Path
) -> None:
    played.configure(CLAIMS.replace("}]", "}, {name: nccl-allreduce, image: a}]"))
    played.double.create("nodes", node("good", gpus=0))
    sliced(played.double, "bad", "good")
    ran("--gpu", "GPU-bad")
    ran()
    file, own = tmp_path / "pod.yaml", [{"name": "a", "resourceClaimName": "mine"}]
    own.append({"name": "b", "resourceClaimTemplateName": "each"})
    spec = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": own}
    file.write_text(json.dumps({"kind": "Pod", "spec": spec}))
    ran("--gpu", "GPU-bad", "-f", str(file))
    # What is served may be asked for by everybody.
    asked = [one for one in played.double.requests if one.path != f"/apis/{GROUP}/{VERSIONS[0]}"]
    assert {used(one) for one in asked} == granted()


def test_the_shipped_template_runs_this_command_for_its_node(played: Played) -> None:
    played.configure(CONFIG)
    provider = yaml.safe_load((SHIPPED / "provider.yaml").read_text())["lifecycle-manager"][
        "config"
    ]
    text = provider["templates"]["preflight-job.yaml"].replace(
        "{{quote (index .Nodes 0).NodeName}}", '"bad"'
    )
    job = yaml.safe_load(re.sub("{{.*?}}", "x", text))
    [container] = job["spec"]["template"]["spec"]["containers"]
    arguments = [one.replace("gpu-validation", "ml") for one in container["args"]]
    assert said(*arguments).status == 0
