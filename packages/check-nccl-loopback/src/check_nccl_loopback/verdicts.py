"""The verdicts of this check in words: codes, sentences, findings, and what a run has seen healthy.

Subjects: a GPU's ``Bandwidth``, ``Data`` and ``Device``, and the node. A pass against a floor
clears all of them; a pass that only measured has not seen the bandwidth healthy and leaves that one
standing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from preflight_proto.check import Action, Finding, Gpu, Outcome, Subject, Verdict
from preflight_proto.check.nccl import NcclError
from preflight_proto.check.settings import size_text

from .floors import Floor
from .localize import Contrast, Pair
from .measurement import Measurement

BANDWIDTH, DATA, DEVICE = "Bandwidth", "Data", "Device"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A measured bandwidth beside what it is held to; GB/s and bytes. ``reduced``: smaller than
    asked, for want of memory.
    """

    measured: float
    size: int
    limit: float | None
    floor: Floor | None
    reduced: bool = False

    @property
    def expected(self) -> float | None:
        """What healthy hardware reaches; where only a threshold is known, that."""
        return self.floor.expected if self.floor is not None else self.limit

    @property
    def text(self) -> str:
        """The measurement in words."""
        smaller = ", the largest that fits into the GPUs' memory" if self.reduced else ""
        return f"{self.measured:.1f} GB/s bus bandwidth at {size_text(self.size)}{smaller}"

    @property
    def metadata(self) -> dict[str, str]:
        """The measurement for an event."""
        held_to = {"limit_gbps": f"{self.limit:g}"} if self.limit is not None else {}
        source = (
            {"expected_gbps": f"{self.floor.expected:g}", "source": self.floor.source}
            if self.floor
            else {}
        )
        return {
            "busbw_gbps": f"{self.measured:.2f}",
            "size": size_text(self.size),
            **held_to,
            **source,
        }


# --- passed


def passed(gpus: Sequence[Gpu], bar: Comparison, *, by_file: bool = False) -> Verdict:
    """Fast enough, and right; ``by_file``: with the workload's topology file alone, which this kind
    of node needs.
    """
    held_to = (
        "the threshold set"
        if bar.floor is None or bar.limit != bar.floor.floor
        else f"the floor for {len(gpus)} {gpus[0].name}"
    )
    needs = (
        " with the workload's topology file, without which NCCL is slow here (map the instance type to a file)"
        if by_file
        else ""
    )
    reason = f"{bar.text}{needs}, {held_to} is {bar.limit:g}; every element is right."
    return _pass("OK", reason, gpus, bar, judged=True)


def without_nvls(gpus: Sequence[Gpu], bar: Comparison) -> Verdict:
    """As fast as rings should be, on hardware that could reduce in its switches."""
    assert bar.floor is not None
    reason = (
        f"{bar.text}, as fast as it should be by rings (floor {bar.floor.no_nvls:g}); NVLS is not in use on this node, with it "
        f"{bar.floor.expected:g} are expected."
    )
    return _pass("OK_WITHOUT_NVLS", reason, gpus, bar, judged=True)


def unknown(gpus: Sequence[Gpu], bar: Comparison, sizes: Sequence[int]) -> Verdict:
    """Measured, and nothing to hold it to."""
    what = f"{len(gpus)} {gpus[0].name}"
    if sizes:
        known = ", ".join(size_text(size) for size in sizes)
        reason = f"{bar.text}; for {what} floors are known at {known} only."
        return _pass("NO_FLOOR_FOR_SIZE", reason, gpus, bar)
    reason = f"{bar.text}; no floor is known for {what} joined like this, so it was measured only; set NCCL_LOOPBACK_THRESHOLD_GBPS to have it judged."
    return _pass("UNKNOWN_HARDWARE", reason, gpus, bar)


def unconfirmed(gpus: Sequence[Gpu], bar: Comparison) -> Verdict:
    """Below a floor that one source alone knows: no ground to fail a node, and worth a look."""
    assert bar.floor is not None
    reason = (
        f"{bar.text} is below {bar.limit:g}, which one source alone gives for {len(gpus)} {gpus[0].name} ({bar.floor.source}); no GPU stands "
        "out from the others, so nothing is judged; set NCCL_LOOPBACK_THRESHOLD_GBPS to have it judged."
    )
    return _pass("BELOW_ONE_SOURCE", reason, gpus, bar)


