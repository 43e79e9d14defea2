"""What the driver knows of a pod's GPUs before, under and after a load, and what of it is a
finding: siblings are the reference.

Pure: :mod:`.counters` reads the facts. Every fact may be None, which is not a finding: an older
driver, a virtual machine and a GPU without the part all look alike. ``scan`` judges one look,
``load`` two looks around a load with the samples between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from .verdict import Action, Finding, Outcome, Subject, Verdict

TEST: Final = "Scan"
"""The test of the subjects that are raised here; see :func:`with_signs` for who clears them."""


class FactSeverity(IntEnum):
    """What a sign makes of a run: a line of the log, an event beside a pass, a failure, or one that
    takes the GPU out of service.
    """

    NOTE = 0
    EVENT = 1
    FAILS = 2
    FATAL = 3


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One look at one GPU, by NVML's call of the same name; None where it does not say.

    Power in watts, clocks in MHz, temperature in °C. ``links`` maps a NVLink's number to whether it
    is up; ``link_errors`` maps (link, kind) to a count since the driver was loaded. ``processes``
    are those with a context on the GPU. ``bridged``: some NVLinks are down, and those that are up
    all lead to one other GPU, as bridges between two cards do. ``complete`` is false where the
    library crashed or hung: what it would have said is None, and the look clears nothing that was
    raised earlier.
    """

    uuid: str
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    ecc_uncorrectable: int | None = None
    ecc_corrected: int | None = None
    sram_threshold: bool | None = None
    recovery: int | None = None
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    links: Mapping[int, bool] = field(default_factory=dict)
    link_errors: Mapping[tuple[int, str], int] = field(default_factory=dict)
    power_limit: float | None = None
    power_default: float | None = None
    persistence: bool | None = None
    processes: int | None = None
    bridged: bool = False
    complete: bool = True


