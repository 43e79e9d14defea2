"""The matrix itself: every row readable, every id used once, no row without consequence."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import pytest
from preflight_e2e import observe_rows
from preflight_e2e.lab import GANG_VALUES, injector_values
from preflight_testing.helm import UMBRELLA, render
from preflight_testing.matrix.facts import GPUS, node_json, uuids
from preflight_testing.matrix.fault import Fault
from preflight_testing.matrix.mistake import CHECKS, Mistake
from preflight_testing.matrix.scenario import (
    MATRIX,
    Proof,
    Scenario,
    load_all,
    load_faults,
    load_mistakes,
    load_proofs,
)

ROWS = load_all()
FAULTS = load_faults()
MISTAKES = load_mistakes()
PROOFS = load_proofs()
ROOT = MATRIX.parents[1]


def rings(rows: Sequence[Proof | Fault], prefix: str = "") -> list[str]:
    """Where each of the rows runs whose id begins so."""
    return [row.ring for row in rows if row.id.startswith(prefix)]


@pytest.mark.parametrize(
    ("rows_on", "least", "ring", "there"),
    [
        pytest.param(rings(FAULTS), 40, "real", 20, id="faults of a gang's fabric"),
        pytest.param(rings(PROOFS, "cd-"), 35, "cluster", 20, id="ComputeDomains"),
        pytest.param(rings(PROOFS, "mnnvl-"), 25, "cluster", 5, id="multi-node NVLink"),
        pytest.param(rings(PROOFS, "appwrapper-"), 60, "cluster", 0, id="AppWrappers"),
        pytest.param(rings(PROOFS, "gpu-"), 60, "cluster", 0, id="the GPU scheduler"),
        pytest.param(rings(PROOFS, "together-"), 25, "cluster", 9, id="the circle"),
    ],
)
def test_there_are_so_many_rows_and_so_many_of_them_run_on_what_is_real(
    rows_on: list[str], least: int, ring: str, there: int
) -> None:
    assert len(rows_on) >= least
    assert rows_on.count(ring) >= there


def test_there_are_at_least_forty_rows_of_dcgm_and_fifteen_mistakes_of_a_rollout() -> None:
    assert len([row for row in ROWS if row.id.startswith("dcgm")]) >= 40
    assert len(MISTAKES) >= 15


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.id)
def test_a_fault_blames_only_where_the_gang_fails_and_tells_every_members_end(row: Fault) -> None:
    assert not row.blames or {end.outcome for end in row.ends} == {"failed"}
    assert all(blame.member < row.members for blame in row.blames)
    gone = {act.member for act in row.acts if act.does in {"kill", "stop"}}
    assert all(
        row.end_of(rank)
        for rank in range(row.members)
        if rank not in gone and rank not in row.absent
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_row_expects_something_of_every_pod(row: Scenario) -> None:
    for step in row.steps:
        assert step.pods
        for pod in step.pods:
            assert pod.denied or pod.checks or not pod.gpus, pod.name


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_only_a_failed_check_may_be_fatal_and_only_about_a_gpu_of_its_node(row: Scenario) -> None:
    for pod in (pod for step in row.steps for pod in step.pods):
        fatal = [event for event in pod.events if event.fatal]
        if fatal:
            assert any(check.outcome == "failed" for check in pod.checks)
        assert all(event.gpu is None or event.gpu < GPUS for event in pod.events)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_every_row_s_facts_can_be_made(row: Scenario) -> None:
    for step in row.steps:
        for letter in row.letters:
            facts = node_json(f"node-{letter}", step.nodes.get(letter, {}))
            assert [gpu["uuid"] for gpu in facts["gpus"]] == uuids(f"node-{letter}")


@pytest.mark.parametrize("row", MISTAKES, ids=lambda row: row.id)
def test_every_mistake_is_named_somewhere(row: Mistake) -> None:
    assert row.refused or row.says
    assert bool(row.refused) <= bool(row.config)
    assert bool(row.outcome) == bool(row.code)
    assert row.outcome or row.refused


def test_at_least_twenty_mistakes_are_pods_of_one_release_and_of_the_others_each_says_why_it_is_none() -> (
    None
):
    pods = [row for row in MISTAKES if observe_rows.as_pod(row)]
    assert len(pods) >= 20
    assert all(row.no_pod or not row.outcome for row in MISTAKES if row not in pods)
    assert render(UMBRELLA, observe_rows.values(CHECKS, replicas=0))


def test_the_charts_take_the_values_of_every_row() -> None:
    seen = {json.dumps(row.values, sort_keys=True): row.values for row in ROWS}
    for values in seen.values():
        assert render(
            UMBRELLA, {"preflight-injector": injector_values(values), "preflight-gang": GANG_VALUES}
        )


@pytest.mark.parametrize("row", PROOFS, ids=lambda row: row.id)
def test_the_test_that_proves_a_row_exists_and_runs_on_the_ring_that_the_row_says(
    row: Proof,
) -> None:
    path, _, name = row.test.partition("::")
    source = (ROOT / path).read_text()
    assert re.search(
        rf"^(?:async )?def {re.escape(name.partition('[')[0])}\(", source, re.MULTILINE
    ), row.test
    assert (row.ring == "cluster") == path.startswith("e2e/tests/cluster/")


def test_no_two_rows_say_the_same_of_the_same_test() -> None:
    told = [(row.test, row.fault) for row in PROOFS]
    assert len(told) == len(set(told))
