"""The one definition of sick: what speaks against a node, or a GPU of it; and NodeHealth, the
object in which it is written down. Pure.

A node's conditions are the platform connector's word, and trusted. Results of checks stand in pods,
where whoever makes pods may write them: they make a node Suspect at most, and never end what a
condition says. A later pass of the same check ends a suspicion.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from fnmatch import fnmatchcase
from statistics import median
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta, structs

from preflight_kube.api.crd import list_map

GROUP: Final = "preflight.nvsentinel.nvidia.com"
VERSION: Final = "v1alpha1"
KIND: Final = "NodeHealth"
PLURAL: Final = "nodehealths"

TypePatterns = Annotated[
    tuple[Annotated[str, Meta(min_length=1, max_length=316)], ...], Meta(max_length=64)
]
"""Types of conditions; ``*`` stands for any characters."""
SICK: Final[TypePatterns] = ("DcgmDiagnostic*", "NCCLLoopbackTest*", "NCCLAllReduceTest*")
"""What the platform connector makes of the fatal findings of our checks: of a node as they are, of
one GPU with the test's name behind."""

State = Literal["Sick", "Suspect", "Unknown", "Healthy"]
STATES: Final[tuple[State, ...]] = ("Sick", "Suspect", "Unknown", "Healthy")
"""The worst first. Sick: a condition says so. Suspect: a result does. Healthy: a check passed, and
after a repair one passed since. Unknown: neither."""
Word = Literal["NodeCondition", "PodResult"]

MOST_GPUS: Final = 64
MOST_CHECKS: Final = 32
MOST_RECENT: Final = 9
"""Measurements that the usual bandwidth is the median of."""
CLEARS: Final = 600.0
"""Seconds, at most, from the end of a run that passes to the condition that it clears."""

_ENTITY: Final = "GPU_UUID:"
_GPU: Final = re.compile(_ENTITY + r"[\"'(\[]*([\w/-]+)(?![\w/-]|\.\.\.|;\.\.\.$)")
"""Without what may stand around it in a sentence, and without one that was cut off."""
_CODE: Final = re.compile(r"\bErrorCode:([A-Za-z0-9_-]{1,64})")
"""As the platform connector writes it."""

Time = Annotated[str, Meta(max_length=64, extra_json_schema={"format": "date-time"})]
_Name = Annotated[str, Meta(max_length=316)]
_Code = Annotated[str, Meta(max_length=64)]
_Gpu = Annotated[str, Meta(max_length=128)]
_Pod = Annotated[str, Meta(max_length=317)]
Gbps = Annotated[float, Meta(ge=0, le=1_000_000)]


class _CamelStruct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    pass


