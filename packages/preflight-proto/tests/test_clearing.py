"""What a check raises about a GPU, its passing run clears."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from preflight_proto.check import NODE, Action, Check, Finding, Outcome, Run, Subject, Verdict
from preflight_proto.check.events import cleared
from preflight_proto.check.kit import KitSettings
from preflight_proto.check.testing import FakeConnector
from strangers import run_within

A, B = "GPU-a", "GPU-b"
NARROW = Finding(
    "PCIE_WIDTH", "narrow", fatal=True, action=Action.CONTACT_SUPPORT, subject=Subject("Width", B)
)


async def probe(run: Run[KitSettings]) -> Verdict:
    narrow = [gpu for gpu in await run.gpus() if gpu.name == "narrow"]
    if not narrow:
        return Verdict.passed("every GPU has its full width.")
    found = tuple(replace(NARROW, subject=Subject("Width", gpu.uuid)) for gpu in narrow)
    return Verdict(Outcome.FAILED, "NARROW", "too narrow.", found)


CHECK = Check(
    name="pcie-width",
    condition="Pcie",
    component="GPU",
    settings=KitSettings,
    probe=probe,
    gpu_tests=("Width",),
)


def test_a_pass_clears_every_declared_test_on_every_gpu_and_that_they_are_there() -> None:
    found = cleared(Verdict.passed("fine."), ("Width",), (A, B))
    assert found.clears == {
        Subject(test, uuid) for test in ("Width", "Presence") for uuid in (A, B)
    }


def test_what_a_failing_run_raised_on_a_gpu_the_next_passing_run_clears(
    connector: FakeConnector, tmp_path: Path
) -> None:
    for word, code in (("narrow", "NARROW"), ("wide", "OK")):
        smi = tmp_path / "nvidia-smi"
        smi.write_text(
            f"#!/bin/sh\necho '0, {A}, wide, 00000000:1B:00.0'\necho '1, {B}, {word}, 00000000:2B:00.0'\n"
        )
        smi.chmod(0o755)
        ran = run_within(connector, tmp_path, CHECK, PATH=f"{tmp_path}:/usr/bin:/bin")
        assert ran.result.code == code, ran.stderr
    raised = {
        (e.check_name, e.entities_impacted[0].entity_value)
        for e in connector.events
        if not e.is_healthy
    }
    gone = {
        (e.check_name, e.entities_impacted[0].entity_value)
        for e in connector.events
        if e.is_healthy and e.entities_impacted
    }
    assert raised == {("PcieWidth", B)}
    assert raised < gone


def test_a_check_that_says_itself_what_it_clears_is_left_alone() -> None:
    assert cleared(Verdict.passed("fine."), None, (A,)).clears == {Subject("Presence", A)}


def test_a_finding_that_no_pass_would_clear_is_not_let_out() -> None:
    found = cleared(
        Verdict(Outcome.FAILED, "PCIE_WIDTH", "narrow.", (NARROW,)), ("Bandwidth",), (A, B)
    )
    assert (found.outcome, found.code, found.findings) == (
        Outcome.INCONCLUSIVE,
        "INTERNAL_ERROR",
        (),
    )
    assert "raised Width about a GPU without naming it in its gpu_tests" in found.reason


def test_a_pass_on_no_gpu_is_no_pass_of_gpu_tests() -> None:
    assert cleared(Verdict.passed("fine."), ("Width",), ()).code == "INTERNAL_ERROR"


@pytest.mark.parametrize("test", ["GPU_UUID", "pcie", "Pcie Width", "Pcie-Width"])
def test_a_test_that_is_not_camel_case_is_refused(test: str) -> None:
    with pytest.raises(ValueError, match="CamelCase"):
        Subject(test, A)


def test_a_subject_without_its_gpu_is_refused() -> None:
    with pytest.raises(ValueError, match="give its UUID"):
        Subject("Width", "")
    assert Subject() == NODE


@pytest.mark.parametrize(
    "wrong", [{"name": "PCIe width"}, {"condition": "pcie_width"}, {"gpu_tests": ("GPU_UUID",)}]
)
def test_a_checks_own_names_are_looked_at_when_it_is_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="check's"):
        replace(CHECK, **wrong)  # type: ignore[arg-type]
