from __future__ import annotations

import argparse
import signal
import sys

from ..program import leave, says_version
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
    webhook,
)
from .load import BenchError

TERMINATED = 143
"""Exit status after SIGTERM: 128 + its number."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description="Measure Preflight on this machine.")
    says_version(parser)
    benches = parser.add_subparsers(required=True, metavar="BENCH")
    webhook.add_arguments(
        benches.add_parser(
            "webhook", help="reviews per second and latency of the real server over TLS"
        )
    )
    admission.add_arguments(
        benches.add_parser(
            "admission",
            help="the webhook in front of a real API server: a burst of pods, gangs at once",
        )
    )
    gang.add_arguments(
        benches.add_parser(
            "gang", help="seconds from the last member's address to the last member's roster"
        )
    )
    localisation.add_arguments(
        benches.add_parser(
            "localisation", help="who is blamed in 10,000 simulated gangs, with plots"
        )
    )
    fabric.add_clean_arguments(
        benches.add_parser("clean", help="healthy gangs of real checks: nobody may be blamed")
    )
    fabric.add_reals_arguments(
        benches.add_parser(
            "reals", help="faults of real gangs, twenty times each: is each told for what it is?"
        )
    )
    fabric.add_verdict_arguments(
        benches.add_parser(
            "verdict",
            help="seconds from sealed rosters to name and verdict, one member slow or hanging",
        )
    )
    fabric.add_scale_arguments(
        benches.add_parser("gang-scale", help="thousands of members on one core: none may be lost")
    )
    checks.add_arguments(
        benches.add_parser(
            "checks", help="how soon a check starts its tool, and how large its image is"
        )
    )
    mnnvl.add_arguments(
        benches.add_parser(
            "mnnvl", help="multi-node NVLink: reviews, a burst of PodCliques, adoption, memory"
        )
    )
    compute_domain.add_arguments(
        benches.add_parser(
            "compute-domain", help="a thousand ComputeDomains: seconds until Ready, and until gone"
        )
    )
    appwrapper.add_arguments(
        benches.add_parser(
            "appwrapper",
            help="a thousand AppWrappers: requests, idle cost, failures, evacuation, memory",
        )
    )
    appwrapper_trace.add_arguments(
        benches.add_parser(
            "appwrapper-trace", help="what AppWrappers become in scenario files, to be compared"
        )
    )
    gpu_scheduler.add_arguments(
        benches.add_parser(
            "gpu-scheduler",
            help="a thousand nodes of eight GPUs: calls, binds a second, gangs, reuse, memory",
        )
    )
    args = parser.parse_args()
    # What a bench has started, such as an API server, ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        return int(args.run(args))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    leave(main)
