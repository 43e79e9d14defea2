"""`python -m preflight_e2e run`: the fault matrix on a real cluster."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from preflight_testing.helm import ChartError
from preflight_testing.matrix.scenario import Scenario, load_all
from preflight_testing.rights import AUDIT_LOG

from . import images, kube_scheduler
from .clusters import ClusterError, cluster
from .engine import Engine, ImageError, find_engine
from .image_loading import loading
from .lab import GANG_VALUES, Lab, LabError, injector_values
from .program import add_version, leave
from .side_by_side import run_all

CLUSTER_TESTS = Path(__file__).resolve().parents[2] / "tests" / "cluster"
PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
"""Of what failed nothing is kept: two of them run at a time, and none runs again."""
CHAOS = "test_chaos_on_a_cluster.py"
"""It takes minutes, and has a session of its own."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="preflight_e2e", description="Run the fault matrix on a real cluster."
    )
    add_version(parser)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="install the charts, break nodes, compare verdicts")
    runs.add_argument(
        "--cluster",
        choices=("kind", "existing"),
        default="kind",
        help="kind makes one; existing is that of KUBECONFIG",
    )
    runs.add_argument(
        "--load-images",
        metavar="CMD",
        help="with existing: brings an archive to the nodes, e.g. 'load-image {archive}'",
    )
    runs.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ID",
        help="only this scenario (repeat for more)",
    )
    runs.add_argument(
        "--tests",
        metavar="FILE",
        help="no scenario, and of tests/cluster this file on fake nodes alone",
    )
    runs.add_argument("--json", type=Path, metavar="FILE", help="write what happened to FILE")
    runs.add_argument(
        "--audit",
        type=Path,
        metavar="FILE",
        help="the API server's audit log: the rights that were used must be those that the charts grant",
    )
    runs.add_argument("--keep", action="store_true", help="leave chart and fakes installed")
    runs.set_defaults(do=_run)
    args = parser.parse_args()
    try:
        return int(args.do(args))
    except (ClusterError, LabError, ChartError, ImageError, ValueError) as error:
        print(f"e2e: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    started = time.monotonic()

    def echo(text: str) -> None:
        print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)

    rows = [
        row for row in load_all() if row.ring == "e2e" and (not args.only or row.id in args.only)
    ]
    if unknown := set(args.only) - {row.id for row in rows}:
        raise ValueError(
            f"--only: no scenario {', '.join(sorted(unknown))}; there are {', '.join(row.id for row in load_all())}"
        )
    if args.tests:
        rows = []
    timings: dict[str, float] = {}
    outcomes = []
    tests_passed = True
    with cluster(args.cluster, args.load_images) as target:
        engine = find_engine()
        echo(f"building images with {engine.name}")

        def load(built: images.BuiltImage) -> None:
            target.load(built.archive)
            echo(
                f"{built.reference} loaded{'' if built.cached else f' (built in {built.seconds:.0f} s)'}"
            )
            timings["images_seconds"] = time.monotonic() - started

        lab = Lab(target.kubeconfig, echo)
        try:
            with loading(_builds(engine, rows), load) as coming:

                def needed(values: dict[str, Any]) -> list[str]:
                    return coming.before(injector_values(values))

                # Few upgrades of the chart; and what needs the images that come last comes last.
                rows.sort(
                    key=lambda row: (
                        len(needed(row.values)),
                        json.dumps(row.values, sort_keys=True, default=str),
                    )
                )
                coming.wait([images.FAKE_NODE])
                lab.fake_nodes()
                echo(f"GPU nodes: {', '.join(lab.nodes)}")
                outcomes = run_all(lab, rows, echo, lambda values: coming.wait(needed(values)))
                if not args.only:
                    coming.wait_for_all()
            if not args.only and not args.keep:
                lab.without_chart()
                stock = _kube_scheduler(engine, lambda built: target.load(built.archive), echo)
                echo("pytest on the fake GPU nodes")
                tests_passed = _pytest_on_fakes(target.kubeconfig, stock, args.tests or "")
            rosters = [o.roster_seconds for o in outcomes if o.roster_seconds is not None]
            if rosters:
                timings["roster_seconds"] = max(rosters)
        finally:
            if not args.keep:
                lab.close()
        if not args.only and not args.tests:
            real = _real_image(engine, lambda built: target.load(built.archive), echo)
            echo("pytest on this cluster")
            tests_passed = _pytest(target.kubeconfig, args.audit, real) and tests_passed
    timings["total_seconds"] = time.monotonic() - started
    if args.json:
        document = {
            "scenarios": [o.as_json() for o in outcomes if not o.skipped],
            "skipped": {o.id: o.skipped for o in outcomes if o.skipped},
            "timings": {k: round(v, 2) for k, v in timings.items()},
        }
        args.json.write_text(json.dumps(document, indent=1))
    run_at_all = [o for o in outcomes if not o.skipped]
    good = sum(not o.problems for o in run_at_all)
    left_out = (
        f", {skipped} skipped for want of nodes"
        if (skipped := len(outcomes) - len(run_at_all))
        else ""
    )
    echo(f"{good} of {len(run_at_all)} scenarios as expected{left_out}")
    return 0 if good == len(run_at_all) and tests_passed else 1


