"""Members that die, hang, never come, or are told to stop; and that nothing is left behind (the `gang` fixture looks)."""

from __future__ import annotations

import os
import signal
import time

import pytest
from gangs import MUTANTS, Gang, needs_torch
from preflight_proto.roster import Roster

pytestmark = needs_torch

QUICK = "from check_nccl_allreduce import check; check.LEAST_PATIENCE = 3.0; check.main()"
"""The check, with less patience for members that the roster promised."""
HANG = {"MUTANT": "hang", "MUTANT_RANK": "1"}


def measuring(gang: Gang) -> None:
    """Wait until the gang is in its first all-reduce, in which rank 1 hangs."""
    for member in gang.members.values():
        member.said("the communicator works")


def codes(gang: Gang, *ranks: int) -> set[tuple[int, str, str]]:
    return {(end.exit_code, end.result.outcome, end.result.code) for end in gang.all_ended(*ranks)}


def test_a_member_that_never_comes_is_named_and_nobody_is_blamed(gang: Gang) -> None:
    gang.size = 3
    gang.start(0, 2, GANG_TIMEOUT="1s", code=QUICK)
    gang.seal()
    assert codes(gang) == {(1, "inconclusive", "PEER_MISSING")}
    reasons = {end.result.reason for end in gang.all_ended()}
    assert len(reasons) == 1
    assert "rank 1 of 3 never reached the leader" in reasons.pop()
    for connector in gang.connectors:
        [event] = connector.events
        assert (event.is_fatal, event.error_code) == (False, ["PEER_MISSING"])


def test_a_leader_that_never_comes_is_named(gang: Gang) -> None:
    gang.start(1, GANG_TIMEOUT="1s", code=QUICK)
    gang.seal()
    [end] = gang.all_ended()
    assert end.result.code == "PEER_MISSING"
    assert f"rank 0 at 127.0.0.1:{gang.control_port}, did not answer" in end.result.reason


