"""Reviews per second of the real `preflight-webhook serve`, over TLS, on one core; the load comes
from another.

Everything that it can do is switched on (:data:`~.reviews.EVERYTHING`). Wall times need a quiet
machine; CPU time a review is the figure that survives a busy one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from preflight_testing.reviews import EVERYTHING, NUMBER, realistic_review

from ..registered_webhook import write_certificate
from . import peer, served
from .bars import Bar, BenchMeasurement, all_hold, at_least, below
from .load import BenchError, drive, server_of_nothing
from .served import ReviewServer

LEAST_BYTES = 7 * 1024
"""What the API server sends about a training pod; a smaller review would flatter the server."""
LARGE_BYTES = 85 * 1024
CLAIMS = 10_000
CLAIMS_WITHIN = 240.0
Figures = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--connections", type=int, default=16, help="%(default)s")
    parser.add_argument("--seconds", type=float, default=6, help="of each run (%(default)s)")
    parser.add_argument("--runs", type=int, default=5, help="the median counts (%(default)s)")
    parser.add_argument(
        "--peer",
        action="store_true",
        help="also the webhook in e2e/bench/peers, in turn with ours (needs Go)",
    )
    parser.add_argument(
        "--peer-url", metavar="URL", help="also the webhook at this https URL instead"
    )
    served.add_server(parser)


class Load(NamedTuple):
    """How the servers are driven: by the load generator, on a core of its own
    where there is one.
    """

    folder: Path
    cpu: int | None
    connections: int
    seconds: float

    def write(self, name: str, review: Figures) -> Path:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(review, separators=(",", ":")))  # as Go writes it
        return path

    def drive(self, server: ReviewServer, body: Path, **more: Any) -> Figures:
        """One run: what :func:`~.load.drive` gives, and cpu_us of the server's
        own time a review.
        """
        fixed = {"connections": self.connections, "seconds": self.seconds, "cpu": self.cpu}
        before = server.cpu_seconds()
        measured = drive(server.address, body, path=server.path, **{**fixed, **more})
        return {**measured, "cpu_us": (server.cpu_seconds() - before) / measured["served"] * 1e6}


def run(args: argparse.Namespace) -> BenchMeasurement:
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        cores = sorted(os.sched_getaffinity(0))
        serving, loading = (cores[0], cores[1]) if len(cores) > 1 else (cores[0], None)
        if loading is not None:
            os.sched_setaffinity(0, {loading})  # what stands in for the API server is load too
        write_certificate(folder)
        environ = stack.enter_context(served.claims(folder))
        ours = stack.enter_context(
            served.webhook(args.server, folder, serving, EVERYTHING, environ)
        )
        load = Load(folder, loading, args.connections, args.seconds)
        print(
            f"server on core {serving}, load of {args.connections} connections on core {loading}, median of {args.runs} runs; "
            f"load of the machine {os.getloadavg()[0]:.1f}"
        )
        result = measured(load, ours, serving, args)
    result["webhook"]["bars"] = {bar.says: bar.holds for bar in bars(result)}
    all_hold(bars(result), "g")
    return BenchMeasurement(result)


def measured(load: Load, ours: ReviewServer, core: int, args: argparse.Namespace) -> Figures:
    """Everything, in the order in which memory only grows by what is said."""
    pods = realistic_review()
    different = load.write("different", pods)
    alike = load.write("alike", json.loads(json.dumps(pods).replace(NUMBER, "0" * len(NUMBER))))
    size = different.stat().st_size
    if size < LEAST_BYTES:
        raise BenchError(
            f"the review has {size} bytes, less than {LEAST_BYTES}; give its pod more."
        )
    figures: Figures = {"review_bytes": size, "rss_start_mb": ours.resident_mb()}
    first = load.drive(ours, alike, seconds=1)
    check_answer(first)
    result: Figures = {"webhook": figures}
    with ExitStack() as stack:
        other = peer_of(stack, load.folder, core, args, peer.patch_of(first["answer"]))
        runs: dict[str, list[Figures]] = {"webhook": [], "peer": []}
        for number in range(args.runs):  # in turn, so that both meet the same machine
            runs["webhook"].append(reported(f"alike, run {number + 1}", load.drive(ours, alike)))
            if other is not None:
                runs["peer"].append(reported(f"peer, run {number + 1}", load.drive(other, alike)))
        for run in runs["webhook"]:
            check_answer(run)
        figures.update(median(runs["webhook"], ""), rss_mb=ours.resident_mb())
        if other is not None:
            result["peer"] = about_peer(
                other, runs, json.loads(alike.read_text())["request"]["object"]
            )
            result["ratio"] = round(figures["reviews_per_s"] / result["peer"]["reviews_per_s"], 2)
            print(f"ratio: {result['ratio']:g} times the peer's reviews/s")
    steady = reported("steady 1,000/s", load.drive(ours, alike, rate=1000))
    figures.update(
        {f"steady_1000_{key}": round(steady[key], 2) for key in ("p50_ms", "p99_ms", "max_ms")}
    )
    with server_of_nothing(core) as address:
        idle = drive(
            address,
            alike,
            connections=load.connections,
            seconds=load.seconds,
            rate=1000,
            cpu=load.cpu,
        )
    figures["idle_server_p99_ms"] = round(idle["p99_ms"], 2)
    print(f"steady 1,000/s to a server that does nothing: p99 {idle['p99_ms']:.2f} ms")
    large = load.write(
        "large", json.loads(json.dumps(realistic_review(bulk=LARGE_BYTES)).replace(NUMBER, "0" * 8))
    )
    figures["large_bytes"] = large.stat().st_size
    figures.update(
        median([reported("85 KB pod", load.drive(ours, large)) for _ in range(args.runs)], "large_")
    )
    figures["rss_claims_mb"] = with_claims(load, ours)
    runs_ = [
        reported("all different", load.drive(ours, different, vary=NUMBER))
        for _ in range(args.runs)
    ]
    figures.update(median(runs_, "different_"), rss_different_mb=ours.resident_mb())
    print(
        f"memory: {figures['rss_start_mb']} MB at the start, {figures['rss_mb']} after alike pods, {figures['rss_claims_mb']} "
        f"with {CLAIMS:,} claims kept, {figures['rss_different_mb']} after pods that are all different"
    )
    return result


def peer_of(
    stack: ExitStack, folder: Path, core: int, args: argparse.Namespace, patch: list[dict[str, Any]]
) -> ReviewServer | None:
    if args.peer_url:
        return peer.by_url(args.peer_url)
    if not args.peer:
        return None
    other = stack.enter_context(peer.serving(folder, core, patch))
    if other is None:
        print(peer.SKIPPED)
    return other


def about_peer(other: ReviewServer, runs: dict[str, list[Figures]], pod: Figures) -> Figures:
    patches = [peer.patch_of(runs[name][-1]["answer"]) for name in ("webhook", "peer")]
    failed = sum(run["failed"] for run in runs["peer"])
    if failed:
        raise BenchError(f"the peer refused {failed} reviews; nothing was measured.")
    differs = peer.difference(pod, *patches)
    if differs and other.pid is not None:
        raise BenchError(
            f"the peer's patch makes another pod ({differs[:300]}); the two cannot be compared."
        )
    print(f"peer: {'its patch makes ' + ('another' if differs else 'the same') + ' pod'}")
    return {**median(runs["peer"], ""), "rss_mb": other.resident_mb(), "same_pod": not differs}


def with_claims(load: Load, ours: ReviewServer) -> float:
    """The memory in MB with as many claims kept as fit: each review has one of its own."""
    body = load.write("claims", json.loads(json.dumps(realistic_review(f"fabric-{NUMBER}"))))
    kept, sent, end = 0.0, 0, time.monotonic() + CLAIMS_WITHIN
    while kept < CLAIMS and time.monotonic() < end:
        sent += load.drive(ours, body, vary=NUMBER, first=sent + 1)["served"]
        kept = ours.metric("preflight_webhook_claims_kept")
    if kept < CLAIMS:
        raise BenchError(
            f"only {kept:.0f} of {CLAIMS} claims were kept within {CLAIMS_WITHIN:g} s; is the machine busy?"
        )
    return ours.resident_mb()


def reported(what: str, run: Figures) -> Figures:
    print(
        f"{what:16} {run['per_s']:8.0f} reviews/s  p50 {run['p50_ms']:.2f} ms  p99 {run['p99_ms']:.2f} ms"
        f"  max {run['max_ms']:.2f} ms  {run['cpu_us']:.0f} us of CPU each",
        flush=True,
    )
    return run


def median(runs: list[Figures], prefix: str) -> Figures:
    keys = {"reviews_per_s": "per_s", "p50_ms": "p50_ms", "p99_ms": "p99_ms", "cpu_us": "cpu_us"}
    return {
        prefix + key: round(statistics.median(run[source] for run in runs), 2)
        for key, source in keys.items()
    }


def check_answer(run: Figures) -> None:
    """Rates of refusals are not a result: the last answer must be a patch that injects, and stamps
    the gang's member.
    """
    patch = json.dumps(peer.patch_of(run["answer"]))
    if run["failed"] or "initContainers" not in patch or "preflight-gang-config" not in patch:
        raise BenchError(
            f"{run['failed']} of {run['requests']} answers were not patches; nothing was measured."
        )


def bars(result: Figures) -> Iterator[Bar]:
    """What the webhook promises, each held against what was measured."""
    ours = result["webhook"]
    yield at_least("reviews/s of alike pods, all features on", ours["reviews_per_s"], 12_000)
    if "ratio" in result:
        yield at_least("times the peer's reviews/s", result["ratio"], 4)
    yield at_least("reviews/s of an 85 KB pod", ours["large_reviews_per_s"], 3_000)
    yield below("p99 in ms at a steady 1,000/s", ours["steady_1000_p99_ms"], 2)
    yield below(f"MB with {CLAIMS:,} claims kept", ours["rss_claims_mb"], 60)
    yield below("MB after pods that are all different", ours["rss_different_mb"], 60)