@dataclass(frozen=True, slots=True)
class CounterSample:
    """One GPU at one moment under load. ``reasons`` is NVML's bit mask of why clocks are not
    higher.
    """

    uuid: str
    reasons: int | None = None
    clock: int | None = None
    temperature: int | None = None
    pcie_generation: int | None = None
    pcie_replays: int | None = None


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that is wrong with one GPU, or notable. ``says`` is constant per (code, GPU);
    ``reading`` is what was read.
    """

    code: str
    severity: FactSeverity
    uuid: str
    says: str
    reading: str
    source: str
    action: Action = Action.NONE


_ROWS: Final = """
ROW_REMAP_FAILED | FATAL | CONTACT_SUPPORT | RemappedRows | a memory row could not be remapped
ROW_REMAP_PENDING | FATAL | COMPONENT_RESET | RemappedRows | a memory row waits for a reset to be remapped
SRAM_THRESHOLD | FATAL | CONTACT_SUPPORT | SramEccErrorStatus | its SRAM has had more uncorrectable errors than the vendor allows
ECC_UNCORRECTABLE | EVENT | NONE | TotalEccErrors | uncorrectable memory errors since the driver was loaded
ECC_UNDER_LOAD | FATAL | CONTACT_SUPPORT | TotalEccErrors | uncorrectable memory errors were counted under load
ECC_CORRECTED | NOTE | NONE | TotalEccErrors | memory errors were corrected under load
RECOVERY_NEEDED | FAILS | CONTACT_SUPPORT | GPU_RECOVERY_ACTION | the driver asks for …
FABRIC_STATE | EVENT | NONE | GpuFabricInfo | it has not joined its NVLink fabric
FABRIC_STATUS | FAILS | CONTACT_SUPPORT | GpuFabricInfo | it failed to join its NVLink fabric
FABRIC_HEALTH | FAILS | CONTACT_SUPPORT | GpuFabricInfo | of its NVLink fabric, …
NVLINK_DOWN | FATAL | CONTACT_SUPPORT | NvLinkState | NVLinks of it are down that are up on the other GPUs
NVLINK_RECOVERY | FAILS | CONTACT_SUPPORT | NvLinkErrorCounter | NVLinks had to recover under load
NVLINK_ERRORS | EVENT | NONE | NvLinkErrorCounter | NVLinks counted errors under load
PCIE_WIDTH | FAILS | CONTACT_SUPPORT | PcieLinkWidth | fewer PCIe lanes are in use than of the other GPUs
PCIE_WIDTH_LIMITED | NOTE | NONE | PcieLinkWidth | fewer PCIe lanes are in use than it could have
PCIE_GENERATION | FAILS | CONTACT_SUPPORT | CurrPcieLinkGeneration | its PCIe link is of an older generation under load than those of the other GPUs
PCIE_GENERATION_LIMITED | NOTE | NONE | CurrPcieLinkGeneration | its PCIe link is of an older generation under load than it could be
PCIE_REPLAYS | EVENT | NONE | PcieReplayCounter | PCIe repeated transfers under load
HW_SLOWDOWN | EVENT | NONE | CurrentClocksEventReasons | the hardware slows the clocks down
THERMAL_SLOWDOWN | EVENT | NONE | CurrentClocksEventReasons | the driver slows the clocks down for heat
HW_THERMAL_SLOWDOWN | EVENT | NONE | CurrentClocksEventReasons | the hardware slows the clocks down for heat
POWER_BRAKE | EVENT | NONE | CurrentClocksEventReasons | the power supply slows the clocks down
POWER_LIMIT | NOTE | NONE | PowerManagementLimit | its power limit is below the default
PERSISTENCE_OFF | NOTE | NONE | PersistenceMode | persistence mode is off
FOREIGN_PROCESSES | NOTE | NONE | ComputeRunningProcesses | processes that are not this check's use it
"""
_SIGNS: Final = {
    row[0]: (FactSeverity[row[1]], Action[row[2]], row[3], row[4])
    for row in (line.split(" | ") for line in _ROWS.strip().splitlines())
}
"""By code: severity, action, NVML's call, and what is said of the GPU, in which … stands for what
differs."""
_REASONS: Final = {  # nvml.h: nvmlClocksEventReasons
    0x08: "HW_SLOWDOWN",
    0x20: "THERMAL_SLOWDOWN",
    0x40: "HW_THERMAL_SLOWDOWN",
    0x80: "POWER_BRAKE",
}
_RECOVERY: Final = {  # nvml.h: nvmlDeviceGpuRecoveryAction_t
    1: ("a reset of the GPU", Action.COMPONENT_RESET, FactSeverity.FATAL),
    2: ("a restart of the node", Action.RESTART_BM, FactSeverity.FATAL),
    3: ("a drain of its peer-to-peer work", Action.CONTACT_SUPPORT, FactSeverity.FAILS),
    4: ("a drain and a reset of the GPU", Action.COMPONENT_RESET, FactSeverity.FATAL),
    5: ("a recovery of its IMEX domain", Action.CONTACT_SUPPORT, FactSeverity.FAILS),
    6: ("a reset of its bus", Action.COMPONENT_RESET, FactSeverity.FATAL),
    7: ("a restart of the system", Action.RESTART_BM, FactSeverity.FATAL),
}
_UNKNOWN_RECOVERY: Final = (
    "an action that this version does not know",
    Action.CONTACT_SUPPORT,
    FactSeverity.FAILS,
)
FABRIC_COMPLETED: Final = 3  # nvml.h: NVML_GPU_FABRIC_STATE_COMPLETED; 0 is not supported
_FABRIC_HEALTH: Final = ((0, "its bandwidth is degraded"), (4, "a route of it is unhealthy"))
"""Shifts into nvml.h's health mask; two bits each, of which 1 is yes."""
_FABRIC_CONFIGURATION: Final = (
    *("system GUID", "chassis serial number", "no partition", "too few NVLinks", "firmware"),
    *("location", "state of the GPU"),
)
"""From 2 on, the values of the mask's bits 8 to 11; 1 is a correct configuration."""
_BRIDGE: Final = 4
"""NVLinks of one bridge between two cards; up to three join them (Ampere and Hopper)."""
NOT_READY: Final = (
    "CUDA may not start before that, see that nvidia-fabricmanager runs on the node, "
    "or wait until it is done"
)
REPLAYS: Final = 10
"""PCIe replays of one load from which on they are reported: single ones are how PCIe
repairs itself.
"""


