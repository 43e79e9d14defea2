"""Who has a GPU, whatever leases say: nobody else gets it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from actors import Actor, binder
from mirrors import Mirrors
from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.core.protocol import BindPod, CreateLease, Lost, Stored, Taken, relock
from shapes import claim, lease, node, pod
from world import World

replace = msgspec.structs.replace
RUNNING = {"phase": "Running", "startTime": "t", "containerStatuses": [{"state": {"running": {}}}]}
DONE = {"phase": "Failed", "startTime": "t", "containerStatuses": [{"state": {"terminated": {}}}]}


def device(gpu: int, uuid: str = "", **more: Any) -> dict[str, Any]:
    return {"id": gpu, "uuid": uuid or f"GPU-{gpu}", **more}


def world(*devices: dict[str, Any], **more: Any) -> Mirrors:
    """A node ``a`` of four GPUs, or of ``devices``; nothing is counted."""
    made = Mirrors(count_resource="", **more)
    made.show("node", node("a"))
    made.status("a", *(devices or map(device, range(4))))
    made.claim("two", 1)
    return made


def bound(
    name: str = "p", ids: str = "0", *, uuids: str = "all", status: Mapping[str, Any] = RUNNING
) -> Pod:
    said = {names.ALLOCATED_ANNOTATION: f"a:{ids}", names.NVIDIA_ANNOTATION: uuids}
    made = pod(name, annotations=said, node_name="a")
    return replace(made, status=msgspec.convert(status, type(made.status)))


def locked(gpu: int, name: str = "p", uuid: str = "") -> Lease:
    made = lease("a", gpu, f"uid-{name}", name=name)
    about = {**(made.metadata.annotations or {}), names.UUID_ANNOTATION: uuid}
    return replace(made, metadata=replace(made.metadata, annotations=about))


def test_a_bound_pod_whose_lease_is_lost_keeps_its_gpu_and_its_node_takes_no_pod_before_it_is_made_again() -> (
    None
):
    seen = world()
    seen.show("pod", bound())
    seen.show("lease", locked(0))
    assert seen.free("a") == {1, 2, 3}
    seen.show("lease", locked(0), deleted=True)
    assert seen.state.view("a").blocked == messages.UNLOCKED
    assert 0 in seen.state.busy("a")
    seen.show("lease", locked(0))
    assert seen.free("a") == {1, 2, 3}
    seen.show("pod", bound(status=DONE))
    assert seen.free("a") == {0, 1, 2, 3}


def test_a_pod_whose_gpu_another_pod_has_locked_closes_no_node_and_the_gpu_is_neither_s_to_give() -> (
    None
):
    seen = world()
    seen.show("pod", bound(), pod("q"))
    seen.show("lease", locked(0, "q"))
    assert seen.free("a") == {1, 2, 3}
    ((its, gpu, other),) = seen.state.unlocked("a")
    assert (its.metadata.name, gpu, other and other.holder) == ("p", 0, "uid-q")


@pytest.mark.parametrize(
    "forged",
    [
        replace(bound(), metadata=replace(bound().metadata, annotations={names.ALLOCATED_ANNOTATION: "a:0"})),
        replace(bound(), spec=replace(bound().spec, node_name="b")),
        replace(bound(), spec=replace(bound().spec, node_name="")),
    ],
    ids=["without a claim", "bound to another node", "not bound"],
)  # fmt: skip
def test_what_a_pod_says_of_gpus_that_no_binding_of_ours_gave_it_takes_none(forged: Pod) -> None:
    seen = world()
    seen.show("pod", forged)
    assert seen.free("a") == {0, 1, 2, 3}
    assert not list(seen.state.unlocked("a"))


def test_a_gpu_that_a_plan_gave_a_member_is_nobody_elses_when_its_lease_is_lost() -> None:
    seen = world()
    said = '{"number":1,"node":"a","ids":[2],"plan":"x","members":1,"first":"g","first_uid":"u"}'
    member = pod("g", annotations={names.RESERVED_ANNOTATION: said})
    seen.show("pod", member)
    assert seen.state.busy("a") == {2}
    fenced = {**(member.metadata.annotations or {}), names.RECLAIMED_ANNOTATION: "1"}
    seen.show("pod", replace(member, metadata=replace(member.metadata, annotations=fenced)))
    assert seen.free("a") == {0, 1, 2, 3}


def test_a_gpu_that_has_another_id_now_is_busy_by_the_uuid_of_a_lease_and_by_that_of_a_pod() -> (
    None
):
    """At the first boot one GPU was missing; then the status was lost, and dealt anew."""
    seen = world(device(0, "GPU-B"), device(1, "GPU-C"), device(2, "GPU-D"))
    seen.show("pod", bound("p", uuids="GPU-B"))
    seen.show("lease", locked(0), locked(1, "q", "GPU-C"))
    seen.show("pod", pod("q"))  # holds its lease, and is not bound yet
    devices = [device(0, "GPU-A"), device(1, "GPU-B"), device(2, "GPU-C"), device(3, "GPU-D")]
    seen.status("a", *devices, observed="t1")
    assert seen.free("a") == {3}


def test_what_a_lease_of_a_pod_that_is_not_seen_locks_under_another_id_is_not_taken() -> None:
    """Nobody who takes the new id would meet the lease, and ask for its pod."""
    seen = world(device(0, "GPU-A"), device(1, "GPU-B"))
    seen.show("lease", locked(0, "q", "GPU-B"))
    assert seen.free("a") == set()
    seen.now += 100  # longer than its containers may still run
    seen.status("a", device(0, "GPU-A"), device(1, "GPU-B"), observed="t1")
    assert seen.free("a") == {0}


def test_a_gpu_that_the_agent_sees_a_pod_have_is_busy_until_that_pod_is_known_to_have_ended() -> (
    None
):
    seen = world(device(0, inUseBy=["uid-p"], processes=2), device(1, inUseBy=["strange"]))
    seen.show("pod", bound())
    seen.show("lease", locked(0))
    assert seen.free("a") == set()
    seen.show("pod", bound(status=DONE))
    assert seen.free("a") == {0}


def vanished(status: Mapping[str, Any], *devices: dict[str, Any], observed: str | None) -> Mirrors:
    """``p`` had GPU 0, said ``status`` of its containers, and is not there any more."""
    seen = world()
    if devices:
        seen.status("a", *devices, observed=observed)
    last = bound(status=status)
    seen.show("pod", last)
    seen.show("lease", locked(0))
    seen.show("pod", last, deleted=True)
    return seen


def test_the_gpu_of_a_pod_that_was_deleted_by_force_is_free_when_the_agent_has_seen_it_free() -> (
    None
):
    seen = vanished(RUNNING, device(0, inUseBy=["uid-p"], processes=1), device(1), observed="t0")
    assert seen.free("a") == {1}
    seen.status("a", device(0, processes=1), device(1), observed="t1")
    assert seen.free("a") == {1}, "the process runs"
    seen.status("a", device(0, processes=0), device(1), observed="t2")
    assert seen.free("a") == {0, 1}


def test_a_report_from_before_a_pod_was_deleted_by_force_frees_nothing() -> None:
    seen = vanished(RUNNING, device(0, processes=0), device(1), observed="t0")
    assert seen.free("a") == {1}


@pytest.mark.parametrize("observed", ["t0", None])
def test_the_gpu_of_a_pod_that_was_deleted_by_force_is_free_after_a_while_without_an_agent(
    observed: str | None,
) -> None:
    seen = vanished(RUNNING, device(0), device(1), observed=observed)
    seen.now += 89
    assert seen.free("a") == {1}
    seen.status("a", device(0), device(1), observed=observed and "t1")  # it lives, and cannot tell
    seen.now += 2
    assert seen.free("a") == {0, 1}


@pytest.mark.parametrize("status", [DONE, {"phase": "Succeeded"}, {"phase": "Pending"}])
def test_the_gpu_of_a_pod_that_ended_or_was_never_begun_is_free_at_once(
    status: Mapping[str, Any],
) -> None:
    assert vanished(status, observed=None).free("a") == {0, 1, 2, 3}


def test_the_gpu_of_a_pod_that_vanished_with_its_lease_is_busy_until_the_agent_has_seen_it_free() -> (
    None
):
    seen = vanished(RUNNING, device(0), device(1), observed="t0")
    seen.show("lease", locked(0), deleted=True)
    assert seen.free("a") == {1}
    seen.status("a", device(0), device(1), observed="t1")
    assert seen.free("a") == {1}, "this agent cannot tell processes"
    seen.status("a", device(0, processes=0), device(1, processes=0), observed="t2")
    assert seen.free("a") == {0, 1}


def test_without_an_agent_the_gpu_of_a_pod_that_vanished_with_its_lease_is_free_after_a_while() -> (
    None
):
    seen = vanished(RUNNING, device(0), device(1), observed="t0")
    seen.show("lease", locked(0), deleted=True)
    seen.now += 89
    seen.status("a", device(0), device(1), observed="t1")
    assert seen.free("a") == {1}
    seen.now += 2
    assert seen.free("a") == {0, 1}


def test_a_pod_that_an_old_backup_says_was_never_bound_keeps_its_gpu_until_the_agent_has_looked() -> (
    None
):
    seen = world(device(0), device(1))
    seen.show("pod", bound())
    seen.show("lease", locked(0))
    seen.show("pod", pod("p"))
    seen.show("lease", locked(0), deleted=True)
    assert seen.free("a") == {1}
    seen.status("a", device(0, processes=0), device(1, processes=0), observed="t1")
    assert seen.free("a") == {0, 1}


def test_a_pod_of_a_lost_node_that_somebody_marks_as_failed_keeps_its_gpu() -> None:
    seen = vanished({**RUNNING, "phase": "Failed"}, observed=None)
    assert seen.free("a") == {1, 2, 3}


@pytest.mark.parametrize("last", [pod(), replace(bound(), status=type(bound().status)())])
@pytest.mark.parametrize("comes_again", [False, True])
def test_a_pod_that_went_while_no_watch_saw_it_may_have_been_bound_and_begun(
    last: Pod, comes_again: bool
) -> None:
    seen = world(device(0, processes=0), device(1))
    seen.show("pod", last)
    seen.show("lease", locked(0))
    another = replace(pod(), metadata=replace(pod().metadata, uid="another"))
    seen.relist("pod", {"team/p": another} if comes_again else {})
    assert seen.free("a") == {1}
    seen.status("a", device(0, processes=0), device(1), observed="t1")
    assert seen.free("a") == {0, 1}


def test_what_the_agent_said_before_a_pod_went_unseen_says_nothing_of_it() -> None:
    seen = world(device(0, processes=0), device(1))
    seen.show("lease", locked(0))
    assert seen.free("a") == {1}, "its pod is not shown yet"
    seen.show("pod", pod())
    seen.status("a", device(0, processes=0), device(1), observed="t1")
    seen.now += 1
    seen.relist("pod", {})
    assert seen.free("a") == {1}, "it may have begun since"
    seen.status("a", device(0, processes=0), device(1), observed="t2")
    assert seen.free("a") == {0, 1}


def test_a_bind_that_ends_after_a_list_without_its_pod_holds_nothing_for_ever() -> None:
    seen = world(device(0, processes=0))
    seen.show("pod", pod("p"))
    steps, _ = begun(seen, "p")
    seen.relist("pod", {})
    with pytest.raises(StopIteration):
        steps.send((Lost(),))
    assert seen.free("a") == set(), "it may have been bound before it went"
    seen.status("a", device(0, processes=0), observed="t1")
    assert seen.free("a") == {0}


def test_a_lease_whose_pod_went_before_this_process_began_waits_for_the_agent_too() -> None:
    seen = world(device(0, processes=0), device(1))
    seen.show("lease", locked(0))
    assert seen.free("a") == {1}
    seen.status("a", device(0, processes=0), device(1), observed="t1")
    assert seen.free("a") == {0, 1}


def placing(seen: Mirrors, name: str) -> Any:
    found = seen.state.pods.store[f"team/{name}"]
    return seen.extender.placing(found, "a", claim(1))


def begun(seen: Mirrors, name: str) -> tuple[Any, BindPod]:
    """A bind of ``name``, and the Binding that it is about to send."""
    steps = placing(seen, name)
    (request,) = next(steps)
    assert isinstance(request, CreateLease)
    made = Stored(locked(request.gpu, name))
    seen.state.record(request, made)
    (binding,) = steps.send((made,))
    assert isinstance(binding, BindPod)
    return steps, binding


@pytest.mark.parametrize("answer", [Stored(), Lost()])
def test_a_binding_that_no_mirror_shows_yet_keeps_its_gpu_when_the_lease_is_deleted(
    answer: Stored | Lost,
) -> None:
    seen = world(device(0))
    seen.show("pod", pod("p"), pod("q"))
    steps, _ = begun(seen, "p")
    seen.show("lease", locked(0))
    seen.show("lease", locked(0), deleted=True)
    with pytest.raises(StopIteration):
        placing(seen, "q").send(None)
    with pytest.raises(StopIteration):
        steps.send((answer,))
    with pytest.raises(StopIteration) as ended:
        placing(seen, "q").send(None)
    assert ended.value.value.error == messages.TOO_FEW
    raised = {**(pod("p").metadata.annotations or {}), names.RECLAIMED_ANNOTATION: "1"}
    seen.show("pod", replace(pod("p"), metadata=replace(pod("p").metadata, annotations=raised)))
    assert seen.free("a") == {0}, "no Binding of the earlier number is stored any more"


def test_of_two_binds_of_one_pod_the_second_ends_at_once_and_the_first_keeps_its_gpu() -> None:
    seen = world(device(0))
    seen.show("pod", pod("p"), pod("q"))
    first, _ = begun(seen, "p")
    with pytest.raises(StopIteration) as ended:
        placing(seen, "p").send(None)
    assert ended.value.value.error == "pod is being bound already"
    seen.show("lease", locked(0))
    seen.show("lease", locked(0), deleted=True)
    with pytest.raises(StopIteration) as ended:
        placing(seen, "q").send(None)
    assert ended.value.value.error == messages.TOO_FEW
    first.close()


def test_a_bind_begun_before_a_status_numbered_the_gpus_anew_does_not_go_on() -> None:
    seen = world(device(0, "GPU-A"), device(1, "GPU-B"))
    seen.show("pod", pod("p"))
    steps = placing(seen, "p")
    next(steps)
    seen.status("a", device(0, "GPU-B"), device(1, "GPU-A"), observed="t1")
    other = Stored(locked(0, "q"))
    seen.show("pod", pod("q"))
    steps.send((Lost(),))
    with pytest.raises(StopIteration) as ended:
        steps.send((other,))
    assert ended.value.value.error == messages.STATUS_CHANGED
    assert seen.free("a") == {0, 1}


def member(seen: Mirrors, ids: str, uuid: str = "") -> str:
    """Why a gang's member that a plan gave GPUs ``ids`` of node ``a`` is not bound; its lease is
    there, made for ``uuid``.
    """
    said = f'{{"number":1,"node":"a","ids":[{ids}],"plan":"x","members":1,"first":"g","first_uid":'
    found = pod("g", annotations={names.RESERVED_ANNOTATION: said + '"uid-g"}'})
    seen.show("pod", found)
    seen.show("lease", *(locked(int(gpu), "g", uuid) for gpu in ids.split(",")))
    steps = seen.extender.placing(found, "a", claim(1, gang="g"))
    try:
        (request,) = next(steps)
    except StopIteration as ended:
        return str(ended.value.error)
    assert isinstance(request, BindPod)
    return ""


def test_a_member_is_not_bound_to_a_gpu_that_another_pod_has_or_that_its_node_does_not_list() -> (
    None
):
    seen = world()
    assert member(seen, "1") == ""
    seen = world()
    seen.show("pod", bound(ids="1"))  # its lease was lost, and the plan got the GPU
    assert member(seen, "1") == messages.TAKEN
    assert member(world(), "7") == messages.STATUS_CHANGED


def test_a_member_is_not_bound_by_a_lease_that_was_made_for_what_was_another_gpu_then() -> None:
    assert member(world(), "1", "GPU-1") == ""
    assert member(world(), "1", "GPU-2") == messages.STATUS_CHANGED


def relocked(seen: World, found: Pod) -> Taken:
    result = Actor(relock(found, seen.mirror(0)), []).finish(seen)
    assert isinstance(result, Taken)
    return result


def test_lost_leases_are_made_again_for_a_pod_that_runs_and_never_over_another_pods() -> None:
    seen = World(lawless=True)
    seen.create_pod("p")
    assert not binder(seen, [], seen.pods["team", "p"], "a", 2).finish(seen).error
    found = seen.pods["team", "p"]
    seen.lose_locks()
    assert relocked(seen, found).broken
    seen.there = True
    assert sorted(relocked(seen, found).created) == ["gpu-a-0", "gpu-a-1"]
    assert {one.uuid for one in seen.leases.values()} == set(found.uuids)
    assert relocked(seen, found).created == {}, "they are there"
    seen.lose_lease("gpu-a-0")
    other = seen.create_pod("q")
    assert not isinstance(seen.perform(CreateLease(pod=other, node="a", gpu=0)), Lost)
    assert [need.gpu for need in relocked(seen, found).busy] == [0]
    seen.end_pod(found.key)
    seen.lose_lease("gpu-a-1")
    assert relocked(seen, found) == Taken()
    assert sorted(seen.leases) == ["gpu-a-0"]
