"""What the driver's counters are findings of: siblings as the reference, unknown facts never,
deltas around a load.
"""

from __future__ import annotations

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import anyio
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from preflight_proto.check import counters, gpus
from preflight_proto.check.events import events
from preflight_proto.check.scan import (
    CounterSample,
    DeviceFacts,
    FactSeverity,
    Sign,
    complete,
    findings,
    load,
    scan,
    with_signs,
)
from preflight_proto.check.verdict import Action, Outcome, Subject, Verdict

pytestmark = pytest.mark.anyio
PASSED = Verdict(Outcome.PASSED, "OK", "fine.")
UUIDS = [f"GPU-{i}" for i in range(8)]


def healthy(uuid: str) -> DeviceFacts:
    return DeviceFacts(
        uuid,
        remap_pending=False,
        remap_failed=False,
        ecc_uncorrectable=0,
        ecc_corrected=0,
        sram_threshold=False,
        recovery=0,
        fabric_state=3,
        fabric_status=0,
        fabric_health=0,
        pcie_generation=1,  # an idle link
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        pcie_replays=0,
        links=dict.fromkeys(range(18), True),
        link_errors={(link, "recovery"): 0 for link in range(18)},
        power_limit=700.0,
        power_default=700.0,
        persistence=True,
        processes=0,
    )


def node(**sick: Any) -> list[DeviceFacts]:
    return [replace(healthy(uuid), **(sick if uuid == "GPU-3" else {})) for uuid in UUIDS]


def codes(signs: list[Sign]) -> list[tuple[str, str, str]]:
    return [(sign.code, sign.severity.name, sign.uuid) for sign in signs]


def test_healthy_gpus_have_no_signs() -> None:
    assert scan(node()) == []
    assert (
        load(
            node(), node(), [CounterSample(uuid, reasons=0x04, pcie_generation=5) for uuid in UUIDS]
        )
        == []
    )


@pytest.mark.parametrize(
    ("sick", "code", "severity"),
    [
        ({"remap_pending": True}, "ROW_REMAP_PENDING", "FATAL"),
        ({"remap_failed": True}, "ROW_REMAP_FAILED", "FATAL"),
        ({"sram_threshold": True}, "SRAM_THRESHOLD", "FATAL"),
        ({"ecc_uncorrectable": 1}, "ECC_UNCORRECTABLE", "EVENT"),
        ({"recovery": 1}, "RECOVERY_NEEDED", "FATAL"),
        ({"recovery": 3}, "RECOVERY_NEEDED", "FAILS"),
        ({"recovery": 99}, "RECOVERY_NEEDED", "FAILS"),
        ({"fabric_state": 2}, "FABRIC_STATE", "EVENT"),
        ({"fabric_status": 4}, "FABRIC_STATUS", "FAILS"),
        ({"fabric_health": 0x01}, "FABRIC_HEALTH", "FAILS"),
        ({"fabric_health": 0x10}, "FABRIC_HEALTH", "FAILS"),
        ({"fabric_health": 0x5AA}, "FABRIC_HEALTH", "EVENT"),  # too few NVLinks
        ({"fabric_health": 0x5A9}, "FABRIC_HEALTH", "FAILS"),
        ({"pcie_width": 8}, "PCIE_WIDTH", "FAILS"),
        ({"links": dict.fromkeys(range(18), True) | {7: False}}, "NVLINK_DOWN", "FATAL"),
        ({"links": dict.fromkeys(range(18), False)}, "NVLINK_DOWN", "EVENT"),
        ({"power_limit": 300.0}, "POWER_LIMIT", "NOTE"),
        ({"persistence": False}, "PERSISTENCE_OFF", "NOTE"),
        ({"processes": 2}, "FOREIGN_PROCESSES", "NOTE"),
    ],
)
def test_one_sick_gpu_is_named(sick: dict[str, Any], code: str, severity: str) -> None:
    assert codes(scan(node(**sick))) == [(code, severity, "GPU-3")]


@pytest.mark.parametrize("mask", [0x000, 0x1AA, 0x1A6, 0x16A, 0x1AA | 2 << 12 | 2 << 14, 0xFAA])
def test_a_fabric_that_recovers_or_whose_mask_says_nothing_known_is_no_sign(mask: int) -> None:
    assert scan(node(fabric_health=mask)) == []