def cost_of_variables(
    names: Sequence[str], result: Measurement, clean: float, *, costly: bool
) -> str:
    """What the workload's own variables make of a healthy node; empty where they cost nothing."""
    yours = "your " + " and ".join(names)
    if result.busbw is None:
        why = (
            "did not end in time"
            if result.timed_out
            else result.error.says
            if result.error
            else f'"{result.last_words}"'
        )
        return f"With {yours}, NCCL fails on this healthy node: {why}."
    if result.wrong:
        return f"With {yours}, NCCL gets {result.wrong:g} wrong elements on this healthy node; remove the variable."
    if not costly:
        return ""
    cost = round(100 * (1 - result.busbw / clean))
    verb = "costs" if len(names) == 1 else "cost"
    return f"For the workload: {yours} {verb} {cost} % ({result.busbw:.1f} instead of {clean:.1f} GB/s)."


def _pass(
    code: str, reason: str, gpus: Sequence[Gpu], bar: Comparison, *, judged: bool = False
) -> Verdict:
    tests = (BANDWIDTH, DATA, DEVICE) if judged else (DATA, DEVICE)
    return Verdict(
        Outcome.PASSED,
        code,
        reason,
        clears=_all(gpus, tests),
        measured=round(bar.measured, 2),
        expected=bar.expected,
    )


# --- failed


def slow(
    gpus: Sequence[Gpu],
    bar: Comparison,
    contrast: Contrast,
    pairs: Mapping[Pair, Measurement],
    signs: Sequence[Finding] = (),
    *,
    sure: bool = True,
) -> Verdict:
    """Below the floor, or below the siblings. A GPU is named by contrast; a floor alone fails the
    run and quarantines nobody.

    ``sure``: the pairs are joined alike by design, so that contrast alone is fatal; elsewhere it
    needs one of ``signs`` beside it.
    """
    by_pair = [
        f"{gpus[a].uuid}+{gpus[b].uuid}={m.busbw:.1f}"
        for (a, b), m in sorted(pairs.items())
        if m.busbw is not None
    ]
    measured = {**bar.metadata, **({"pairs_gbps": " ".join(by_pair)} if by_pair else {})}
    clears = _some(gpus, contrast.good, BANDWIDTH) | _all(gpus, (DATA,))
    against = f"{bar.text} is below {bar.limit:g}" if bar.limit is not None else bar.text
    flagged = {sign.subject.gpu_uuid for sign in signs}
    if contrast.accused:
        findings = tuple(
            Finding(
                "SLOW_GPU",
                f"SLOW_GPU: NCCL is slow with {gpus[i].uuid} and fast between the other GPUs of the node",
                fatal=sure or gpus[i].uuid in flagged,
                action=Action.CONTACT_SUPPORT,
                subject=Subject(BANDWIDTH, gpus[i].uuid),
                metadata={**measured, "reference_gbps": f"{contrast.reference:.2f}"},
            )
            for i in contrast.accused
        )
        worst = min(
            m.busbw or 0.0 for pair, m in pairs.items() if set(pair) & set(contrast.accused)
        )
        named = ", ".join(gpus[i].uuid for i in contrast.accused)
        verb, them = ("is", "it") if len(contrast.accused) == 1 else ("are", "them")
        reason = (
            f"{against}: {named} {verb} slow with every partner ({worst:.1f} GB/s) while the others reach {contrast.reference:.1f} among themselves; "
            f"take {them} out of service and contact support."
        )
        return _failed(reason, findings, clears=clears, bar=bar)
    links = ", ".join(f"{gpus[a].uuid} and {gpus[b].uuid}" for a, b in contrast.links)
    where = (
        f"only the link between {links} is slow" if links else "no GPU stands out from the others"
    )
    finding = Finding(
        "SLOW_NODE",
        "SLOW_NODE: NCCL between the GPUs of this node is slower than it should be",
        fatal=False,
        action=Action.CONTACT_SUPPORT,
        metadata={**measured, **({"links": links} if links else {})},
    )
    often = " twice" if bar.limit is not None else ""
    reason = f"{against}{often}, and {where}; look for throttling, disabled NVLinks or peer-to-peer access (nvidia-smi -q, dcgmi diag -r 3)."
    return _failed(reason, (finding,), clears=clears, bar=bar)


def slow_without(
    gpus: Sequence[Gpu], bar: Comparison, alone: int, rest: Measurement, signs: Sequence[Finding]
) -> Verdict:
    """All pairs are alike, and without one GPU the others are fast: fatal where the driver knows
    something of that GPU too.
    """
    uuid = gpus[alone].uuid
    finding = Finding(
        "SLOW_GPU",
        f"SLOW_GPU: NCCL is slow with {uuid} and fast between the other GPUs of the node",
        fatal=bool(signs),
        action=Action.CONTACT_SUPPORT,
        subject=Subject(BANDWIDTH, uuid),
        metadata={**bar.metadata, "without_it_gbps": f"{rest.busbw or 0:.2f}"},
    )
    reason = f"{bar.text} is below {bar.limit:g}, and the others reach {rest.busbw or 0:.1f} without {uuid}; run dcgmi diag -r 3 on it."
    return _failed(reason, (finding,), clears=_all(gpus, (DATA,)), bar=bar)


