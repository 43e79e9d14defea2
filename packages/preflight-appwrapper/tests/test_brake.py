"""The brake: how much of a cluster one mistake moves, who is told, and what releases the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from doubled import change, client, core, double, has, objects, running, write_status
from leading import Leading, leads
from player import Player, job, playing
from preflight_appwrapper.api.rules import BrakeRules, WrapperRules
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.controller.node_labeler import Labeler
from preflight_appwrapper.core.brake import Brake, suspicion
from preflight_appwrapper.core.health import RELEASE
from preflight_appwrapper.core.node_labels import (
    HELD,
    LabeledNode,
    LabeledNodeMetadata,
    code,
)
from preflight_appwrapper.core.snapshot import HeldEvacuation
from preflight_appwrapper.metrics import Metrics
from preflight_appwrapper.report.evacuations import (
    Evacuations,
    HeldNode,
    HeldWorkload,
    lines,
    release,
    waiting,
)
from preflight_kube.api.node_health import NodeCondition
from preflight_testing.apidouble import ApiAnswer, ApiDouble, ApiRequest
from preflight_testing.waiting import until

KEY = NodeHealthConfig().key
SICK = {
    "type": "DcgmDiagnosticMemory",
    "status": "True",
    "reason": "DcgmDiagnosticMemoryIsNotHealthy",
    "message": "ErrorCode:DCGM_FR_1 GPU:0 failed Recommended Action=NONE;",
}


class Ticks:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("percent", "total", "allowed"),
    [(10, 40, 4), (10, 9, 1), (10, 0, 1), (10, 19, 1), (50, 3, 1), (1, 1000, 10), (100, 5, 5)],
)
def test_a_share_or_one_goes_in_a_window(percent: int, total: int, allowed: int) -> None:
    brake = Brake(BrakeRules(percent, 600), Ticks())
    gone = 0
    for i in range(total or 3):
        if brake.wait(i, total) is None:
            brake.take(i)
            gone += 1
    assert gone == allowed


def test_the_next_goes_when_the_first_leaves_the_window_and_the_same_goes_again() -> None:
    clock = Ticks()
    brake = Brake(BrakeRules(10, 600), clock)
    assert brake.take("a")
    clock.now += 100
    assert brake.wait("b", 5) == 500
    assert brake.wait("a", 5) is None
    assert not brake.take("a")
    clock.now += 500
    assert brake.wait("b", 5) is None
    brake.take("b")
    brake.give_back("b")
    assert brake.wait("c", 5) is None


def test_many_nodes_with_one_code_are_called_what_they_probably_are() -> None:
    assert suspicion([("a", "X"), ("b", "X"), ("a", "X")]) == ""
    assert suspicion([("a", "X"), ("b", "Y"), ("c", "Z")]) == ""
    said = suspicion([("a", "X of c"), ("b", "X of c"), ("c", "X of c"), ("d", "Y")])
    assert "X of c" in said
    assert "bad image or setting" in said
    conditions = [NodeCondition(type="Ready", status="True"), NodeCondition(**SICK)]
    assert code(conditions, NodeHealthConfig()) == "DCGM_FR_1 of condition DcgmDiagnosticMemory"


# --- one wrapper, in the pure core


def sick(player: Player) -> None:
    player.world.nodes = {"node-a": frozenset({"nvidia.com/gpu"})}


def held(player: Player, sentence: str = "the brake") -> None:
    at = player.world.now.replace(year=2027)
    seen = player.world.seen
    player.world.seen = lambda: _with(seen(), HeldEvacuation(sentence=sentence, at=at))  # type: ignore[method-assign]


def _with(view: Any, value: HeldEvacuation) -> Any:
    import msgspec

    return msgspec.structs.replace(view, held=value)


def begun() -> Player:
    player = playing(job())
    player.until("Running")
    player.world.run()
    player.settle()
    return player


def test_what_the_brake_holds_stays_as_it_is_and_says_so_once() -> None:
    player = begun()
    held(player)
    sick(player)
    made = player.settle()
    said = player.world.condition("EvacuationHeld")
    assert (said["status"], said["reason"]) == ("True", "AutopilotNoExecute")
    assert said["message"].endswith("the brake")
    assert player.phase == "Running"
    assert player.world.condition("Unhealthy")["status"] == "False"
    assert player.world.condition("PodsReady")["status"] == "True"
    assert made.next is not None
    assert made.next.at is not None
    before = player.world.writes
    player.look()
    assert player.world.writes == before
    assert sum(one.startswith("EvacuationHeld") for one in player.world.events) == 1


def test_the_condition_goes_with_the_mark_of_the_node() -> None:
    player = begun()
    held(player)
    sick(player)
    player.settle()
    player.world.nodes = {}
    player.settle()
    assert not player.world.condition("EvacuationHeld")
    assert player.count == 0


def test_a_release_is_good_for_this_one_time() -> None:
    player = begun()
    held(player)
    sick(player)
    player.settle()
    assert player.world.wrapper is not None
    since = player.world.condition("EvacuationHeld")["lastTransitionTime"]
    player.world.wrapper["metadata"]["annotations"][RELEASE] = since
    player.settle()
    assert "evacuate" in player.rows
    player.world.nodes = {}
    player.until("Running")
    player.world.run()
    player.world.sleep(30)
    sick(player)
    player.settle()
    assert player.rows.count("evacuate") == 1
    assert player.world.condition("EvacuationHeld")["lastTransitionTime"] != since


def test_pods_of_a_check_that_failed_are_not_counted_while_the_brake_holds() -> None:
    player = begun()
    held(player)
    result = '{"v":1,"check":"dcgm-diag","outcome":"failed","code":"DCGM_FR_1","gated":true,"duration":1.0,"subject":"node"}'
    for pod in player.world.pods.values():
        pod["status"] = {
            "phase": "Failed",
            "initContainerStatuses": [
                {
                    "name": "preflight-dcgm-diag",
                    "state": {"terminated": {"exitCode": 1, "message": result}},
                }
            ],
        }
    player.wait(5000)
    assert player.phase == "Running"
    assert player.world.condition("EvacuationHeld")["reason"] == "PreflightFailed"


def test_a_pod_that_fails_by_itself_is_counted_while_the_brake_holds() -> None:
    player = begun()
    held(player)
    sick(player)
    player.settle()
    next(iter(player.world.pods.values()))["status"] = {"phase": "Failed"}
    player.wait(70)
    assert player.count == 1


# --- a whole cluster


def cluster(api: ApiDouble, nodes: int, each: int) -> None:
    for i in range(nodes):
        api.create("nodes", {"metadata": {"name": f"node-{i}", "labels": {"x": "y"}}})
        for j in range(each):
            running(api, f"w-{i}-{j}", node=f"node-{i}")


def evict(api: ApiDouble) -> None:
    for raw in objects(api, "nodes"):
        mark(api, raw["metadata"]["name"], "EVICT")


def mark(api: ApiDouble, name: str, value: str) -> None:
    labels = {"autopilot.ibm.com/gpuhealth": value}
    change(api, "nodes", name, {"metadata": {"labels": labels}})


def fails(api: ApiDouble, name: str, *conditions: dict[str, str]) -> None:
    write_status(api, "nodes", "", name, {"conditions": list(conditions)})


def moved(api: ApiDouble) -> list[str]:
    return [
        raw["metadata"]["name"]
        for raw in objects(api, "appwrappers")
        if raw["status"]["phase"] != "Running"
    ]


def names(api: ApiDouble) -> list[str]:
    return [raw["metadata"]["name"] for raw in objects(api, "appwrappers")]


def waits(api: ApiDouble) -> list[str]:
    return [
        raw["metadata"]["name"]
        for raw in objects(api, "appwrappers")
        if has(raw, "EvacuationHeld").get("status") == "True"
    ]


def events(api: ApiDouble, reason: str) -> list[dict[str, Any]]:
    return [one for one in objects(api, "events") if one["reason"] == reason]


def told(leading: Leading) -> float:
    return leading.counted("appwrapper_evacuations_held")


@pytest.mark.anyio
async def test_of_10_nodes_that_turn_evict_one_share_moves_and_one_command_releases_the_rest() -> (
    None
):
    async with double() as api:
        cluster(api, 10, 4)
        async with client(api) as ours, leads(client=ours) as leading:
            evict(api)
            await until(lambda: len(waits(api)) == 36, "36 of 40 wait")
            await until(lambda: len(events(api, "EvacuationHeld")) == 36, "each of them says so")
            await until(lambda: len(moved(api)) == 4, "the share moves")
            assert told(leading) == 36
            assert sum(raw["status"].get("resettingCount", 0) for raw in objects(api, "appwrappers")) == 0  # fmt: skip
            async with client(api) as admin:
                found = await waiting(admin, NodeHealthConfig())
                assert len(found.workloads) == 36
                assert any("release all of it" in one for one in lines(found, released=False))
                await release(admin, found, NodeHealthConfig())
            await until(lambda: len(moved(api)) == 40, "all have gone")
            await until(lambda: told(leading) == 0, "nothing waits any more")


@pytest.mark.anyio
async def test_the_next_leader_does_not_begin_with_a_whole_share() -> None:
    async with double() as api:
        cluster(api, 10, 1)
        rules = WrapperRules(forceful_deletion=0)
        async with client(api) as ours, leads(client=ours, rules=rules):
            evict(api)
            await until(lambda: len(waits(api)) == 9, "nine wait")
            await until(lambda: len(moved(api)) == 1, "one moves")
        gone = moved(api)
        async with client(api) as ours, leads(client=ours, rules=rules) as leading:
            await until(lambda: leading.counted("appwrapper_look_seconds_count") >= 10, "all looks")
            changed = gone.pop()
            await ours.delete(f"/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers/{changed}")  # fmt: skip
            await until(lambda: changed not in names(api), "what comes after the looks is over")
            assert moved(api) == []
            assert len(waits(api)) == 9


@pytest.mark.anyio
async def test_an_evacuation_that_comes_to_nothing_takes_no_share() -> None:
    tried = 0

    def fault(request: ApiRequest) -> ApiAnswer | None:
        nonlocal tried
        if request.method == "PUT" and request.path.endswith("/w-0-0/status"):
            tried += 1
            return ApiAnswer(500, {"kind": "Status", "status": "Failure", "code": 500})
        return core(request)

    async with double() as api:
        cluster(api, 2, 1)
        api.fault = fault
        async with client(api) as ours, leads(client=ours) as leading:
            mark(api, "node-0", "EVICT")
            await until(lambda: tried > 0, "it is to leave, and cannot be written")
            mark(api, "node-0", "PASS")
            looks = leading.counted("appwrapper_look_seconds_count")
            await until(lambda: leading.counted("appwrapper_look_seconds_count") > looks, "a look")
            mark(api, "node-1", "EVICT")
            await until(lambda: [*moved(api), *waits(api)], "the next one moves, or waits")
            assert moved(api) == ["w-1-0"]


@pytest.mark.anyio
async def test_a_label_that_cannot_be_written_takes_no_share() -> None:
    tried = 0

    def fault(request: ApiRequest) -> ApiAnswer | None:
        nonlocal tried
        if request.method == "PATCH" and request.path.endswith("/nodes/node-0"):
            tried += 1
            return ApiAnswer(500, {"kind": "Status", "status": "Failure", "code": 500})
        return core(request)

    async with double() as api, client(api) as ours, anyio.create_task_group() as group:
        for i in range(2):
            api.create("nodes", {"metadata": {"name": f"node-{i}", "labels": {"x": "y"}}})
        api.fault = fault
        group.start_soon(Labeler(ours, NodeHealthConfig(), Metrics(), BrakeRules()).run)
        fails(api, "node-0", SICK)
        await until(lambda: tried > 0, "it is to be labeled, and cannot be")
        fails(api, "node-0")
        fails(api, "node-1", SICK)
        await until(lambda: objects(api, "nodes")[1]["metadata"]["labels"].get(KEY), "a label")
        assert objects(api, "nodes")[1]["metadata"]["labels"][KEY] == "EVICT"
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_a_node_that_goes_as_it_is_held_ends_no_labeler() -> None:
    async with double() as api, client(api) as ours:
        labeler = Labeler(ours, NodeHealthConfig(), Metrics(), BrakeRules())
        labeler._tell(LabeledNode(LabeledNodeMetadata(name="gone", uid="x")))


@pytest.mark.anyio
async def test_what_has_gone_or_was_let_through_meanwhile_keeps_no_release_from_the_rest() -> None:
    async with double() as api, client(api) as admin:
        api.create("nodes", {"metadata": {"name": "node-a", "labels": {KEY: "EVICT"}}})
        api.create("nodes", {"metadata": {"name": "node-b", "labels": {KEY: HELD}}})
        running(api, "w")
        nodes = {one["metadata"]["name"]: one["metadata"]["uid"] for one in objects(api, "nodes")}
        listed = Evacuations(
            nodes=tuple(HeldNode(name=name, uid=nodes.get(name, "x"), why="") for name in ("gone", "node-a", "node-b")),
            workloads=tuple(HeldWorkload(namespace="default", name=name, since="now", reason="", why="") for name in ("gone", "w")),
        )  # fmt: skip
        await release(admin, listed, NodeHealthConfig())
        assert objects(api, "nodes")[1]["metadata"]["labels"][KEY] == "EVICT"
        assert objects(api, "appwrappers")[0]["metadata"]["annotations"][RELEASE] == "now"


@pytest.mark.anyio
async def test_what_has_ended_after_evacuations_takes_no_share_of_the_next_leader() -> None:
    async with double() as api:
        cluster(api, 1, 1)
        running(api, "ended")
        over = objects(api, "appwrappers")[-1]["status"]
        over = {**over, "phase": "Failed", "migrationCount": 7}
        write_status(api, "appwrappers", "default", "ended", over)
        async with client(api) as ours, leads(client=ours) as leading:
            evict(api)
            await until(lambda: len(moved(api)) == 2, "the other one moves")
            assert waits(api) == []
            await until(
                lambda: leading.counted("appwrapper_evacuations_in_a_row") == 1, "it is counted"
            )


@pytest.mark.anyio
@pytest.mark.parametrize(("minutes", "label"), [(11, "EVICT"), (9, HELD)])
async def test_a_label_that_stood_before_a_window_takes_no_share_of_the_next_leader(
    minutes: int, label: str
) -> None:
    written = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat()
    by = {"manager": "preflight-appwrapper", "operation": "Update", "time": written}
    async with double() as api, client(api) as ours, anyio.create_task_group() as group:
        api.create(
            "nodes",
            {"metadata": {"name": "old", "labels": {KEY: "EVICT"}, "managedFields": [by]}},
        )
        api.create("nodes", {"metadata": {"name": "new", "labels": {"x": "y"}}})
        fails(api, "old", SICK)
        fails(api, "new", SICK)
        group.start_soon(Labeler(ours, NodeHealthConfig(), Metrics(), BrakeRules()).run)
        await until(lambda: objects(api, "nodes")[1]["metadata"]["labels"].get(KEY), "a label")
        assert objects(api, "nodes")[1]["metadata"]["labels"][KEY] == label
        group.cancel_scope.cancel()


@pytest.mark.anyio
async def test_of_10_nodes_that_fail_with_one_code_one_is_labeled_and_the_others_are_told_why() -> (
    None
):
    async with double() as api:
        for i in range(10):
            api.create("nodes", {"metadata": {"name": f"node-{i}", "labels": {"x": "y"}}})
            fails(api, f"node-{i}", SICK)

        def labels(value: str) -> int:
            return sum(one["metadata"]["labels"].get(KEY) == value for one in objects(api, "nodes"))

        metrics = Metrics()
        async with client(api) as ours, anyio.create_task_group() as group:
            group.start_soon(Labeler(ours, NodeHealthConfig(), metrics, BrakeRules()).run)
            await until(lambda: labels(HELD) == 9, "nine wait")
            await until(lambda: len(events(api, "EvacuationHeld")) == 9, "each of them says so")
            assert labels("EVICT") == 1
            assert all(
                "bad image or setting" in one["message"] and "DCGM_FR_1" in one["message"]
                for one in events(api, "EvacuationHeld")
            )
            await until(lambda: metrics.nodes_held._value.get() == 9, "the metric")
            async with client(api) as admin:
                found = await waiting(admin, NodeHealthConfig())
                assert len(found.nodes) == 9
                assert "bad image or setting" in "\n".join(lines(found, released=False))
                await release(admin, found, NodeHealthConfig())
            await until(lambda: labels("EVICT") == 10, "all are labeled")
            await until(lambda: metrics.nodes_held._value.get() == 0, "the metric")
            assert labels(HELD) == 0
            group.cancel_scope.cancel()
