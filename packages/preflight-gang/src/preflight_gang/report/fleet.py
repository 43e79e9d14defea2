"""`report`: what the checks have found in a cluster, as one page or as JSON. Pure but for
:func:`read`, which reads the cluster once.

Of each run the controller has written an Event; how nodes are is what `preflight nodes` shows.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec
from preflight_kube.api.node_health import NodeHealthStatus, moment
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError
from preflight_proto import names

from preflight_gang.core.results import NOT_HELD
from preflight_gang.report import nodes

_EVENTS: Final = "/api/v1/events"
_OBSERVED: Final = f"; observed only, {NOT_HELD}"
_ALLOWED: Final = f"; {NOT_HELD}"
_SAID: Final = re.compile(
    r"(?P<check>\S+)(?: on \S+)? (?P<outcome>passed|skipped|failed|misconfigured|inconclusive)"
    r"(?: (?P<code>[A-Z0-9_]+))?(?: \([^ )]+ GB/s[^)]*\))?: (?P<why>.*)",
    re.DOTALL,
)
_BAD: Final = ("failed", "inconclusive", "misconfigured")
_STYLE: Final = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:1rem 0}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
.scroll{overflow-x:auto}small{opacity:.7}
"""


class ReportedRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run that did not pass. ``observed``: the pod was not held back, and would have been;
    ``allowed``: nor was it, as the check ended with exit status 0.
    """

    time: str
    node: str
    check: str
    outcome: str
    code: str
    pod: str
    observed: bool
    why: str
    allowed: bool = False


class FleetReport(msgspec.Struct, frozen=True):
    """``since``: what was asked for; ``oldest``: the first Event, mostly of the last hour.
    ``nodes``: how they are, the worst first; none where that cannot be read.
    """

    since: str
    oldest: str
    findings: list[ReportedRun]
    nodes: dict[str, NodeHealthStatus]


async def read(since: str) -> FleetReport:
    """The report since that time (RFC 3339, UTC). Raises KubeError."""
    async with Client(connection(home=Path.home()), agent="preflight") as client:
        events = [one async for page, _ in client.pages(_EVENTS, dict) for one in page]
    try:
        states, missing = await nodes.read()
    except KubeError as error:
        states, missing = {}, [f"{error} This is from Events alone"]
    for sentence in missing:
        print(f"Not read: {sentence}.", file=sys.stderr)
    return assemble(events, states, since)


def assemble(
    events: Iterable[Mapping[str, Any]], states: dict[str, NodeHealthStatus], since: str
) -> FleetReport:
    """The report of what was read."""
    findings: list[ReportedRun] = []
    times: list[str] = []
    for event in events:
        source, time = event.get("source") or {}, str(event.get("lastTimestamp") or "")
        said = _SAID.fullmatch(str(event.get("message") or ""))
        ours = source.get("component") == names.MANAGED_BY and moment(time) >= moment(since)
        if said is None or not ours:
            continue
        times.append(time)
        if said["outcome"] in _BAD:
            about, why = event.get("involvedObject") or {}, said["why"]
            run = ReportedRun(
                time=time,
                node=str(source.get("host") or ""),
                check=said["check"],
                outcome=said["outcome"],
                code=said["code"] or "",
                pod=f"{about.get('namespace')}/{about.get('name')}",
                observed=why.endswith(_OBSERVED),
                why=why.removesuffix(_OBSERVED).removesuffix(_ALLOWED),
                allowed=why.endswith(_ALLOWED),
            )
            findings.append(run)
    findings.sort(key=lambda run: (_BAD.index(run.outcome), run.time, run.node))
    return FleetReport(since, min(times, key=moment, default=""), findings, states)


def as_json(report: FleetReport) -> str:
    """The report for programs."""
    whole = {**msgspec.to_builtins(report), "nodes": nodes.as_json(report.nodes)}
    return json.dumps(whole, indent=2)


def page(report: FleetReport) -> str:
    """The report as one HTML page that needs nothing else."""
    return "\n".join(_page(report))


def _page(report: FleetReport) -> Iterator[str]:
    held = [run for run in report.findings if not run.observed and not run.allowed]
    observed = [run for run in report.findings if run.observed]
    allowed = [run for run in report.findings if run.allowed]
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Preflight since {escape(report.since)}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    yield f"<h1>{escape(_headline(report, held, observed))}</h1>"
    oldest = f"the oldest Event is of {report.oldest}" if report.oldest else "there is no Event"
    yield f"<p><small>Since {escape(report.since)}; {escape(oldest)}, as the API server keeps them.</small></p>"
    for title, runs in (
        ("Held back", held),
        ("Would have been held back, where checks only observe", observed),
        ("Was let start all the same", allowed),
    ):
        rows = [[r.time, r.node, r.check, f"{r.outcome} {r.code}", r.pod, r.why] for r in runs]
        yield from _table(title, ["when", "node", "check", "outcome", "pod", "why"], rows)
    heads = ["node", "state", "since", "found by", "last pass", "last failure", "GB/s", "usual"]
    yield from _table("Nodes", heads, [_row(*node) for node in report.nodes.items()])
    yield "</html>"


def _headline(report: FleetReport, held: list[ReportedRun], observed: list[ReportedRun]) -> str:
    sick, suspect = (
        [name for name, status in report.nodes.items() if status.state == state]
        for state in ("Sick", "Suspect")
    )
    named = f"{len(sick)} sick: {', '.join(sick[:8])}" if sick else "No node is sick"
    named += f", {len(suspect)} suspect: {', '.join(suspect[:8])}" if suspect else ""
    if not report.nodes:
        named = "Which node is sick is not known"
    if not report.oldest:
        return f"{named}; of what the checks found no Event is left"
    more = f"; {len(held)} runs held a pod back" if held else "; no pod was held back"
    more += f", {len(observed)} would have" if observed else ""
    return f"{named}{more} since {report.oldest}"


def _table(title: str, heads: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield f"<h2>{escape(title)}: {len(rows) or 'none'}</h2>"
    if rows:
        yield f'<div class="scroll"><table><tr>{"".join(f"<th>{head}" for head in heads)}'
        yield from ("<tr>" + "".join(f"<td>{escape(cell)}" for cell in row) for row in rows)
        yield "</table></div>"


def _row(name: str, status: NodeHealthStatus) -> list[str]:
    failed = [(check.name, end) for check in status.checks if (end := check.failed) is not None]
    failure = ""
    if failed:
        check, end = max(failed, key=lambda each: moment(each[1].time))
        failure = " ".join(filter(None, (end.time, check, end.code, end.gpu, end.pod)))
    found_by = " ".join(filter(None, (status.found_by, status.code, status.gpu)))
    speeds = [nodes.gbps(status.measured), nodes.gbps(status.usual)]
    return [
        name,
        status.state,
        status.since or "",
        found_by,
        status.last_pass or "",
        failure,
        *speeds,
    ]