def topology(gpus: Sequence[Gpu], bar: Comparison, without: float, path: str) -> Verdict:
    """The topology file that the operator maps to this instance type makes a healthy node slow."""
    finding = Finding(
        "TOPOLOGY_FILE",
        "TOPOLOGY_FILE: the topology file of this instance type makes NCCL slow on this node",
        fatal=False,
        action=Action.NONE,
        metadata={**bar.metadata, "without_file_gbps": f"{without:.2f}", "file": path},
    )
    reason = f"{bar.text} with NCCL_TOPO_FILE={path}, and {without:.1f} without it; the GPUs are healthy; correct ncclTopology.instanceTypeMapping."
    return _failed(reason, (finding,), clears=_all(gpus, (BANDWIDTH, DATA, DEVICE)), bar=bar)


def wrong(gpus: Sequence[Gpu], result: Measurement, contrast: Contrast) -> Verdict:
    """Data came out wrong. No threshold is involved, so this is fatal even where only the node can
    be named.
    """
    size = size_text(result.wrong_size or result.size)
    metadata = {"wrong_elements": f"{result.wrong:g}", "size": size}
    clears = _shown_good(gpus, contrast, DATA)
    count = f"{result.wrong:g} wrong elements in an all-reduce of {size}"
    if contrast.accused:
        findings = tuple(
            Finding(
                "WRONG_DATA",
                f"WRONG_DATA: NCCL gets wrong data with {gpus[i].uuid} and right data between the other GPUs of the node",
                fatal=True,
                action=Action.CONTACT_SUPPORT,
                subject=Subject(DATA, gpus[i].uuid),
                metadata=metadata,
            )
            for i in contrast.accused
        )
        named = ", ".join(gpus[i].uuid for i in contrast.accused)
        reason = f"{count}; only pairs with {named} are wrong: take it out of service and contact support."
        return _failed(reason, findings, clears=clears)
    finding = Finding(
        "WRONG_DATA",
        "WRONG_DATA: NCCL gets wrong data between the GPUs of this node",
        fatal=True,
        action=Action.CONTACT_SUPPORT,
        metadata=metadata,
    )
    reason = f"{count}, and no single GPU can be named as the cause; take the node out of service and contact support."
    return _failed(reason, (finding,), clears=clears)


def device(
    gpus: Sequence[Gpu], ran: Sequence[int], error: NcclError, signs: Sequence[Finding] = ()
) -> Verdict:
    """A fault that only a device has; the GPU is named where NCCL printed its number, or where the
    counters of one GPU alone grew.
    """
    gpu = (
        gpus[ran[error.device]].uuid
        if error.device is not None and error.device < len(ran)
        else None
    )
    if gpu is None:
        codes = {
            "GPU_ECC": ("ECC_UNDER_LOAD", "ROW_REMAP_PENDING"),
            "GPU_NVLINK": ("NVLINK_RECOVERY", "NVLINK_DOWN"),
        }
        counted = {
            sign.subject.gpu_uuid for sign in signs if sign.code in codes.get(error.code, ())
        }
        gpu = counted.pop() if len(counted) == 1 else None
    subject = Subject(DEVICE, gpu) if gpu is not None else Subject()
    where = gpu or "a GPU of this node"
    finding = Finding(
        error.code,
        f"{error.code}: {error.says} on {where}",
        fatal=True,
        action=error.action,
        subject=subject,
        metadata={"line": error.line},
    )
    reason = (
        f'{error.says} on {where} ("{error.line}"); take it out of service and contact support.'
    )
    return _failed(reason, (finding,))


def lost(gpus: Sequence[Gpu], words: Mapping[str, str]) -> Verdict:
    """The driver itself has lost GPUs during the run."""
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid in words]
    findings = tuple(
        Finding(
            "GPU_LOST",
            f"GPU_LOST: the driver has lost {uuid}",
            fatal=True,
            action=Action.CONTACT_SUPPORT,
            subject=Subject(DEVICE, uuid),
            metadata={"driver": words[uuid]},
        )
        for uuid in uuids
    )
    reason = f'the driver has lost {", ".join(uuids)} ("{words[uuids[0]]}"); take the node out of service and contact support.'
    return _failed(reason, findings)


