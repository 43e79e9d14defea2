"""From sealed rosters to the culprit's name and to the verdict: `python -m
preflight_e2e.gangs.verdict --members 8 --runs 5 --json FILE`, one member slow, and one that hangs.

Each member is a check of its own in a network namespace of its own, one rank each, gloo. Also
printed: how long a healthy gang of two takes from the roster to its first timed iteration, with and
without torchrun's own start, and the memory of the checks themselves.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from allreduce_testing.gangs.gang import CHECK, MUTANTS, GangUnderTest
from allreduce_testing.gangs.links import SICK, SwitchedGang, may_shape

BEGAN = re.compile(
    r"first timed iteration: ([0-9.]+) s; torchrun's own start: ([0-9.]+) s; without it: ([0-9.]+) s"
)
MEMORY = re.compile(r"holds no torch: ([0-9.]+) MB")
SICK_ONE = 3
PATIENT = {"GANG_TIMEOUT": "300s", "CHECK_TIMEOUT": "300s", "NCCL_ALLREDUCE_SIZE": "4Mi"}


def warmed(gang: GangUnderTest, code: str = CHECK, **variables: str) -> float:
    """Start every member, seal when each has torch loaded; when that was,
    on the monotonic clock.
    """
    gang.start(*range(gang.size), code=code, **variables)
    for member in gang.members.values():
        member.said("torch is loaded", 300)
    gang.seal()
    return time.monotonic()


def verdict(members: int, *, hangs: bool) -> dict[str, Any]:
    """One gang with one culprit; seconds until every member has the verdict,
    reported it and ended.
    """
    with tempfile.TemporaryDirectory() as name, SwitchedGang(Path(name)) as gang:
        gang.join(members)
        defect = {"MUTANT": "hang", "MUTANT_RANK": str(SICK_ONE)} if hangs else {}
        if not hangs:
            gang.shape(SICK_ONE, SICK)
        code, floor = (
            (MUTANTS, {}) if hangs else (CHECK, {"NCCL_ALLREDUCE_THRESHOLD_GBPS": "0.015"})
        )
        sealed = warmed(gang, code, **PATIENT, **floor, **defect)
        ends = [member.ended(300) for member in gang.members.values()]
        seconds = time.monotonic() - sealed
        leader = gang.members[0]
        suffix = f"suspected so far: node-{SICK_ONE}"
        named = [
            at for at, line in zip(leader.heard, leader.lines, strict=True) if line.endswith(suffix)
        ]
        blamed = [
            rank
            for rank, member in gang.members.items()
            if any(event.is_fatal for event in member.connector.events)
        ]
        return {
            "named_after": round(named[0] - sealed, 1) if named else None,
            "seconds": round(seconds, 1),
            "code": ends[0].result.code,
            "named": [
                rank for rank in gang.members if re.search(rf"node-{rank}\b", ends[0].result.reason)
            ],
            "blamed": blamed,
            "parent_mb": max(float(text) for end in ends for text in MEMORY.findall(end.output)),
        }


def start_up(members: int) -> dict[str, float]:
    """One healthy gang on loopback; its slowest member's figures, in seconds, and the largest check
    in MB.
    """
    with tempfile.TemporaryDirectory() as name, GangUnderTest(Path(name)) as gang:
        gang.size = members
        warmed(gang, **{**PATIENT, "NCCL_ALLREDUCE_SIZE": "1Mi"})
        outputs = [member.ended(300).output for member in gang.members.values()]
        began = [
            tuple(map(float, groups)) for output in outputs for groups in BEGAN.findall(output)
        ]
        whole, torchrun, without = max(began, key=lambda times: times[2])
        memory = max(float(text) for output in outputs for text in MEMORY.findall(output))
        return {
            "whole_s": whole,
            "torchrun_s": torchrun,
            "without_torchrun_s": without,
            "parent_mb": memory,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=8, help="of each gang (%(default)s)")
    parser.add_argument(
        "--runs", type=int, default=5, help="of which the median counts (%(default)s)"
    )
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    if not may_shape():
        parser.exit(
            2,
            "verdict: needs root, ip and tc with network namespaces and tbf, to shape links.\n",
        )
    figures: dict[str, Any] = {"members": args.members}
    starts = [start_up(2) for _ in range(args.runs)]
    figures["start_up"] = {key: median(start[key] for start in starts) for key in starts[0]} | {
        "runs": starts
    }
    print(
        f"from the roster to the first timed iteration, two members: {figures['start_up']['whole_s']:.3f} s",
        flush=True,
    )
    for path, hangs in (("slow", False), ("hang", True)):
        runs = [verdict(args.members, hangs=hangs) for _ in range(args.runs)]
        never = max(run["seconds"] for run in runs)
        figures[path] = {
            "median_named": median(
                never if run["named_after"] is None else run["named_after"] for run in runs
            ),
            "median_seconds": median(run["seconds"] for run in runs),
            "runs": runs,
        }
        print(
            f"{args.members} members, {path}: the culprit is named after {figures[path]['median_named']:.1f} s, "
            f"and the verdict is there after {figures[path]['median_seconds']:.1f} s",
            flush=True,
        )
    args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
