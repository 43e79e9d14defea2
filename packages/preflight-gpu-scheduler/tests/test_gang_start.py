"""When a gang holds GPUs in memory, and when it does not: what the scheduler asks, and what it is
answered.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import msgspec
import pytest
from mirrors import Mirrors
from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.allocation import GangStart, Reserved, written
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.core.filter_prioritize import ExtenderArgs
from shapes import node, pod

replace = msgspec.structs.replace
UNSCHEDULABLE = {
    "conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": "no node"}]
}


class Gangs(Mirrors):
    """Nodes ``a`` and ``b`` with four GPUs each."""

    def __init__(self, **config: str) -> None:
        super().__init__(**{"count_resource": ""} | config)
        for mirror in self.state.reflectors:
            mirror.synced.set()
        for name in ("a", "b"):
            self.show("node", node(name))
            self.status(name, *({"id": n, "uuid": f"GPU-{name}-{n}"} for n in range(4)))
        self.claim("one", 1)

    def gang(self, name: str, count: int, need: int, *, each: int = 1, priority: int = 0) -> None:
        """Pods ``name-0`` and so on, which may start."""
        self.claim(name, each, gang=name)
        said = {
            names.CLAIM_ANNOTATION: name,
            names.RESERVED_ANNOTATION: written(GangStart(start=name, need=need)),
        }
        self.show(
            "pod",
            *(pod(f"{name}-{n}", annotations=said, priority=priority) for n in range(count)),
        )

    def ask(self, name: str, nodes: Sequence[str] = ("a", "b")) -> str:
        """The node that the scheduler is told; or why none."""
        shown = self.state.pod(("team", name))
        asked = shown or pod(name, annotations={names.CLAIM_ANNOTATION: "one"})
        found = self.extender.filter(ExtenderArgs(pod=asked, node_names=tuple(nodes)))
        if found.error:
            return found.error
        return ",".join(found.node_names or ()) or next(
            iter((found.failed_nodes | found.failed_and_unresolvable_nodes).values())
        )

    def held(self) -> set[tuple[str, int]]:
        return {(name, gpu) for name in ("a", "b") for gpu in self.state.others(name)}

    def says(self, name: str, **status: object) -> None:
        """The scheduler has written ``status`` into the pod."""
        found: Pod = self.state.pods.store[f"team/{name}"]
        self.show("pod", replace(found, status=msgspec.convert(status, type(found.status))))


def test_what_the_first_member_is_answered_is_held_for_all_and_each_is_told_one_node() -> None:
    seen = Gangs()
    seen.gang("g", 4, 4)
    assert seen.held() == set()
    assert seen.ask("g-0", ["b"]) == "b"
    assert len(seen.held()) == 4
    assert {where for where, _ in seen.held()} == {"b"}
    assert [seen.ask(f"g-{n}", ["b"]) for n in range(4)] == ["b"] * 4


def _gated(seen: Gangs, *numbers: int, gang: str = "g", owner: str = "") -> None:
    """Members of which the leader has not opened the gate."""
    for n in numbers:
        shut = pod(f"{gang}-{n}", annotations={names.CLAIM_ANNOTATION: gang}, gated=True)
        if owner:
            labels = {"jobset.sigs.k8s.io/jobset-uid": owner}
            shut = replace(shut, metadata=replace(shut.metadata, labels=labels))
        seen.show("pod", shut)


def test_members_whose_gates_are_about_to_open_have_their_gpus_with_the_first() -> None:
    seen = Gangs()
    seen.gang("g", 1, 4)
    _gated(seen, 1, 2, 3)
    assert seen.ask("g-0", ["b"]) == "b"
    assert len(seen.held()) == 4
    seen.gang("g", 4, 4)
    assert [seen.ask(f"g-{n}", ["b"]) for n in range(4)] == ["b"] * 4
    assert len(seen.held()) == 4


def test_who_is_asked_about_before_a_mirror_shows_its_gate_open_is_answered() -> None:
    seen = Gangs()
    seen.gang("g", 2, 2)
    first, second = (seen.state.pods.store[f"team/g-{n}"] for n in range(2))
    seen = Gangs()
    seen.claim("g", 1, gang="g")
    _gated(seen, 0, 1)
    asked = [ExtenderArgs(pod=each, node_names=("a", "b")) for each in (first, second)]
    assert all(seen.extender.filter(args).node_names for args in asked)
    _gated(seen, 0, 1)  # a word of before, on the way
    assert len(seen.held()) == 2
    seen.gang("g", 2, 2)
    assert all(seen.extender.filter(args).node_names for args in asked)
    for n in range(2):
        seen.show("pod", seen.state.pods.store[f"team/g-{n}"], deleted=True)
    assert seen.held() == set()


def test_a_gate_that_stays_shut_holds_nothing_for_long_and_only_once() -> None:
    seen = Gangs()
    seen.gang("g", 2, 3)
    _gated(seen, 2)
    assert seen.ask("g-0") in {"a", "b"}
    assert len(seen.held()) == 3
    seen.now += 20.1
    for _ in range(3):
        assert seen.ask("g-0") in {messages.GANG_RESTS, messages.GANG_GATHERS}
        assert seen.held() == set()
        seen.now += 10
    seen.gang("g", 3, 3)
    assert {seen.ask(f"g-{n}") for n in range(3)} >= {"a"}
    assert len(seen.held()) == 3


def test_a_gated_member_that_goes_or_is_another_one_lets_the_gpus_go() -> None:
    for goes in (True, False):
        seen = Gangs()
        seen.gang("g", 1, 2)
        _gated(seen, 1)
        assert seen.ask("g-0") in {"a", "b"}
        shut = seen.state.pods.store["team/g-1"]
        if goes:
            seen.show("pod", shut, deleted=True)
        else:
            seen.show("pod", replace(shut, metadata=replace(shut.metadata, uid="another")))
        assert seen.held() == set()
        assert seen.ask("g-0") in {messages.GANG_RESTS, messages.GANG_GATHERS}


def test_gated_pods_of_others_do_not_count() -> None:
    seen = Gangs()
    seen.gang("g", 1, 2)
    seen.claim("h", 1, gang="h")
    _gated(seen, 1, owner="another")
    _gated(seen, 2, gang="h")
    assert seen.ask("g-0") == messages.GANG_GATHERS
    assert seen.held() == set()


def test_a_gang_that_does_not_fit_whole_holds_nothing() -> None:
    seen = Gangs()
    seen.gang("g", 5, 5)
    assert seen.ask("g-0", ["b"]) == messages.GANG_TOO_FEW
    assert seen.held() == set()
    assert seen.ask("g-0", ["a", "b"]) in {"a", "b"}
    assert len(seen.held()) == 5


def test_a_member_that_the_scheduler_will_not_have_beside_the_others_gets_another_node() -> None:
    seen = Gangs()
    seen.gang("g", 2, 2)
    first = seen.ask("g-0")
    (other,) = {"a", "b"} - {first}
    assert seen.ask("g-1", [other]) == other
    assert {where for where, _ in seen.held()} == {"a", "b"}


def test_once_an_attempt_has_failed_the_scheduler_is_asked_about_each_before_anything_is_held() -> (
    None
):
    seen = Gangs()
    seen.gang("g", 2, 2)
    seen.ask("g-0")
    assert len(seen.held()) == 2
    seen.says("g-1", **UNSCHEDULABLE)
    assert seen.held() == set()
    assert seen.ask("g-0") == messages.GANG_RESTS
    seen.now += 25
    assert seen.ask("g-0") == messages.GANG_GATHERS
    assert seen.held() == set()
    assert seen.ask("g-1", ["b"]) == "b", "it is known of both now"
    assert len(seen.held()) == 2


def test_what_the_scheduler_said_before_an_attempt_ends_none() -> None:
    seen = Gangs()
    seen.gang("g", 2, 2)
    seen.says("g-1", **UNSCHEDULABLE)
    seen.ask("g-0")
    seen.says("g-1", **UNSCHEDULABLE)
    assert len(seen.held()) == 2


def test_an_attempt_ends_when_not_all_have_come_in_time_and_when_a_member_has_gone() -> None:
    seen = Gangs(gang_bind="20s")
    seen.gang("g", 2, 2)
    seen.ask("g-0")
    seen.now += 21
    seen.ask("single")
    assert seen.held() == set()
    seen = Gangs()
    seen.gang("g", 2, 2)
    seen.ask("g-0")
    seen.show("pod", seen.state.pods.store["team/g-1"], deleted=True)
    assert seen.held() == set()


def test_a_gang_of_higher_priority_that_fits_comes_first_and_one_that_does_not_holds_up_nobody() -> (
    None
):
    seen = Gangs()
    seen.gang("low", 2, 2)
    seen.gang("high", 8, 8, priority=10)
    seen.gang("huge", 9, 9, priority=20)
    assert seen.ask("huge-0") == messages.GANG_TOO_FEW
    seen.show("pod", *(pod(f"x-{n}") for n in range(1)))
    seen.state.hold("a", [0], pod("x-0"))
    assert seen.ask("high-0") == messages.GANG_TOO_FEW
    seen.state.let_go("a", pod("x-0"))
    assert seen.ask("low-0") == messages.GANG_TURN
    assert seen.ask("high-0") in {"a", "b"}
    assert seen.ask("low-0") == messages.GANG_TOO_FEW


def test_a_gang_of_higher_priority_is_waited_for_where_gpus_are_new_but_not_for_long() -> None:
    seen = Gangs()
    seen.gang("high", 5, 5, priority=10)
    assert seen.ask("high-0", ["a"]) == messages.GANG_TOO_FEW
    seen.now += 20
    seen.gang("low", 2, 2)
    assert seen.ask("low-0", ["a", "b"]) == messages.GANG_TURN, "the other has not been asked yet"
    assert seen.held() == set()
    seen.now += 16
    assert seen.ask("low-0", ["a", "b"]) in {"a", "b"}, "the scheduler has no node for the other"


def test_of_more_members_than_are_needed_the_others_wait_until_those_have_their_gpus() -> None:
    seen = Gangs()
    seen.gang("g", 6, 4)
    told = [seen.ask(f"g-{n}", ["a"]) for n in range(6)]
    assert told == ["a"] * 4 + [messages.GANG_TURN] * 2


def test_what_becomes_free_is_kept_for_a_gang_that_has_waited_and_pods_that_fit_beside_pass() -> (
    None
):
    seen = Gangs(gang_max_wait="60s")
    seen.gang("g", 1, 1, each=4)
    others = [pod(f"x-{n}") for n in range(2)]
    seen.state.hold("a", [0, 1], others[0])
    seen.state.hold("b", [0, 1, 2], others[1])
    assert seen.ask("g-0") == messages.GANG_TOO_FEW
    assert seen.ask("single", ["a"]) == "a", "it has not waited yet"
    seen.now += 61
    seen.ask("g-0")
    assert seen.ask("single", ["a"]) == messages.KEPT
    assert seen.ask("single", ["a", "b"]) == "b", "it needs one node"
    seen.gang("h", 2, 2)
    assert seen.ask("h-0") == messages.GANG_TOO_FEW, "it came later"
    seen.state.let_go("a", others[0])
    assert seen.ask("g-0") == "a"


def _counting(word: str) -> Gangs:
    """A gang of four that waits behind eight pods, and of which the scheduler says ``word``: it has
    asked nobody here, as no node has as many of the counted resource.
    """
    seen = Gangs(gang_max_wait="60s", count_resource=names.COUNT_RESOURCE)
    asks = {"containers": [{"resources": {"requests": {names.COUNT_RESOURCE: "1"}}}]}
    for name, say in (("single", {names.CLAIM_ANNOTATION: "one"}), ("g", {})):
        if name == "g":
            seen.gang("g", 4, 4)
        members = [f"g-{n}" for n in range(4)] if name == "g" else [name]
        for member in members:
            shown = seen.state.pod(("team", member)) or pod(member, annotations=say)
            seen.show("pod", replace(shown, spec=msgspec.convert(asks, type(shown.spec))))
    for where in ("a", "b"):
        seen.state.hold(where, range(4), pod(f"x-{where}"))
    message = f"0/2 nodes are available: 2 {word}. preemption: 0/2 nodes are available."
    said = {"type": "PodScheduled", "reason": "Unschedulable", "message": message}
    seen.says("g-3", conditions=[said])
    seen.ask("single")
    seen.now += 61
    return seen


def test_what_becomes_free_is_kept_for_a_gang_that_the_scheduler_has_not_asked_about_yet() -> None:
    seen = _counting(f"Insufficient {names.COUNT_RESOURCE}")
    assert seen.ask("single") == messages.TOO_FEW
    seen.state.let_go("a", pod("x-a"))
    assert seen.ask("single", ["a", "b"]) == messages.KEPT
    seen.now += 16
    assert seen.ask("single", ["a", "b"]) == "a", "the scheduler would not have the gang there"


def test_nothing_is_kept_for_a_gang_that_lacks_something_else_than_gpus() -> None:
    seen = _counting("node(s) didn't match Pod's node affinity/selector")
    seen.state.let_go("a", pod("x-a"))
    assert seen.ask("single", ["a", "b"]) == "a"


def test_one_attempt_that_failed_does_not_give_away_what_is_kept_for_a_gang() -> None:
    seen = Gangs(gang_max_wait="60s")
    seen.gang("g", 4, 4)
    seen.state.hold("a", [0], pod("x-a"))
    assert seen.ask("g-0", ["a"]) == messages.GANG_TOO_FEW
    seen.now += 61
    seen.state.let_go("a", pod("x-a"))
    assert seen.ask("g-0", ["a"]) == "a"
    seen.says("g-3", **UNSCHEDULABLE)
    assert seen.held() == set(), "the scheduler had said so before it began, and was heard late"
    assert seen.ask("single", ["a"]) == messages.KEPT
    seen.ask("g-0", ["a"])


def test_nothing_is_kept_for_a_gang_that_gpus_alone_do_not_help() -> None:
    seen = Gangs(gang_max_wait="30s")
    seen.gang("g", 2, 2)
    for turn in range(2):
        for n in range(2):
            seen.ask(f"g-{n}")
        said = UNSCHEDULABLE["conditions"][0] | {"message": f"no node, look {turn}"}
        seen.says("g-1", conditions=[said])
        seen.now += 20
    assert seen.ask("single", ["a"]) == "a"


def test_nothing_is_kept_for_a_gang_that_lacks_a_member_and_the_next_one_is_not_behind_it() -> None:
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("g", 4, 4, priority=5)
    seen.gang("h", 1, 1, each=3)
    for where in ("a", "b"):
        seen.state.hold(where, range(2), pod(f"x-{where}"))
    seen.status("b")
    for name in ("g-0", "h-0"):
        seen.ask(name, ["a"])
    seen.now += 61
    assert seen.ask("single", ["a"]) == messages.KEPT
    seen.show("pod", seen.state.pods.store["team/g-3"], deleted=True)
    seen.show("pod", seen.state.pods.store["team/h-0"], deleted=True)
    assert seen.ask("single", ["a"]) == "a"
    seen.gang("h", 1, 1, each=3)
    seen.ask("h-0", ["a"])
    seen.now += 61
    assert seen.ask("single", ["a"]) == messages.KEPT


def test_nothing_is_kept_for_a_gang_that_all_nodes_are_too_few_for_and_the_next_one_has_its_turn() -> (
    None
):
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("huge", 9, 9, priority=5)
    seen.gang("g", 1, 1, each=4)
    for where in ("a", "b"):
        seen.state.hold(where, [0], pod(f"x-{where}"))
    seen.ask("huge-0")
    seen.now += 61
    assert seen.ask("single", ["a"]) == "a"
    seen.ask("g-0")
    seen.now += 1
    assert seen.ask("single", ["b"]) == messages.KEPT, "for the other one"
    seen.show("pod", seen.state.pods.store["team/g-0"], deleted=True)
    for _ in range(9):
        seen.now += 10
        seen.ask("huge-0")
        assert seen.ask("single", ["a"]) == "a"
    seen.show("node", node("c"))
    seen.status("c", {"id": 0})
    seen.ask("huge-0", ["a", "b", "c"])
    seen.now += 25
    assert seen.ask("single", ["a"]) == messages.KEPT, "there is room for it by now"


def test_a_gang_whose_nodes_the_scheduler_names_no_longer_holds_up_nobody() -> None:
    seen = Gangs(gang_max_wait="30s")
    seen.gang("high", 8, 8, priority=5)
    seen.gang("low", 2, 2)
    seen.state.hold("b", [0], pod("x"))
    assert seen.ask("high-0") == messages.GANG_TOO_FEW
    seen.state.let_go("b", pod("x"))
    for _ in range(4):  # node a, whose GPUs are free, is cordoned
        seen.now += 10
        assert seen.ask("high-0", ["b"]) == messages.GANG_TOO_FEW
    assert seen.ask("single", ["b"]) == "b"
    assert seen.ask("low-0", ["b"]) == "b"


def test_a_small_member_forgets_no_node_that_is_full_for_a_large_one() -> None:
    """Of the large one nobody is asked then, as the scheduler counts GPUs itself."""
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("g", 1, 2)
    seen.claim("large", 4, gang="g")
    said = seen.state.pods.store["team/g-0"].metadata.annotations or {}
    seen.show("pod", pod("g-1", annotations={**said, names.CLAIM_ANNOTATION: "large"}))
    seen.state.hold("a", range(2), pod("x-a"))
    seen.state.hold("b", range(4), pod("x-b"))
    seen.ask("g-1", ["a"])
    for _ in range(10):
        seen.now += 10
        seen.ask("g-0", ["b"])
    assert seen.ask("single", ["a"]) == messages.KEPT


def test_a_gang_of_pods_with_two_claims_starts_when_all_of_them_fit() -> None:
    seen = Gangs()
    seen.gang("g", 1, 2)
    seen.claim("large", 4, gang="g")
    said = seen.state.pods.store["team/g-0"].metadata.annotations or {}
    seen.show("pod", pod("g-1", annotations={**said, names.CLAIM_ANNOTATION: "large"}))
    assert {seen.ask("g-0"), seen.ask("g-1")} == {"a", "b"}
    assert len(seen.held()) == 5


def test_a_node_of_a_large_cluster_that_a_call_does_not_name_is_named_by_a_later_one() -> None:
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("g", 2, 2, each=4)
    seen.state.hold("a", [0], pod("x"))
    seen.ask("g-0")
    for turn in range(10):
        seen.now += 10
        seen.ask("g-0", [f"c-{turn}-{n}" for n in range(100)])
    assert seen.ask("single", ["b"]) == messages.KEPT


def test_a_gang_that_is_too_large_gives_nothing_away_of_what_is_kept_for_the_next() -> None:
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("huge", 9, 9, priority=5)
    seen.gang("larger", 10, 10, priority=5)
    seen.gang("g", 1, 1, each=4)
    for where in ("a", "b"):
        seen.state.hold(where, [0], pod(f"x-{where}"))
    for _ in range(30):
        for name in ("huge-0", "larger-0", "g-0"):
            seen.ask(name, ["a"])
        seen.now += 7
        if seen.now > 1061:
            assert seen.ask("single", ["a"]) == messages.KEPT


@pytest.mark.parametrize("again", [10, 60])
def test_a_gang_that_lacked_a_node_for_a_while_has_waited_for_as_long_as_it_has(again: int) -> None:
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("g", 2, 2, each=4)
    seen.state.hold("a", [0], pod("x"))
    seen.ask("g-0")
    seen.now += 30
    seen.gang("h", 1, 1, each=4)
    seen.ask("h-0")
    seen.now += 61
    assert seen.ask("single", ["b"]) == messages.KEPT
    devices = [{"id": n, "uuid": f"GPU-b-{n}"} for n in range(4)]
    seen.status("b", *(each | {"health": "Unhealthy"} for each in devices))
    for _ in range(again):
        seen.now += 1
        seen.ask("g-0")
        kept = seen.ask("single", ["a"]) == messages.KEPT
        assert kept, "for the one or the other"
    seen.status("b", *devices)
    seen.now += 21
    seen.ask("g-0")
    assert seen.ask("single", ["b"]) == messages.KEPT
    seen.state.let_go("a", pod("x"))
    assert seen.ask("h-0") == messages.GANG_TURN, "it came later"


def test_what_is_kept_for_another_gang_while_one_cannot_start_is_not_kept_from_that_one() -> None:
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("g", 2, 2, each=4)
    seen.state.hold("a", [0], pod("x"))
    seen.ask("g-0")
    seen.now += 1
    seen.gang("h", 1, 1, each=4)
    devices = [{"id": n, "uuid": f"GPU-b-{n}"} for n in range(4)]
    seen.status("b", *(each | {"health": "Unhealthy"} for each in devices))
    seen.ask("h-0")
    seen.now += 61
    seen.ask("g-0")
    assert seen.ask("single", ["a"]) == messages.KEPT, "for h"
    seen.status("b", *devices)
    seen.state.let_go("a", pod("x"))
    assert seen.ask("g-0") in {"a", "b"}


def test_nothing_is_kept_for_a_gang_of_which_a_claim_is_gone() -> None:
    seen = Gangs(gang_max_wait="60s", stale_after="24h")
    seen.gang("g", 1, 2, each=4)
    seen.claim("another", 4, gang="g")
    said = seen.state.pods.store["team/g-0"].metadata.annotations or {}
    seen.show("pod", pod("g-1", annotations={**said, names.CLAIM_ANNOTATION: "another"}))
    seen.state.hold("a", [0], pod("x"))
    seen.ask("g-0")
    seen.now += 61
    assert seen.ask("single", ["b"]) == messages.KEPT
    seen.drop_claim("another")
    seen.now += 1
    assert seen.ask("single", ["b"]) == "b"


def test_a_pod_of_higher_priority_than_the_gang_takes_what_is_kept() -> None:
    seen = Gangs(gang_max_wait="60s")
    seen.gang("g", 1, 1, each=4)
    for where in ("a", "b"):
        seen.state.hold(where, [0], pod(f"x-{where}"))
    seen.ask("g-0", ["a"])
    seen.now += 61
    assert seen.ask("single", ["a"]) == messages.KEPT
    high = pod("single", annotations={names.CLAIM_ANNOTATION: "one"}, priority=5)
    seen.show("pod", high)
    assert seen.ask("single", ["a"]) == "a"


def test_a_node_that_goes_while_its_gpus_are_kept_for_a_gang_hinders_no_other_gang() -> None:
    seen = Gangs(gang_max_wait="1s")
    seen.gang("large", 2, 2, each=4, priority=5)
    seen.state.hold("b", range(4), pod("other"))
    seen.ask("large-0")
    seen.now += 30
    seen.ask("single")
    kept = seen.extender._starts.kept(0)
    assert kept
    seen.gang("small", 2, 2)
    seen.show("node", *map(node, kept), deleted=True)
    assert seen.ask("small-0") == messages.GANG_TOO_FEW


def test_a_member_that_came_again_under_its_name_while_no_watch_saw_it_holds_nothing_of_before() -> (
    None
):
    seen = Gangs()
    seen.gang("g", 2, 2)
    seen.ask("g-0")
    assert len(seen.held()) == 2
    found: Pod = seen.state.pods.store["team/g-1"]
    seen.show("pod", replace(found, metadata=replace(found.metadata, uid="another")))
    seen.show("pod", *(seen.state.pods.store[f"team/g-{n}"] for n in range(2)), deleted=True)
    assert seen.held() == set()


@pytest.mark.parametrize("health", ["Unhealthy", "Unknown", "Healthy"])
def test_a_gang_whose_reserved_gpus_turn_sick_before_its_first_member_is_bound_is_not_bound(
    health: str,
) -> None:
    seen = Gangs(gang_bind="1s")
    seen.claim("g", 1, gang="g")
    share = Reserved(
        number=1, node="a", ids=(0,), plan="x", members=1, first="g-0", first_uid="uid-g-0"
    )
    annotations = {names.CLAIM_ANNOTATION: "g", names.RESERVED_ANNOTATION: written(share)}
    member = pod("g-0", annotations=annotations)
    seen.show("pod", member)
    seen.status("a", {"id": 0, "health": health}, *({"id": n} for n in range(1, 4)))
    answer = anyio.run(seen.extender._starts.arrive, member, "a")
    assert answer == (messages.TOO_SMALL if health != "Healthy" else member)


def test_once_its_first_member_is_bound_the_others_of_a_gang_are_whatever_their_gpus_say() -> None:
    """Part of a gang would run else."""
    seen = Gangs()
    seen.claim("g", 1, gang="g")
    for n, node_name in enumerate(("a", "")):
        share = Reserved(
            number=1, node="a", ids=(n,), plan="x", members=2, first="g-0", first_uid="uid-g-0"
        )
        annotations = {names.CLAIM_ANNOTATION: "g", names.RESERVED_ANNOTATION: written(share)}
        member = pod(f"g-{n}", annotations=annotations, node_name=node_name)
        seen.show("pod", member)
    seen.status("a", *({"id": n, "health": "Unhealthy"} for n in range(4)))
    assert anyio.run(seen.extender._starts.arrive, member, "a") == member
