from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonpatch
import pytest
import yaml
from preflight_proto.stamp import gang_hash
from preflight_testing.documents import CommandEnd, ended
from preflight_webhook.cli import main
from preflight_webhook.config.config import parse
from preflight_webhook.report.explain import worst_case_delay

JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train}
spec: {template: {spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec: {containers: [{name: c, image: i}]}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def explain(*options: str, stdin: str = "", config: str = "") -> CommandEnd:
    """`preflight-webhook explain`, in this process; ``config``: of what is piped in."""
    if config:
        Path("config.yaml").write_text(config)
        options = ("-f", "-", "--config", "config.yaml", *options)
    done = ended(main, "explain", *options, stdin=stdin)
    assert "Traceback" not in done.err
    return done


def test_every_pod_and_template_is_explained() -> None:
    Path("job.yaml").write_text(JOB)
    done = explain("-f", "job.yaml")
    assert done.status == 0
    assert "Job train: injected" in done.out
    assert "reserves: 8 nvidia.com/gpu" in done.out
    assert "worst-case start delay: 30m10s" in done.out
    assert "Pod web: no-gpu" in done.out


def test_a_pod_beyond_a_limit_of_all_webhooks_is_explained_as_denied() -> None:
    many = json.dumps(["x"] * 4097)
    pod = f"kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: c, args: {many}}}]}}"
    done = explain("-f", "-", stdin=pod)
    assert "Pod p: denied" in done.out
    assert "spec.containers[0].args: has 4097 entries, more than the 4096" in done.out


def test_standard_input_and_json_work() -> None:
    program = [sys.executable, "-m", "preflight_webhook", "explain", "-f", "-", "-o", "json"]
    manifest = JOB.split("---", maxsplit=1)[0].encode()
    told = json.loads(
        subprocess.run(program, input=manifest, capture_output=True, check=True).stdout
    )
    assert (told["result"], told["checks"], told["worst_case_start_delay_seconds"]) == (
        "injected",
        ["dcgm-diag"],
        1810.0,  # another pod's diagnostic, its own, the report
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no pod in it"),
        ("kind: Service", "found Service"),
        ("a: [", "not YAML"),
        ("kind: Pod\nspec: 5", "not a pod"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(text: str, says: str) -> None:
    done = explain("-f", "-", stdin=text)
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert says in done.err


MEMBERS = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: hpc}
spec: {template: {spec: {schedulingGroup: {podGroupName: llm}, containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
---
apiVersion: v1
kind: Pod
metadata: {name: driver, labels: {app.kubernetes.io/gang-id: llm, app.kubernetes.io/gang-size: "3"}}
spec: {containers: [{name: c, image: i}]}
"""


def test_the_gang_is_explained() -> None:
    config = "checks: [{name: nccl-allreduce, image: a}]\nskipNcclWithoutNetwork: false"
    lines = explain(stdin=MEMBERS, config=config).out.splitlines()
    assert [line for line in lines if line.startswith("  gang: ")] == [
        "  gang: llm (by schedulingGroup, size not known at admission); takes part in its checks; its roster is in ConfigMap preflight-llm",
        "  gang: llm (by labels, 3 members); takes no part in its checks; its roster is in ConfigMap preflight-llm.labels",
    ]
    assert "Pod driver: stamped, if its namespace is opted in" in lines
    # 10 minutes of it waiting for the others
    assert any(line.startswith("  worst-case start delay: 15m10s if every check") for line in lines)


def test_the_namespace_of_the_object_names_the_gang() -> None:
    def label(text: str) -> str:
        told = json.loads(explain("-f", "-", "-o", "json", stdin=text).out)
        assert told["gang"]["id"] == "llm"
        [operation] = [
            o
            for o in told["patch"]
            if o["path"] == "/metadata/labels/preflight.nvsentinel.nvidia.com~1gang"
        ]
        return str(operation["value"])

    job = MEMBERS.split("---", maxsplit=1)[0]
    assert label(job) == gang_hash("hpc", "llm", "schedulingGroup")
    assert label(job.replace(", namespace: hpc", "")) == gang_hash(
        "default", "llm", "schedulingGroup"
    )


CLAIMS = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus, namespace: hpc}
spec: {spec: {devices: {requests: [{name: r, exactly: {deviceClassName: gpu.nvidia.com, count: 4}}]}}}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: train, namespace: hpc}
spec:
  replicatedJobs:
  - name: driver
    template: {spec: {template: {spec: {containers: [{name: c, image: i}]}}}}
  - name: workers
    template:
      spec:
        template:
          spec:
            resourceClaims: [{name: mine, resourceClaimTemplateName: gpus}]
            containers: [{name: c, image: i, resources: {claims: [{name: mine}]}}]
"""


DRA = "checks: [{name: dcgm-diag, image: d}]\ngpuDetection: {deviceClasses: [gpu.nvidia.com]}"


def test_claim_templates_in_the_file_are_taken_into_account() -> None:
    done = explain(stdin=CLAIMS, config=DRA)
    assert "JobSet train, driver: no-gpu" in done.out
    assert "JobSet train, workers: injected" in done.out
    assert "reserves: 1 claim mine" in done.out


def test_they_may_stand_in_another_file_and_without_them_it_is_said_so() -> None:
    template, _, workload = CLAIMS.partition("---")
    Path("claims.yaml").write_text(template)
    both = explain("-f", "claims.yaml", stdin=workload, config=DRA)
    assert "workers: injected" in both.out
    alone = explain(stdin=workload, config=DRA)
    assert "workers: denied" in alone.out
    assert "create the claim first, then the pod." in alone.out


def test_the_patch_is_shown_as_a_diff() -> None:
    assert "    +  - name: preflight-dcgm-diag" in explain("-f", "-", stdin=JOB).out


def test_yaml_says_what_json_says() -> None:
    one = JOB.split("---", maxsplit=1)[0]
    assert yaml.safe_load(explain("-f", "-", "-o", "yaml", stdin=one).out) == json.loads(
        explain("-f", "-", "-o", "json", stdin=one).out
    )


def test_a_confined_namespace_in_the_file_is_taken_into_account() -> None:
    label = "pod-security.kubernetes.io/enforce: restricted"
    text = JOB + "---\nkind: Namespace\nmetadata: {name: default, labels: {" + label + "}}\n"
    assert "Job train: denied" in explain("-f", "-", stdin=text).out


def test_variables_that_only_the_cluster_knows_are_warned_of() -> None:
    config = "checks: [{name: nccl-loopback, image: l}]\nskipNcclWithoutNetwork: false"
    env = "envFrom: [{secretRef: {name: tuning}}], resources"
    done = explain(stdin=JOB.replace("resources", env, 1), config=config)
    assert (
        "warning: spec.containers[0].envFrom[0]: what Secret tuning holds is not known at admission and not passed on to nccl-loopback"
        in done.out
    )


def test_the_patch_is_left_out_where_wanted() -> None:
    done = explain("-f", "-", "--brief", stdin=JOB)
    assert "patch: 3 operation(s)" in done.out
    assert "preflight-dcgm-diag" not in done.out
    one = JOB.split("---", maxsplit=1)[0]
    assert "patch" not in json.loads(explain("-f", "-", "--brief", "-o", "json", stdin=one).out)


@pytest.mark.parametrize(
    ("check", "seconds"),
    [
        ("{name: dcgm-diag, image: d}", 1810.0),
        ("{name: dcgm-diag, image: d, timeout: 60s}", 130.0),
        (
            "{name: dcgm-diag, image: d, timeout: 60s, env: [{name: DCGM_QUEUE_TIMEOUT, value: 5s}]}",
            75.0,
        ),
        ("{name: nccl-loopback, image: l}", 610.0),
        ("{name: mine, image: m}", 310.0),
        ("{name: mine, image: m, env: [{name: CHECK_TIMEOUT, value: 30s}]}", 40.0),
        ("{name: mine, image: m, env: [{name: CHECK_TIMEOUT, value: soon}]}", 310.0),
    ],
)
def test_the_longest_delay_is_what_each_check_allows_itself(check: str, seconds: float) -> None:
    config = parse(f"checks: [{check}]\ndcgm: {{diagLevel: 2}}")
    assert worst_case_delay(config.checks[0], config) == seconds


@pytest.mark.parametrize(("ranks", "seconds"), [(0, 910.0), (512, 910.0), (4096, 1268.4)])
def test_a_large_gangs_all_reduce_may_take_longer(ranks: int, seconds: float) -> None:
    config = parse("checks: [{name: nccl-allreduce, image: a}]\ngangTimeout: 10m")
    assert worst_case_delay(config.checks[0], config, ranks) == pytest.approx(seconds)


@pytest.mark.parametrize("wanted", ["Service/x", "Pod", "x"])
def test_what_is_no_live_object_is_one_sentence(wanted: str) -> None:
    done = explain("--live", wanted)
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "is not KIND/NAME" in done.err


GANG_JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: train, namespace: ml}
spec: {template: {metadata: {labels: {example.com/job: run-7}}, spec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 8}}}]}}}
"""
BY_LABEL = """---
apiVersion: preflight.nvsentinel.nvidia.com/v1alpha1
kind: PreflightConfig
metadata: {name: %s, namespace: ml, generation: 2}
spec: {enforcement: observe, gangDiscovery: {labels: {gangIdLabel: example.com/job}}}
"""
ACCEPTED = "status: {conditions: [{type: Accepted, status: '%s', reason: R, message: %s, observedGeneration: %d}]}\n"


def test_a_preflight_config_among_the_documents_is_taken_as_if_it_were_accepted() -> None:
    done = explain("-f", "-", stdin=GANG_JOB + BY_LABEL % "by-label")
    assert "by: PreflightConfig by-label, as if the gang controller had accepted it" in done.out
    assert "gang: run-7 (by labels" in done.out
    assert "value: observe" in done.out


def test_one_of_another_namespace_does_not_count() -> None:
    done = explain(
        "-f",
        "-",
        stdin=GANG_JOB + (BY_LABEL % "elsewhere").replace("namespace: ml", "namespace: web"),
    )
    assert "gang:" not in done.out
    assert "by: " not in done.out


def test_what_the_gang_controller_says_of_them_counts() -> None:
    first = BY_LABEL % "first" + ACCEPTED % ("False", "Superseded by second.", 2)
    second = BY_LABEL % "second" + ACCEPTED % ("True", "In force.", 2)
    done = explain("-f", "-", "-o", "json", stdin=GANG_JOB + first + second)
    told = json.loads(done.out)
    assert told["preflight_config"] == "PreflightConfig second, in force"
    assert told["gang"]["id"] == "run-7"


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (("False", "Not a good idea.", 2), "Not a good idea."),
        (("True", "In force.", 1), "the gang controller has not looked at it yet"),
    ],
)
def test_one_that_is_not_in_force_says_why(status: tuple[str, str, int], why: str) -> None:
    done = explain("-f", "-", stdin=GANG_JOB + BY_LABEL % "one" + ACCEPTED % status)
    assert f"by: no PreflightConfig is in force: one ({why})" in done.out
    assert "gang:" not in done.out


def test_a_configuration_that_does_not_look_for_them_says_so() -> None:
    config = "checks: [{name: dcgm-diag, image: d}]\npreflightConfigs: {enabled: false}"
    done = explain(stdin=GANG_JOB + BY_LABEL % "one", config=config)
    assert "no PreflightConfig is read" in done.out
    assert "gang:" not in done.out


@pytest.mark.parametrize(
    "wrong",
    [BY_LABEL.replace("observe", "perhaps"), BY_LABEL.replace("generation: 2", "generation: two")],
)
def test_one_that_cannot_be_read_is_one_sentence_and_exit_2(wrong: str) -> None:
    done = explain("-f", "-", stdin=GANG_JOB + wrong % "odd")
    assert (done.status, len(done.err.splitlines())) == (2, 1)
    assert "PreflightConfig odd: " in done.err


CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: training-gpus, uid: u1}
spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com, count: 8}}]}}
"""
CLAIMING = """---
apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  resourceClaims: [{name: gpus, resourceClaimName: training-gpus}]
  containers: [{name: main, image: i, resources: {claims: [{name: gpus}]}}]
"""
IN_USE = "status: {reservedFor: [{resource: pods, name: other, uid: x}]}\n"


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (
            "",
            [
                "Pod train: injected",
                "claim gpus: ResourceClaim training-gpus, taken to be for GPUs; counted where",
            ],
        ),
        (IN_USE, ["Pod train: denied", 'claim "gpus" is in use by pod other']),
    ],
)
def test_it_says_what_becomes_of_a_claim_by_name(more: str, expected: list[str]) -> None:
    done = explain(stdin=CLAIM + more + CLAIMING, config=DRA)
    assert [text for text in expected if text not in done.out] == []