def _builds(engine: Engine, rows: Sequence[Scenario]) -> dict[str, Callable[[], images.BuiltImage]]:
    """By reference, in the order in which they are needed: the nodes', then what the charts of
    ``rows`` name (servers, then checks), then what only the tests after them install.
    """

    def build(component: images.ImageTable) -> images.BuiltImage:
        [built] = images.build_all(engine, e2e=True, only=[component.image])
        return built

    values = [GANG_VALUES, *(injector_values(row.values) for row in rows)]
    text = json.dumps(values, default=str)

    def later(component: images.ImageTable) -> bool:
        return not any(
            f'"{name}"' in text for name in (component.image, component.reference(e2e=True))
        )

    ordered = sorted(images.COMPONENTS, key=later)
    every = {component.reference(e2e=True): partial(build, component) for component in ordered}
    return {images.FAKE_NODE: partial(images.build_fake_node, engine), **every}


def _real_image(
    engine: Engine, load: Callable[[images.BuiltImage], None], say: Callable[[str], None]
) -> dict[str, str]:
    """Bring the one check's image that has its real tool to the nodes; the variables by which tests
    know of it.

    It is made of sources and packages from the network: where it cannot be built, they say why.
    """
    try:
        [built] = images.build_all(engine, only=[images.REAL])
    except ImageError as error:
        say(f"{images.REAL} with its real tool is left out: {error}")
        return {
            images.REAL_IMAGE_MISSING: f"{images.REAL} with its real tool could not be built: {error}"
        }
    load(built)
    say(f"{built.reference} loaded{'' if built.cached else f' (built in {built.seconds:.0f} s)'}")
    return {images.REAL_IMAGE: built.reference}


def _kube_scheduler(
    engine: Engine, load: Callable[[images.BuiltImage], None], say: Callable[[str], None]
) -> dict[str, str]:
    """Bring the cluster's own kube-scheduler to the nodes as an image; where there is none, the
    variable by which tests know why.
    """
    try:
        built = kube_scheduler.build(engine)
    except ImageError as error:
        say(f"{kube_scheduler.IMAGE} is left out: {error}")
        return {kube_scheduler.MISSING: f"{error}"}
    load(built)
    say(f"{built.reference} loaded{'' if built.cached else f' (built in {built.seconds:.0f} s)'}")
    return {}


def _pytest_on_fakes(kubeconfig: Path, more: dict[str, str], file: str) -> bool:
    """The tests that need the lab's fake nodes, and no release of the charts beside their own; of
    one ``file``, if one is named, else of all but the one that kills whatever it finds.
    """
    environ = {**os.environ, **more, "KUBECONFIG": str(kubeconfig)}
    argv = [*PYTEST, str(CLUSTER_TESTS / file), "-rs", "-m", "fakes"]
    if not file:
        argv.append(f"--ignore={CLUSTER_TESTS / CHAOS}")
    return subprocess.run(argv, env=environ, check=False).returncode == 0


def _pytest(kubeconfig: Path, audit: Path | None, real: dict[str, str]) -> bool:
    """The tests that need a cluster but no scenario: charts, certificates, cost.

    Releases with a webhook come one after the other, since each would change the pods of another
    one's namespaces; beside them run those that install policies alone, whose report is printed at
    the end.
    """
    environ = {**os.environ, **real, "KUBECONFIG": str(kubeconfig)}
    if audit is not None:
        environ[AUDIT_LOG] = str(audit.resolve())
    argv = [*PYTEST, str(CLUSTER_TESTS), "-rs", "-m"]
    with (
        tempfile.TemporaryFile() as report,
        subprocess.Popen(
            [*argv, "policies"], stdout=report, stderr=subprocess.STDOUT, env=environ
        ) as beside,
    ):
        try:
            releases = subprocess.run(
                [*argv, "not policies and not fakes"], env=environ, check=False
            )
            passed = [releases.returncode, beside.wait()] == [0, 0]
        finally:
            beside.terminate()
        report.seek(0)
        print(report.read().decode(errors="replace"), flush=True)
    return passed


if __name__ == "__main__":
    leave(main)