class NodeCondition(_CamelStruct, frozen=True, kw_only=True):
    """Of a node, without its heartbeats, which are no changes."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class CheckEnd(_CamelStruct, frozen=True, kw_only=True):
    """How a run of a check ended. ``pod`` is namespace/name. ``gpu``: the UUID that it is about.
    ``blames``: whether it accuses its own node, or a GPU of it.
    """

    time: Time
    code: _Code = ""
    pod: _Pod = ""
    gpu: _Gpu = ""
    blames: bool = False


class CheckHealth(_CamelStruct, frozen=True, kw_only=True):
    """What runs of one check say of the node. ``failed``: the last that blames it, or the last at
    all where none does. Bandwidths are GB/s; ``usual`` is the median of the last runs that passed
    (``recent``), all of them ``of`` the same: GPUs, links, size.
    """

    name: Annotated[str, Meta(max_length=64)]
    passed: CheckEnd | None = None
    failed: CheckEnd | None = None
    measured: Gbps | None = None
    measured_at: Time | None = None
    usual: Gbps | None = None
    of: Annotated[str, Meta(max_length=128)] = ""
    recent: Annotated[tuple[Gbps, ...], Meta(max_length=MOST_RECENT)] = ()

    @property
    def suspicion(self) -> CheckEnd | None:
        """The failure that blames the node, while no later run has passed."""
        end, passed = self.failed, self.passed
        if end is None or not end.blames:
            return None
        return end if passed is None or moment(passed.time) <= moment(end.time) else None


class GpuHealth(_CamelStruct, frozen=True, kw_only=True):
    """A GPU that something speaks against (``found_by``: a condition's type or a check); or, with
    state Unknown, did until it was ``repaired``: it goes with the next pass, as one that was
    replaced does. ``complained``: when the last thing began to speak against it.
    """

    uuid: _Gpu
    state: State
    since: Time
    found_by: _Name = ""
    code: _Code = ""
    by_word_of: Word | None = None
    complained: Time | None = None
    repaired: Time | None = None


class NodeHealthSpec(_CamelStruct, frozen=True, kw_only=True):
    """Which node of the object's name it is: another one has another uid."""

    node_uid: Annotated[str, Meta(max_length=64)] = msgspec.field(name="nodeUID", default="")


class NodeHealthStatus(_CamelStruct, frozen=True, kw_only=True):
    """Written by the gang controller alone.

    ``by_word_of``: NodeCondition is trusted, PodResult is hearsay. ``gpu``: the first one that it
    is about. ``complained``: when the last complaint began; ``repaired``: when the last one ended;
    ``revalidated``: when a check passed for it. ``measured`` and ``usual`` (GB/s) are of the check
    that is furthest below its usual.
    """

    state: State = msgspec.field(default_factory=lambda: STATES[2])  # written though a default
    since: Time | None = None
    found_by: _Name = ""
    code: _Code = ""
    gpu: _Gpu = ""
    by_word_of: Word | None = None
    last_pass: Time | None = None
    complained: Time | None = None
    repaired: Time | None = None
    revalidated: Time | None = None
    measured: Gbps | None = None
    usual: Gbps | None = None
    gpus: Annotated[
        tuple[GpuHealth, ...], Meta(max_length=MOST_GPUS, extra_json_schema=list_map("uuid"))
    ] = ()
    checks: Annotated[
        tuple[CheckHealth, ...], Meta(max_length=MOST_CHECKS, extra_json_schema=list_map("name"))
    ] = ()


class _Owner(_CamelStruct, frozen=True, kw_only=True):
    uid: str


class _Metadata(_CamelStruct, frozen=True, kw_only=True):
    name: str
    uid: str = ""
    resource_version: str = ""
    owner_references: tuple[_Owner, ...] = ()


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The object of a node's name, as it is read."""

    metadata: _Metadata
    spec: NodeHealthSpec = NodeHealthSpec()
    status: NodeHealthStatus = NodeHealthStatus()


def path(name: str = "") -> str:
    """Of all NodeHealths, or of one."""
    return f"/apis/{GROUP}/{VERSION}/{PLURAL}" + (f"/{name}" if name else "")


# --- what speaks against a node


def makes_sick(type_: str, status: str, patterns: Iterable[str] = SICK) -> bool:
    """Whether a node's condition speaks against the node or a GPU of it. A healthy event leaves a
    condition whose status is not True."""
    return status == "True" and any(fnmatchcase(type_, pattern) for pattern in patterns)


def gpus_named(message: str) -> list[str]:
    """The UUIDs that a condition's message names whole, each once."""
    return list(dict.fromkeys(_GPU.findall(message)))


def cut_short(message: str) -> bool:
    """Whether GPUs are missing in a condition's message. Of one beyond 1,024 bytes the platform
    connector keeps the beginnings of its parts, in which a UUID may end early, and drops the last.
    """
    *parts, last = message.split(";")
    shortened = (part for part in parts if "... Recommended Action=" in part)
    return _ENTITY in message and (last == "..." or any(not gpus_named(part) for part in shortened))


def code_of(reason: str, message: str) -> str:
    """The error code in a condition's message, else its reason."""
    match = _CODE.search(message)
    return match[1] if match else reason[:64]


def speaks_against(condition: NodeCondition, patterns: Iterable[str] = SICK) -> bool:
    """Whether a condition makes its node, or the GPUs that it names, sick: a type that matches, or
    anybody's condition that names GPUs.
    """
    return makes_sick(condition.type, condition.status, patterns) or (
        condition.status == "True"
        and (bool(gpus_named(condition.message)) or cut_short(condition.message))
    )


class EndedRun(NamedTuple):
    """One run as its pod tells of it. ``gbps``: what it measured, ``of`` what. ``pod_created``:
    Unix time, by the API server's clock.
    """

    check: str
    passed: bool
    end: CheckEnd
    gbps: float | None = None
    of: str = ""
    pod_created: float = 0.0


def moment(time: str | None) -> float:
    """Unix time of an RFC 3339 time; 0 where there is none, or none that can be read."""
    try:
        return datetime.fromisoformat((time or "").replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def _weight(end: CheckEnd) -> tuple[bool, float]:
    return end.blames, moment(end.time)


def noted(status: NodeHealthStatus, run: EndedRun) -> NodeHealthStatus:
    """The status with a run in it; the same one where it tells nothing new."""
    checks = {check.name: check for check in status.checks}
    before = after = checks.get(run.check) or CheckHealth(name=run.check)
    known = before.passed if run.passed else before.failed
    if known is None or _weight(known) < _weight(run.end):
        kept = run.end if run.passed else before.passed
        after = structs.replace(after, passed=kept, failed=before.failed if run.passed else run.end)
    if run.gbps is not None and moment(before.measured_at) < moment(run.end.time):
        recent = before.recent if before.of == run.of else ()
        if run.passed:
            recent = (*recent, run.gbps)[-MOST_RECENT:]
        after = structs.replace(
            after,
            measured=run.gbps,
            measured_at=run.end.time,
            of=run.of,
            recent=recent,
            usual=round(median(recent), 3) if recent else None,
        )
    if after == before:
        return status
    checks[run.check] = after
    return structs.replace(status, checks=tuple(checks.values())[-MOST_CHECKS:])


class _Complaint(NamedTuple):
    state: State
    since: str
    found_by: str
    code: str
    gpu: str
    word: Word
    last: str = ""
    """When the last one of its GPU, or of the node, began."""


def _codes(condition: NodeCondition) -> dict[str, str]:
    """The error code by GPU that a condition is about; by an empty one where it is about the node,
    or GPUs are missing."""
    first = code_of(condition.reason, condition.message)
    parts = reversed(condition.message.split(";"))
    codes = {gpu: code_of(first, part) for part in parts for gpu in gpus_named(part)}
    named = gpus_named(condition.message)
    about_all = not named or cut_short(condition.message)
    return {gpu: codes[gpu] for gpu in named} | ({"": first} if about_all else {})


def _complaints(
    status: NodeHealthStatus, conditions: Iterable[NodeCondition], patterns: Iterable[str], now: str
) -> list[_Complaint]:
    """The worst and oldest first; at most one of a GPU, and one of the node as a whole."""
    patterns = tuple(patterns)
    complaints = [
        _Complaint(
            "Sick",
            condition.last_transition_time or status.since or now,
            condition.type[:316],
            code,
            gpu[:128],
            "NodeCondition",
        )
        for condition in conditions
        if speaks_against(condition, patterns)
        for gpu, code in _codes(condition).items()
    ]
    complaints += [
        _Complaint("Suspect", end.time, check.name, end.code, end.gpu, "PodResult")
        for check in status.checks
        if (end := check.suspicion) is not None
    ]
    complaints.sort(key=lambda it: (STATES.index(it.state), moment(it.since), it))
    first: dict[str, _Complaint] = {}
    for complaint in complaints:
        known = first.setdefault(complaint.gpu, complaint)
        first[complaint.gpu] = known._replace(last=_later(known.last, complaint.since))
    return list(first.values())


def judge(
    status: NodeHealthStatus,
    conditions: Iterable[NodeCondition],
    now: str,
    patterns: Iterable[str] = SICK,
) -> NodeHealthStatus:
    """The status with what follows from its checks and the node's conditions; equal to what it was
    where nothing has changed. ``now``: RFC 3339.
    """
    complaints = _complaints(status, conditions, patterns, now)
    passes = [check.passed.time for check in status.checks if check.passed is not None]
    last_pass = max(passes, key=moment, default=None)
    complained, repaired, revalidated = status.complained, status.repaired, status.revalidated
    if complaints:
        complained = _later(complained, *(complaint.last for complaint in complaints))
        repaired = revalidated = None
    elif status.state in {"Sick", "Suspect"}:
        complained, repaired = complained or status.since, now
    if repaired and not revalidated and _covers(last_pass, repaired, complained):
        revalidated = last_pass
    first = complaints[0] if complaints else None
    fine: State = "Healthy" if last_pass and (revalidated or not repaired) else "Unknown"
    state = first.state if first is not None else fine
    since = first.since if first is not None else (revalidated or repaired or last_pass or now)
    if first is None and state == status.state and status.since:
        since = status.since
    measured = min(
        (check for check in status.checks if check.measured is not None),
        key=lambda it: (it.measured or 0) / it.usual if it.usual else 1.0,
        default=CheckHealth(name=""),
    )
    return structs.replace(
        status,
        state=state,
        since=since,
        found_by=first.found_by if first is not None else "",
        code=first.code if first is not None else "",
        gpu=next((complaint.gpu for complaint in complaints if complaint.gpu), ""),
        by_word_of=first.word if first is not None else None,
        last_pass=last_pass,
        complained=complained,
        repaired=repaired,
        revalidated=revalidated,
        measured=measured.measured,
        usual=measured.usual,
        gpus=_gpus(status, complaints, last_pass, now),
    )


def _later(*times: str | None) -> str:
    return max((time for time in times if time), key=moment)


def _covers(passed: str | None, repaired: str, complained: str | None) -> bool:
    """Whether a pass counts for a repair: it came later, or was what ended the complaint; one from
    before the complaint began is neither."""
    late = moment(passed) >= moment(repaired) - CLEARS
    return late and moment(passed) > moment(complained)


def _gpus(
    status: NodeHealthStatus, complaints: Iterable[_Complaint], last_pass: str | None, now: str
) -> tuple[GpuHealth, ...]:
    """Those that are complained of, then those that were and no pass has covered yet."""
    before = {gpu.uuid: gpu.complained for gpu in status.gpus}
    bad = [
        GpuHealth(
            uuid=complaint.gpu,
            state=complaint.state,
            since=complaint.since,
            found_by=complaint.found_by,
            code=complaint.code,
            by_word_of=complaint.word,
            complained=_later(before.get(complaint.gpu), complaint.last),
        )
        for complaint in complaints
        if complaint.gpu
    ]
    named = {gpu.uuid for gpu in bad}
    was = [
        structs.replace(
            gpu,
            state="Unknown",
            since=gpu.repaired or now,
            complained=gpu.complained or (None if gpu.repaired else gpu.since),
            repaired=gpu.repaired or now,
        )
        for gpu in status.gpus
        if gpu.uuid not in named
    ]
    left = [gpu for gpu in was if not _covers(last_pass, gpu.since, gpu.complained)]
    return tuple((bad + left)[:MOST_GPUS])
