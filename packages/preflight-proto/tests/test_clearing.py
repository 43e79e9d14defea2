"""What a check raises about a GPU, its passing run clears."""

from __future__ import annotations

from typing import Any

import pytest
from preflight_proto.check import NODE, Action, Check, Finding, Outcome, Subject, Verdict
from preflight_proto.check.events import cleared
from preflight_proto.check.kit import KitSettings

A, B = "GPU-a", "GPU-b"
NARROW = Finding(
    "PCIE_WIDTH", "narrow", fatal=True, action=Action.CONTACT_SUPPORT, subject=Subject("Width", B)
)


def test_a_pass_clears_every_declared_test_on_every_gpu_and_that_they_are_there() -> None:
    found = cleared(Verdict.passed("fine."), ("Width",), (A, B))
    assert found.clears == {
        Subject(test, uuid) for test in ("Width", "Presence") for uuid in (A, B)
    }


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
    right: dict[str, Any] = {"name": "pcie-width", "condition": "Pcie", "gpu_tests": ("Width",)}
    right |= {"component": "GPU", "settings": KitSettings, "probe": print}
    Check(**right)
    with pytest.raises(ValueError, match="check's"):
        Check(**{**right, **wrong})
