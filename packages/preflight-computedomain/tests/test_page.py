"""Calls of a kubelet, by the page that answers them: beside each other, late, cancelled, and
against what does not answer.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from claimed import CLIQUE, DOMAIN, Node, claim, config, parameters, ref, result, uid
from driven import until
from preflight_computedomain.api.checkpoint import (
    COMPLETED,
    STARTED,
    Checkpoint,
    Entry,
    encode,
)
from preflight_computedomain.api.names import DRIVER, cdi_file
from preflight_computedomain.core.claims import KubeletClaim
from preflight_computedomain.core.facts import Unfit
from preflight_computedomain.metrics import PluginMetrics
from preflight_computedomain.node.prepare import ClaimAnswer, ClaimPreparer, Times
from preflight_computedomain.node.state_dir import CHECKPOINT
from preflight_kube.errors import KubeError

pytestmark = pytest.mark.anyio
GIVEN = ClaimAnswer(("channel",), "node-1")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    for number in range(1, 4):
        made.cluster.add(ref(number))
    return made


async def one(page: ClaimPreparer, number: int = 1) -> ClaimAnswer:
    return (await page.prepare([ref(number)]))[uid(number)]


async def undo(page: ClaimPreparer, number: int = 1) -> ClaimAnswer:
    return (await page.unprepare([ref(number)]))[uid(number)]


async def test_a_claim_is_prepared_by_one_get_and_one_list(node: Node) -> None:
    page = node.page()
    assert await one(page) == GIVEN
    assert node.cluster.asked == ["get team-a/claim-1", "list team-a"]


async def test_where_cliques_are_exclusive_a_claim_waits_until_its_domain_has_the_nodes_clique(
    node: Node,
) -> None:
    node.exclusive = True
    refused = await one(node.page())
    assert f"does not have the NVLink clique {CLIQUE} of this node for itself" in refused.error
    assert (node.states(), node.files()) == ({}, {})
    node.cluster.granted = {DOMAIN: frozenset({"another.1"})}
    waiting = asyncio.create_task(one(node.page()))
    node.cluster.asked.clear()
    await until(lambda: len(node.cluster.asked) >= 4)
    node.cluster.granted = {DOMAIN: frozenset({"another.1", CLIQUE})}
    assert await waiting == GIVEN


async def test_a_lost_or_altered_cdi_file_is_made_again(node: Node) -> None:
    page = node.page()
    await one(page)
    good = node.files()
    path = node.cdi / cdi_file(uid(1))
    path.unlink()
    assert await one(page) == GIVEN
    assert node.files() == good
    path.write_text("{}")
    assert await one(page) == GIVEN
    assert node.files() == good


async def test_a_file_that_is_lost_while_the_kubelet_does_not_ask_is_made_again(node: Node) -> None:
    page = node.page()
    of = node.cluster.add(ref())
    await page.prepare([of])
    before = dict(node.files())
    assert await page.mend() == ()
    for change in (Path.unlink, lambda path: path.write_text("{}")):
        change(node.cdi / cdi_file(of.uid))
        assert await page.mend() == (of.uid,)
        assert node.files() == before
    await page.unprepare([of])
    assert await page.mend() == ()
    assert node.files() == {}


async def test_without_the_driver_a_claim_waits_for_it_and_its_unprepare_does_not(
    node: Node,
) -> None:
    page = node.page()
    await page.start()
    node.major = 0
    node.times = Times(call=1, answer=30, first=0.01, longest=0.5)
    assert "load the NVIDIA driver" in (await one(node.page())).error
    assert (node.states(), node.files()) == ({}, {})
    waiting = asyncio.create_task(one(page))
    await until(lambda: bool(node.cluster.asked))
    node.major = 511
    assert await waiting == GIVEN
    assert b'"major":511' in node.files()[cdi_file(uid(1))]
    node.major = 0
    assert "load the NVIDIA driver" in (await one(node.page())).error
    assert await undo(page) == ClaimAnswer()
    assert (node.states(), node.files()) == ({}, {})


async def test_what_was_prepared_before_the_driver_was_loaded_anew_has_its_number_at_the_next_call(
    node: Node,
) -> None:
    page = node.page()
    await one(page)
    before = node.files()
    node.major = 511
    assert await page.mend() == ()  # its containers have the old number, whatever the file says
    assert node.files() == before
    assert await one(page) == GIVEN
    assert b'"major":511' in node.files()[cdi_file(uid(1))]
    (node.cdi / cdi_file(uid(1))).unlink()
    node.major = 240
    assert await page.mend() == (uid(1),)
    assert b'"major":240' in node.files()[cdi_file(uid(1))]
    (node.cdi / cdi_file(uid(1))).unlink()
    node.major = 0
    with pytest.raises(Unfit, match="load the NVIDIA driver"):
        await page.mend()
    assert node.files() == {}


async def test_a_driver_that_was_loaded_anew_is_asked_for_its_clique(node: Node) -> None:
    page = node.page()
    await page.start()
    await one(page)
    assert node.clique.refreshes == 0
    await undo(page)
    node.major = 511
    await one(page)
    assert node.clique.refreshes == 1


async def test_a_clique_that_nvml_does_not_say_is_asked_for_again_within_the_call(
    node: Node,
) -> None:
    node.clique.current, node.clique.unknown = "", "NVML: Driver Not Loaded"
    page = node.page()
    waiting = asyncio.create_task(one(page))
    await until(lambda: node.clique.refreshes > 1)
    assert not waiting.done()
    node.clique.later, node.clique.unknown = CLIQUE, ""
    assert await waiting == GIVEN


async def test_a_clique_that_another_asker_learns_meanwhile_is_no_node_without_one(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.clique.current, node.clique.unknown = "", "NVML: Driver Not Loaded"

    async def refreshed() -> str:
        was = node.clique.current
        loop = asyncio.get_running_loop()
        loop.call_soon(lambda: setattr(node.clique, "unknown", ""))
        loop.call_soon(lambda: setattr(node.clique, "current", CLIQUE))
        return was

    monkeypatch.setattr(node.clique, "refreshed", refreshed)
    assert await one(node.page()) == GIVEN


async def test_unprepare_leaves_nothing_is_repeatable_and_asks_the_api_server_nothing(
    node: Node,
) -> None:
    page = node.page()
    await one(page)
    node.cluster.asked.clear()
    for _ in range(2):
        assert await undo(page) == ClaimAnswer()
        assert (node.states(), node.files()) == ({}, {})
    assert node.cluster.asked == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda node: node.cluster.claims.clear(), "deleted"),
        (lambda node: node.cluster.known.clear(), "belongs to another namespace"),
        (
            lambda node: setattr(node.clique, "current", ""),
            "requires an NVLink clique on this node, but NVML reports none",
        ),
        (
            lambda node: node.cluster.add(
                ref(1), claim(ref(1), configs=[config(parameters(allocationMode="All"))])
            ),
            'got "All"',
        ),
        (lambda node: node.cluster.add(ref(1), claim(ref(1), [result("channel-1")])), "channel-1"),
    ],
)
async def test_what_waiting_does_not_mend_is_answered_at_once_and_nothing_is_written(
    node: Node, change: Callable[[Node], Any], reason: str
) -> None:
    change(node)
    node.times = Times()  # of the real forty seconds
    metrics = PluginMetrics("node-1")
    page = node.page(metrics)
    async with asyncio.timeout(10):
        answer = await one(page)
    assert reason in answer.error
    assert answer.error.startswith(f"{DRIVER}: team-a/claim-1: ")
    assert answer.error.endswith(" (node node-1).")
    assert list(node.folder.glob("checkpoint*")) == []
    assert node.files() == {}
    counted = [
        one.value
        for one in next(iter(metrics.permanent_errors.collect())).samples
        if one.name.endswith("_total")
    ]
    assert counted == [1]


async def test_a_clique_that_has_come_since_is_found_before_the_refusal(node: Node) -> None:
    node.clique.current, node.clique.later = "", "cluster.1"
    assert await one(node.page()) == GIVEN
    assert node.clique.refreshes == 1


async def test_a_second_claim_waits_and_is_refused_with_the_first_ones_name(node: Node) -> None:
    page = node.page()
    await one(page, 1)
    node.cluster.asked.clear()
    answer = await one(page, 2)
    # While it waits nothing is asked again.
    assert node.cluster.asked == ["get team-a/claim-2", "list team-a"]
    assert f"channel 0 of this node is prepared for claim team-a/claim-1 ({uid(1)})" in answer.error
    assert node.states() == {uid(1): COMPLETED}


async def silent(namespace: str, name: str) -> Any:
    await asyncio.Event().wait()


async def refuses(namespace: str, name: str) -> Any:
    raise KubeError("https://10.0.0.1: no answer")


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        pytest.param(refuses, "https://10.0.0.1: no answer", id="stopped"),
        pytest.param(silent, "the API server has not answered in time", id="silent"),
    ],
)
async def test_without_the_api_server_every_claim_has_its_entry_in_time_with_the_cause(
    node: Node, monkeypatch: pytest.MonkeyPatch, answer: Any, cause: str
) -> None:
    page, refs = node.page(), [ref(number) for number in (1, 2, 3)]
    with monkeypatch.context() as without:
        without.setattr(node.cluster, "claim", answer)
        answers = await page.prepare(refs)
    assert answers.keys() == {of.uid for of in refs}
    for of in refs:
        assert answers[of.uid].error.startswith(f"{DRIVER}: {of}: ")
        assert cause in answers[of.uid].error
    assert (node.states(), node.files()) == ({}, {})
    assert await one(page) == GIVEN


async def test_a_claim_that_vanishes_while_its_call_waits_has_its_answer(node: Node) -> None:
    node.times = Times(call=20, answer=21, first=0.01, longest=0.05)
    page = node.page()
    await one(page)
    waiting = asyncio.create_task(one(page, 2))
    await until(lambda: "get team-a/claim-2" in node.cluster.asked)
    del node.cluster.claims["team-a", "claim-2"]
    await undo(page)
    assert "the claim has been deleted" in (await waiting).error
    assert (node.states(), node.files()) == ({}, {})


async def test_a_lock_that_another_process_holds_is_named_and_blocks_nothing_else(
    node: Node,
) -> None:
    page = node.page()
    with node.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        answer = await one(page)
        assert "another process has held the lock" in answer.error
        assert (await undo(page)).error != ""
    assert await one(page) == GIVEN


async def test_a_disk_that_refuses_is_named(node: Node) -> None:
    node.cdi.rmdir()
    node.cdi.write_text("no folder")
    page = node.page()
    answer = await one(page)
    assert "the node's disk refuses" in answer.error
    assert str(node.cdi) in answer.error
    node.cdi.unlink()
    assert await one(page) == GIVEN


async def test_the_same_claim_twice_at_once_is_prepared_once(node: Node) -> None:
    page = node.page()
    answers = await asyncio.gather(*(one(page) for _ in range(20)))
    assert answers == [GIVEN] * 20
    assert node.cluster.asked.count("get team-a/claim-1") == 1


async def test_a_caller_that_goes_does_not_end_the_call_for_the_others(node: Node) -> None:
    gate = held_back(node)
    page = node.page()
    first, second = asyncio.create_task(one(page)), asyncio.create_task(one(page))
    await until(lambda: bool(node.cluster.asked))
    first.cancel()
    await asyncio.wait([first])
    gate.set()
    assert await second == GIVEN


def held_back(node: Node) -> asyncio.Event:
    """Lets the API server answer about claims only when it is set."""
    gate, get = asyncio.Event(), node.cluster.claim

    async def later(namespace: str, name: str) -> Any:
        answer = await get(namespace, name)
        await gate.wait()
        return answer

    node.cluster.claim = later  # type: ignore[method-assign]
    return gate


@pytest.mark.parametrize("cancelled", [True, False])
async def test_a_prepare_that_waits_is_ended_by_unprepare(node: Node, cancelled: bool) -> None:
    gate = held_back(node)
    page = node.page()
    late = asyncio.create_task(one(page))
    await until(lambda: bool(node.cluster.asked))
    if cancelled:
        late.cancel()
    assert await undo(page) == ClaimAnswer()
    gate.set()
    await asyncio.wait([late])
    if not cancelled:
        assert "has unprepared the claim" in late.result().error
    assert (node.states(), node.files()) == ({}, {})


def stands(node: Node, before: str) -> tuple[threading.Event, threading.Event]:
    """Has the node's disk stand still before that step, once: until the second event is set."""
    reached, gate = threading.Event(), threading.Event()

    def step(word: str) -> None:
        if word == before and not reached.is_set():
            reached.set()
            gate.wait(20)

    node.step = step
    return reached, gate


