"""What the bench of the GPU scheduler makes and counts."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest
from preflight_e2e.bench import gpu_health, gpu_nodes
from preflight_e2e.bench.gpu_nodes import BindTally, ThreadedClient, pod
from preflight_e2e.bench.gpu_scheduler import share
from preflight_e2e.bench.load import BenchError
from preflight_testing.apiserver import ApiServer

BEFORE = """
gpu_scheduler_lease_writes_total{op="create",result="stored"} 10.0
gpu_scheduler_lease_writes_total{op="create",result="exists"} 5.0
gpu_scheduler_binds_total{result="bound"} 10.0
"""
AFTER = """
gpu_scheduler_lease_writes_total{op="create",result="stored"} 100.0
gpu_scheduler_lease_writes_total{op="create",result="exists"} 6.0
gpu_scheduler_binds_total{result="bound"} 108.0
gpu_scheduler_binds_total{result="error"} 1.0
gpu_scheduler_calls_total{result="error",verb="filter"} 50.0
"""


def test_a_pod_without_a_claim_is_counted_as_the_device_plugins() -> None:
    stock = pod("p", "", 1, scheduler="stock")
    assert stock["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert stock["metadata"]["annotations"] == {}
    assert stock["spec"]["schedulerName"] == "stock"


def test_a_member_of_a_gang_waits_behind_the_gate_and_says_how_many_they_are() -> None:
    member = pod("p", "gang", 8, gang=128)
    assert member["metadata"]["annotations"]["gpu.scheduling/gang-size"] == "128"
    assert member["spec"]["schedulingGates"] == [{"name": "gpu.scheduling/waiting"}]


def test_the_share_of_conflicts_is_of_what_was_written_between_two_readings() -> None:
    assert share(BEFORE, AFTER) == pytest.approx(2 / 190, abs=1e-5)
    assert share(AFTER, AFTER) == 0.0


def test_a_gpu_that_two_living_pods_have_is_counted_and_one_that_was_passed_on_is_not() -> None:
    tally = BindTally()
    tally.note("ADDED", "a", "uid-a", "node-1", "node-1:0,1")
    tally.note("DELETED", "a", "uid-a", "node-1", "node-1:0,1")
    tally.note("ADDED", "b", "uid-b", "node-1", "node-1:1")
    assert (tally.doubles, tally.given) == (0, 1)
    tally.note("ADDED", "c", "uid-c", "node-1", "node-1:1,2")
    assert tally.doubles == 1
    tally.note("MODIFIED", "c", "uid-c", "node-1", "node-1:1,2")
    assert tally.doubles == 1
    assert set(tally.bound) == {"b", "c"}


class Held:
    """A connection that says what was done with it."""

    status = 200

    def __init__(self) -> None:
        self.done: list[str] = []

    def request(self, *_: object) -> None:
        self.done.append("asked")

    def close(self) -> None:
        self.done.append("closed")

    def getresponse(self) -> Held:
        return self

    def read(self) -> bytes:
        return b"{}"


def test_a_connection_that_nobody_used_for_long_is_opened_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, held = [0.0], Held()
    api = ThreadedClient(cast(ApiServer, SimpleNamespace(server="https://127.0.0.1:1", token="t")))
    monkeypatch.setattr(api, "connection", lambda: held)
    monkeypatch.setattr(gpu_nodes, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for now[0] in (0.0, 29.0, 58.0, 89.0):
        api.call("GET", "/x")
    assert held.done == ["asked", "asked", "asked", "closed", "asked"]


class Conditions:
    """Stands in for the API: it keeps what a node's conditions name."""

    def __init__(self) -> None:
        self.named: list[str] = []
        self.sick: list[str] = []

    def patch(self, path: str, body: dict[str, Any]) -> None:
        assert path == f"/api/v1/nodes/{gpu_health.NODE}/status"
        messages = [one.get("message", "") for one in body["status"]["conditions"]]
        self.sick = [
            one for one in gpu_health.UUIDS if any(f"GPU_UUID:{one} " in m for m in messages)
        ]
        self.named += self.sick


def test_every_gpu_turns_sick_as_often_as_the_others_and_only_its_own_is_missed() -> None:
    api = Conditions()

    def passes(count: dict[str, Any]) -> bool:
        return int(count["count"]) <= 8 - len(api.sick)

    found = gpu_health.turns(cast(ThreadedClient, api), passes, ({"count": 8}, {"count": 7}))
    assert Counter(api.named) == dict.fromkeys(gpu_health.UUIDS, 3)
    assert found.keys() == {"health_s", "well_again_s"}


def test_a_node_that_is_lost_with_one_sick_gpu_is_no_measurement() -> None:
    api = Conditions()
    with pytest.raises(BenchError, match="no seven are given"):
        gpu_health.turns(cast(ThreadedClient, api), lambda _: not api.sick, ({}, {}))
