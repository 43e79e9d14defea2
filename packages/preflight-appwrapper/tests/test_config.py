"""The operator's configuration and the commands that read files: every problem at once, and exit
status 2.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from player import job, service, wrapper
from preflight_appwrapper.api.rules import Autopilot, LabelTaint, WrapperRules
from preflight_appwrapper.cli import main
from preflight_appwrapper.config import json_schema, settings
from preflight_kube.files.configfile import ConfigError
from preflight_testing.documents import CommandEnd, ended


def parse(text: str) -> WrapperRules:
    return settings(text)[1]


def problems(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return caught.value.problems


def test_an_empty_file_gives_the_defaults() -> None:
    assert parse("") == WrapperRules()
    assert parse("{}") == WrapperRules()


def test_what_is_set_is_known_to_be_the_operators() -> None:
    found = parse("faultTolerance: {warmupGracePeriod: 10m, retryLimit: -1, failedPods: any}")
    assert (found.warmup, found.retry_limit, found.failed_pods) == (600, -1, "any")
    assert found.set_ == {"warmup", "retry_limit"}


def test_names_of_other_controllers_are_understood() -> None:
    found = parse(
        "faultTolerance: {resetPause: 5s, deletionGracePeriod: 6s, successTTLCeiling: 7s, gracePeriodCeiling: 1h}"
    )
    assert (found.retry_pause, found.forceful_deletion, found.success_ttl, found.maximum) == (
        5,
        6,
        7,
        3600,
    )


def test_taints_keep_their_order() -> None:
    text = """
autopilot:
  resourceTaints:
    a/b: [{key: k, value: Z, effect: NoExecute}, {key: k, value: A, effect: PreferNoSchedule}]
"""
    assert parse(text).autopilot == Autopilot(
        taints={
            "a/b": (LabelTaint("k", "Z", "NoExecute"), LabelTaint("k", "A", "PreferNoSchedule"))
        }
    )


def test_a_rule_for_a_known_kind_replaces_what_is_known_of_it() -> None:
    found = parse(
        "failureRules: [{group: batch, kind: Job, failed: [{condition: Broken}]}]"
    ).failure_rules
    assert [one.failed[0].condition for one in found if one.kind == "Job"] == ["Broken"]
    assert len(found) == len(WrapperRules().failure_rules)


PUBLIC = """
appwrapper:
  userRBACAdmissionCheck: true
  defaultQueueName: team-a
  autopilot:
    injectAntiAffinities: true
    monitorNodes: false
  faultTolerance:
    admissionGracePeriod: 60000000000
    warmupGracePeriod: 300000000000
    resetPause: 45000000000
    retryLimit: 2
    deletionGracePeriod: 600000000000
    successTTLCeiling: 3600000000000
controllerManager:
  health: {bindAddress: ":8081"}
  leaderElection: true
webhooksEnabled: true
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("faultTolerance: {admissionGracePeriod: 10m}", "faultTolerance.admissionGracePeriod: 10m is more than warmupGracePeriod, 5m"),
        ("faultTolerance: {warmupGracePeriod: 48h}", "faultTolerance.warmupGracePeriod: 48h is more than gracePeriodMaximum, 24h"),
        ("faultTolerance: {successTTL: 0s}", "faultTolerance.successTTL: is 0s"),
        ("faultTolerance: {failureGracePeriod: -1s}", "faultTolerance.failureGracePeriod: is -1s"),
        ("faultTolerance: {warmupGracePeriod: 300}", "faultTolerance.warmupGracePeriod: must be a string"),
        ("faultTolerance: {resetPause: 7d}", "faultTolerance.resetPause: "),
        ("faultTolerance: {resetPause: 7s, retryPausePeriod: 8s}", "faultTolerance.resetPause: means the same as retryPausePeriod"),
        ("faultTolerance: {retryLimit: 99999999999}", "faultTolerance.retryLimit: "),
        ("faultTolerence: {}", "faultTolerence: unknown key; write faultTolerance instead"),
        ("autopilot: {preferNoScheduleWeight: 101}", "autopilot.preferNoScheduleWeight: must be at most 100"),
        ("autopilot: {resourceTaints: {g: [{key: k, value: v, effect: Evict}]}}", "autopilot.resourceTaints.g[0].effect: must be one of"),
        ("failureRules: [{group: g, kind: K, failed: [{path: status.x}]}]", "failureRules[0].failed[0]: must have either condition"),
        *((f"evacuationBrake: {{window: {window}}}", "evacuationBrake.window: ") for window in ("0s", "soon", "-1m")),
        (PUBLIC.replace("retryLimit: 2", "retries: 2"), "retries"),
        (PUBLIC.replace("AdmissionCheck: true", "AdmissionCheck: false"), "trustedUsers"),
        ('trustedUsers: ["system:*"]', "trustedUsers[0]"),
        ("a: 1\na: 2", "line 2, column 1: the key a is in line 1 already"),
        ("a: [", "not YAML"),
        ("[]", "the file: must be a map"),
        ("x: &a [*a]", ""),
        ("- " * 3000 + "x", "nested"),
    ],
)  # fmt: skip
def test_each_problem_names_the_key_as_it_is_written(text: str, said: str) -> None:
    assert any(said in one for one in problems(text)), problems(text)


def test_all_problems_come_at_once() -> None:
    text = "faultTolerance: {admissionGracePeriod: 10m, failureGracePeriod: 48h, successTTL: 0s, resetPause: 1x}"
    assert len(problems(text)) == 4


