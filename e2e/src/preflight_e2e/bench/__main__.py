from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path
from typing import Protocol

from ..program import add_version, leave
from . import (
    admission,
    appwrapper,
    appwrapper_trace,
    checks,
    compute_domain,
    fabric,
    gang,
    gpu_scheduler,
    localisation,
    mnnvl,
    soak,
    webhook,
)
from .bars import BenchMeasurement, all_hold
from .load import BenchError

TERMINATED = 143
"""Exit status after SIGTERM: 128 + its number."""


class Runnable(Protocol):
    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None: ...
    def run(self, args: argparse.Namespace, /) -> BenchMeasurement: ...


BENCHES: dict[str, tuple[Runnable, str]] = {
    "webhook": (webhook, "reviews per second and latency of the real server over TLS"),
    "admission": (
        admission,
        "the webhook before a real API server: a burst of pods, gangs at once",
    ),
    "gang": (gang, "seconds from the last member's address to the last member's roster"),
    "localisation": (localisation, "who is blamed in 3,000 simulated gangs of each world"),
    "verdict": (
        fabric.VERDICT,
        "seconds from sealed rosters to a verdict, one member slow or hanging",
    ),
    "gang-scale": (fabric.SCALE, "thousands of members on one core: none may be lost"),
    "checks": (checks, "how soon a check starts its tool, and how large its image is"),
    "mnnvl": (mnnvl, "multi-node NVLink: reviews, a burst of PodCliques, adoption, memory"),
    "compute-domain": (
        compute_domain,
        "a thousand ComputeDomains: seconds until Ready and until gone",
    ),
    "appwrapper": (appwrapper, "a thousand AppWrappers: requests, idle cost, failures, memory"),
    "appwrapper-trace": (appwrapper_trace, "what AppWrappers become in scenario files, to compare"),
    "gpu-scheduler": (
        gpu_scheduler,
        "a thousand nodes of eight GPUs: calls, binds a second, memory",
    ),
    "soak": (soak, "two hours of all services by their clocks: flat memory, idle requests"),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measure Preflight on this machine.")
    add_version(parser)
    added = parser.add_subparsers(required=True, metavar="BENCH", dest="bench")
    for name, (bench, about) in BENCHES.items():
        parser_ = added.add_parser(name, help=about)
        bench.add_arguments(parser_)
        parser_.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    args = parser.parse_args()
    # What a bench has started, such as an API server, ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        outcome = BENCHES[args.bench][0].run(args)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    if outcome.shown:
        print(json.dumps(outcome.figures), flush=True)
    if args.json:
        args.json.write_text(json.dumps(outcome.figures, indent=1) + "\n")
    return 0 if all_hold(outcome.bars, outcome.form) else 1


if __name__ == "__main__":
    leave(main)
