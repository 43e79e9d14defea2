"""When an Event says for whom a member waits."""

from __future__ import annotations

from gangs import gang, waiting
from preflight_gang.core.membership import GangMember
from preflight_gang.core.waiting import PATIENCE, SLICE, WaitingEvents, waiting_event
from preflight_proto.roster import Roster, encode_roster


def told_to_wait(
    number: int, generation: int = 1, missing: tuple[str, ...] = ("pod-9: Unschedulable: no GPU",)
) -> GangMember:
    uid = f"uid-pod-{number}"
    roster = Roster(
        v=1, pod_uid=uid, generation=generation, epoch=1, answer="wait", missing=missing
    )
    return waiting(f"pod-{number}", f"10.0.0.{number}", roster=encode_roster(roster))


def test_who_has_waited_for_long_gets_one_event_a_generation() -> None:
    waits, one = WaitingEvents(), told_to_wait(1)
    assert waits.due(gang(one), 100.0) == ([], PATIENCE)
    assert waits.due(gang(one), 110.0) == ([], PATIENCE - 10)
    assert waits.due(gang(one), 100.0 + PATIENCE) == ([one], None)
    waits.emitted(one)
    assert waits.due(gang(one), 1000.0) == ([], None)
    again = told_to_wait(1, generation=2)
    assert waits.due(gang(again), 1000.0) == ([], PATIENCE)
    assert waits.due(gang(again), 1000.0 + PATIENCE) == ([again], None)


def test_an_event_that_could_not_be_written_stays_due() -> None:
    waits, one = WaitingEvents(), told_to_wait(1)
    waits.due(gang(one), 0.0)
    assert waits.due(gang(one), PATIENCE) == waits.due(gang(one), PATIENCE + 1) == ([one], None)


def test_who_has_not_been_told_to_wait_gets_none() -> None:
    waits, one = WaitingEvents(), waiting("pod-1", "10.0.0.1")
    assert waits.due(gang(one), 0.0) == waits.due(gang(one), 1000.0) == ([], None)


def test_many_are_told_in_slices() -> None:
    waits, every = WaitingEvents(), [told_to_wait(number) for number in range(SLICE + 4)]
    waits.due(gang(*every), 0.0)
    due, again = waits.due(gang(*every), PATIENCE)
    assert (len(due), again) == (SLICE, 0.0)
    for one in due:
        waits.emitted(one)
    assert len(waits.due(gang(*every), PATIENCE)[0]) == 4


def test_the_event_names_each_missing_member_and_why() -> None:
    one = told_to_wait(
        1,
        missing=("pod-2: Unschedulable: 0/9 nodes", "pod-3: preflight-dcgm-diag: ImagePullBackOff"),
    )
    body = waiting_event(gang(one), one, "2026-11-21T08:00:00Z")
    assert body["message"] == (
        "gang job-1 waits: pod-2: Unschedulable: 0/9 nodes; pod-3: preflight-dcgm-diag: ImagePullBackOff"
    )
    assert (body["type"], body["reason"]) == ("Normal", "PreflightWaiting")
    assert body["involvedObject"]["fieldPath"] == "spec.initContainers{preflight-nccl-allreduce}"
    assert body["metadata"]["name"] == waiting_event(gang(one), one, "later")["metadata"]["name"]
