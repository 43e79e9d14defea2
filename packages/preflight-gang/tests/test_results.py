"""What a check's container says where the check itself says nothing."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from gangs import EVICTED, pod, pod_json, status
from preflight_gang.api.types import ContainerTerminated, Pod
from preflight_gang.core.membership import STUCK, read
from preflight_gang.core.results import (
    EndedCheck,
    check_run,
    ended_checks,
    event_of,
    not_started,
    stuck_checks,
)
from preflight_proto import names

SAID = '{"v":1,"check":"ours","outcome":"failed","code":"FABRIC","gated":true,"duration":1}'


@pytest.mark.parametrize(
    ("reason", "exit_code", "message", "verdict"),
    [
        ("Completed", 0, "", ("passed", "OK")),
        ("Error", 1, "", ("failed", "EXIT_1")),
        ("Error", 2, "", ("misconfigured", "EXIT_2")),
        ("Error", 137, "", ("inconclusive", "KILLED")),
        ("Error", 143, "", ("inconclusive", "TERMINATED")),
        ("OOMKilled", 137, "", ("inconclusive", "OUT_OF_MEMORY")),
        ("OOMKilled", 1, "", ("inconclusive", "OUT_OF_MEMORY")),
        ("StartError", 128, "exec: no such file", ("inconclusive", "START_ERROR")),
        ("ContainerCannotRun", 127, "", ("inconclusive", "START_ERROR")),
        ("ContainerStatusUnknown", 137, "", ("inconclusive", "STATUS_UNKNOWN")),
        ("Unknown", 255, "", ("inconclusive", "STATUS_UNKNOWN")),
        ("Unknown", 255, SAID, ("failed", "FABRIC")),
        ("OOMKilled", 1, SAID, ("failed", "FABRIC")),
        ("Error", 143, SAID, ("failed", "FABRIC")),
        ("Error", 1, SAID.replace('"failed"', '"sick"'), ("inconclusive", "BAD_RESULT")),
        ("Error", 1, SAID.replace("FABRIC", "a word\\n"), ("failed", "BAD_CODE")),
        ("Error", 1, SAID.replace("FABRIC", "F" * 65), ("failed", "BAD_CODE")),
    ],
)
def test_a_check_is_judged_by_its_word_else_by_its_containers_status(
    reason: str, exit_code: int, message: str, verdict: tuple[str, str]
) -> None:
    end = ContainerTerminated(exit_code=exit_code, reason=reason, message=message)
    result = read(names.container_name("ours"), end)
    assert (result.outcome, result.code) == verdict


def test_the_runtimes_words_are_passed_on() -> None:
    end = ContainerTerminated(exit_code=128, reason="StartError", message="exec: no such file")
    assert (
        read(names.container_name("ours"), end).reason
        == "the container could not be started (exec: no such file)"
    )


@pytest.mark.parametrize(
    ("code", "message", "verdict"),
    [
        (1, "", ("inconclusive", "TERMINATED")),
        (137, "", ("inconclusive", "TERMINATED")),
        (1, SAID, ("failed", "FABRIC")),
        (0, "", ("passed", "OK")),
    ],
)
def test_a_check_without_a_word_in_an_evicted_pod_was_ended_with_it(
    code: int, message: str, verdict: tuple[str, str]
) -> None:
    done = [status("ours", "ended", code=code, message=message)]
    evicted = pod("pod-0", phase="Failed", conditions=[EVICTED], statuses=done)
    (ended,) = ended_checks(evicted, {"ours"})
    assert (ended.result.outcome, ended.result.code) == verdict


def test_a_run_has_its_times_by_the_api_servers_clock() -> None:
    """A kubelet's may be an hour late: its results would be old, and counted by nobody."""
    bound = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T09:00:00Z"}
    done = [status("ours", "ended", at="2026-11-21T08:01:00Z")]
    (ended,) = ended_checks(
        pod("pod-0", conditions=[bound], started="2026-11-21T08:00:00Z", statuses=done), {"ours"}
    )
    assert ended.finished == datetime(2026, 11, 21, 9, 1, tzinfo=UTC)
    assert ended.started == datetime(2026, 11, 21, 9, 0, 5, tzinfo=UTC)