def test_an_incorrect_fabric_configuration_says_which_part_of_it() -> None:
    [sign] = scan(node(fabric_health=0x6AA))
    assert (sign.says, sign.reading) == (
        "of its NVLink fabric, the configuration is incorrect",
        "0x6aa: firmware",
    )


def test_what_is_alike_on_all_is_how_the_machine_was_built() -> None:
    narrow = [replace(one, pcie_width=8) for one in node()]
    assert {(sign.code, sign.severity) for sign in scan(narrow)} == {
        ("PCIE_WIDTH_LIMITED", FactSeverity.NOTE)
    }
    few = [
        replace(one, links=dict.fromkeys(range(18), False) | dict.fromkeys(range(12), True))
        for one in node()
    ]
    assert scan(few) == []


def test_two_gpus_that_differ_accuse_neither() -> None:
    pair = node(pcie_width=8)[2:4]
    assert [sign.severity for sign in scan(pair)] == [FactSeverity.NOTE]


def test_a_bridged_pair_beside_unbridged_cards_is_no_fault() -> None:
    cards = [
        replace(one, links=dict.fromkeys(range(12), index < 2))
        for index, one in enumerate(node()[:4])
    ]
    assert all(sign.severity <= FactSeverity.EVENT for sign in scan(cards))


@pytest.mark.parametrize(
    ("down", "bridged", "severity"),
    [(4, True, "EVENT"), (8, True, "EVENT"), (1, True, "FATAL"), (4, False, "FATAL")],
)
def test_a_pair_of_cards_with_fewer_bridges_than_another_may_have_been_built_so(
    down: int, bridged: bool, severity: str
) -> None:
    fewer = {link: link >= down for link in range(12)}
    cards = [
        replace(one, links=dict.fromkeys(fewer, True) if index < 2 else fewer, bridged=bridged)
        for index, one in enumerate(node()[:4])
    ]
    assert codes(scan(cards)) == [("NVLINK_DOWN", severity, f"GPU-{i}") for i in (2, 3)]


@pytest.mark.parametrize(
    ("kind", "ends", "bridged"),
    [
        (0, ["1B", "1B", "1B"], True),
        (0, ["1B", "1B", "2B"], False),
        (2, ["1B", "1B", "1B"], False),  # a switch
        (0, [], False),
    ],
)
def test_nvlinks_to_one_other_gpu_alone_are_bridges(
    monkeypatch: pytest.MonkeyPatch, kind: int, ends: list[str], bridged: bool
) -> None:
    def remote(_: object, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{ends[link]}:00.0")

    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkRemoteDeviceType", lambda *_: kind)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetNvLinkRemotePciInfo", remote)
    assert counters._bridged(None, range(len(ends))) is bridged


def test_a_gpu_in_a_slot_with_fewer_lanes_has_all_that_it_can_have() -> None:
    assert scan(node(pcie_width=8, pcie_width_max=8)) == []


@pytest.mark.parametrize("most", [None, 1, 16])  # 1: what a virtual machine's bus may say
def test_a_link_that_is_narrower_than_it_can_be_is_named(most: int | None) -> None:
    assert codes(scan(node(pcie_width=8, pcie_width_max=most))) == [
        ("PCIE_WIDTH", "FAILS", "GPU-3")
    ]


@pytest.mark.parametrize(
    ("after", "code", "severity", "found"),
    [
        ({"ecc_uncorrectable": 1}, "ECC_UNDER_LOAD", "FATAL", "+1"),
        ({"ecc_corrected": 9}, "ECC_CORRECTED", "NOTE", "+9"),
        ({"pcie_replays": 50}, "PCIE_REPLAYS", "EVENT", "+50"),
        ({"link_errors": {(7, "recovery"): 2}}, "NVLINK_RECOVERY", "FAILS", "link 7 recovery +2"),
        ({"link_errors": {(7, "CRC flit"): 2}}, None, "", ""),  # nobody knows what it was before
    ],
)
def test_a_counter_that_grows_under_load_names_the_gpu_and_the_link(
    after: dict[str, Any], code: str | None, severity: str, found: str
) -> None:
    signs = [sign for sign in load(node(), node(**after)) if sign.code != "ECC_UNCORRECTABLE"]
    assert [(s.code, s.severity.name, s.uuid, s.reading) for s in signs] == (
        [(code, severity, "GPU-3", found)] if code else []
    )


