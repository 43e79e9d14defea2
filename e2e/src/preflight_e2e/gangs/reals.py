"""Faults that are made in real gangs, over and over: `python -m preflight_e2e.gangs.reals --runs 20
--json FILE` counts how often each is told for what it is.

Checks with their own torchrun and gloo, on links shaped in namespaces that this program makes
(`links`). Two things are shorter than the product's: torch is loaded once for all of them
(`preloaded`), and the wait before the independent look is `rows.APART`, for nobody else is on these
links. The product's own wait and start are timed by `verdict`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from allreduce_testing.gangs.gang import GangUnderTest
from allreduce_testing.gangs.links import SICK, SwitchedGang, may_shape
from allreduce_testing.gangs.rows import APART, idle_share, processors

QUICK = f"from check_nccl_allreduce.localise import score; score.APART = {APART}; "
RUN = "from check_nccl_allreduce import check; check.main()"
PATIENT = {"GANG_TIMEOUT": "300s", "CHECK_TIMEOUT": "120s"}
LINKS = {**PATIENT, "NCCL_ALLREDUCE_SIZE": "4Mi", "NCCL_ALLREDUCE_THRESHOLD_GBPS": "0.015"}
SLOW_UPLINK = 60
ODD = 63
"""Mbit/s: a share of a healthy link's that no two kinds of adapter have."""
PARTS = ("part-doubled", "part-dropped", "part-with-flipped-bits")
FAST = "to itself it is as fast as others"


@dataclass(frozen=True)
class RealCase:
    """``truth(run, culprit)``: whether a run told it for what it is. ``shape``: what is done to the
    links; None for loopback.
    """

    name: str
    says: str
    members: int
    truth: Callable[[dict[str, Any], int], bool]
    shape: Callable[[SwitchedGang, int], None] | None = None
    corrupts: bool = False
    share: float = 1.0
    """Of the runs."""


def _adapter(gang: SwitchedGang, culprit: int) -> None:
    gang.shape(culprit, ODD)


def _cable(gang: SwitchedGang, culprit: int) -> None:
    gang.shape(culprit, SICK, beyond=True)


def _port(gang: SwitchedGang, culprit: int) -> None:
    """The same cable, and hairpins that turn at the leaf, as those of two adapters do."""
    for rank in range(gang.size):
        gang.loop_at_leaf(rank)
    _cable(gang, culprit)


def _rails(gang: SwitchedGang, culprit: int) -> None:
    gang.route_rails()
    _cable(gang, culprit)