WRITES = f"rename {cdi_file(uid(1))}.tmp"


async def test_a_prepare_that_writes_is_finished_and_then_undone(node: Node) -> None:
    reached, gate = stands(node, WRITES)
    page = node.page()
    late = asyncio.create_task(one(page))
    await until(reached.is_set)
    late.cancel()
    undone = asyncio.create_task(undo(page))
    await asyncio.sleep(0)
    assert not undone.done()
    gate.set()
    assert await undone == ClaimAnswer()
    assert (node.states(), node.files()) == ({}, {})


async def test_a_plugin_that_starts_beside_one_that_writes_waits_for_it(node: Node) -> None:
    reached, gate = stands(node, WRITES)
    node.patience = 30
    older = node.page()
    writing = asyncio.create_task(one(older))
    await until(reached.is_set)
    starting = asyncio.create_task(node.page().start())
    ended, _ = await asyncio.wait({starting}, timeout=0.5)
    gate.set()
    assert not ended
    assert await writing == GIVEN
    await starting
    assert node.cluster.asked == ["get team-a/claim-1", "list team-a"]
    assert node.states() == {uid(1): COMPLETED}
    assert list(node.files()) == [cdi_file(uid(1))]


@pytest.mark.parametrize("what", ["mend", "prepare"])
async def test_no_file_is_made_again_for_a_claim_that_another_plugin_is_unpreparing(
    node: Node, what: str
) -> None:
    node.times, node.patience = Times(call=30, answer=40, first=0.01, longest=0.05), 30
    page = node.page()
    await one(page)
    reached, gate = stands(node, f"write {CHECKPOINT}.tmp")  # the file has gone by now
    undoing = asyncio.create_task(undo(node.page()))
    await until(reached.is_set)
    node.cluster.claims.clear()
    beside: asyncio.Task[Any] = asyncio.create_task(page.mend() if what == "mend" else one(page))
    await asyncio.wait({beside}, timeout=0.5)
    gate.set()
    assert await undoing == ClaimAnswer()
    said = await beside
    assert said == () if what == "mend" else "the claim has been deleted" in said.error
    assert (node.states(), node.files()) == ({}, {})