def _sign(code: str, uuid: str, reading: object, differs: str = "") -> Sign:
    severity, action, source, says = _SIGNS[code]
    return Sign(code, severity, uuid, says.replace("…", differs), str(reading), source, action)


def scan(facts: Sequence[DeviceFacts]) -> list[Sign]:
    """What one look shows. A GPU whose links or width are fewer than its siblings' is named; all
    alike, and all that it can have, are how the machine was built.
    """
    signs = [sign for device in facts for sign in (*_memory(device), *_state(device))]
    has = {device.uuid: device.pcie_width for device in facts if device.pcie_width is not None}
    signs += _compared("PCIE_WIDTH", has, {device.uuid: device.pcie_width_max for device in facts})
    return signs + _links(facts)


def _memory(device: DeviceFacts) -> Iterator[Sign]:
    if device.remap_failed:
        yield _sign("ROW_REMAP_FAILED", device.uuid, "failed")
    if device.remap_pending:
        yield _sign("ROW_REMAP_PENDING", device.uuid, "pending")
    if device.sram_threshold:
        yield _sign("SRAM_THRESHOLD", device.uuid, "exceeded")
    if device.ecc_uncorrectable:
        yield _sign("ECC_UNCORRECTABLE", device.uuid, device.ecc_uncorrectable)


def _state(device: DeviceFacts) -> Iterator[Sign]:
    if device.recovery:
        needs, action, severity = _RECOVERY.get(device.recovery, _UNKNOWN_RECOVERY)
        sign = _sign("RECOVERY_NEEDED", device.uuid, device.recovery, needs)
        yield replace(sign, severity=severity, action=action)
    if device.fabric_state not in {None, 0, FABRIC_COMPLETED}:
        yield _sign("FABRIC_STATE", device.uuid, device.fabric_state)
    elif device.fabric_state == FABRIC_COMPLETED and device.fabric_status:
        yield _sign("FABRIC_STATUS", device.uuid, device.fabric_status)
    if device.fabric_state == FABRIC_COMPLETED and device.fabric_health is not None:
        mask = device.fabric_health
        wrong = dict(enumerate(_FABRIC_CONFIGURATION, 2)).get(mask >> 8 & 15)
        if bad := [says for shift, says in _FABRIC_HEALTH if mask >> shift & 3 == 1]:
            yield _sign("FABRIC_HEALTH", device.uuid, hex(mask), bad[0])
        elif wrong:  # of the rack, which is its administrator's, as state 1 and 2 are
            reading, says = f"{hex(mask)}: {wrong}", "the configuration is incorrect"
            sign = _sign("FABRIC_HEALTH", device.uuid, reading, says)
            yield replace(sign, severity=FactSeverity.EVENT, action=Action.NONE)
    if (
        device.power_limit
        and device.power_default
        and device.power_limit < 0.98 * device.power_default
    ):
        watts = f"{device.power_limit:.0f} of {device.power_default:.0f} W"
        yield _sign("POWER_LIMIT", device.uuid, watts)
    if device.persistence is False:
        yield _sign("PERSISTENCE_OFF", device.uuid, "off")
    if device.processes:
        yield _sign("FOREIGN_PROCESSES", device.uuid, device.processes)


def _compared(code: str, has: Mapping[str, int], most: Mapping[str, int | None]) -> list[Sign]:
    """GPUs (by UUID) with less than what at least half of them, and two, have, unless it is
    ``most``: nvml.h's greatest of the device in its slot. What its siblings do not accuse and has
    less than its most is limited.
    """
    common, count = Counter(has.values()).most_common(1)[0] if has else (0, 0)
    alike = count >= 2 and 2 * count >= len(has)
    signs = []
    for uuid, value in has.items():
        limit = most.get(uuid)
        if alike and value < common and value != limit:
            signs.append(_sign(code, uuid, f"{value} instead of {common}"))
        elif value and limit and value < limit:
            signs.append(_sign(f"{code}_LIMITED", uuid, f"{value} of {limit}"))
    return signs