def test_a_killed_parent_is_named_and_leaves_no_process(gang: Gang) -> None:
    gang.size = 3
    gang.start(0, 1, 2, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    gang.members[2].popen.kill()
    started = time.monotonic()
    assert codes(gang, 0, 1) == {(1, "inconclusive", "MEMBER_LOST")}
    assert time.monotonic() - started < 15
    assert "rank 2 (pod-2 on node-2): its connection ended" in gang.all_ended(0)[0].result.reason


def test_a_stopped_parent_is_lost_after_five_seconds(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    gang.members[1].popen.send_signal(signal.SIGSTOP)
    [end] = gang.all_ended(0)
    assert end.result.code == "MEMBER_LOST"
    assert "no sign of life for 5 s" in end.result.reason


def test_a_killed_leader_is_named_by_every_member(gang: Gang) -> None:
    gang.size = 3
    gang.start(0, 1, 2, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    gang.members[0].popen.kill()
    assert codes(gang, 1, 2) == {(1, "inconclusive", "LEADER_LOST")}
    assert "rank 0 at 127.0.0.1" in gang.all_ended(1)[0].result.reason


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_killed_rank_is_tried_once_more_and_may_then_pass(gang: Gang, rank: str) -> None:
    gang.start(0, 1, code=MUTANTS, MUTANT="die", MUTANT_RANK=rank, MUTANT_ONCE=str(gang.home / "once"))
    gang.seal()
    ends = gang.all_ended()
    assert {end.result.code for end in ends} == {"OK"}
    assert "leader: round 2, because: " in ends[0].output


def test_a_rank_that_is_killed_again_fails_the_gang_and_is_named(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, MUTANT="die")
    gang.seal()
    assert codes(gang) == {(1, "failed", "RANK_DIED")}
    assert "rank 1 (pod-1 on node-1): rank 1's process ended without a word" in gang.all_ended()[0].result.reason


def test_a_crash_in_native_code_fails_the_same_way(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, MUTANT="crash")
    gang.seal()
    assert codes(gang) == {(1, "failed", "RANK_DIED")}


def test_a_device_error_on_one_rank_decides_over_what_its_peers_say(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, MUTANT="ecc")
    gang.seal()
    assert codes(gang) == {(1, "failed", "GPU_ECC")}
    assert "rank 1 (pod-1 on node-1)" in gang.all_ended()[0].result.reason
    fatal = [event for connector in gang.connectors for event in connector.events if event.is_fatal]
    assert [(event.node_name, list(event.error_code)) for event in fatal] == [("node-1", ["GPU_ECC"])]


def test_a_rank_that_hangs_is_inconclusive_for_all_in_time(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, CHECK_TIMEOUT="30s", **HANG)
    gang.seal()
    assert codes(gang) == {(1, "inconclusive", "ALLREDUCE_STALLED")}


def test_a_worker_that_is_stopped_is_named_and_nobody_blamed(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, MUTANT="stop", CHECK_TIMEOUT="40s")
    gang.seal()
    assert codes(gang) == {(1, "failed", "RANK_STALLED")}
    assert "a worker of rank 1 (pod-1 on node-1) gave no sign of life" in gang.all_ended()[0].result.reason
    assert not any(event.is_fatal for connector in gang.connectors for event in connector.events)


def test_sigterm_ends_a_member_and_with_it_the_gang(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    gang.members[1].popen.terminate()
    assert codes(gang, 1) == {(1, "inconclusive", "TERMINATED")}
    assert codes(gang, 0) == {(1, "inconclusive", "MEMBER_LOST")}


def test_a_failed_peer_ends_the_members_that_wait_for_it(gang: Gang) -> None:
    gang.size = 3
    gang.start(0, 1)
    gang.seal()
    gang.members[0].said("is there (2 of 3)")
    gang.fail("pod-2: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY")
    assert codes(gang) == {(1, "inconclusive", "PEER_FAILED")}
    assert {end.result.reason for end in gang.all_ended()} == {"pod-2: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY."}


@pytest.mark.parametrize("told", [(0, 1), (1,), (0,)])
def test_a_failure_told_during_the_run_ends_all_with_its_cause(gang: Gang, told: tuple[int, ...]) -> None:
    gang.start(0, 1, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    gang.fail("pod-9 was evicted", *told)
    assert codes(gang) == {(1, "inconclusive", "PEER_FAILED")}
    assert {end.result.reason for end in gang.all_ended()} == {"pod-9 was evicted."}


def test_a_new_generation_before_the_run_is_joined(gang: Gang) -> None:
    gang.start(0, 1)
    gang.seal(0)
    gang.members[0].said("is there (1 of 2)")
    gang.seal(generation=2)
    gang.members[0].said("the gang changed before its run began")
    ends = gang.all_ended()
    assert {end.result.code for end in ends} == {"OK"}
    assert "roster: generation 2, rank 0 of 2" in ends[0].output


def test_a_new_generation_during_the_run_ends_it(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    gang.seal(generation=2)
    assert codes(gang) == {(1, "inconclusive", "GANG_CHANGED")}


def test_a_member_restarted_in_place_does_not_join_the_old_generation(gang: Gang) -> None:
    gang.start(0, 1)
    gang.seal(1)
    gang.members[1].said("does not answer yet")
    gang.members[1].popen.kill()
    gang.members[1].popen.wait()
    again = gang.start(1)[0]
    gang.seal(0)
    again.said("generation 1 was joined by this pod before it restarted")
    assert "is there (2 of 2)" not in gang.members[0].output
    gang.seal(generation=2)
    assert {end.result.code for end in gang.all_ended()} == {"OK"}


def test_a_taken_control_port_is_inconclusive_and_named(gang: Gang) -> None:
    with gang.listener(gang.control_port):
        gang.start(0)
        gang.seal()
        [end] = gang.all_ended()
    assert (end.exit_code, end.result.code) == (1, "PORT_TAKEN")
    assert f"control port {gang.control_port} on 127.0.0.1" in end.result.reason


def test_a_taken_rendezvous_port_is_tried_on_another(gang: Gang) -> None:
    with gang.listener(gang.master_port):
        gang.start(0, 1)
        gang.seal()
        ends = gang.all_ended()
    assert {end.result.code for end in ends} == {"OK"}
    assert "leader: round 2, because: torchrun could not bring the ranks together" in ends[0].output


def test_the_workers_end_when_the_check_is_killed(gang: Gang) -> None:
    gang.start(0, 1, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    assert len(gang.members[0].children()) >= 3  # the check, torchrun, one rank
    for member in gang.members.values():
        os.kill(member.popen.pid, signal.SIGKILL)
    assert gang.left_behind() == []


def test_wait_after_sealing_before_the_run_is_waited_out(gang: Gang) -> None:
    gang.start(0, 1)
    gang.seal(0)
    gang.members[0].said("is there (1 of 2)")
    again = Roster(v=1, pod_uid="uid-0", generation=1, epoch=1, answer="wait", missing=("pod-1 (restarted)",))
    gang.members[0].folder.answer(again)
    gang.members[0].said("waiting for the gang: pod-1 (restarted)")
    gang.seal(generation=2)
    assert {end.result.code for end in gang.all_ended()} == {"OK"}
