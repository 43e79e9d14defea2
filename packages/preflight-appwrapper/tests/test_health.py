"""The nine rules, each on pods and components as data; the first that applies decides."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.api.types import (
    AppWrapper,
    AppWrapperSpec,
    AppWrapperStatus,
    Component,
    ComponentStatus,
    Condition,
    Metadata,
    Pod,
    PodSet,
    lenient,
)
from preflight_appwrapper.core.component_status import ComponentVerdict, verdict
from preflight_appwrapper.core.decode import PartialObject
from preflight_appwrapper.core.decode import pod as read_pod
from preflight_appwrapper.core.health import judge
from preflight_appwrapper.core.phase_context import PhaseContext
from preflight_appwrapper.core.plan import HealthJudgment
from preflight_appwrapper.core.pods import sick_resources
from preflight_appwrapper.core.podsets import slack
from preflight_appwrapper.core.snapshot import SeenComponent, WrapperSnapshot
from preflight_proto import names
from preflight_proto.result import Result, encode_result

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
PREFIX = "workload.codeflare.dev.appwrapper/"


def status(
    *expected: int, deployed: float = 3600, ready: float | None = None, migrations: int = 0
) -> AppWrapperStatus:
    """``deployed``, ``ready``: seconds since it was created, and since PodsReady became False
    (None: it is True).
    """
    conditions = (
        Condition(
            type="ResourcesDeployed",
            status="True",
            last_transition_time=NOW - timedelta(seconds=deployed),
        ),
        Condition(
            type="PodsReady",
            status="True" if ready is None else "False",
            last_transition_time=NOW - timedelta(seconds=deployed if ready is None else ready),
        ),
    )
    created = (Condition(type="ResourcesDeployed", status="True", last_transition_time=NOW),)
    components = tuple(
        ComponentStatus(
            name=f"c{i}", kind="Job", api_version="batch/v1", uid=f"job-{i}", conditions=created,
            pod_sets=(PodSet(path="template.spec.template", replicas=count),) if count else (),
        )
        for i, count in enumerate(expected)
    )  # fmt: skip
    return AppWrapperStatus(
        phase="Running",
        conditions=conditions,
        component_status=components,
        migration_count=migrations,
    )


def pod(
    name: str, phase: str, *, owner: str = "job-0", node: str = "n", gpus: object = 8, of: int = -1, **more: Any
) -> Pod:  # fmt: skip
    raw: dict[str, Any] = {
        "component": of,
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "ownerReferences": [{"uid": owner, "controller": True}],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": gpus}}}],
        },
        "status": {"phase": phase, **more},
    }
    if more.pop("going", False):
        raw["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return lenient(Pod, raw)


def present(i: int = 0, says: Any = "nothing", **more: Any) -> SeenComponent:
    return SeenComponent(
        state="present",
        ours=True,
        uid=f"job-{i}",
        verdict=ComponentVerdict(says=says, owns_pods=True),
        **more,
    )


def judged(
    known: AppWrapperStatus, *pods: Pod, components: tuple[SeenComponent, ...] | None = None,
    nodes: dict[str, frozenset[str]] | None = None, rules: WrapperRules | None = None, annotations: dict[str, str] | None = None,
) -> HealthJudgment:  # fmt: skip
    components = (
        tuple(present(i) for i in range(len(known.component_status)))
        if components is None
        else components
    )
    written = {PREFIX + key: value for key, value in (annotations or {}).items()}
    metadata = Metadata(name="w", uid="wrapper", annotations=written)
    seen = WrapperSnapshot(components=components, pods=pods, nodes=nodes or {})
    wrapper = AppWrapper(metadata=metadata, status=known)
    return judge(PhaseContext.of(wrapper, seen, rules or WrapperRules(), NOW))


def exited(code: int, name: str = "main", reason: str = "") -> dict[str, Any]:
    ended = {"exitCode": code, "reason": reason}
    return {"containerStatuses": [{"name": name, "state": {"terminated": ended}}]}


def setup(code: int, name: str, **more: str) -> dict[str, Any]:
    ended = {"exitCode": code, **more}
    return {"initContainerStatuses": [{"name": name, "state": {"terminated": ended}}]}


def left(
    outcome: str, *, code: int = 1, gated: bool = True, name: str = "preflight-dcgm-diag"
) -> dict[str, Any]:
    result = Result(
        v=1, check="dcgm-diag", outcome=outcome, code="MEMORY", gated=gated, duration=1.0
    )
    return setup(code, name, message=encode_result(result).decode())


RUNNING = (pod("a", "Running"), pod("b", "Running"))
SICK = {"n": frozenset({"nvidia.com/gpu"})}


def ruled(found: HealthJudgment) -> tuple[int, str]:
    return found.rule, found.result


# --- 1


@pytest.mark.parametrize(
    ("one", "wanted"),
    [
        (SeenComponent(state="absent"), (1, "confirm")),
        (SeenComponent(state="unknown"), (1, "confirm")),
        (SeenComponent(state="absent", confirmed=True), (1, "fail")),
        (SeenComponent(state="going", ours=True, uid="job-0"), (1, "confirm")),
        (SeenComponent(state="going", ours=True, uid="job-0", confirmed=True), (1, "fail")),
        (SeenComponent(state="present", ours=True, uid="other", confirmed=True), (1, "fail")),
        (SeenComponent(state="present", ours=False, uid="job-0", confirmed=True), (1, "fail")),
        (
            SeenComponent(
                state="absent", confirmed=True, verdict=ComponentVerdict(says="finished")
            ),
            (9, "healthy"),
        ),
    ],
)
def test_rule_1_a_missing_component_is_asked_for_before_it_fails(
    one: SeenComponent, wanted: tuple[int, str]
) -> None:
    assert ruled(judged(status(2), *RUNNING, components=(one,))) == wanted


@pytest.mark.parametrize("state", ["absent", "going"])
def test_a_pod_that_kubernetes_takes_away_is_reset_and_not_the_end(state: Any) -> None:
    verdict = ComponentVerdict(disrupted="PreemptionByScheduler: for a pod of more worth")
    gone = SeenComponent(state=state, ours=True, uid="job-0", confirmed=True, verdict=verdict)
    found = judged(status(1), components=(gone,))
    assert (*ruled(found), found.grace, found.counts) == (1, "reset", False, True)
    what = "is gone" if state == "absent" else "is being deleted"
    assert found.sentence == f"Job c0 {what} (PreemptionByScheduler: for a pod of more worth)"
    another = replace(gone, state="present", uid="other")
    assert ruled(judged(status(1), components=(another,))) == (1, "fail")


@pytest.mark.parametrize("state", ["absent", "going"])
def test_what_has_failed_and_is_gone_by_now_has_failed(state: Any) -> None:
    verdict = ComponentVerdict(says="failed", message="BackoffLimitExceeded")
    gone = SeenComponent(state=state, ours=True, uid="job-0", confirmed=True, verdict=verdict)
    found = judged(status(1), components=(gone,))
    assert (*ruled(found), found.reason) == (2, "reset", "FailedComponent")
    another = replace(gone, state="present", uid="other")
    assert ruled(judged(status(1), components=(another,))) == (1, "fail")


def test_a_pod_that_has_ended_makes_up_for_no_other() -> None:
    bare = [replace(part(i, says), uid=f"uid-{i}") for i, says in enumerate(["ended", ""])]
    known = status(1, 1, ready=3600)
    pairs = [replace(one, uid=f"uid-{i}") for i, one in enumerate(known.component_status)]
    known = replace(known, component_status=tuple(pairs))
    pods = [pod("0", "Succeeded", owner="wrapper"), pod("1", "Failed", owner="wrapper")]
    found = judged(known, *pods, components=tuple(bare))
    assert (found.rule, found.figures.ready) == (6, 1)
    ended = replace(bare[0], state="absent")
    running = pod("1", "Running", owner="wrapper")
    assert judged(known, running, components=(ended, bare[1])).result == "healthy"


def test_rule_1_goes_before_all_others() -> None:
    gone = SeenComponent(state="absent", confirmed=True)
    found = judged(
        status(2, 0), pod("a", "Failed"), components=(present(says="failed"), gone), nodes=SICK
    )
    assert found.reason == "MissingComponent"


# --- 2


def test_rule_2_a_failed_component_is_counted_without_grace() -> None:
    found = judged(status(2), *RUNNING, components=(present(says="failed"),))
    assert (*ruled(found), found.grace, found.counts) == (2, "reset", False, True)


def test_rule_2_with_a_terminal_exit_code_is_final() -> None:
    failed = pod("a", "Failed", **exited(3))
    found = judged(
        status(2),
        failed,
        components=(present(says="failed"),),
        annotations={"terminalExitCodes": "3"},
    )
    assert ruled(found) == (2, "fail")


# --- 3


@pytest.mark.parametrize(
    ("pods", "says", "wanted"),
    [
        (("Succeeded", "Succeeded"), "nothing", (3, "succeeded")),
        (("Succeeded", "Succeeded"), "more", (9, "healthy")),
        (("Succeeded", "Succeeded", "Running"), "nothing", (9, "healthy")),
        (("Succeeded", "Succeeded", "Pending"), "nothing", (9, "healthy")),
        (("Succeeded", "Succeeded", "Failed"), "nothing", (3, "succeeded")),  # it was replaced
        (("Succeeded",), "finished", (3, "succeeded")),  # its success policy needed no more
        (("Succeeded", "Failed"), "finished", (3, "succeeded")),
        ((), "finished", (3, "succeeded")),
    ],
)
def test_rule_3_needs_enough_successes_and_nothing_left_to_run(
    pods: tuple[str, ...], says: str, wanted: tuple[int, str]
) -> None:
    made = [pod(f"p{i}", phase) for i, phase in enumerate(pods)]
    assert ruled(judged(status(2), *made, components=(present(says=says),))) == wanted


def test_a_component_that_makes_no_pods_never_succeeds() -> None:
    assert ruled(judged(status(0))) == (9, "healthy")


# --- 4


def test_rule_4_moves_a_running_pod_off_a_marked_node_uncounted() -> None:
    found = judged(status(2), *RUNNING, nodes=SICK)
    assert (*ruled(found), found.reason, found.counts) == (
        4,
        "evacuate",
        "AutopilotNoExecute",
        False,
    )


@pytest.mark.parametrize(
    ("phase", "gpus", "going"),
    [
        ("Pending", 8, False),
        ("Succeeded", 8, False),
        ("Running", "0", False),
        ("Running", -1, False),
        ("Running", 8, True),
    ],
)
def test_rule_4_concerns_running_pods_that_ask_for_the_resource(
    phase: str, gpus: object, going: bool
) -> None:
    found = judged(
        status(1),
        pod("a", phase, gpus=gpus, going=going),
        nodes=SICK,
        components=(present(says="more"),),
    )
    assert found.rule != 4


def test_rule_4_goes_before_failed_pods() -> None:
    assert ruled(judged(status(2), pod("a", "Failed"), pod("b", "Running"), nodes=SICK)) == (
        4,
        "evacuate",
    )


def test_only_no_execute_labels_make_pods_leave() -> None:
    pilot = WrapperRules().autopilot
    sick = sick_resources({"autopilot.ibm.com/gpuhealth": "EVICT"}, pilot)
    assert sick == {"nvidia.com/gpu", "gpu.nvidia.com"}
    assert not sick_resources({"autopilot.ibm.com/gpuhealth": "ERR"}, pilot)
    assert not sick_resources(
        {"autopilot.ibm.com/gpuhealth": "EVICT"}, replace(pilot, monitor=False)
    )


# --- 5


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (left("failed"), 5),
        (left("inconclusive"), 6),
        (left("misconfigured", code=2), 6),
        (left("failed", gated=False, code=0), 6),
        (left("failed", name="mine"), 6),
        *((setup(1, "preflight-x", **more), 6) for more in ({}, {"message": "?"})),
    ],
)
def test_rule_5_needs_a_result_that_says_failed(said: dict[str, Any], rule: int) -> None:
    assert judged(status(1), pod("a", "Failed", owner="wrapper", **said)).rule == rule


@pytest.mark.parametrize(
    ("now", "rule"),
    [({"running": {}}, 5), ({"waiting": {}}, 5), ({"terminated": {"exitCode": 0}}, 9)],
)
def test_rule_5_asks_the_newest_try_of_a_check(now: dict[str, Any], rule: int) -> None:
    [check] = left("failed")["initContainerStatuses"]
    tried = {**check, "state": now, "lastState": check["state"]}
    pods = (pod("a", "Running", initContainerStatuses=[tried]), pod("b", "Running"))
    assert judged(status(2), *pods).rule == rule


def test_rule_5_goes_before_what_the_component_says_of_the_same_failure() -> None:
    failed, checked = present(says="failed"), pod("a", "Failed", **left("failed"))
    found = judged(status(2), checked, components=(failed,))
    assert (*ruled(found), found.counts) == (5, "evacuate", False)
    codes = {"terminalExitCodes": "3"}
    both = (checked, pod("b", "Failed", **exited(3)))
    assert ruled(judged(status(2), *both, components=(failed,), annotations=codes)) == (2, "fail")


@pytest.mark.parametrize(("labels", "rule"), [({names.CHECKED_LABEL: "true"}, 5), ({}, 9)])
def test_rule_5_asks_pods_alone_that_preflight_checks(labels: dict[str, str], rule: int) -> None:
    raw = {
        "metadata": {"name": "a", "uid": "uid-a", "labels": labels},
        "status": {"phase": "Running", **left("failed")},
    }
    read = read_pod(msgspec.json.decode(msgspec.json.encode(raw), type=PartialObject), ())
    assert judged(status(1), read).rule == rule


@pytest.mark.parametrize(("before", "counts"), [(0, False), (2, False), (3, True)])
def test_rule_5_is_counted_from_the_fourth_in_a_row_on(before: int, counts: bool) -> None:
    assert (
        judged(status(1, migrations=before), pod("a", "Failed", **left("failed"))).counts is counts
    )


def test_rule_5_does_not_move_what_has_made_up_for_the_pod_that_a_check_has_failed() -> None:
    """While the brake had it wait, or nobody led, its Job has put another pod elsewhere."""
    failed, waits = pod("a", "Failed", **left("failed")), pod("c", "Pending")
    assert judged(status(2), failed, *RUNNING[1:], waits).rule == 5
    successor = pod("c", "Running", node="m")
    assert judged(status(2), failed, *RUNNING[1:], successor).rule == 9
    literal = WrapperRules(failed_pods="any")
    assert judged(status(2), failed, *RUNNING[1:], successor, rules=literal).rule == 5
    bare = pod("a", "Failed", owner="wrapper", **left("failed"))
    assert judged(status(2), bare, *RUNNING[1:], successor).rule == 5


# --- 6


def test_rule_6_has_a_grace_and_names_the_pod_its_node_and_the_code() -> None:
    found = judged(
        status(2), pod("train-0", "Failed", node="node-b", **exited(137)), pod("b", "Running")
    )
    assert (*ruled(found), found.grace, found.counts) == (6, "reset", True, True)
    assert found.sentence == "1 failed pod, train-0 on node-b exited with 137"


@pytest.mark.parametrize(
    ("pods", "rules", "rule"),
    [
        ((pod("a", "Failed"), *RUNNING[1:], pod("c", "Running")), WrapperRules(), 9),  # its successor runs
        ((pod("a", "Failed"), *RUNNING[1:], pod("c", "Pending")), WrapperRules(), 6),
        ((pod("a", "Failed", owner="wrapper"), *RUNNING[1:], pod("c", "Running")), WrapperRules(), 6),  # nobody replaces it
        ((pod("a", "Failed"), *RUNNING[1:], pod("c", "Running")), WrapperRules(failed_pods="any"), 6),
    ],
)  # fmt: skip
def test_rule_6_a_failed_pod_stops_counting_once_it_was_made_up_for(
    pods: tuple[Pod, ...], rules: WrapperRules, rule: int
) -> None:
    assert judged(status(2), *pods, rules=rules).rule == rule


TERMINAL, RETRYABLE = {"terminalExitCodes": "3, 10"}, {"retryableExitCodes": "10"}


@pytest.mark.parametrize(
    ("said", "annotations", "result"),
    [
        (exited(3), TERMINAL, "fail"),
        (exited(10), TERMINAL, "fail"),
        (exited(4), TERMINAL, "reset"),
        (exited(4), RETRYABLE, "fail"),
        (exited(10), RETRYABLE, "reset"),
        (exited(0), RETRYABLE, "reset"),
        (setup(3, "setup"), TERMINAL, "fail"),
        (setup(3, "preflight-x"), TERMINAL, "reset"),
        # A pod that its node has killed did not choose its code.
        *(({"reason": of, **exited(137)}, RETRYABLE, "reset") for of in ("Evicted", "Preempting", "Terminated")),
        # A kubelet, or containerd, that finds nothing of a container once its node has started
        # again, writes a code of its own choice.
        (exited(137, reason="ContainerStatusUnknown"), RETRYABLE, "reset"),
        (exited(255, reason="Unknown"), RETRYABLE, "reset"),
        (exited(137, reason="OOMKilled"), RETRYABLE, "fail"),
        (exited(255, reason="Error"), RETRYABLE, "fail"),
    ],
)  # fmt: skip
def test_rule_6_exit_codes_end_the_retries_after_the_same_grace(
    said: dict[str, Any], annotations: dict[str, str], result: str
) -> None:
    found = judged(status(2), pod("a", "Failed", **said), annotations=annotations)
    assert (*ruled(found), found.grace) == (6, result, True)
    [ended] = said.get("containerStatuses") or said["initContainerStatuses"]
    code = ended["state"]["terminated"]["exitCode"]
    ours = code == 0 or ended["name"] == "preflight-x"
    assert ours or f"a on n exited with {code}" in found.sentence


def test_rule_2_asks_the_codes_of_pods_that_their_nodes_have_not_killed() -> None:
    killed = pod("a", "Failed", reason="Evicted", **exited(137))
    both, failed = (killed, pod("b", "Failed", **exited(10))), (present(says="failed"),)
    found = judged(status(2), *both, components=failed, annotations=RETRYABLE)
    assert ruled(found) == (2, "reset")


@pytest.mark.parametrize(("policy", "result"), [("Always", "reset"), (None, "fail")])
def test_rule_6_a_sidecar_that_ends_with_its_pod_does_not_end_the_retries(
    policy: str | None, result: str
) -> None:
    raw: dict[str, Any] = {
        "metadata": {"name": "a", "uid": "a"},
        "spec": {"initContainers": [{"name": "proxy", "restartPolicy": policy}]},
        "status": {"phase": "Failed", **exited(3)},
    }
    raw["status"]["initContainerStatuses"] = exited(143, "proxy")["containerStatuses"]
    failed = read_pod(msgspec.json.decode(msgspec.json.encode(raw), type=PartialObject), ())
    found = judged(status(1), failed, annotations={"retryableExitCodes": "3"})
    assert ruled(found) == (6, result)


# --- 7 and 8


@pytest.mark.parametrize(
    ("pods", "since", "wanted"),
    [
        (("Running",), 60, (9, "waiting")),
        (("Running",), 61, (7, "reset")),
        (("Running", "Pending"), 61, (9, "waiting")),
        (("Running", "Pending"), 300, (9, "waiting")),
        (("Running", "Pending"), 301, (8, "reset")),
        (("Running", "Unknown"), 301, (8, "reset")),
        (("Running", "Succeeded"), 301, (9, "healthy")),
    ],
)
def test_rules_7_and_8_begin_a_second_after_their_periods(
    pods: tuple[str, ...], since: float, wanted: tuple[int, str]
) -> None:
    made = [pod(f"p{i}", phase) for i, phase in enumerate(pods)]
    found = judged(status(2, deployed=since, ready=since), *made)
    assert ruled(found) == wanted
    assert found.grace is (wanted[0] in {7, 8})


def test_a_pod_that_is_being_deleted_is_neither_pending_nor_running() -> None:
    assert ruled(judged(status(1, ready=61), pod("a", "Running", going=True))) == (7, "reset")


def test_rule_7_counts_from_the_loss_of_readiness_and_not_from_creation() -> None:
    assert ruled(judged(status(2, deployed=36_000), pod("a", "Running"))) == (9, "waiting")
    assert ruled(judged(status(2, deployed=36_000, ready=30), pod("a", "Running"))) == (
        9,
        "waiting",
    )


def test_the_clock_stands_still_while_a_job_queues_by_itself() -> None:
    one = SeenComponent(
        state="present", ours=True, uid="job-0", verdict=ComponentVerdict(suspended=True)
    )
    found = judged(status(2, ready=9999), components=(one,))
    assert ruled(found) == (9, "waiting")
    assert found.at is None
    assert "suspended by itself" in found.sentence


def test_the_clock_begins_when_a_job_is_resumed() -> None:
    verdict = ComponentVerdict(resumed=NOW - timedelta(seconds=30))
    one = SeenComponent(state="present", ours=True, uid="job-0", verdict=verdict)
    assert ruled(judged(status(2, ready=9999), components=(one,))) == (9, "waiting")


def examining(
    seconds_ago: float, *, ended: float | None = None, name: str = "preflight-nccl-allreduce"
) -> dict[str, Any]:
    begun = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    if ended is None:
        state: dict[str, Any] = {"running": {"startedAt": begun}}
    else:
        finished = (NOW - timedelta(seconds=ended)).isoformat()
        state = {"terminated": {"exitCode": 0, "startedAt": begun, "finishedAt": finished}}
    return {"initContainerStatuses": [{"name": name, "state": state}]}


@pytest.mark.parametrize(
    ("said", "since", "rule"),
    [
        (examining(350), 360, 9),  # 10 s of warm-up so far
        (examining(1200), 1600, 8),  # 400 s
        (examining(1590), 1600, 8),  # more than the allowance
        (examining(250, ended=50), 360, 9),
        (examining(250, ended=200), 360, 8),
        (examining(350, name="setup"), 360, 8),  # its own init container hangs
    ],
)
def test_the_time_that_preflight_takes_is_no_warm_up(
    said: dict[str, Any], since: float, rule: int
) -> None:
    found = judged(
        status(2, deployed=since, ready=since), pod("a", "Running"), pod("b", "Pending", **said)
    )
    assert found.rule == rule


def test_two_examinations_at_the_same_time_are_one() -> None:
    pods = [pod(f"p{i}", "Pending", **examining(200, ended=100)) for i in range(2)]
    assert judged(status(2, deployed=410, ready=410), *pods).rule == 8
    assert judged(status(2, deployed=390, ready=390), *pods).rule == 9


def test_what_waits_says_when_the_next_rule_may_hold() -> None:
    found = judged(status(2, deployed=10, ready=10), pod("a", "Running"))
    assert found.at == NOW + timedelta(seconds=51)
    found = judged(
        status(2, deployed=10, ready=10), pod("a", "Running"), pod("b", "Pending", **examining(5))
    )
    assert found.at == NOW + timedelta(seconds=300 + 1200 + 1 - 10)


# --- pods that come one after the other


def running(name: str, seconds_ago: float) -> Pod:
    begun = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    state = {"name": "main", "state": {"running": {"startedAt": begun}}}
    return pod(name, "Running", containerStatuses=[state])


@pytest.mark.parametrize(
    ("pods", "wanted"),
    [
        ((running("a", 250),), (9, "waiting")),  # the next is made once this one is ready
        ((running("a", 3000), running("b", 250)), (9, "waiting")),
        ((running("a", 3000), running("b", 302)), (8, "reset")),
        ((running("a", 250), pod("b", "Pending")), (9, "waiting")),
        ((), (8, "reset")),
    ],
)
def test_pods_that_come_in_order_have_a_warm_up_each(
    pods: tuple[Pod, ...], wanted: tuple[int, str]
) -> None:
    one = replace(present(), verdict=ComponentVerdict(in_order=True))
    found = judged(status(3, deployed=3600, ready=3600), *pods, components=(one,))
    assert ruled(found) == wanted


def test_a_container_that_starts_again_and_again_is_no_progress() -> None:
    again = {"name": "main", "lastState": {"terminated": {"exitCode": 1}}}
    again["state"] = {"running": {"startedAt": NOW.isoformat()}}
    one = replace(present(), verdict=ComponentVerdict(in_order=True))
    loops = pod("a", "Running", containerStatuses=[again])
    assert ruled(judged(status(3, ready=3600), loops, components=(one,))) == (8, "reset")


def test_pods_that_wait_for_others_to_complete_are_not_missed() -> None:
    one = replace(present(), verdict=ComponentVerdict(in_order=True, later=4))
    known = status(5, deployed=36_000, ready=36_000)
    found = judged(known, running("a", 36_000), components=(one,))
    assert (*ruled(found), found.at) == (9, "waiting", None)
    assert found.sentence == "4 of 5 pods are made once others have completed"
    assert ruled(judged(known, pod("a", "Pending"), components=(one,))) == (8, "reset")


# --- parts that have ended beside parts that run, and elastic ones


def part(i: int, written: str) -> SeenComponent:
    """``ended``: well; ``owns``: its pods have it as their owner; a number: it has counted so many
    as succeeded.
    """
    words = written.split()
    verdict = ComponentVerdict(
        says="finished" if "ended" in words else "nothing",
        owns_pods="owns" in words,
        succeeded=next((int(word) for word in words if word.isdigit()), 0),
    )
    return SeenComponent(state="present", ours=True, uid=f"job-{i}", verdict=verdict)


@pytest.mark.parametrize(
    ("expected", "parts", "pods", "wanted"),
    [
        # beside a part that has ended, and has left what it likes
        ((4, 2), ("ended", "owns"), "2 Running job-1", "healthy"),
        ((4, 2), ("ended", "owns"), "4 Succeeded child, 2 Running job-1", "healthy"),
        ((4, 3), ("ended", ""), "3 Running child", "healthy"),
        ((4, 3), ("ended", ""), "2 Running child", "reset"),
        ((4, 3), ("ended", ""), "4 Succeeded child", "healthy"),
        ((4, 3), ("ended", ""), "4 Succeeded 0", "reset"),
        ((2, 4), ("ended owns", "owns"), "10 Succeeded job-0", "reset"),  # a Job in waves
        ((2, 4), ("ended owns", "owns"), "10 Succeeded job-0, 4 Pending job-1", "reset"),
        ((2, 4), ("ended owns", "owns"), "10 Succeeded job-0, 4 Running job-1", "healthy"),
        ((2, 4), ("ended owns", "owns"), "10 Succeeded job-0, 4 Succeeded job-1", "succeeded"),
        # whose launcher has another owner than its workers
        ((3, 3), ("", "ended"), "2 Running job-0, 1 Running its-job", "healthy"),
        ((3, 3), ("", "ended"), "2 Running job-0, 1 Running its-job, 2 Succeeded job-1, 1 Succeeded 1", "healthy"),
        ((3, 3), ("", "ended"), "1 Running job-0, 1 Running its-job", "reset"),
        ((4, 1), ("ended", "owns"), "3 Succeeded job-0, 1 Succeeded its-job", "reset"),
        # scaled up
        ((2, 4), ("", "owns"), "10 Running job-0, 4 Pending job-1", "reset"),
        ((2, 4), ("", "owns"), "10 Running its-set, 4 Pending job-1", "reset"),
        ((2, 4), ("", "owns"), "10 Running its-set", "reset"),
        ((2, 4), ("", "owns"), "10 Running its-set, 4 Running job-1", "healthy"),
        ((2, 4), ("", ""), "10 Running 0", "reset"),
        ((2, 4), ("", ""), "10 Running 0, 4 Running 1", "healthy"),
        ((4, 2), ("", "ended"), "4 Running 0, 6 Pending 0, 1 Succeeded 1", "healthy"),
        ((4, 2), ("", "ended"), "3 Running 0, 6 Pending 0, 2 Succeeded 1", "reset"),
        # a drain takes pods that have succeeded, and are counted
        ((4,), ("owns 1",), "3 Running job-0", "healthy"),
        ((4,), ("owns 1",), "3 Running job-0, 1 Succeeded job-0", "healthy"),
        ((4,), ("owns",), "3 Running job-0", "reset"),
        ((4,), ("owns 1",), "2 Running job-0", "reset"),
        ((4,), ("owns 1",), "2 Running job-0, 1 Succeeded job-0", "reset"),
        ((4,), ("owns 4",), "", "succeeded"),
        ((4,), ("1",), "3 Running 0", "healthy"),
        ((4,), ("1",), "3 Running 0, 1 Succeeded 0", "healthy"),
        ((4,), ("1",), "2 Running 0", "reset"),
        ((4,), ("1",), "2 Running 0, 1 Succeeded 0", "reset"),
        ((4,), ("owns 3",), "1 Running job-0, 3 Pending job-0", "reset"),  # the next wave
        # which an earlier version has made, so that no pod says of which component it is
        ((3,), ("1",), "1 Running child, 1 Succeeded child", "reset"),
        ((3,), ("1",), "2 Running child", "healthy"),
        ((2,), ("1",), "1 Succeeded child", "reset"),
        ((3, 3), ("", "ended"), "1 Running job-0, 1 Pending job-0, 1 Running its-job, 3 Succeeded child", "reset"),
        ((2, 1), ("ended", ""), "1 Succeeded job-0, 1 Succeeded its-job, 1 Succeeded child", "succeeded"),
        # and what is pending may be more than is needed, of one in waves or that a RayJob has left
        ((4, 3), ("ended", ""), "3 Succeeded child, 2 Running child, 1 Pending child", "healthy"),
        ((6, 5, 5), ("ended", "", ""), "8 Succeeded child, 8 Running child, 1 Pending child", "healthy"),
        # a component's owner of pods whose template is in another one
        ((4, 0), ("", "owns"), "4 Running job-1", "healthy"),
        ((4, 0), ("", "owns"), "4 Running 1", "reset"),
    ],
)  # fmt: skip
def test_no_pod_stands_for_one_of_another_component(
    expected: tuple[int, ...], parts: tuple[str, ...], pods: str, wanted: str
) -> None:
    """``pods``: how many, in which phase, and whose: the owner, or the component's number."""
    made = []
    for count, phase, whose in (some.split() for some in pods.split(", ") if some):
        more: dict[str, Any] = {"of": int(whose)} if whose.isdigit() else {"owner": whose}
        made += [
            pod(f"{phase}-{whose}-{i}", phase, **{"owner": "set", **more})
            for i in range(int(count))
        ]
    found = judged(
        status(*expected, ready=3600),
        *made,
        components=tuple(part(i, written) for i, written in enumerate(parts)),
    )
    assert found.result == wanted, found.sentence


