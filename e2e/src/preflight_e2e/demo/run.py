"""The demo from its first process to its report."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from pathlib import Path

from preflight_testing.helm import ChartError
from preflight_testing.matrix.scenario import load
from rich.console import Console
from rich.markup import escape

from ..clusters.simulated import SimulatedLab
from ..lab import LabError
from ..runner import run
from . import orphans
from .circle import CircleStory, play
from .page import page
from .picture import take
from .show import Screen, final
from .story import DemoStory, answer, tell

SCENARIO = Path(__file__).resolve().parents[3] / "demo.toml"
REAL = "the webhook over TLS, the gang controller, AppWrapper's controller and labeler, every check, torchrun with gloo"
DOUBLES = (
    "API server, scheduler and kubelet (no containers: processes of this machine), GPUs and their tools, network links (this machine's "
    "loopback, paced by the kernel for each node), platform connectors"
)


def demo(
    environments: Path, report: Path, document: Path | None, picture: Path | None = None
) -> int:
    """Exit status: 0 all as the scenario says, 1 something differs, 2 it could not be run (said on
    stderr).
    """
    try:
        status = _demo(environments, report, document)
        if picture is not None:
            take(report, picture)
        return status
    except (LabError, ChartError, ValueError) as error:
        print(f"demo: {error}", file=sys.stderr)
    except OSError as error:
        print(f"demo: {_explained(error)}", file=sys.stderr)
    return 2


def _demo(environments: Path, report: Path, document: Path | None) -> int:
    began = time.monotonic()
    [scenario] = load(SCENARIO)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 130
    console.print(f"[bold]Real:[/] {REAL}.\n[bold]Doubles:[/] {DOUBLES}.", soft_wrap=True)
    timeout = scenario.values["gangTimeout"]
    console.print(
        f"Settings other than the defaults: members of a gang wait {timeout} for each other instead of 600s; the all-reduce is of 2Mi, "
        f"six times, and held to {scenario.values['nccl']['allreduceThresholdGBps']} GB/s: links here send 0.025.",
        soft_wrap=True,
    )
    for path in (report, document):
        if path is not None:
            _writable(path)
    screen = Screen(console)
    orphans.adopt()
    lab = SimulatedLab([f"node-{letter}" for letter in scenario.letters], environments, screen.echo)
    try:
        lab.seen = screen.see
        lab.start()
        screen.echo(f"{len(lab.nodes)} nodes with 8 GPUs each: {scenario.fault}")
        with screen.live():
            outcome = run(lab, scenario, lambda _: None)
        story = _story(lab, outcome.problems)
        screen.echo("a fifth story: a sick GPU, a job that moves, and a node that comes back")
        circle = play(lab, screen.echo)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # told once is enough
            signal.signal(number, signal.SIG_IGN)
        lab.close()
        orphans.end()
    seconds = time.monotonic() - began
    if circle.problem:
        story.problems.append(circle.problem)
        story.as_expected = False
    console.print()
    console.print(final(story))
    report.write_text(page(story, circle, scenario, seconds))
    if document is not None:
        scenarios = [outcome.as_json() | {"story": story.as_json(), "circle": circle.as_json()}]
        timings = {"total_seconds": round(seconds, 2), "pods_seconds": round(story.seconds, 2)}
        document.write_text(json.dumps({"scenarios": scenarios, "timings": timings}, indent=1))
    return _end(console, story, circle, report, seconds)


def _end(
    console: Console, story: DemoStory, circle: CircleStory, report: Path, seconds: float
) -> int:
    console.print()
    for problem in story.problems:
        console.print(f"[bold red]differs[/] {escape(problem)}", soft_wrap=True)
    run_count = sum(pod.runs for pod in story.pods)
    verdict = (
        "[green]as expected[/]"
        if story.as_expected
        else f"[bold red]{len(story.problems)} differences[/]"
    )
    line = ": ".join(filter(None, answer(story)))
    console.print(f"[bold]{escape(line)}[/]", soft_wrap=True)
    if not circle.problem:
        took = circle.steps[-1].seconds
        console.print(
            f"The circle closed in {took:.0f} s: {circle.node} was found sick, left, repaired, tested, and given work again.",
            soft_wrap=True,
        )
    pods = f"{run_count} of {len(story.pods)} pods run, {len(story.pods) - run_count} are held back"
    console.print(
        f"{pods}: {verdict}; {seconds:.0f} s. Report: {escape(str(report))}", soft_wrap=True
    )
    return 0 if story.as_expected else 1


def _story(lab: SimulatedLab, problems: list[str]) -> DemoStory:
    logs = {node: lab.node_log(node) for node in lab.nodes}
    # Their removal afterwards is not part of the story.
    history = [
        (when, pod) for when, pod in lab.history if "deletionTimestamp" not in pod["metadata"]
    ]
    return tell(history, logs, lambda pod, container: lab.log("", pod, container), problems)


def _writable(path: Path) -> None:
    """Raises OSError now rather than after the run."""
    if not path.parent.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "the folder is not there", str(path.parent))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise PermissionError(errno.EACCES, "it cannot be written", str(path))


def _explained(error: OSError) -> str:
    where = error.filename or "this machine"
    what = {
        errno.ENOSPC: "free some space there, or set TMPDIR to a folder with 200 MB",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
        errno.EADDRINUSE: "stop what listens there",
        errno.EACCES: "give a path that may be written",
        errno.ENOTDIR: "make it, or give another path",
    }.get(error.errno or 0, "correct that and run it again")
    return f"{where}: {error.strerror or error}; {what}."
