"""A pod gets as many GPUs as it was admitted with, and as quotas count: never another number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any, cast

import anyio
import msgspec
import pytest
from mirrors import Mirrors
from preflight_gpu_scheduler.api import messages, names
from preflight_gpu_scheduler.api.types import Pod
from preflight_gpu_scheduler.core.admission import admit
from preflight_gpu_scheduler.core.filter_prioritize import ExtenderArgs, ExtenderBindingArgs
from preflight_testing.apidouble.patches import json_patch
from shapes import lease, node, pod

RESOURCE = "gpu.scheduling/gpu"


def asking(*containers: str, **more: Any) -> Pod:
    """A pod whose containers ask for so many, as the API server stores them."""
    spec = {"containers": [_container(amount) for amount in containers], **more}
    made = pod()
    return msgspec.structs.replace(made, spec=msgspec.convert(spec, type(made.spec)))


def _container(amount: str) -> dict[str, Any]:
    counted = {RESOURCE: amount} if amount else {}
    return {"name": "x", "resources": {"requests": {"cpu": "1", **counted}}}


SIDECAR = {**_container("1"), "restartPolicy": "Always"}


def world(count: int, found: Pod, **config: Any) -> Mirrors:
    made = Mirrors(**config)
    made.show("node", node("a"))
    made.status("a", *({"id": n, "uuid": f"GPU-{n}"} for n in range(4)))
    made.claim("two", count)
    made.show("pod", found)
    for mirror in made.state.reflectors:
        mirror.synced.set()
    return made


@pytest.mark.parametrize(
    ("found", "counted"),
    [
        (asking(""), 0),
        (asking("2"), 2),
        (asking("1", "2"), 3),
        (asking("", initContainers=[_container("2")]), 2),
        (asking("1", initContainers=[SIDECAR]), 2),
        (asking("1", initContainers=[SIDECAR, _container("2")]), 3),
        (asking("1", initContainers=[_container("2"), SIDECAR]), 2),
        (asking("", initContainers=[_container("1"), SIDECAR, SIDECAR]), 2),
    ],
)
def test_what_a_pod_is_counted_with_is_what_the_scheduler_counts(found: Pod, counted: int) -> None:
    for count in (counted, counted + 1):
        if not count:
            continue
        seen = world(count, found)
        answer = seen.extender.filter(ExtenderArgs(pod=found, node_names=("a",)))
        if count == counted:
            assert answer.node_names == ("a",)
        else:
            assert answer.failed_and_unresolvable_nodes == {"a": messages.COUNT_DIFFERS}


def test_a_pod_with_another_count_than_its_claim_is_never_bound_unless_nothing_is_counted() -> None:
    found = asking("")
    args = ExtenderBindingArgs(pod_name="p", pod_namespace="team", pod_uid="uid-p", node="a")
    seen = world(2, found)
    outcome = anyio.run(seen.extender.bind, args)
    assert outcome.error == messages.COUNT_DIFFERS
    off = world(2, found, count_resource="")
    assert off.extender.filter(ExtenderArgs(pod=found, node_names=("a",))).node_names == ("a",)


def test_a_claim_that_was_made_again_with_another_count_gives_a_pod_nothing() -> None:
    found = asking("2")
    seen = world(2, found)
    question = ExtenderArgs(pod=found, node_names=("a",))
    assert seen.extender.filter(question).node_names == ("a",)
    seen.claim("two", 4)
    assert seen.extender.filter(question).node_names == ()


def admitted(asks: str, seen: Mirrors) -> Pod | None:
    """The pod as the webhook has it created now; None where it refuses it."""
    about = {"name": "p", "namespace": "team", "annotations": {names.CLAIM_ANNOTATION: "two"}}
    raw: dict[str, Any] = {"metadata": about, "spec": {"containers": [_container(asks)]}}
    raw["spec"]["schedulerName"] = seen.config.scheduler_name
    verdict = admit(raw, seen.state.claim(("team", "two")), seen.config)
    found = msgspec.convert(json_patch(raw, list(verdict.patch)), Pod)
    uid = msgspec.structs.replace(found.metadata, uid="uid-p")
    return None if verdict.refused else msgspec.structs.replace(found, metadata=uid)


@pytest.mark.parametrize("asks", ["", "1", "2"])
@pytest.mark.parametrize("order", tuple(permutations(["pod", "one", "two", "gone"])), ids="-".join)
def test_whatever_comes_first_a_pod_passes_with_the_number_that_it_was_counted_with_alone(
    asks: str, order: Sequence[str]
) -> None:
    seen = world(1, pod("other"))
    seen.drop_claim("two")
    for step in order:
        if step == "pod":
            if (created := admitted(asks, seen)) is not None:
                seen.show("pod", created)
        elif step == "gone":
            seen.drop_claim("two")
        else:
            seen.claim("two", {"one": 1, "two": 2}[step])
        shown, claim = seen.state.pod(("team", "p")), seen.state.claim(("team", "two"))
        if shown is not None:
            question = ExtenderArgs(pod=shown, node_names=("a",))
            passes = bool(seen.extender.filter(question).node_names)
            assert passes == (claim is not None and shown.counted(RESOURCE) == claim.want.count)


def test_of_resources_without_end_a_pod_keeps_a_few_and_one_that_is_not_kept_counts_as_none() -> (
    None
):
    many = {f"example.com/{number}": "1" for number in range(1000)}
    containers = [{"resources": {"requests": {**many, RESOURCE: "2"}}} for _ in range(100)]
    gates = [{"name": f"example.com/{number}"} for number in range(1000)]
    made = msgspec.convert({"containers": containers, "schedulingGates": gates}, type(pod().spec))
    asked = made.asked or {}
    assert (len(asked), asked["example.com/0"]) == (64, 100)
    assert (made.containers, made.scheduling_gates) == (None, None)
    assert msgspec.structs.replace(pod(), spec=made).counted(RESOURCE) == 0


GPUS = [{"id": n} for n in range(4)]


@pytest.mark.parametrize(
    ("config", "devices", "conflicts", "counted"),
    [
        ({}, GPUS[:1], [], ["1"]),
        ({}, [*GPUS[:1], *GPUS[:1]], [], []),
        ({}, [{"id": 0, "health": "much"}], [], []),
        ({"missing_node_status": "assume16"}, None, [], ["16"]),
        ({"device_plugin": "ignore"}, GPUS, ["device-plugin"], ["4"]),
        ({}, GPUS, ["device-plugin"], ["0"]),
    ],
)
def test_the_scheduler_counts_the_gpus_of_each_node_that_takes_pods_and_of_no_other(
    config: dict[str, str],
    devices: list[dict[str, Any]] | None,
    conflicts: list[str],
    counted: list[str],
) -> None:
    """Where nothing of a status can be used the count stays as it was."""
    seen, events = Mirrors(**config), list[str]()
    leader, patches = seen.leads()
    cast(Any, leader)._event = lambda about, reason, *_, **__: events.append(reason)
    seen.show("node", node("a", allocatable={RESOURCE: "99"}))
    if devices is not None:
        seen.status("a", *devices, conflicts=conflicts)
    anyio.run(leader._reconcile_node, ("", "a"))
    assert [patch["status"]["capacity"][RESOURCE] for patch in patches] == counted
    assert events == (["DevicePluginConflict"] if counted == ["0"] else [])


def test_a_sick_gpu_counts_while_it_is_held_and_its_node_is_looked_at_when_it_is_not() -> None:
    seen = Mirrors()
    leader, patches = seen.leads()
    seen.show("node", node("a", allocatable={RESOURCE: "2"}))
    seen.status("a", *({"id": n, "health": "Unhealthy"} for n in range(2)))
    held = lease("a", 0)
    seen.show("lease", held)
    anyio.run(leader._reconcile_node, ("", "a"))
    seen.state.listeners.append(leader._changed)
    before = leader._nodes.adds
    seen.show("lease", held, deleted=True)
    assert leader._nodes.adds > before
    anyio.run(leader._reconcile_node, ("", "a"))
    assert [patch["status"]["capacity"][RESOURCE] for patch in patches] == ["1", "0"]
