"""The state machine of a gang, a row for a situation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from gangs import (
    EVICTED,
    a_member,
    checking,
    failed,
    gang,
    member_of,
    passed,
    pod_json,
    record,
    sealed_roster,
    skip_roster,
    status,
    waiting,
)
from preflight_gang.core.membership import GangMember
from preflight_gang.core.reconcile import decide


def answer(decision: object, name: str) -> str:
    published = decision.answers.get(f"uid-{name}")  # type: ignore[attr-defined]
    return published.answer if published else "nothing"


def test_a_gang_is_sealed_when_its_last_member_has_an_address_ranked_by_name() -> None:
    one, two = checking("pod-1", "10.0.0.2"), waiting("pod-0", "10.0.0.1")
    assert [m.name for m in decide(gang(one, two)).seal] == ["pod-0", "pod-1"]


def test_a_sidecar_that_is_ended_with_its_pod_fails_no_other_member() -> None:
    done = (status("dcgm-diag", "ended"), status("nccl-allreduce", "ended"))
    over = with_daemon("ended", *done, phase="Succeeded")
    rest = waiting("pod-1", "10.0.0.2", roster=sealed_roster("uid-pod-1", 1))
    published = decide(gang(over, rest, record=record(over, rest))).answers["uid-pod-1"]
    assert (over.stage, over.passed, published.answer) == ("passed", True, "sealed")


def with_daemon(ended: str, *checks: dict[str, Any], **fields: Any) -> GangMember:
    """A member with a sidecar before its checks, which has ended."""
    sidecar = {**status("x", ended, code=137), "name": "daemon"}
    body = pod_json("pod-0", ip="10.0.0.1", statuses=[sidecar, *checks], **fields)
    body["spec"]["initContainers"].insert(0, {"name": "daemon", "restartPolicy": "Always"})
    return member_of(body)


@pytest.mark.parametrize("ended", ["ended", "backoff"])
def test_a_sidecar_that_is_started_again_ends_no_check_that_runs(ended: str) -> None:
    first = with_daemon(ended, status("dcgm-diag", "running"))
    own = status("nccl-allreduce", "running")
    second = with_daemon(ended, status("dcgm-diag", "ended"), own)
    rest = waiting("pod-1", "10.0.0.2")
    for one, stage in ((first, "checking"), (second, "waiting")):
        assert (one.stage, one.failure) == (stage, None)
        assert answer(decide(gang(one, rest, record=record(one, rest))), "pod-1") == "sealed"


def test_a_test_that_failed_is_the_cause_and_not_the_sidecar_that_ended_with_its_pod() -> None:
    own = status("nccl-allreduce", "ended", code=1)
    over = with_daemon("ended", status("dcgm-diag", "ended"), own, phase="Failed")
    assert over.failure is not None
    assert (over.failure.check, over.failure.own) == ("nccl-allreduce", True)


def test_who_waits_is_told_who_is_missing_and_why() -> None:
    alone = gang(waiting("pod-0", "10.0.0.1"), a_member("pod-1", node=""), size=3)
    published = decide(alone).answers["uid-pod-0"]
    assert (published.answer, published.generation) == ("wait", 1)
    assert published.missing == ("pod-1: not scheduled yet", "1 of 3 members: no such pod yet")


def test_an_unschedulable_member_is_named_with_the_schedulers_words() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    stuck = a_member("pod-1", node="", conditions=[condition | {"message": "0/9 nodes: no GPU"}])
    published = decide(gang(waiting("pod-0", "10.0.0.1"), stuck)).answers["uid-pod-0"]
    assert published.missing == ("pod-1: Unschedulable: 0/9 nodes: no GPU",)


def test_an_unknown_size_means_wait_even_with_members_enough() -> None:
    unknown = gang(waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2"), size=None)
    decision = decide(unknown)
    assert not decision.seal
    assert decision.answers["uid-pod-0"].missing == ("size?",)


def test_a_gang_that_cannot_be_tested_is_skipped() -> None:
    decision = decide(gang(waiting("pod-0", "10.0.0.1"), skip="policy basic"))
    assert decision.answers["uid-pod-0"].reason == "policy basic"
    assert answer(decision, "pod-0") == "skip"


def test_everyone_in_a_sealed_generation_is_told_its_rank_and_the_rest_skip() -> None:
    one, two, three = (waiting(f"pod-{i}", f"10.0.0.{i}") for i in range(3))
    decision = decide(gang(one, two, three, record=record(two, one)))
    assert [decision.answers[m.uid].rank for m in (one, two)] == [1, 0]
    assert answer(decision, "pod-2") == "skip"


def test_members_beyond_the_size_are_not_sealed() -> None:
    crowd = gang(*(waiting(f"pod-{i}", f"10.0.0.{i}") for i in range(4)), size=3)
    assert [m.name for m in decide(crowd).seal] == ["pod-0", "pod-1", "pod-2"]


def test_a_failed_earlier_check_ends_the_others_with_its_cause_before_and_after_sealing() -> None:
    sick = failed("pod-1", "10.0.0.2", node="node-b")
    for rest in (waiting("pod-0", "10.0.0.1"), checking("pod-0", "10.0.0.1")):
        published = decide(gang(rest, sick)).answers["uid-pod-0"]
        assert (published.answer, published.reason) == (
            "fail",
            "pod-1 on node-b failed dcgm-diag with DCGM_FR_FAULTY_MEMORY",
        )
    before = record(waiting("pod-0", "10.0.0.1"), checking("pod-1", "10.0.0.2"))
    published = decide(gang(waiting("pod-0", "10.0.0.1"), sick, record=before)).answers["uid-pod-0"]
    assert (published.answer, published.generation) == ("fail", 1)
    assert "DCGM_FR_FAULTY_MEMORY" in published.reason


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, "pod-1 on node-a was stopped in dcgm-diag: TERMINATED"),
        (
            {"phase": "Failed", "conditions": [EVICTED]},
            "pod-1 is gone: disrupted (The node was low on resource: memory.)",
        ),
    ],
)
def test_a_check_that_was_ended_with_its_evicted_pod_has_not_failed(
    fields: dict[str, Any], why: str
) -> None:
    """The kubelet says how the containers have ended a moment before it says why."""
    ended = [status("dcgm-diag", "ended", code=143)]
    gone = a_member("pod-1", ip="10.0.0.2", statuses=ended, **fields)
    one = waiting("pod-0", "10.0.0.1")
    assert answer(decide(gang(one, gone)), "pod-0") == "wait"
    before = record(one, checking("pod-1", "10.0.0.2"))
    assert decide(gang(one, gone, record=before)).answers["uid-pod-0"].reason == why


def test_an_evicted_pod_that_nothing_replaces_is_named() -> None:
    ended = [status("dcgm-diag", "ended", code=143)]
    gone = a_member("pod-1", statuses=ended, phase="Failed", conditions=[EVICTED])
    told = decide(gang(waiting("pod-0", "10.0.0.1"), gone)).answers["uid-pod-0"]
    assert told.missing == ("pod-1: disrupted (The node was low on resource: memory.)",)


def test_a_pod_that_its_kubelet_refused_is_named_with_the_reason() -> None:
    body = pod_json("pod-1", phase="Failed")
    said = "Pod was rejected: Allocate failed: Requested: 8, Available: 7"
    body["status"] |= {"reason": "UnexpectedAdmissionError", "message": said}
    told = decide(gang(waiting("pod-0", "10.0.0.1"), member_of(body)))
    (why,) = told.answers["uid-pod-0"].missing
    assert why == f"pod-1: failed: UnexpectedAdmissionError: {said}"


def test_a_check_that_failed_before_its_pod_was_evicted_has_failed() -> None:
    sick = failed("pod-1", "10.0.0.2", phase="Failed", conditions=[EVICTED])
    told = decide(gang(waiting("pod-0", "10.0.0.1"), sick)).answers["uid-pod-0"]
    assert told.reason == "pod-1 on node-a failed dcgm-diag with DCGM_FR_FAULTY_MEMORY"


def test_a_failure_before_a_members_time_is_not_its_own() -> None:
    old = failed("pod-old", "10.0.0.2", phase="Failed", at="2026-11-21T07:59:00Z")
    decision = decide(gang(waiting("pod-0", "10.0.0.1"), old))
    assert answer(decision, "pod-0") == "wait"


@pytest.mark.parametrize(
    ("bound", "started", "failed_at", "told"),
    [
        # Its kubelet's clock is ten minutes late, then as much early.
        ("2026-11-21T08:00:01Z", "2026-11-21T07:50:02Z", "2026-11-21T07:51:00Z", "fail"),
        ("2026-11-21T07:50:01Z", "2026-11-21T08:00:02Z", "2026-11-21T08:01:00Z", "wait"),
    ],
)
def test_when_a_check_failed_is_told_by_the_api_servers_clock(
    bound: str, started: str, failed_at: str, told: str
) -> None:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": bound}
    sick = failed(
        "pod-1",
        "10.0.0.2",
        phase="Failed",
        at=failed_at,
        conditions=[scheduled],
        started=started,
        created="2026-11-21T07:50:00Z",
    )
    one = waiting("pod-0", "10.0.0.1", created="2026-11-21T08:00:00Z")
    assert answer(decide(gang(one, sick)), "pod-0") == told


def test_a_failure_does_not_end_a_gang_that_is_complete_without_it() -> None:
    sick = failed("pod-2", "10.0.0.3")
    complete = gang(waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2"), sick)
    assert len(decide(complete).seal) == 2


def test_a_member_restarted_in_place_ends_the_generation_for_those_who_joined_it() -> None:
    one, two = waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    moved = checking("pod-1", "10.0.0.9")  # its sandbox was made anew
    elsewhere = decide(gang(one, moved, record=record(one, two))).answers["uid-pod-0"]
    assert (elsewhere.answer, elsewhere.reason) == ("fail", "pod-1 has another address")
    again = waiting("pod-1", "10.0.0.2", restarts=1)
    decision = decide(gang(one, again, record=record(one, two)))
    assert not decision.seal
    assert (answer(decision, "pod-0"), answer(decision, "pod-1")) == ("fail", "wait")
    assert decision.answers["uid-pod-0"].reason == "pod-1 was restarted"
    assert decision.answers["uid-pod-1"].generation == 2
    still_there = "pod-0: still in its last test on node-a, which is over"
    assert decision.answers["uid-pod-1"].missing == (still_there,)


def test_when_all_have_been_restarted_the_next_generation_is_sealed() -> None:
    one, two = waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    now = [waiting(m.name, m.ip, restarts=1) for m in (one, two)]
    assert len(decide(gang(*now, record=record(one, two))).seal) == 2


def test_a_replaced_member_forms_the_next_generation_with_those_who_have_not_begun() -> None:
    one, two = checking("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    new = waiting("pod-1", "10.0.0.9", uid="uid-new")
    decision = decide(gang(one, new, record=record(one, two)))
    assert {m.uid for m in decision.seal} == {one.uid, "uid-new"}


def test_a_replacement_after_the_others_have_passed_skips() -> None:
    one, two = passed("pod-0", "10.0.0.1"), passed("pod-1", "10.0.0.2")
    new = waiting("pod-1", "10.0.0.9", uid="uid-new")
    published = decide(gang(one, new, record=record(one, two))).answers["uid-new"]
    assert published.answer == "skip"
    assert "nobody to test with" in published.reason


def owned(uid: str) -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid}
    return {"ownerReferences": [{**owner, "controller": True}]}


def test_a_replacement_after_the_others_have_succeeded_skips() -> None:
    """They are over: nobody is left to test with, whoever else may come."""
    one, two, three = (
        passed(f"pod-{n}", f"10.0.0.{n}", phase="Succeeded", **owned("job")) for n in range(3)
    )
    sealed = record(one, two, three)
    new = waiting("pod-2", "10.0.0.9", uid="uid-new", **owned("job"))
    beyond = passed("pod-3", "10.0.0.3", phase="Succeeded", **owned("job"))
    for members in ((one, two, new), (one, two, beyond, new)):
        published = decide(gang(*members, size=3, record=sealed)).answers["uid-new"]
        assert published.answer == "skip"
        assert "nobody to test with" in published.reason


def test_a_replacement_skips_where_only_other_replacements_have_succeeded() -> None:
    tested = record(waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2"))
    noted = msgspec.structs.replace(tested, passed=True)
    later = passed("pod-0", "10.0.0.3", uid="uid-later", phase="Succeeded", **owned("job"))
    last = waiting("pod-1", "10.0.0.4", uid="uid-last", **owned("job"))
    assert decide(gang(later, last, record=noted)).answers["uid-last"].answer == "skip"
    assert decide(gang(later, last, record=tested)).answers["uid-last"].answer == "wait"


def test_members_of_a_new_run_wait_for_each_other_beside_those_that_have_succeeded() -> None:
    one, two = (
        passed(f"pod-{n}", f"10.0.0.{n}", phase="Succeeded", **owned("job")) for n in range(2)
    )
    sealed = record(one, two)
    another_run = waiting("pod-2", "10.0.0.9", **owned("another"))
    next_indexes = waiting("pod-2", "10.0.0.9", **owned("job"))
    bare = waiting("pod-2", "10.0.0.9")
    for now in (gang(one, another_run, record=sealed), gang(one, bare, record=sealed)):
        assert answer(decide(now), "pod-2") == "wait"
    assert answer(decide(gang(one, two, next_indexes, record=sealed)), "pod-2") == "wait"


def test_a_lone_replacement_of_an_elastic_gang_skips_once_all_that_were_sealed_have_succeeded() -> (
    None
):
    """Nothing makes their pods anew, so nobody comes; a Job's next indexes would."""
    for kind, told in (("PyTorchJob", "skip"), ("Job", "wait")):
        group = "kubeflow.org/v1" if kind == "PyTorchJob" else "batch/v1"
        owner = {"apiVersion": group, "kind": kind, "name": "train", "uid": "u", "controller": True}
        made: dict[str, Any] = {"ownerReferences": [owner]}
        one, two = (passed(f"pod-{n}", f"10.0.0.{n}", phase="Succeeded", **made) for n in range(2))
        beyond = waiting("pod-2", "10.0.0.9", **made)
        now = gang(one, two, beyond, record=record(one, two))
        assert answer(decide(now), "pod-2") == told