def _uplink(gang: SwitchedGang, _: int) -> None:
    gang.share_uplink(tuple(range(gang.size // 2, gang.size)), SLOW_UPLINK)


def _cleared(run: dict[str, Any], culprit: int) -> bool:
    """Named, with the reason that its hairpin gives, and nobody blamed."""
    return bool(run["blamed"] == [] and run["named"] == f"node-{culprit}" and FAST in run["reason"])


def _named(run: dict[str, Any], culprit: int) -> bool:
    return bool(run["blamed"] == [] and run["named"] == f"node-{culprit}")


def _blames_none(run: dict[str, Any], _: int) -> bool:
    return bool(run["blamed"] == [] and run["outcome"] == "failed")


def _corrupted(run: dict[str, Any], culprit: int) -> bool:
    return bool(run["corrupted"] == str(culprit) and run["blamed"] in ([], [culprit]))


KINDS = (
    RealCase(
        "slow-node",
        "a node whose adapter is slow is named, not blamed, where nothing shows what it shares",
        3,
        _named,
        _adapter,
    ),
    RealCase(
        "slow-path",
        "a node whose cable is slow is named, not blamed: its hairpin is fast",
        3,
        _cleared,
        _cable,
    ),
    RealCase(
        "slow-port",
        "a node whose switch port is slow, and so its hairpin, is named, not blamed",
        3,
        _named,
        _port,
    ),
    RealCase(
        "rails",
        "with each adapter in a subnet of its own, so that the spine routes hairpins, a node whose"
        " cable is slow is named, not blamed",
        3,
        _named,
        _rails,
    ),
    RealCase(
        "two-members",
        "of two members the one that is slow inside is named, not blamed, without a third",
        2,
        _named,
        _adapter,
    ),
    RealCase(
        "corrupted",
        "the rank whose part is wrong is named from one collective",
        3,
        _corrupted,
        corrupts=True,
    ),
    RealCase(
        "uplink",
        "behind a slow shared uplink nobody is blamed",
        8,
        _blames_none,
        _uplink,
        share=0.25,
    ),
)


def run(kind: RealCase, number: int, loaded: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """One gang; ``loaded`` is called once torch is, before the rosters are sealed."""
    culprit = number % kind.members
    with tempfile.TemporaryDirectory(prefix="pf") as name, _gang(kind, Path(name)) as gang:
        gang.size = kind.members
        if isinstance(gang, SwitchedGang):
            gang.join(kind.members)
            assert kind.shape is not None
            kind.shape(gang, culprit)
        given = LINKS
        if kind.corrupts:
            part = PARTS[number % len(PARTS)]
            given = {**PATIENT, "MUTANT": part, "MUTANT_RANK": str(culprit)}
        gang.start(*range(kind.members), code=QUICK + RUN, **given)
        for member in gang.members.values():
            member.said("torch is loaded", 300)
        loaded()
        before = processors()
        gang.seal()
        sealed = time.monotonic()
        ends = [member.ended(300) for member in gang.members.values()]
        events = {rank: member.connector.events for rank, member in gang.members.items()}
        about = next((event.metadata for event in events[0]), {})
        row = {
            "culprit": culprit,
            "seconds": round(time.monotonic() - sealed, 1),
            "idle": round(idle_share(before, processors()), 2),
            "outcome": ends[0].result.outcome,
            "code": ends[0].result.code,
            "blamed": [
                rank for rank, each in events.items() if any(event.is_fatal for event in each)
            ],
            "named": about.get("named", ""),
            "corrupted": about.get("corrupted_rank", ""),
            "reason": about.get("reason", ""),
        }
        return {**row, "true": kind.truth(row, culprit)}


def _gang(kind: RealCase, home: Path) -> GangUnderTest:
    return (SwitchedGang if kind.shape is not None else GangUnderTest)(home, preloaded=True)


def play(kind: RealCase, runs: int, at_once: int) -> list[dict[str, Any]]:
    """So many gangs of a kind, some at the same time: measured on shaped links, they take next to
    no processor time.
    """
    rows: list[dict[str, Any]] = []
    for begin in range(0, runs, at_once):
        batch = range(begin, min(begin + at_once, runs))
        gate = threading.Barrier(len(batch))
        with ThreadPoolExecutor(len(batch)) as pool:
            rows += pool.map(lambda number, gate=gate: run(kind, number, gate.wait), batch)
    return rows


def figures(kind: RealCase, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is told of a kind. Of runs that told the truth only the seconds are kept."""
    seconds = [row["seconds"] for row in rows]
    return {
        "says": kind.says,
        "members": kind.members,
        "runs": len(rows),
        "true": sum(row["true"] for row in rows),
        "median_seconds": median(seconds),
        "most_seconds": max(seconds),
        "least_idle": min(row["idle"] for row in rows),
        "untrue": [row for row in rows if not row["true"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs",
        type=int,
        default=20,
        help="of each kind, of those of eight a quarter (%(default)s)",
    )
    parser.add_argument(
        "--at-once", type=int, default=4, help="gangs of three that run side by side (%(default)s)"
    )
    parser.add_argument(
        "--only",
        choices=[kind.name for kind in KINDS],
        action="append",
        help="this kind; repeatable",
    )
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    if not may_shape():
        parser.exit(
            2, "reals: needs root, ip and tc with network namespaces and tbf, to shape links.\n"
        )
    table: dict[str, Any] = {}
    for kind in KINDS:
        if args.only and kind.name not in args.only:
            continue
        at_once = max(1, min(args.at_once, 1 + 2 * args.at_once // kind.members))
        table[kind.name] = summary = figures(
            kind, play(kind, max(1, round(args.runs * kind.share)), at_once)
        )
        print(
            f"{kind.name}: {summary['true']} of {summary['runs']} true, {summary['median_seconds']:.1f} s ({summary['most_seconds']:.1f} at most); "
            f"processors idle for {summary['least_idle']:.0%} at least",
            flush=True,
        )
    args.json.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