def test_counters_that_a_reset_has_cleared_are_no_growth() -> None:
    assert load(node(ecc_uncorrectable=5, pcie_replays=99), node()) == []


def test_a_gpu_that_the_second_look_lacks_moves_no_other_one_to_its_place() -> None:
    before, after = node(), [one for one in node(complete=False) if one.uuid != "GPU-1"]
    assert complete(before, after) == [uuid for uuid in UUIDS if uuid not in {"GPU-1", "GPU-3"}]


def test_throttling_under_load_says_why() -> None:
    samples = [
        CounterSample(uuid, reasons=0x48 if uuid == "GPU-3" else 0x04, clock=800, temperature=91)
        for uuid in UUIDS
    ]
    [sign] = load(node(), node(), samples)
    assert (sign.code, sign.uuid, sign.reading) == ("HW_THERMAL_SLOWDOWN", "GPU-3", "800 MHz, 91 C")


def test_a_pcie_link_that_stays_slow_under_load_is_named_by_its_siblings() -> None:
    samples = [CounterSample(uuid, pcie_generation=1 if uuid == "GPU-3" else 5) for uuid in UUIDS]
    assert codes(load(node(), node(), samples)) == [("PCIE_GENERATION", "FAILS", "GPU-3")]


def test_a_pcie_link_as_fast_as_its_slot_allows_is_no_fault_beside_faster_ones() -> None:
    samples = [CounterSample(uuid, pcie_generation=3 if uuid == "GPU-3" else 5) for uuid in UUIDS]
    older = node(pcie_generation_max=3)
    assert load(older, older, samples) == []


@pytest.mark.parametrize(
    ("severity", "outcome"), [(0, "passed"), (1, "passed"), (2, "failed"), (3, "failed")]
)
def test_a_sign_that_fails_makes_a_pass_a_failure(severity: int, outcome: str) -> None:
    sign = Sign("X", FactSeverity(severity), "GPU-3", "is odd", "1", "Odd")
    seen = with_signs(PASSED, [sign], UUIDS)
    assert (seen.outcome.value, [finding.fatal for finding in seen.findings]) == (
        outcome,
        [severity == 3] if severity else [],
    )
    assert Subject("Scan", "GPU-0") in seen.clears


def test_a_sign_makes_an_inconclusive_run_a_failure_and_a_skipped_one_nothing() -> None:
    sign = Sign("X", FactSeverity.FATAL, "GPU-3", "is odd", "1", "Odd")
    assert with_signs(Verdict.inconclusive("A", "b."), [sign], UUIDS).outcome is Outcome.FAILED
    assert with_signs(Verdict.inconclusive("A", "b."), [], UUIDS) == Verdict.inconclusive("A", "b.")
    skipped = Verdict(Outcome.SKIPPED, "MIG", "no.")
    assert with_signs(skipped, [sign], UUIDS) == skipped


@pytest.mark.parametrize("verdict", [PASSED, Verdict.inconclusive("A", "b.")])
def test_what_was_seen_of_a_gpu_is_reported_beside_whatever_became_of_the_run(
    verdict: Verdict,
) -> None:
    warned = replace(verdict, findings=findings(scan(node(persistence=False, ecc_uncorrectable=1))))
    signs = scan(node(fabric_state=2))
    for computed, beside in ((True, verdict.outcome), (False, Outcome.INCONCLUSIVE)):
        seen = with_signs(warned, signs, UUIDS, computed=computed)
        assert seen.outcome is beside
        assert {f.code for f in seen.findings} == {"ECC_UNCORRECTABLE", "FABRIC_STATE"}


def test_a_finding_has_code_severity_and_source_and_a_constant_message() -> None:
    one, other = (findings(scan(node(ecc_uncorrectable=n)))[0] for n in (1, 7))
    assert one.message == other.message
    assert one.metadata == {"found": "1", "severity": "event", "source": "NVML TotalEccErrors"}


