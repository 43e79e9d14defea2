"""A gang below its floor whose members gave NCCL a topology file: is the file the cause? Pure.

One launch without any file shows it, before pairs are measured. Whose file it is makes no
difference: a mapping can be as wrong as a workload, and the loopback check does not ask either.
Pairs are then measured without it too, so that what they show is the hardware's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from .control.messages import Hello, VerdictMessage, among
from .control.rounds import LaunchRound


def suspected(hellos: Mapping[int, Hello], last: LaunchRound, verdict: VerdictMessage) -> bool:
    """Whether this launch, whose ``verdict`` that is, may be slow for a topology file."""
    return (
        verdict.code == "LOW_BANDWIDTH"
        and not last.order.without_topology_file
        and any(hello.topology_file for hello in hellos.values())
    )


def untried(hellos: Mapping[int, Hello], slow: VerdictMessage) -> VerdictMessage:
    """The verdict on a slow launch when there was no time for another."""
    files = _files(hellos)
    note = f"whether the reason is {files} is not known, as CHECK_TIMEOUT left no time for a launch without it"
    return _noted(slow, note, files=files)


def compared(
    hellos: Mapping[int, Hello], slow: VerdictMessage, last: LaunchRound, verdict: VerdictMessage
) -> tuple[VerdictMessage, bool]:
    """(the verdict of both launches, whether it stands and no pair is to be measured).

    ``slow``: of the launch with the file. ``last`` is the one without, and ``verdict`` what it says
    by itself.
    """
    files, without = _files(hellos), verdict.metadata.get("measured_gbps", "")
    if verdict.outcome == "passed":
        # Of what failed the gang this is the cause, and no node's doing.
        slow = msgspec.structs.replace(slow, code="TOPOLOGY_FILE")
        note = f"{without} without NCCL's topology file; the nodes are healthy: correct or remove {files}"
        return _noted(slow, note, ", but ", files=files, without_file_gbps=without), True
    if verdict.code == "LOW_BANDWIDTH":
        note = f"without NCCL's topology file it is {without}, so the cause is not {files}"
        return _noted(slow, note, files=files, without_file_gbps=without), False
    if last.left or last.lost or verdict.code == "WRONG_DATA" or verdict.blamed:
        return verdict, False  # true with and without a file
    # NCCL may need the file here: what pairs without it would say of the nodes is not to be
    # trusted.
    note = f"whether the reason is {files} is not known, and no pairs were measured, as a launch without it failed ({verdict.reason.rstrip('.')})"
    return _noted(slow, note, files=files), True


def _noted(slow: VerdictMessage, note: str, by: str = "; ", **metadata: str) -> VerdictMessage:
    reason = f"{slow.reason.rstrip('.')}{by}{note}."
    return msgspec.structs.replace(slow, reason=reason, metadata=slow.metadata | metadata)


def _files(hellos: Mapping[int, Hello]) -> str:
    """Every topology file, whose it is, and which members had it."""
    having: dict[str, list[str]] = defaultdict(list)
    for _, hello in sorted(hellos.items()):
        if hello.topology_file:
            having[hello.topology_file].append(hello.who)
    return "; ".join(f"{file} ({among(who, len(hellos))})" for file, who in having.items())