async def test_a_mend_that_is_cancelled_keeps_the_lock_until_it_has_written(node: Node) -> None:
    node.times, node.patience = Times(call=30, answer=40), 30
    other = node.page()
    await one(other)
    (node.cdi / cdi_file(uid(1))).unlink()
    reached, gate = stands(node, WRITES)
    mending = asyncio.create_task(node.page().mend())
    await until(reached.is_set)
    mending.cancel()
    undoing = asyncio.create_task(undo(other))
    ended, _ = await asyncio.wait({undoing}, timeout=0.5)
    gate.set()
    assert not ended
    assert await undoing == ClaimAnswer()
    await asyncio.wait([mending])
    assert (node.states(), node.files()) == ({}, {})


async def test_late_prepares_leave_nothing_a_thousand_times(node: Node) -> None:
    page = node.page()
    node.cluster.claim = slowly(node.cluster.claim)  # type: ignore[method-assign, assignment]
    for turn in range(1000):
        late = asyncio.create_task(one(page))
        for _ in range(turn % 13):
            await asyncio.sleep(0)
        late.cancel()
        assert await undo(page) == ClaimAnswer()
        await asyncio.wait([late])
    assert (node.states(), node.files()) == ({}, {})
    assert await one(page, 2) == GIVEN
    assert node.states() == {uid(2): COMPLETED}