def test_what_can_be_read_is_judged_beside_what_cannot() -> None:
    text = "faultTolerance: {admissionGracePeriod: 10m, retryPausePeriod: 90000000000, typo: 3}"
    said = problems(text)
    assert len(said) == 3, said
    assert any("admissionGracePeriod: 10m is more than warmupGracePeriod" in one for one in said)
    assert len(problems("faultTolerance: {admissionGracePeriod: 10m, warmupGracePeriod: 900}")) == 1


def test_the_schema_is_one_of_2020_12() -> None:
    assert json_schema()["$defs"]["Config"]["additionalProperties"] is False


def run(*args: str) -> CommandEnd:
    return ended(main, *args)


def manifest(folder: Path, raw: object) -> str:
    path = folder / "aw.yaml"
    path.write_text(yaml.safe_dump(raw))
    return str(path)


def test_explain_shows_what_would_be_created(tmp_path: Path) -> None:
    path = manifest(tmp_path, wrapper(service(), job()))
    found = run("explain", "-f", path, "-o", "json")
    assert found.status == 0, found.err
    said = json.loads(found.out)
    assert [one["kind"] for one in said["objects"]] == ["Service", "Job"]
    assert said["podSets"] == ["Job train: 2 pods at template.spec.template"]
    objects = list(yaml.safe_load_all(run("explain", "-f", path, "-o", "yaml").out))
    assert objects == said["objects"]


def test_explain_takes_a_manifest_without_a_namespace_for_one_of_the_namespace_that_is_given(
    tmp_path: Path,
) -> None:
    made = job()
    made["metadata"]["namespace"] = "other"
    raw = wrapper(made)
    raw["metadata"].pop("namespace")
    (tmp_path / "w.yaml").write_text(yaml.safe_dump(raw))
    done = run("explain", "-f", str(tmp_path / "w.yaml"), "-n", "team-a")
    assert done.status == 2
    assert (
        done.out.count(
            "metadata.namespace: is other, and only the wrapper's own, team-a, is possible"
        )
        == 1
    )
    assert done.out.count("problem:") == 1
    done = run("explain", "-f", str(tmp_path / "w.yaml"), "-n", "other")
    assert done.status == 0, done.out


def test_explain_shows_every_problem_of_a_manifest_and_exits_with_2(tmp_path: Path) -> None:
    path = manifest(tmp_path, wrapper(job(), job(), annotations={"retryLimit": "x"}))
    found = run("explain", "-f", path)
    assert found.status == 2
    assert "RetryLimit = 3 (malformed" in found.out
    assert "problem: spec.components[1].template: is Job train" in found.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Pod", "holds no AppWrapper"),
        ("a: 1\na: 2", "line 2"),
        ("\x00", "which YAML does not allow"),
        ("", "holds no AppWrapper"),
    ],
)
def test_a_file_that_is_no_wrapper_is_refused_in_a_sentence(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    found = run("explain", "-f", str(path))
    assert found.status == 2
    assert said in found.err
    assert "Traceback" not in found.err


def test_explain_refuses_what_every_webhook_refuses_in_the_same_words(tmp_path: Path) -> None:
    raw = wrapper(*(service(f"s{i}") for i in range(64)), job())
    found = run("explain", "-f", manifest(tmp_path, raw))
    assert found.status == 2
    assert found.err.removeprefix("preflight-appwrapper: ") == (
        f"{tmp_path}/aw.yaml: spec.components: has 65 entries, "
        "more than the 64 that a webhook goes through; use fewer.\n"
    )


def test_a_file_that_is_not_there_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for command in (
        ("validate-config", str(tmp_path / "no")),
        ("explain", "-f", str(tmp_path / "no")),
    ):
        found = run(*command)
        assert (found.status, found.out) == (2, "")
        assert "No such file" in found.err


def test_validate_config_says_every_problem_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("faultTolerance: {successTTL: 0s, failureGracePeriod: 48h}")
    found = run("validate-config", str(path))
    assert found.status == 2
    assert len(found.err.splitlines()) == 2
    assert all(line.startswith(f"{path}: faultTolerance.") for line in found.err.splitlines())
    path.write_text("")
    assert run("validate-config", str(path)).out == f"{path}: no problem found\n"


def test_the_configuration_file_of_appwrapper_1_2_is_read() -> None:
    rules = parse(PUBLIC)
    assert (rules.admission, rules.warmup, rules.retry_pause) == (60, 300, 45)
    assert (rules.retry_limit, rules.success_ttl, rules.default_queue) == (2, 3600, "team-a")
    assert not rules.autopilot.monitor
    assert parse("controllerManager: {leaderElection: true}\n") == parse("")


def test_named_accounts_are_not_asked() -> None:
    rules = parse('trustedUsers: ["system:serviceaccount:kueue-system:multikueue"]\n')
    assert rules.trusted_users == {"system:serviceaccount:kueue-system:multikueue"}


@pytest.mark.parametrize("command", ["run", "serve"])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "mark.key: No such file or directory; give a readable file."),
        ("short", "mark.key: has 5 characters, and a key at least 32; let `preflight-app"),
    ],
)
def test_a_key_that_nobody_could_mark_with_is_bad_input(
    tmp_path: Path, command: str, content: str | None, said: str
) -> None:
    if content:
        (tmp_path / "mark.key").write_text(content)
    files = ["--cert-dir", str(tmp_path)] if command == "serve" else []
    found = run(command, "--mark-key", str(tmp_path / "mark.key"), *files)
    assert found.status == 2
    assert said in found.err
