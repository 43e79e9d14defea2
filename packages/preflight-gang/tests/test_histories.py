"""Generated histories of a gang: pods come, get addresses, run, fail, restart, are replaced; the
controller looks now and then.

The model is the cluster: pods with what they were told, and one committed record. Each look applies
the decision as the writer would. What a check would have joined is followed by the kit's rule: a
generation that is newer than the last one joined.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from gangs import EVICTED, a_member, gang, status
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from preflight_gang.core.membership import GangMember
from preflight_gang.core.plan import roster_write, seal
from preflight_gang.core.reconcile import GangDecision, decide
from preflight_gang.core.snapshot import GangView, Record
from preflight_proto.roster import decode_roster

SIZE = 3
SLOTS = st.integers(0, SIZE)  # one more pod than the gang needs


@dataclass
class Sim:
    """One pod, and what the process of its gang check remembers in its emptyDir."""

    uid: str
    name: str
    ip: str = ""
    state: str = "starting"  # checking, sick, waiting, backoff, passed, evicted
    restarts: int = 0
    roster: str = ""
    joined: int = (
        0  # highest generation ever joined by this pod (survives restarts of the container)
    )
    playing: int = 0  # the generation this run of the check has joined
    rank: int = -1
    history: list[tuple[int, int]] = field(default_factory=list)

    def member(self) -> GangMember:
        statuses = {
            "starting": [],
            "checking": [status("dcgm-diag", "running")],
            "sick": [status("dcgm-diag", "backoff", code=1)],
            "waiting": [
                status("dcgm-diag", "ended"),
                status("nccl-allreduce", "running", restarts=self.restarts),
            ],
            "backoff": [
                status("dcgm-diag", "ended"),
                status("nccl-allreduce", "backoff", restarts=self.restarts, code=1),
            ],
            "passed": [
                status("dcgm-diag", "ended"),
                status("nccl-allreduce", "ended", restarts=self.restarts),
            ],
            "evicted": [status("dcgm-diag", "ended", code=143)],
        }[self.state]
        over: dict[str, Any] = {"phase": "Failed", "conditions": [EVICTED]}
        more = over if self.state == "evicted" else {}
        ours: dict[str, Any] = {
            "uid": self.uid, "ip": self.ip, "roster": self.roster, "statuses": statuses
        }  # fmt: skip
        return a_member(self.name, **ours, **more)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pods: dict[int, Sim] = {}
        self.record: Record | None = None
        self.sealed: dict[int, Record] = {}
        self.departed: list[GangMember] = []
        self.passed: set[int] = set()  # generations with a verdict
        self.serial = 0
        for slot in range(SIZE):
            self.created_or_replaced(slot)

    def gang(self) -> GangView:
        return gang(
            *(p.member() for p in self.pods.values()),
            size=SIZE,
            record=self.record,
            departed=tuple(self.departed),
        )

    # --- what happens in the cluster

    @rule(slot=SLOTS)
    def created_or_replaced(self, slot: int) -> None:
        self._goes(slot)
        self.serial += 1
        self.pods[slot] = Sim(uid=f"uid-{self.serial}", name=f"pod-{slot}")

    @rule(slot=SLOTS)
    def evicted(self, slot: int) -> None:
        if (pod := self.pods.get(slot)) and pod.state in {"starting", "checking", "waiting"}:
            pod.state, pod.playing = "evicted", 0

    @rule(slot=SLOTS)
    def deleted(self, slot: int) -> None:
        self._goes(slot)

    def _goes(self, slot: int) -> None:
        """The controller sees the last of every pod."""
        if (pod := self.pods.pop(slot, None)) is not None and (last := pod.member()).passed:
            self.departed.append(last)

    @rule(slot=SLOTS)
    def gets_an_address(self, slot: int) -> None:
        if (pod := self.pods.get(slot)) and pod.state == "starting":
            self.serial += 1
            pod.ip, pod.state = f"10.0.{slot}.{self.serial}", "checking"

    @rule(slot=SLOTS, healthy=st.booleans())
    def earlier_check_ends(self, slot: int, healthy: bool) -> None:
        if (pod := self.pods.get(slot)) and pod.state == "checking":
            pod.state = "waiting" if healthy else "sick"

    @rule(slot=SLOTS)
    def earlier_check_is_tried_again(self, slot: int) -> None:
        if (pod := self.pods.get(slot)) and pod.state == "sick":
            pod.state = "checking"

    @rule(upto=st.integers(1, SIZE + 1))
    def several_go_on_healthily(self, upto: int) -> None:
        """Single steps alone seldom get a gang far."""
        for slot in sorted(self.pods)[:upto]:
            self.gets_an_address(slot)
            self.earlier_check_ends(slot, True)
        self.look()
        for slot in sorted(self.pods)[:upto]:
            self.reads_its_roster(slot)

    @rule(slot=SLOTS)
    def reads_its_roster(self, slot: int) -> None:
        """The kit's rule: only what is newer than anything joined before counts."""
        pod = self.pods.get(slot)
        if not pod or pod.state != "waiting" or not pod.roster:
            return
        published = decode_roster(pod.roster)
        if published.pod_uid != pod.uid or published.generation <= pod.joined:
            if pod.playing and published.answer == "fail" and published.generation >= pod.playing:
                self._ends(pod)
            return
        if published.answer == "sealed":
            assert published.rank is not None
            pod.joined = pod.playing = published.generation
            pod.rank = published.rank
            pod.history.append((published.generation, published.rank))
        elif published.answer == "skip":
            pod.state = "passed"
        elif published.answer == "fail":
            self._ends(pod)

    def _ends(self, pod: Sim) -> None:
        pod.state, pod.playing = "backoff", 0

    @rule(slot=SLOTS)
    def restarted_in_place(self, slot: int) -> None:
        if (pod := self.pods.get(slot)) and pod.state in {"waiting", "backoff"}:
            pod.state, pod.playing = "waiting", 0
            pod.restarts += 1

    @rule(good=st.booleans(), late=SLOTS, go=st.booleans())
    def test_ends(self, good: bool, late: int, go: bool) -> None:
        """It can only run when all of one generation have joined it. ``late``: who has not read its
        verdict yet; ``go``: those who have are deleted at once."""
        if self.record is None:
            return
        generation = self.record.generation
        players = [p for p in self.pods.values() if p.playing == generation]
        if len(players) == SIZE:
            assert sorted(p.rank for p in players) == list(range(SIZE))
            if good:
                self.passed.add(generation)
            for pod in players:
                if pod is not self.pods.get(late):
                    pod.state, pod.playing = ("passed" if good else "backoff"), 0
            for slot in [slot for slot, pod in self.pods.items() if go and pod.state == "passed"]:
                self._goes(slot)
                self.look()

    @rule(good=st.booleans(), late=SLOTS, go=st.booleans())
    def all_go_on_to_the_end_of_a_test(self, good: bool, late: int, go: bool) -> None:
        """Few histories of single steps ever come to a test."""
        for _ in range(3):
            self.several_go_on_healthily(SIZE + 1)
        self.test_ends(good, late, go)

    @rule()
    def the_late_one_reads_its_verdict(self) -> None:
        for pod in self.pods.values():
            if pod.playing in self.passed:
                pod.state, pod.playing = "passed", 0

    # --- the controller

    @rule()
    def the_leader_looks(self) -> None:
        self.look()

    @rule()
    def another_leads_that_has_seen_only_what_is_written(self) -> None:
        self.look()
        self.departed = []

    @rule(slot=SLOTS)
    def the_leader_dies_between_sealing_and_telling(self, slot: int) -> None:
        now = self.gang()
        decision = decide(now)
        if decision.seal:
            self.commit(now, decision)

    def look(self) -> GangDecision:
        now = self.gang()
        decision = decide(now)
        if decision.seal:
            self.commit(now, decision)
            now = self.gang()
            decision = decide(now)
            assert not decision.seal, "what was sealed just now holds"
        if decision.note_pass:
            assert now.record is not None
            self.record = msgspec.structs.replace(now.record, passed=True)
            now = self.gang()
            assert not decide(now).note_pass, "it is written once"
            assert decide(now).answers == decision.answers
        by_uid = {p.uid: p for p in self.pods.values()}
        for one in now.members:
            answer = decision.answers.get(one.uid)
            if answer is None:
                continue
            assert not (answer.answer == "fail" and answer.generation in self.passed), (
                "a verdict of all stays one"
            )
            write = roster_write(one, answer, now.record, epoch=1)
            if write is not None:
                by_uid[one.uid].roster = write.text
        return decision

    def commit(self, now: GangView, decision: GangDecision) -> None:
        made = seal(now, decision.seal, "t" * 64)
        assert made.generation not in self.sealed, "a sealed generation never changes"
        self.sealed[made.generation] = made
        self.record = made

    # --- what must hold at every moment

    @invariant()
    def no_two_members_of_a_generation_hold_one_rank(self) -> None:
        held: dict[tuple[int, int], str] = {}
        for pod in self.pods.values():
            for place in pod.history:
                assert held.setdefault(place, pod.uid) == pod.uid

    @invariant()
    def no_member_joins_a_generation_that_it_is_not_in_or_twice(self) -> None:
        for pod in self.pods.values():
            assert len({generation for generation, _ in pod.history}) == len(pod.history)
            for generation, rank in pod.history:
                assert self.sealed[generation].assignments[rank].uid == pod.uid

    @invariant()
    def every_member_that_asks_is_answered(self) -> None:
        now = self.gang()
        decision = decide(now)
        if decision.seal:
            return
        for one in now.members:
            # Its check runs and its roster says that it skips: it goes with that.
            goes = one.stage.value == "waiting" and one.published and one.published.answer == "skip"
            if one.alive and one.stage.value != "passed" and not goes:
                assert one.uid in decision.answers

    @invariant()
    def what_was_told_is_not_told_again(self) -> None:
        now = self.gang()
        decision = decide(now)
        for one in now.members:
            answer = decision.answers.get(one.uid)
            if answer is None:
                continue
            write = roster_write(one, answer, now.record, epoch=1)
            if write is None:
                continue
            published = msgspec.structs.replace(
                one, roster=write.text, published=decode_roster(write.text)
            )
            assert roster_write(published, answer, now.record, epoch=2) is None

    @rule()
    def a_fair_healthy_history_ends_sealed(self) -> None:
        """From any state: let every pod go on healthily, and the gang ends passed or in a
        generation that all have joined.
        """
        for slot, pod in list(self.pods.items()):
            if pod.state == "evicted":
                self.created_or_replaced(slot)
        for slot in range(SIZE):
            self.pods.setdefault(slot, Sim(uid=f"uid-s{self.serial}-{slot}", name=f"pod-{slot}"))
        for _ in range(12):
            for slot in list(self.pods):
                self.gets_an_address(slot)
                self.earlier_check_is_tried_again(slot)
                self.earlier_check_ends(slot, True)
                if self.pods[slot].state == "backoff":
                    self.restarted_in_place(slot)
            self.look()
            for slot in list(self.pods):
                self.reads_its_roster(slot)
            self.test_ends(True, SIZE + 1, False)
            self.the_late_one_reads_its_verdict()
        assert all(p.state == "passed" for p in self.pods.values()), [
            (p.name, p.state, p.roster) for p in self.pods.values()
        ]


Histories.TestCase.settings = settings(stateful_step_count=30)
pytestmark = pytest.mark.component  # computes for seconds
TestHistories = Histories.TestCase
