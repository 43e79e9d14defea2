"""What the driver says beside the engine: processes of others, findings before and
under the load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import pytest
from check_dcgm import check
from check_dcgm.settings import Settings
from preflight_proto.check import (
    Action,
    Finding,
    Gpu,
    Outcome,
    Run,
    Skipped,
    Subject,
    Verdict,
    counters,
    gpus,
)
from preflight_proto.check.kit import KitSettings
from preflight_proto.check.scan import DeviceFacts

A = Gpu(0, "GPU-aaaa", "H100", "0000:1b:00.0")


@dataclass
class Stub:
    """As much of a run as the probe needs before it asks an engine."""

    settings: Settings
    kit: KitSettings = field(default_factory=lambda: KitSettings(node_name="node-a"))
    said: list[str] = field(default_factory=list)

    def restart_deadline(self, seconds: float) -> None: ...

    def progress(self, text: str) -> None:
        self.said.append(text)

    async def gpus(self) -> tuple[Gpu, ...]:
        return (A,)


def probe(
    monkeypatch: pytest.MonkeyPatch,
    looks: list[DeviceFacts],
    engine: Verdict | None,
    level: int = 2,
) -> Verdict:
    """The probe, with these looks at the GPU one after the other, and this verdict of the engine
    (None: it is not asked).
    """
    left = list(looks)

    async def snapshot(gpus: Sequence[Gpu]) -> tuple[DeviceFacts, ...]:
        return (left.pop(0) if len(left) > 1 else left[0],)

    async def diagnosed(*_: Any) -> Verdict:
        assert engine is not None
        return engine

    monkeypatch.setattr(counters, "snapshot", snapshot)
    monkeypatch.setattr(check, "_diagnosed", diagnosed)
    monkeypatch.setattr(check, "BETWEEN_LOOKS", 0.001)
    run = cast("Run[Settings]", Stub(Settings(level=level, addresses=("10.0.0.1:5555",))))
    return anyio.run(check.probe, run)


PASSED = Verdict(Outcome.PASSED, "OK", "every GPU passed.")


def test_a_gpu_that_somebody_else_computes_on_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(Skipped) as skipped:
        probe(monkeypatch, [DeviceFacts("GPU-aaaa", processes=2)], None)
    assert skipped.value.code == "GPU_IN_USE"
    assert "GPU-aaaa (2)" in skipped.value.reason


def test_processes_that_are_just_ending_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = [
        DeviceFacts("GPU-aaaa", processes=1),
        DeviceFacts("GPU-aaaa", processes=1),
        DeviceFacts("GPU-aaaa", processes=0),
    ]
    assert probe(monkeypatch, looks, PASSED).outcome is Outcome.PASSED


def test_level_1_loads_nothing_and_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        probe(monkeypatch, [DeviceFacts("GPU-aaaa", processes=1)], PASSED, level=1).outcome
        is Outcome.PASSED
    )


@pytest.mark.parametrize(
    "processes", [pytest.param(0, id="loaded first"), pytest.param(2, id="skipped for who uses it")]
)
def test_what_the_driver_calls_broken_is_not(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    looks = [DeviceFacts("GPU-aaaa", remap_failed=True, processes=processes)]
    found = probe(monkeypatch, looks, None)
    assert (found.outcome, found.code, found.subject, found.findings[0].fatal) == (
        Outcome.FAILED,
        "ROW_REMAP_FAILED",
        "GPU-aaaa",
        True,
    )


@pytest.mark.parametrize(
    "engine", [PASSED, Verdict.inconclusive("ENGINE_STOPPED", "its diagnostic was killed.")]
)
@pytest.mark.parametrize(("words", "fatal"), [("GPU is lost", True), ("Unknown Error", False)])
def test_a_gpu_that_is_gone_after_the_diagnostic_is_missing_whatever_the_engine_says(
    monkeypatch: pytest.MonkeyPatch, engine: Verdict, words: str, fatal: bool
) -> None:
    async def lost(_: Sequence[Gpu]) -> dict[str, str]:
        return {"GPU-aaaa": words}

    async def without_an_engine(_: object, verdict: Verdict) -> Verdict:
        return verdict

    monkeypatch.setattr(gpus, "lost", lost)
    monkeypatch.setattr(check, "_ask_engine_too", without_an_engine)
    found = probe(monkeypatch, [DeviceFacts("GPU-aaaa")], engine)
    assert (found.outcome, found.code, found.subject) == (
        Outcome.FAILED,
        "GPU_MISSING",
        "GPU-aaaa",
    )
    assert [finding.fatal for finding in found.findings] == [fatal]


@pytest.mark.parametrize("accused", ["GPU-bbbb", "GPU-aaaa"])
def test_a_gpu_that_is_gone_is_missing_beside_another_one_that_the_engine_has_found_faulty(
    monkeypatch: pytest.MonkeyPatch, accused: str
) -> None:
    async def lost(_: Sequence[Gpu]) -> dict[str, str]:
        return {"GPU-aaaa": "GPU is lost"}

    async def without_an_engine(_: object, verdict: Verdict) -> Verdict:
        return verdict

    monkeypatch.setattr(gpus, "lost", lost)
    monkeypatch.setattr(check, "_ask_engine_too", without_an_engine)
    faulty = Finding("X", "x", True, Action.NONE, Subject("Memory", accused))
    clears = frozenset({Subject("Software", "GPU-aaaa")})
    engine = Verdict(Outcome.FAILED, "X", "x.", (faulty,), clears, accused)
    found = probe(monkeypatch, [DeviceFacts("GPU-aaaa")], engine)
    assert (found.code, found.subject) == ("X", accused)
    gone = accused != "GPU-aaaa"
    assert [f.code for f in found.findings] == ["X", "GPU_MISSING"][: 1 + gone]
    assert (found.blames, "GPU is lost" in found.reason) == ("X", gone)
    assert (Subject("Software", "GPU-aaaa") in found.clears) is not gone


def test_a_healthy_gpu_passes_and_clears_what_the_driver_said_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = probe(monkeypatch, [DeviceFacts("GPU-aaaa", remap_failed=False)], PASSED)
    assert found.outcome is Outcome.PASSED
    assert {(s.test, s.gpu_uuid) for s in found.clears} == {("Scan", "GPU-aaaa")}


def test_a_look_after_the_load_that_the_driver_did_not_finish_clears_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = [DeviceFacts("GPU-aaaa"), DeviceFacts("GPU-aaaa", complete=False)]
    found = probe(monkeypatch, looks, PASSED)
    assert (found.outcome, found.clears) == (Outcome.PASSED, frozenset())


@pytest.mark.parametrize(
    ("level", "outcome", "code"),
    [(1, Outcome.INCONCLUSIVE, "FABRIC_NOT_READY"), (2, Outcome.PASSED, "OK")],
)
def test_a_gpu_that_has_not_joined_its_fabric_is_not_passed_before_cuda_has_run_on_it(
    monkeypatch: pytest.MonkeyPatch, level: int, outcome: Outcome, code: str
) -> None:
    found = probe(monkeypatch, [DeviceFacts("GPU-aaaa", fabric_state=2)], PASSED, level=level)
    assert (found.outcome, found.code) == (outcome, code)
    if outcome is Outcome.INCONCLUSIVE:
        assert "GPU-aaaa: it has not joined its NVLink fabric (2)" in found.reason
        assert "see that nvidia-fabricmanager runs on the node" in found.reason
        assert not found.clears
    assert [(f.code, f.fatal) for f in found.findings] == [("FABRIC_STATE", False)]
