"""Gangs that change under the check; and that nothing is left behind (the `gang` fixture looks).
Other faults are rows of the matrix.
"""

from __future__ import annotations

import os
import signal

import pytest
from allreduce_testing.gangs.gang import MUTANTS, GangUnderTest
from needs import needs_torch
from preflight_proto.roster import Roster

pytestmark = needs_torch

HANG = {"MUTANT": "hang", "MUTANT_RANK": "1"}


def measuring(gang: GangUnderTest) -> None:
    """Wait until the gang is in its first all-reduce, in which rank 1 hangs."""
    for member in gang.members.values():
        member.said("the communicator works")


def codes(gang: GangUnderTest, *ranks: int) -> set[tuple[int, str, str]]:
    return {(end.exit_code, end.result.outcome, end.result.code) for end in gang.all_ended(*ranks)}


def test_a_failed_peer_ends_the_members_that_wait_for_it(gang: GangUnderTest) -> None:
    gang.size = 3
    gang.start(0, 1)
    gang.seal()
    gang.members[0].said("is there (2 of 3)")
    gang.fail("pod-2: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY")
    assert codes(gang) == {(1, "inconclusive", "PEER_FAILED")}
    assert {end.result.reason for end in gang.all_ended()} == {
        "pod-2: dcgm-diag failed with DCGM_FR_FAULTY_MEMORY."
    }


@pytest.mark.parametrize("told", [(0, 1), (1,), (0,)])
def test_a_failure_told_during_the_run_ends_all_with_its_cause(
    gang: GangUnderTest, told: tuple[int, ...]
) -> None:
    gang.start(0, 1, code=MUTANTS, **HANG)
    gang.seal()
    measuring(gang)
    gang.fail("pod-9 was evicted", *told)
    assert codes(gang) == {(1, "inconclusive", "PEER_FAILED")}
    assert {end.result.reason for end in gang.all_ended()} == {"pod-9 was evicted."}


def test_a_new_generation_before_the_run_is_joined(gang: GangUnderTest) -> None:
    gang.start(0, 1)
    gang.seal(0)
    gang.members[0].said("is there (1 of 2)")
    gang.seal(generation=2)
    gang.members[0].said("the gang changed before its run began")
    ends = gang.all_ended()
    assert {end.result.code for end in ends} == {"OK"}
    assert "roster: generation 2, rank 0 of 2" in ends[0].output


def test_a_new_generation_during_the_run_ends_it(shipped: GangUnderTest) -> None:
    shipped.start(0, 1, code=MUTANTS, **HANG)
    shipped.seal()
    measuring(shipped)
    shipped.seal(generation=2)
    assert codes(shipped) == {(1, "inconclusive", "GANG_CHANGED")}


def test_a_member_restarted_in_place_does_not_join_the_old_generation(gang: GangUnderTest) -> None:
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


def test_the_workers_end_when_the_check_is_killed(shipped: GangUnderTest) -> None:
    shipped.start(0, 1, code=MUTANTS, **HANG)
    shipped.seal()
    measuring(shipped)
    assert len(shipped.members[0].children()) >= 3  # the check, torchrun, one rank
    for member in shipped.members.values():
        os.kill(member.popen.pid, signal.SIGKILL)
    assert shipped.left_behind() == []


def test_wait_after_sealing_before_the_run_is_waited_out(gang: GangUnderTest) -> None:
    gang.start(0, 1)
    gang.seal(0)
    gang.members[0].said("is there (1 of 2)")
    again = Roster(
        v=1, pod_uid="uid-0", generation=1, epoch=1, answer="wait", missing=("pod-1 (restarted)",)
    )
    gang.members[0].folder.answer(again)
    gang.members[0].said("waiting for the gang: pod-1 (restarted)")
    gang.seal(generation=2)
    assert {end.result.code for end in gang.all_ended()} == {"OK"}