def _links(facts: Sequence[DeviceFacts]) -> list[Sign]:
    """NVLinks that are down where the siblings' are up. A GPU without any, or without those of
    whole bridges, may have been built so: bridges join pairs, one to three each.
    """
    up = {device.uuid: sum(device.links.values()) for device in facts if device.links}
    used = Counter(count for count in up.values() if count)
    common, count = used.most_common(1)[0] if used else (0, 0)
    if count < 2 or 2 * count < len(up):
        return []
    signs = []
    for device in facts:
        if not device.links or up[device.uuid] >= common:
            continue
        down = ", ".join(str(link) for link, state in sorted(device.links.items()) if not state)
        sign = _sign("NVLINK_DOWN", device.uuid, f"{up[device.uuid]} of {common} up; down: {down}")
        lacking = common - up[device.uuid]
        if not up[device.uuid] or (device.bridged and lacking % _BRIDGE == 0):
            sign = replace(sign, severity=FactSeverity.EVENT, action=Action.NONE)
        signs.append(sign)
    return signs


def load(
    before: Sequence[DeviceFacts],
    after: Sequence[DeviceFacts],
    samples: Sequence[CounterSample] = (),
) -> list[Sign]:
    """What a load has changed, and why it was slow where it was: counters that grew name a link or
    a GPU at full bandwidth.
    """
    earlier = {device.uuid: device for device in before}
    signs: list[Sign] = []
    for device in after:
        if (was := earlier.get(device.uuid)) is None:
            continue
        for code, least, grown in (
            ("ECC_UNDER_LOAD", 1, _grown(was.ecc_uncorrectable, device.ecc_uncorrectable)),
            ("ECC_CORRECTED", 1, _grown(was.ecc_corrected, device.ecc_corrected)),
            ("PCIE_REPLAYS", REPLAYS, _grown(was.pcie_replays, device.pcie_replays)),
        ):
            if grown >= least:
                signs.append(_sign(code, device.uuid, f"+{grown}"))
        signs += _link_errors(was, device)
    known = {(sign.code, sign.uuid) for sign in scan(before)}
    signs += [
        sign
        for sign in scan(after)
        if (sign.code, sign.uuid) not in known and sign.code != "FOREIGN_PROCESSES"
    ]
    return signs + _sampled(samples, {device.uuid: device.pcie_generation_max for device in before})


def complete(before: Iterable[DeviceFacts], after: Iterable[DeviceFacts]) -> list[str]:
    """The GPUs of which the driver has said in both looks all that it knows: what a pass clears."""
    whole = {device.uuid for device in after if device.complete}
    return [device.uuid for device in before if device.complete and device.uuid in whole]


def _grown(before: int | None, after: int | None) -> int:
    return max(after - before, 0) if before is not None and after is not None else 0


def _link_errors(was: DeviceFacts, device: DeviceFacts) -> list[Sign]:
    grown = {
        key: count - was.link_errors[key]
        for key, count in device.link_errors.items()
        if count > was.link_errors.get(key, count)
    }
    if not grown:
        return []
    text = ", ".join(
        f"link {link} {kind} +{count}" for (link, kind), count in sorted(grown.items())
    )
    broke = any(kind in {"recovery", "recovery failed"} for _, kind in grown)
    return [_sign("NVLINK_RECOVERY" if broke else "NVLINK_ERRORS", device.uuid, text)]