def test_a_pod_that_has_its_checks_is_called_injected_already() -> None:
    container = {"name": "c", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    namespace = {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": {"name": "ml", "labels": {"nvsentinel.nvidia.com/preflight": "enabled"}},
    }
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "ml"},
        "spec": {"containers": [container]},
    }

    def told(one: object, *options: str) -> str:
        return explain("-f", "-", *options, stdin=yaml.safe_dump_all([namespace, one])).out

    fresh = json.loads(told(pod, "-o", "json"))
    after = jsonpatch.apply_patch(pod, fresh["patch"])
    assert told(after, "--brief").startswith("Pod p: injected already\n")
    again = json.loads(told(after, "-o", "json"))
    assert (again["result"], again["patch"]) == ("unchanged", [])


@pytest.mark.parametrize("env", ["[NCCL_DEBUG]", "[null]", "true", "{a: b}", "[{name: [1]}]"])
def test_an_env_that_is_no_list_of_variables_leaves_no_traceback(env: str) -> None:
    done = explain("-f", "-", stdin=JOB.replace("image: i,", f"image: i, env: {env},", 1))
    assert done.status in {0, 2}
    assert done.out or done.err


def test_what_changes_a_terminal_is_not_printed() -> None:
    done = explain("-f", "-", stdin=JOB.replace("name: train", r'name: "a\e[31m\u202e"'))
    assert "\x1b" not in done.out + done.err
    assert "\u202e" not in done.out + done.err
