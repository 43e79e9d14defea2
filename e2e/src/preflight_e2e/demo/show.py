"""The demo on a terminal: a table that fills while it runs, plain lines where there is no terminal,
and the table at the end.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from .story import DemoCheck, DemoStory, PodStory, State, changes, tell

STYLES = {
    "passed": "green",
    "skipped": "cyan",
    "failed": "bold red",
    "inconclusive": "yellow",
    "not run": "dim",
}


class Screen:
    """Say things, and show pods as their states arrive (:meth:`see` may be called
    from any thread).
    """

    def __init__(self, console: Console) -> None:
        self.console, self._started = console, time.monotonic()
        self._history: list[tuple[float, State]] = []
        self._last: dict[str, State] = {}

    def echo(self, text: str) -> None:
        self.console.print(
            Text(f"{time.monotonic() - self._started:6.1f} s  {text}"), soft_wrap=True
        )

    def see(self, when: float, pod: State) -> None:
        name = pod["metadata"]["name"]
        self._history.append((when, pod))
        if not self.console.is_terminal:
            for change in changes(self._last.get(name), pod):
                self.echo(f"{name:<12}{pod['spec'].get('nodeName', ''):<8}{change}")
        self._last[name] = pod

    @contextmanager
    def live(self) -> Iterator[None]:
        """On a terminal: keep the table up to date below what is said."""
        if not self.console.is_terminal:
            yield
            return
        with Live(self, console=self.console, refresh_per_second=8, transient=True):
            yield

    def __rich__(self) -> RenderableType:
        story = tell(list(self._history), {}, lambda *_: "", [])
        return _table(story, live=True) if story.pods else Text("")


def final(story: DemoStory) -> RenderableType:
    """The table at the end; under each pod that is held back what was found, on what, and what was
    reported.
    """
    whys = [_why(pod, pod.stopped_by) for pod in story.pods if pod.stopped_by is not None]
    return Group(_table(story, live=False), *whys)


def _table(story: DemoStory, *, live: bool) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("pod", "node", *story.checks, "result"):
        fixed = (
            heading not in story.checks
        )  # on a narrow terminal it is the checks' columns that wrap
        table.add_column(heading, no_wrap=fixed, overflow="fold", header_style="dim")
    for pod in story.pods:
        cells: list[Any] = [_cell(check, live=live) for check in pod.checks]
        cells += [Text("")] * (len(story.checks) - len(cells))
        style = "bold green" if pod.runs else "bold red" if pod.phase == "Failed" else "dim"
        table.add_row(pod.name, pod.node, *cells, Text(pod.verdict, style=style))
    return table


def _cell(check: DemoCheck, *, live: bool) -> RenderableType:
    if live and check.began is not None and check.ended is None:
        return Spinner("dots", Text("running", style="cyan"), speed=0.7)
    if check.ended is None:
        return Text("·" if live else "not run", style="dim")
    number = f" {check.measured:.3g} GB/s" if check.measured is not None else ""
    word = check.outcome if check.good else check.code
    return Text(word + number, style=STYLES.get(check.outcome, "red"))


def _why(pod: PodStory, check: DemoCheck) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("found", f"{check.name} {check.outcome} {check.code}: {check.reason}")
    table.add_row("on", pod.on)
    for event in pod.unhealthy:
        table.add_row("reported", _event(pod, event))
    if not pod.unhealthy:
        table.add_row("reported", "nothing")
    return Group(Text(f"\n{pod.name} on {pod.node}", style="bold"), Padding(table, (0, 0, 0, 2)))


def _event(pod: PodStory, event: dict[str, Any]) -> str:
    about = ", ".join(e["entityValue"] for e in event["entitiesImpacted"]) or pod.node
    fatal = "fatal" if event["isFatal"] else "not fatal"
    return f"{event['checkName']}, {fatal}, {event['recommendedAction']}, {','.join(event['errorCode'])}, about {about}"