def slowly(
    get: Callable[[str, str], Awaitable[Any]],
) -> Callable[[str, str], Coroutine[Any, Any, Any]]:
    async def answer(namespace: str, name: str) -> Any:
        for _ in range(3):
            await asyncio.sleep(0)
        return await get(namespace, name)

    return answer


async def test_a_prepare_after_an_unprepare_waits_for_it(node: Node) -> None:
    page = node.page()
    await one(page)
    results = await asyncio.gather(undo(page), one(page), undo(page), one(page))
    assert [results[0], results[2]] == [ClaimAnswer(), ClaimAnswer()]
    assert results[3] == GIVEN
    assert node.states() == {uid(1): COMPLETED}


async def test_a_disk_that_hangs_is_answered_and_goes_on(node: Node) -> None:
    gate = threading.Event()
    node.step = lambda word: None if not word.startswith("sync") else (gate.wait(20), None)[1]
    node.times = Times(call=5, answer=1.5)
    page = node.page()
    answer = await one(page)
    gate.set()
    assert "has not finished writing" in answer.error
    await until(lambda: node.states() == {uid(1): COMPLETED})
    assert await one(page) == GIVEN


async def test_an_error_of_our_own_is_answered_and_logged(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(namespace: str, name: str) -> Any:
        raise ZeroDivisionError

    node.cluster.claim = broken  # type: ignore[method-assign]
    assert "an error of the driver's own" in (await one(node.page())).error
    assert "ZeroDivisionError" in caplog.text


async def test_claims_whose_names_can_be_none_are_refused_and_not_asked_for(node: Node) -> None:
    bad = KubeletClaim("team-a", "claim", "/../../victim")
    page, path = node.page(), cdi_file(bad.uid)
    (node.cdi / path.partition("/")[0]).mkdir()
    (node.cdi / path).write_text("theirs")
    assert "of the kubelet's request is" in (await page.prepare([bad]))[bad.uid].error
    assert (await page.unprepare([bad]))[bad.uid] == ClaimAnswer()
    assert node.cluster.asked == []
    assert (node.cdi / path).read_text() == "theirs"


async def test_a_checkpoint_that_is_damaged_while_it_runs_keeps_no_claim_from_its_devices(
    node: Node,
) -> None:
    page = node.page()
    assert await one(page) == GIVEN
    node.cluster.down = True
    (node.folder / CHECKPOINT).write_bytes(b"")
    assert await one(page) == GIVEN
    (node.folder / CHECKPOINT).write_bytes(b"")
    (node.cdi / cdi_file(uid(1))).unlink()
    assert await page.mend() == (uid(1),)
    assert node.states() == {uid(1): COMPLETED}


async def test_a_sweep_undoes_begun_claims_that_are_gone_and_reports_prepared_ones(
    node: Node,
) -> None:
    page = node.page()
    await one(page, 1)
    entries = dict(node.store().entries())
    for number in (2, 3):
        entries[uid(number)] = Entry(STARTED, name=f"claim-{number}", namespace="team-a")
    (node.folder / CHECKPOINT).write_bytes(encode(Checkpoint(entries, "boot-1")))
    node.cluster.claims.pop(("team-a", "claim-1"))
    node.cluster.claims.pop(("team-a", "claim-2"))
    assert await page.sweep() == (ref(1),)
    assert node.states() == {uid(1): COMPLETED, uid(3): STARTED}


async def test_nothing_of_the_disk_blocks_the_loop(node: Node) -> None:
    page = node.page()
    await one(page)
    with blockbuster_ctx():
        await undo(page)
        assert await one(page) == GIVEN


async def test_a_start_takes_over_and_counts(node: Node) -> None:
    await one(node.page())
    metrics = PluginMetrics("node-1")
    await node.page(metrics).start()
    assert (
        metrics.registry.get_sample_value(
            "nvidia_dra_prepared_devices",
            {"node": "node-1", "driver": DRIVER, "device_type": "channel"},
        )
        == 1
    )


async def test_a_stop_ends_what_waits(node: Node) -> None:
    node.times = Times()
    page = node.page()
    await one(page)
    waiting = asyncio.create_task(one(page, 2))
    await until(lambda: node.cluster.asked.count("list team-a") == 2)
    async with asyncio.timeout(10):
        await page.stop(5)
        assert (await waiting).error


async def test_each_claim_and_result_has_one_line_of_the_log_with_its_cause(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bad = KubeletClaim("team-a", "no/name", uid(9))
    page = node.page()
    await page.prepare([ref(), bad])
    await page.unprepare([ref()])
    about = [vars(record).get("about", {}) for record in caplog.records]
    lines = [one for one in about if "cause" in one]
    assert sorted((one["name"], one["uid"], one["cause"]) for one in lines) == [
        ("claim-1", uid(1), ""),
        ("claim-1", uid(1), ""),
        ("no/name", uid(9), "bad-name"),
    ]
    assert all(one["namespace"] == "team-a" and one["milliseconds"] >= 0 for one in lines)