facts = st.builds(
    DeviceFacts,
    st.sampled_from(UUIDS),
    *[
        st.none()
        | (
            st.dictionaries(st.integers(0, 17), st.booleans())
            if field.name == "links"
            else st.dictionaries(
                st.tuples(st.integers(0, 17), st.sampled_from(["recovery", "CRC flit"])),
                st.integers(0, 9),
            )
            if field.name == "link_errors"
            else st.integers(0, 1 << 20)
        )
        for field in fields(DeviceFacts)[1:]
    ],
).map(lambda one: replace(one, links=one.links or {}, link_errors=one.link_errors or {}))
looks = st.lists(facts, max_size=8, unique_by=lambda one: one.uuid)


@given(looks, looks)
def test_whatever_the_driver_says_no_look_raises_and_a_pass_clears_it(
    before: list[DeviceFacts], after: list[DeviceFacts]
) -> None:
    signs = scan(before) + load(before, after)
    uuids = [one.uuid for one in before + after]
    raised = {
        e.identity for e in events("c", "C", "N", with_signs(PASSED, signs, uuids)) if not e.healthy
    }
    cleared = {
        e.identity for e in events("c", "C", "N", with_signs(PASSED, [], uuids)) if e.healthy
    }
    assert raised <= cleared


def test_unknown_facts_are_no_findings() -> None:
    assert scan([DeviceFacts(uuid) for uuid in UUIDS]) == []
    assert load([DeviceFacts(uuid) for uuid in UUIDS], [DeviceFacts(uuid) for uuid in UUIDS]) == []


def refusing(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    """NVML finds GPUs, and answers every other question about them with an error."""

    def refuse(*_: Any) -> None:
        raise pynvml.NVMLError(error)

    for name in dir(pynvml):
        if name.startswith(("nvmlDeviceGet", "nvmlSystemGet")):
            monkeypatch.setattr(pynvml, name, refuse)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByPciBusId", lambda pci: pci)


async def test_every_call_of_nvml_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing(monkeypatch, pynvml.NVML_ERROR_NOT_SUPPORTED)
    listed = [gpus.Gpu(i, uuid, "H100", f"0:{i}") for i, uuid in enumerate(UUIDS)]
    seen = await counters.snapshot(listed)
    assert seen == tuple(DeviceFacts(uuid) for uuid in UUIDS)
    async with counters.sampled(listed) as samples:
        while not samples:
            await anyio.sleep(0.01)
    assert samples[0] == CounterSample("GPU-0")


async def test_a_gpu_that_an_older_driver_refuses_to_measure_until_it_is_reset_needs_a_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refusing(monkeypatch, pynvml.NVML_ERROR_RESET_REQUIRED)
    [sign] = scan(await counters.snapshot([gpus.Gpu(0, "GPU-0", "H100", "0:0")]))
    assert (sign.code, sign.severity.name, sign.action) == (
        "RECOVERY_NEEDED",
        "FATAL",
        Action.COMPONENT_RESET,
    )


async def test_a_run_that_is_over_before_its_only_question_is_answered_has_a_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, over = anyio.Event(), anyio.Event()

    async def late(*_: Any) -> tuple[CounterSample, ...]:
        asked.set()
        await over.wait()
        for _turn in range(5):
            await anyio.sleep(0)
        return (CounterSample("GPU-0"),)

    monkeypatch.setattr(counters, "_asked", late)
    async with counters.sampled(()) as samples:
        await asked.wait()
        over.set()
    assert CounterSample("GPU-0") in samples


async def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", absent)
    assert await counters.snapshot([gpus.Gpu(0, "GPU-0", "H100", "0:0")]) == ()


async def test_a_driver_that_answers_nothing_after_the_load_clears_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unanswered(_: object) -> tuple[DeviceFacts, ...]:
        return ()

    monkeypatch.setattr(counters, "snapshot", unanswered)
    watch = counters.DriverWatch((), (DeviceFacts("GPU-0"),))
    assert watch.beside(PASSED).clears
    await watch.poll()
    assert not watch.beside(PASSED).clears