def test_a_test_that_failed_is_not_left_out_because_one_without_a_place_in_it_has_started() -> None:
    before = record(waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2"))
    beyond = passed("pod-2", "10.0.0.3", roster=skip_roster("uid-pod-2", 2))
    first = waiting("pod-0", "10.0.0.1", restarts=1)
    slow = failed("pod-1", "10.0.0.2", own=True)
    assert answer(decide(gang(first, slow, beyond, record=before)), "pod-0") == "wait"
    made_anew = waiting("pod-0", "10.0.0.9", uid="uid-new")
    assert decide(gang(made_anew, beyond, record=before)).answers["uid-new"].answer == "wait"
    again = waiting("pod-1", "10.0.0.2", restarts=1)
    assert decide(gang(first, again, beyond, record=before)).seal == (first, again)


def test_a_pass_is_noted_before_the_last_that_shows_it_is_started_again() -> None:
    one, two = waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    sealed = record(one, two)
    again = waiting("pod-0", "10.0.0.1", restarts=1)
    decision = decide(gang(again, passed("pod-1", "10.0.0.2"), record=sealed))
    assert decision.note_pass
    assert answer(decision, "pod-0") == "skip"
    noted = msgspec.structs.replace(sealed, passed=True)
    on = passed("pod-0", "10.0.0.1", roster=skip_roster("uid-pod-0", 2))
    last = waiting("pod-1", "10.0.0.2", restarts=1)
    decision = decide(gang(on, last, record=noted))
    assert not decision.note_pass
    assert answer(decision, "pod-1") == "skip"


def test_who_was_told_to_skip_as_its_check_ran_is_sealed_no_more() -> None:
    """It reads that and starts, so the others would wait for it in vain, as after a pass."""
    told = skip_roster("uid-pod-0")
    two = waiting("pod-1", "10.0.0.2")
    decision = decide(gang(waiting("pod-0", "10.0.0.1", roster=told), two))
    assert not decision.seal
    assert (answer(decision, "pod-0"), answer(decision, "pod-1")) == ("nothing", "wait")
    assert len(decide(gang(checking("pod-0", "10.0.0.1", roster=told), two)).seal) == 2


def test_one_member_that_passed_keeps_the_generation_for_the_rest() -> None:
    one, two = passed("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    decision = decide(gang(one, two, record=record(one, two)))
    assert answer(decision, "pod-1") == "sealed"


def test_a_finished_gang_needs_no_answers() -> None:
    one, two = passed("pod-0", "10.0.0.1"), passed("pod-1", "10.0.0.2")
    decision = decide(gang(one, two, record=record(one, two)))
    assert not decision.seal
    assert not decision.answers


def test_a_gang_created_anew_under_its_old_name_gets_a_new_generation() -> None:
    before = record(waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2"), generation=4)
    now = gang(
        waiting("pod-0", "10.0.1.1", uid="n0"),
        waiting("pod-1", "10.0.1.2", uid="n1"),
        record=before,
    )
    assert len(decide(now).seal) == 2
    assert now.generation == 4


def test_a_deleted_record_does_not_turn_the_generation_back() -> None:
    one = waiting("pod-0", "10.0.0.1", roster=sealed_roster("uid-pod-0", 0, generation=7))
    assert gang(one).generation == 7


def test_the_shared_failure_of_a_generation_is_nobodys_cause_in_the_next() -> None:
    one, two = waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    decision = decide(
        gang(
            waiting("pod-0", "10.0.0.1", restarts=1),
            failed("pod-1", "10.0.0.2", own=True),
            record=record(one, two),
        )
    )
    published = decision.answers["uid-pod-0"]
    assert published.answer == "wait"
    assert published.missing == ("pod-1: failed nccl-allreduce on node-a: LOW_BANDWIDTH",)


def test_a_member_being_deleted_is_gone() -> None:
    one = waiting("pod-0", "10.0.0.1")
    two = waiting("pod-1", "10.0.0.2", deletionTimestamp="2026-11-21T08:02:00Z")
    decision = decide(gang(one, two, record=record(one, waiting("pod-1", "10.0.0.2"))))
    assert decision.answers["uid-pod-0"].reason == "pod-1 is gone: being deleted"


def test_a_foreign_config_map_is_an_obstacle_that_is_named() -> None:
    decision = decide(
        gang(waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2"), obstacle="not ours")
    )
    assert not decision.seal
    assert decision.answers["uid-pod-0"].missing == ("not ours",)


def test_a_long_list_of_missing_members_is_cut() -> None:
    crowd = [a_member(f"pod-{i:03}", node="") for i in range(50)]
    published = decide(gang(waiting("pod-a", "10.0.0.1"), *crowd, size=60)).answers["uid-pod-a"]
    assert published.missing[8:] == ("and 42 more", "9 of 60 members: no such pod yet")


def test_a_cause_in_forming_speaks_of_the_generation_to_come() -> None:
    """Who has joined the last one in an earlier life ignores everything about it, but not this."""
    old = record(waiting("pod-0", "10.0.0.1"), checking("pod-1", "10.0.0.2"), generation=3)
    now = gang(waiting("pod-0", "10.0.0.1", restarts=1), failed("pod-1", "10.0.0.2"), record=old)
    published = decide(now).answers["uid-pod-0"]
    assert (published.answer, published.generation) == ("fail", 4)


def test_once_one_has_passed_a_departed_member_ends_nobody() -> None:
    one, two, three = (
        passed("pod-0", "10.0.0.1"),
        waiting("pod-1", "10.0.0.2"),
        waiting("pod-2", "10.0.0.3"),
    )
    decision = decide(gang(one, two, size=3, record=record(one, two, three)))
    assert answer(decision, "pod-1") == "sealed"


def test_a_member_that_passed_and_went_keeps_the_generation_and_has_it_noted_once() -> None:
    first, second = passed("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    sealed = record(waiting("pod-0", "10.0.0.1"), second)
    for departed, here in (
        ((first,), (second,)),
        ((), (passed("pod-0", "10.0.0.1", deletionTimestamp="2026-11-21T08:02:00Z"), second)),
    ):
        decision = decide(gang(*here, record=sealed, departed=departed))
        assert decision.note_pass
        assert decision.answers[second.uid].answer == "sealed"
    noted = decide(gang(second, record=msgspec.structs.replace(sealed, passed=True)))
    assert not noted.note_pass
    assert noted.answers[second.uid].answer == "sealed"


def test_a_pass_is_noted_before_all_who_show_it_have_been_replaced() -> None:
    """The next leader knows the record and the pods: the test would have failed for it, and the
    last ones would wait for a member that has started long ago."""
    first, second = passed("pod-0", "10.0.0.1"), passed("pod-1", "10.0.0.2")
    sealed = record(first, second)
    started = passed("pod-0", "10.0.0.3", uid="uid-new", roster=skip_roster("uid-new"))
    last = waiting("pod-1", "10.0.0.4", uid="uid-last")
    decision = decide(gang(started, last, record=sealed, departed=(first, second)))
    assert decision.note_pass
    noted = gang(started, last, record=msgspec.structs.replace(sealed, passed=True))
    assert decide(noted).answers["uid-last"].answer == "skip"
    alone = decide(gang(second, record=sealed, departed=(first,)))
    assert not alone.note_pass, "the end of a job costs no write"


def test_a_pass_that_stays_to_be_seen_costs_no_write() -> None:
    first, second = passed("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    assert not decide(gang(first, second, record=record(first, second))).note_pass


def test_a_restarted_member_is_not_given_its_old_rank_again() -> None:
    one, two = passed("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2")
    third = waiting("pod-2", "10.0.0.3")
    again = waiting("pod-1", "10.0.0.2", restarts=1)
    decision = decide(gang(one, again, third, size=3, record=record(one, two, third)))
    assert answer(decision, "pod-1") == "skip"


def test_a_pod_that_failed_and_is_over_is_named_as_what_it_is() -> None:
    over = failed("pod-1", "10.0.0.2", own=True, phase="Failed")
    published = decide(gang(waiting("pod-0", "10.0.0.1"), over, size=3)).answers["uid-pod-0"]
    assert published.answer == "wait"
    assert published.missing == (
        "pod-1: failed nccl-allreduce on node-a: LOW_BANDWIDTH",
        "1 of 3 members: no such pod yet",
    )


def test_a_member_that_ended_because_another_failed_is_not_the_cause() -> None:
    published = failed("pod-1", "10.0.0.2", own=True)
    assert published.failure is not None
    published = msgspec.structs.replace(
        published, failure=msgspec.structs.replace(published.failure, code="PEER_FAILED")
    )
    again = waiting("pod-2", "10.0.0.3", restarts=1)
    assignments = record(
        waiting("pod-0", "10.0.0.1"), waiting("pod-1", "10.0.0.2"), waiting("pod-2", "10.0.0.3")
    )
    decision = decide(
        gang(waiting("pod-0", "10.0.0.1"), published, again, size=3, record=assignments)
    )
    assert decision.answers["uid-pod-0"].reason == "pod-2 was restarted"


def test_a_generation_is_over_when_one_of_it_can_never_hear_its_rank() -> None:
    one, two = waiting("a", "10.0.0.1"), waiting("b", "10.0.0.2")
    told_one = waiting("a", "10.0.0.1", roster=sealed_roster("uid-a", 0))
    decision = decide(
        gang(
            told_one, two, record=record(one, two), refused={"uid-b": "its pod cannot be annotated"}
        )
    )
    assert not decision.seal
    assert decision.answers["uid-a"].answer == "fail"
    assert decision.answers["uid-a"].reason == "b cannot have its rank: its pod cannot be annotated"
    assert decision.answers["uid-b"].answer == "wait"


def test_who_has_heard_its_rank_is_not_given_up_for_a_write_that_is_refused_later() -> None:
    one, two = (
        waiting(n, ip, roster=sealed_roster(f"uid-{n}", i))
        for i, (n, ip) in enumerate([("a", "1"), ("b", "2")])
    )
    decision = decide(
        gang(one, two, record=record(one, two), refused={"uid-b": "its pod cannot be annotated"})
    )
    assert {answer.answer for answer in decision.answers.values()} == {"sealed"}


def test_nobody_is_sealed_with_a_member_that_could_not_be_told() -> None:
    one, two = waiting("a", "10.0.0.1"), waiting("b", "10.0.0.2")
    decision = decide(gang(one, two, refused={"uid-b": "its pod cannot be annotated: 403"}))
    assert not decision.seal
    assert decision.answers["uid-a"].missing == ("b: its pod cannot be annotated: 403",)


def test_a_third_takes_the_place_of_one_that_could_not_be_told() -> None:
    members = [waiting(name, f"10.0.0.{i}") for i, name in enumerate("abc")]
    decision = decide(gang(*members, refused={"uid-a": "its pod cannot be annotated: 403"}))
    assert [one.name for one in decision.seal] == ["b", "c"]