@pytest.mark.parametrize(
    ("owner", "of", "result"),
    [("job-1", 0, "healthy"), ("set", 0, "reset"), ("set", 1, "healthy"), ("set", 7, "healthy")],
)
def test_whose_pod_it_is_says_its_owner_before_a_number_that_anybody_may_write(
    owner: str, of: int, result: str
) -> None:
    pods = (pod("a", "Running", of=0), pod("b", "Running", owner=owner, of=of))
    parts = (part(0, "owns"), part(1, ""))
    assert judged(status(1, 1, ready=3600), *pods, components=parts).result == result


@pytest.mark.parametrize(
    ("written", "component"),
    [({PREFIX + "component-index": it}, int(it)) for it in ("0", "12")]
    + [({PREFIX + "component-index": it}, -1) for it in ("", "-1", "x", "\u0663", "\u00b2", "9" * 5000)]
    + [({}, -1)],
)  # fmt: skip
def test_the_number_of_its_component_is_read_from_a_pod(
    written: dict[str, str], component: int
) -> None:
    raw = {"metadata": {"name": "p", "uid": "p", "annotations": written}}
    assert read_pod(msgspec.convert(raw, PartialObject), ()).component == component


@pytest.mark.parametrize("rest", [("Running", True), ("Failed", True), ("Failed", False)])
def test_what_a_job_ends_whose_leader_has_succeeded_is_not_missed(rest: tuple[str, bool]) -> None:
    raw = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "spec": {"completions": 4, "parallelism": 4, "successPolicy": {"rules": [{}]}},
        "status": {
            "succeeded": 1,
            "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}],
        },
    }
    phase, going = rest
    pods = [pod(f"p{i}", phase, going=going) for i in range(3)]
    known = status(4, ready=600)  # longer than both periods: pods may have ten minutes to end
    job = replace(present(), verdict=verdict(raw))
    assert ruled(judged(known, pod("p3", "Succeeded"), *pods, components=(job,))) == (9, "healthy")