def _sampled(samples: Sequence[CounterSample], generations: Mapping[str, int | None]) -> list[Sign]:
    """Throttling, and a PCIe generation that stays low under load (idle links are slowed down to
    save power).
    """
    signs: list[Sign] = []
    by_gpu: dict[str, list[CounterSample]] = {}
    for sample in samples:
        by_gpu.setdefault(sample.uuid, []).append(sample)
    best: dict[str, int] = {}
    for uuid, of in by_gpu.items():
        reasons = 0
        for sample in of:
            reasons |= sample.reasons or 0
        clocks = [s.clock for s in of if s.clock is not None]
        heat = [s.temperature for s in of if s.temperature is not None]
        reading = [f"{min(clocks)} MHz"] if clocks else []
        reading += [f"{max(heat)} C"] if heat else []
        signs += [
            _sign(code, uuid, ", ".join(reading))
            for bit, code in _REASONS.items()
            if reasons & bit and not (bit == 0x08 and reasons & 0xC0)
        ]
        if seen := [s.pcie_generation for s in of if s.pcie_generation is not None]:
            best[uuid] = max(seen)
    return signs + _compared("PCIE_GENERATION", best, generations)


def findings(signs: Iterable[Sign]) -> tuple[Finding, ...]:
    """The signs that are to be reported, each with code, severity and source."""
    return tuple(
        Finding(
            sign.code,
            f"{sign.code}: {sign.says} ({sign.uuid})",
            fatal=sign.severity is FactSeverity.FATAL,
            action=sign.action,
            subject=Subject(TEST, sign.uuid),
            metadata={
                "found": sign.reading,
                "severity": sign.severity.name.lower(),
                "source": f"NVML {sign.source}",
            },
        )
        for sign in signs
        if sign.severity > FactSeverity.NOTE
    )


def line(sign: Sign) -> str:
    """The sign as a line of the log."""
    code = sign.code.lower().replace("_", " ")
    return f"driver: {code}: {sign.uuid}: {sign.says} ({sign.reading})"


def words(signs: Iterable[Sign]) -> str:
    """The signs in one sentence for people; empty without any."""
    return "; ".join(f"{sign.uuid}: {sign.says} ({sign.reading})" for sign in signs)


def with_signs(
    verdict: Verdict, signs: Sequence[Sign], uuids: Iterable[str], *, computed: bool = True
) -> Verdict:
    """``verdict`` beside what was seen of the GPUs ``uuids``: their findings are added, and one
    that fails makes a pass a failure.

    An inconclusive run becomes a failure by such a sign too. A run that is passed or failed clears
    the scan's subject of each GPU that has none. ``computed``: a pass has seen CUDA work on these
    GPUs. One that has not is inconclusive where they have not joined their fabric; CUDA that works
    needs none, as on machines that never start one.
    """
    if verdict.outcome in {Outcome.SKIPPED, Outcome.MISCONFIGURED}:
        return verdict
    raised = findings(signs)
    worst = max(signs, key=lambda sign: sign.severity, default=None)
    if (
        verdict.outcome is not Outcome.FAILED
        and worst is not None
        and worst.severity >= FactSeverity.FAILS
    ):
        bad = [sign for sign in signs if sign.severity >= FactSeverity.FAILS]
        advice = (
            "take it out of service"
            if worst.severity is FactSeverity.FATAL
            else "see the driver's log on the node"
        )
        verdict = replace(
            verdict,
            outcome=Outcome.FAILED,
            code=worst.code,
            reason=f"{words(bad)}; {advice}. Besides: {verdict.reason}",
            subject=worst.uuid,
        )
    waiting = [sign for sign in signs if sign.code == "FABRIC_STATE"]
    if verdict.outcome is Outcome.PASSED and waiting and not computed:
        reason = f"{words(waiting)}; {NOT_READY}. Besides: {verdict.reason}"
        verdict = Verdict.inconclusive("FABRIC_NOT_READY", reason, findings=verdict.findings)
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return replace(verdict, findings=verdict.findings + raised)
    seen = {Subject(TEST, uuid) for uuid in uuids} - {finding.subject for finding in raised}
    return replace(verdict, findings=verdict.findings + raised, clears=verdict.clears | seen)