def stuck(result: Measurement, silent: Mapping[str, str]) -> Verdict:
    """The tool sleeps in the kernel where not even SIGKILL reaches it, and the driver does not
    answer for GPUs (UUID → words): it hangs.
    """
    unanswered = "; ".join(f"{uuid}: {words}" for uuid, words in sorted(silent.items()))
    finding = Finding(
        "DRIVER_HANG",
        "DRIVER_HANG: a call into the GPU driver of this node does not return",
        fatal=True,
        action=Action.CONTACT_SUPPORT,
        metadata={"last_words": result.last_words, "silent": unanswered},
    )
    reason = f'all_reduce_perf hangs in the driver, where not even SIGKILL ends it ("{result.last_words}"), and NVML says of {unanswered}; take the node out of service and restart it.'
    return _failed(reason, (finding,))


def failed_class(
    gpus: Sequence[Gpu], error: NcclError, contrast: Contrast, signs: Sequence[Finding] = ()
) -> Verdict:
    """NCCL failed with a class that accuses nobody by itself: fatal only for a GPU that contrast
    names and the driver's counters too.
    """
    named = [gpus[i].uuid for i in contrast.accused]
    flagged = {sign.subject.gpu_uuid for sign in signs}
    subjects = [Subject(DEVICE, uuid) for uuid in named] or [Subject()]
    findings = tuple(
        Finding(
            error.code,
            f"{error.code}: {error.says} on {subject.gpu_uuid or 'this node'}",
            fatal=subject.gpu_uuid in flagged and bool(named) and error.fatal,
            action=error.action,
            subject=subject,
            metadata={"line": error.line},
        )
        for subject in subjects
    )
    who = (
        f"only with {', '.join(named)}" if named else "and no single GPU can be named as the cause"
    )
    reason = f'{error.says} ("{error.line}"), {who}; see the lines above, and the driver\'s log on the node (dmesg, Xid).'
    return _failed(reason, findings, clears=_shown_good(gpus, contrast, DEVICE))


def _failed(
    reason: str,
    findings: tuple[Finding, ...],
    *,
    clears: frozenset[Subject] = frozenset(),
    bar: Comparison | None = None,
) -> Verdict:
    """The verdict is its first finding's."""
    blamed = {finding.subject for finding in findings}
    return Verdict(
        Outcome.FAILED,
        findings[0].code,
        reason,
        findings,
        clears - blamed,
        findings[0].subject.gpu_uuid or "",
        round(bar.measured, 2) if bar else None,
        bar.expected if bar else None,
    )


# --- inconclusive


def hung(
    gpus: Sequence[Gpu], result: Measurement, contrast: Contrast, pairs: Mapping[Pair, Measurement]
) -> Verdict:
    """The time was up. Where some pairs end and others do not, those that do not are named; a hang
    is not fatal (ADR-026).
    """
    last = f'; its last words: "{result.last_words}"' if result.last_words else ""
    hanging = [pair for pair, measured in sorted(pairs.items()) if measured.timed_out]
    if hanging and any(measured.right for measured in pairs.values()):
        named = [gpus[i].uuid for i in contrast.accused]
        subjects = [Subject(DEVICE, uuid) for uuid in named] or [Subject()]
        text = ", ".join(f"{gpus[a].uuid} and {gpus[b].uuid}" for a, b in hanging)
        findings = tuple(
            Finding(
                "NCCL_HANG",
                f"NCCL_HANG: an all-reduce hangs with {subject.gpu_uuid or 'some GPUs of this node'} and ends between the others",
                fatal=False,
                action=Action.NONE,
                subject=subject,
                metadata={"pairs": text},
            )
            for subject in subjects
        )
        who = f"; each has {', '.join(named)}" if named else ""
        return _failed(
            f"the all-reduce of {text} hangs, while other pairs end{who}; see the driver's log on the node (dmesg, Xid).",
            findings,
            clears=_shown_good(gpus, contrast, DEVICE),
        )
    if pairs and all(measured.right for measured in pairs.values()):
        last += "; every pair of neighbours works alone"
    return Verdict.inconclusive(
        "CHECK_TIMEOUT",
        f"all_reduce_perf did not end in time{last}; raise CHECK_TIMEOUT if this hardware is just slow to start, else see the driver's log on the node.",
    )


def _all(gpus: Sequence[Gpu], tests: Iterable[str]) -> frozenset[Subject]:
    return frozenset(Subject(test, gpu.uuid) for test in tests for gpu in gpus)


def _shown_good(gpus: Sequence[Gpu], contrast: Contrast, test: str) -> frozenset[Subject]:
    """The GPUs that are good with whomever they were seen with."""
    ends = {number for pair in contrast.links for number in pair}
    return _some(gpus, contrast.good - ends, test)


def _some(gpus: Sequence[Gpu], numbers: Iterable[int], test: str) -> frozenset[Subject]:
    return frozenset(Subject(test, gpus[i].uuid) for i in numbers)