def test_a_check_took_no_longer_than_its_container_and_a_day() -> None:
    begun, end = datetime(2026, 11, 21, 8, tzinfo=UTC), datetime(2026, 11, 21, 8, 0, 55, tzinfo=UTC)
    said = read(names.container_name("ours"), ContainerTerminated(exit_code=1, message=SAID))
    for duration, times, seconds in (
        (9.5, (begun, end), 9.5),
        (1e308, (begun, end), 56),  # the kubelet's times are whole seconds
        (0.0, (begun, end), 55),
        (1e308, (None, end), 86_400),
    ):
        result = msgspec.structs.replace(said, duration=duration)
        ended = EndedCheck(
            run="1", check="ours", result=result, exit_code=1, started=times[0], finished=times[1]
        )
        assert ended.seconds == seconds


@pytest.mark.parametrize(
    ("gated", "said"), [("false", "; observed only, "), ("true", "status 0; ")]
)
def test_a_run_that_ended_with_0_is_told_not_to_hold_the_pod_back(gated: str, said: str) -> None:
    end = ContainerTerminated(exit_code=0, message=SAID.replace("true", gated))
    result = read(names.container_name("ours"), end)
    ended = EndedCheck(
        run="1", check="ours", result=result, exit_code=0, started=None, finished=None
    )
    event = event_of(stuck("PodInitializing"), ended, "2026-11-21T08:00:00Z")
    assert (event["type"], event["reason"]) == ("Warning", "PreflightFailed")
    assert event["message"].endswith(f"{said}the pod is not held back")


def stuck(reason: str, message: str = "", **fields: str) -> Pod:
    made = pod_json(
        "pod-0",
        statuses=[status("dcgm-diag", "pulling"), status("nccl-allreduce", "waiting")],
        **fields,  # type: ignore[arg-type]
    )
    made["status"]["initContainerStatuses"][0]["state"]["waiting"] = {
        "reason": reason,
        "message": message,
    }
    return msgspec.convert(made, Pod)


@pytest.mark.parametrize("reason", sorted(STUCK))
def test_a_check_that_cannot_be_started_is_inconclusive_and_says_what_to_do(reason: str) -> None:
    pod = stuck(reason, "pull\x07ing\nfails")
    ((check, found),) = stuck_checks(pod, {"dcgm-diag", "nccl-allreduce"})
    event = event_of(pod, not_started(found, check), "2026-11-21T08:00:00Z")
    assert event["reason"] == "PreflightInconclusive"
    assert event["message"].startswith(f"dcgm-diag on node-a inconclusive {STUCK[reason]}: ")
    assert f"{reason}: pull ing fails" in event["message"]
    assert "; see " in event["message"]


def test_what_waits_for_its_turn_or_is_no_configured_check_is_not_stuck() -> None:
    assert not [*stuck_checks(stuck("PodInitializing"), {"dcgm-diag"})]
    assert not [*stuck_checks(stuck("CrashLoopBackOff"), {"dcgm-diag"})]
    assert not [*stuck_checks(stuck("ImagePullBackOff"), {"nccl-allreduce"})]


def test_what_is_no_configured_check_is_not_read() -> None:
    setup = {**status("setup", "ended"), "name": "setup"}
    done = [status("mine", "ended"), setup, status("dcgm-diag", "ended")]
    found = ended_checks(pod("pod-0", statuses=done), {"dcgm-diag", "setup"})
    assert [one.check for one in found] == ["dcgm-diag"]


def test_a_pod_that_is_being_deleted_has_no_stuck_check() -> None:
    assert not [
        *stuck_checks(
            stuck("ImagePullBackOff", deletionTimestamp="2026-11-21T08:00:00Z"), {"dcgm-diag"}
        )
    ]


def test_each_try_to_start_a_check_is_another_event() -> None:
    pod = stuck("ErrImagePull")
    ((check, found),) = stuck_checks(pod, {"dcgm-diag"})
    again = msgspec.structs.replace(found, restart_count=1)
    tries = [
        event_of(pod, not_started(one, check), "2026-11-21T08:00:00Z")
        for one in (found, found, again)
    ]
    assert [one["metadata"]["name"] for one in tries].count(tries[0]["metadata"]["name"]) == 2


@pytest.mark.parametrize(
    ("outcome", "blames", "accuses"),
    [("failed", "FABRIC", True), ("failed", None, False), ("passed", "FABRIC", False)],
)
def test_a_run_accuses_its_node_where_it_failed_and_blames_it(
    outcome: str, blames: str | None, accuses: bool
) -> None:
    result = msgspec.structs.replace(
        read(names.container_name("ours"), ContainerTerminated(exit_code=1, message=SAID)),
        outcome=outcome,
        blames=blames,
    )
    ended = EndedCheck(run="1", check="ours", result=result, exit_code=1)
    assert check_run(pod("pod-0"), ended, datetime.now(UTC)).end.blames is accuses