RAY = {
    "apiVersion": "ray.io/v1",
    "kind": "RayCluster",
    "spec": {
        "enableInTreeAutoscaling": True,
        "workerGroupSpecs": [{"replicas": 4, "minReplicas": 1}],
    },
}
TORCH = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "spec": {
        "elasticPolicy": {"minReplicas": 2, "maxReplicas": 5},
        "pytorchReplicaSpecs": {"Worker": {"replicas": 5}},
    },
}


@pytest.mark.parametrize(("template", "least"), [(RAY, 2), (TORCH, 2)])
def test_an_elastic_workload_that_was_shrunk_is_healthy_down_to_its_minimum(
    template: dict[str, Any], least: int
) -> None:
    spec = AppWrapperSpec(components=(Component(template=template),))
    known = status(5, ready=3600)
    for count, result in ((5, "healthy"), (least, "healthy"), (least - 1, "reset")):
        pods = tuple(pod(f"p-{i}", "Running") for i in range(count))
        wrapper = AppWrapper(metadata=Metadata(name="w", uid="wrapper"), status=known, spec=spec)
        seen = WrapperSnapshot(components=(present(),), pods=pods)
        assert judge(PhaseContext.of(wrapper, seen, WrapperRules(), NOW)).result == result


@pytest.mark.parametrize(
    ("group", "elastic", "spare"),
    [
        ({"replicas": 4}, False, 0),
        ({}, False, 1),  # 0 by the API server's default, and 1 by Kueue's
        ({"minReplicas": 1}, False, 0),
        ({"minReplicas": 3}, False, 0),
        ({"replicas": 4, "maxReplicas": 2}, False, 2),
        ({"replicas": 4, "minReplicas": 5, "maxReplicas": 2}, False, 0),
        ({"replicas": 4, "suspend": True}, False, 4),
        ({"replicas": 4, "minReplicas": 1}, True, 3),
        ({"replicas": 4, "minReplicas": 1, "numOfHosts": 4}, True, 0),
        ({"replicas": 8, "minReplicas": 1, "numOfHosts": 4}, True, 4),
    ],
)
def test_ray_makes_no_more_workers_than_its_own_bounds_and_defaults_say(
    group: dict[str, Any], elastic: bool, spare: int
) -> None:
    spec = {"enableInTreeAutoscaling": elastic, "workerGroupSpecs": [group]}
    job = {"apiVersion": "ray.io/v1", "kind": "RayJob", "spec": {"rayClusterSpec": spec}}
    assert slack({**RAY, "spec": spec}) == slack(job) == spare


def test_no_template_makes_the_range_raise() -> None:
    for kind in (RAY, TORCH):
        for broken in ({}, {"spec": 3}, {"spec": {"enableInTreeAutoscaling": True, "workerGroupSpecs": [1, {"replicas": "x"}]}}):  # fmt: skip
            assert slack({**kind, **broken}) >= 0
