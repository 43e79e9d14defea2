"""`report`: what the checks have found in a cluster, as one page or as JSON. Pure but for
:func:`read`, which reads the cluster once.

Of each run the controller has written an Event; NodeHealth has what outlives Events.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

import msgspec
from preflight_kube.api.node_health import NodeHealth, moment, path
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, NotFound
from preflight_proto import names

from preflight_gang.core.results import NOT_HELD
from preflight_gang.report.nodes import listed

_EVENTS: Final = "/api/v1/events"
_OBSERVED: Final = f"; observed only, {NOT_HELD}"
_ALLOWED: Final = f"; {NOT_HELD}"
_SAID: Final = re.compile(
    r"(?P<check>\S+)(?: on \S+)? (?P<outcome>passed|skipped|failed|misconfigured|inconclusive)"
    r"(?: (?P<code>[A-Z0-9_]+))?(?: \((?P<gbps>\d{1,9}(?:\.\d+)?(?:e[+-]\d\d)?) GB/s[^)]*\))?: (?P<why>.*)",
    re.DOTALL,
)
_OUTCOMES: Final = ("failed", "inconclusive", "misconfigured", "skipped", "passed")
_STYLE: Final = """
:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:1rem 0}th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #8884;vertical-align:top}
.sick{color:#c22}.bar{background:#8883;height:.7rem;min-width:12rem;position:relative}.bar i{background:#3a7;display:block;height:100%}
.bar b{position:absolute;top:-.15rem;bottom:-.15rem;width:2px;background:currentColor}.scroll{overflow-x:auto}small{opacity:.7}
"""


class ReportedRun(msgspec.Struct, frozen=True, rename="camel"):
    """A run that did not pass. ``observed``: the pod was not held back, and would have been;
    ``allowed``: nor was it, as the check may let start what it could not judge.
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


class NodeLine(msgspec.Struct, rename="camel"):
    """A node's line; bandwidths are GB/s: the last one, and what is usual there.
    ``last_failure``: when it was, of which check, code, GPU and pod; ``failing``: no later run of
    that check has passed.
    """

    name: str
    state: str = ""
    since: str = ""
    found_by: str = ""
    last_pass: str = ""
    last_failure: str = ""
    failing: bool = False
    measured: float | None = None
    usual: float | None = None
    runs: dict[str, int] = {}


class FleetReport(msgspec.Struct, frozen=True, rename="camel"):
    """``since``: what was asked for; ``oldest``: the first Event, mostly of the last hour."""

    since: str
    oldest: str
    findings: list[ReportedRun]
    nodes: list[NodeLine]


async def read(since: str) -> FleetReport:
    """The report since that time (RFC 3339, UTC). Raises KubeError."""
    async with Client(connection(home=Path.home()), agent="preflight") as client:
        events = [one async for page, _ in client.pages(_EVENTS, dict) for one in page]
        healths, why = await listed(client, path(), NodeHealth)
        # There are none of a release before it, or without the gang controller.
        if why is not None and not isinstance(why, NotFound):
            print(f"Not read: {why} This is from Events alone.", file=sys.stderr)
        return assemble(events, healths, since)


def assemble(
    events: Iterable[Mapping[str, Any]], healths: Iterable[NodeHealth], since: str
) -> FleetReport:
    """The report of what was read."""
    findings: list[ReportedRun] = []
    nodes = {line.name: line for line in map(_line, healths)}
    times: list[str] = []
    for one in sorted(events, key=lambda one: moment(str(one.get("lastTimestamp"))), reverse=True):
        source, time = one.get("source") or {}, str(one.get("lastTimestamp") or "")
        said = _SAID.fullmatch(str(one.get("message") or ""))
        if source.get("component") != names.MANAGED_BY or moment(time) < moment(since):
            continue
        if said is None:
            continue
        times.append(time)
        node, outcome, why = str(source.get("host") or ""), said["outcome"], said["why"]
        line = nodes.setdefault(node, NodeLine(node))
        line.runs[outcome] = line.runs.get(outcome, 0) + 1
        if said["gbps"] and line.measured is None:
            line.measured = float(said["gbps"])
        if outcome not in {"passed", "skipped"}:
            about = one.get("involvedObject") or {}
            pod = f"{about.get('namespace')}/{about.get('name')}"
            check, code, observed = said["check"], said["code"] or "", why.endswith(_OBSERVED)
            allowed = why.endswith(_ALLOWED)
            why = why.removesuffix(_OBSERVED).removesuffix(_ALLOWED)
            run = ReportedRun(time, node, check, outcome, code, pod, observed, why, allowed)
            findings.append(run)
    findings.sort(key=lambda one: (_OUTCOMES.index(one.outcome), one.time, one.node))
    bad = Counter(run.node for run in findings)
    lines = sorted(
        nodes.values(),
        key=lambda node: (
            *(node.state != worse for worse in ("Sick", "Suspect")),
            not node.failing,
            -bad[node.name],
            node.name,
        ),
    )
    return FleetReport(since, min(times, key=moment, default=""), findings, lines)


def as_json(report: FleetReport) -> str:
    """The report for programs."""
    return json.dumps(msgspec.to_builtins(report), indent=2)


def page(report: FleetReport) -> str:
    """The report as one HTML page that needs nothing else."""
    return "\n".join(_page(report))


def _page(report: FleetReport) -> Iterator[str]:
    held = [run for run in report.findings if not run.observed and not run.allowed]
    allowed = [run for run in report.findings if run.allowed]
    observed = [one for one in report.findings if one.observed]
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Preflight since {escape(report.since)}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
    yield f"<h1>{escape(_headline(report, held, observed))}</h1>"
    oldest = f"the oldest Event is of {report.oldest}" if report.oldest else "there is no Event"
    yield f"<p><small>Since {escape(report.since)}; {escape(oldest)}, as the API server keeps them.</small></p>"
    for title, found in (
        ("Held back", held),
        ("Would have been held back, where checks only observe", observed),
        ("Could not be judged, and was let start all the same", allowed),
    ):
        rows = [
            [one.time, one.node, one.check, f"{one.outcome} {one.code}", one.pod, one.why]
            for one in found
        ]
        yield from _table(title, ["when", "node", "check", "outcome", "pod", "why"], rows)
    most = max([*(max(one.measured or 0, one.usual or 0) for one in report.nodes), 1e-9])
    yield '<h2>Nodes</h2><div class="scroll"><table><tr><th>node<th>state<th>found by<th>last pass<th>last failure<th>runs<th>GB/s, and what is usual'
    for one in report.nodes:
        runs = ", ".join(f"{one.runs[known]} {known}" for known in _OUTCOMES if known in one.runs)
        state = f"{one.state} since {one.since}" if one.since else one.state
        cells = [one.name, state, one.found_by, one.last_pass, one.last_failure, runs]
        row = "".join(f"<td>{escape(cell)}" for cell in cells)
        yield f"<tr{' class=sick' if one.state == 'Sick' else ''}>{row}<td>{_bar(one, most)}"
    yield "</table></div></html>"


def _headline(report: FleetReport, held: list[ReportedRun], observed: list[ReportedRun]) -> str:
    sick, suspect = (
        [node.name for node in report.nodes if node.state == state] for state in ("Sick", "Suspect")
    )
    named = f"{len(sick)} sick: {', '.join(sick[:8])}" if sick else "No node is sick"
    named += f", {len(suspect)} suspect: {', '.join(suspect[:8])}" if suspect else ""
    if not any(node.state for node in report.nodes):
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


def _bar(line: NodeLine, most: float) -> str:
    if line.measured is None:
        return ""
    usual = f'<b style="left:{100 * line.usual / most:.1f}%"></b>' if line.usual else ""
    words = f"{line.measured:g}" + (f" of {line.usual:g}" if line.usual else "")
    return f'{words}<div class="bar"><i style="width:{100 * line.measured / most:.1f}%"></i>{usual}</div>'


def _line(health: NodeHealth) -> NodeLine:
    status, failures, failing = health.status, list[tuple[float, str]](), False
    for check in status.checks:
        if (end := check.failed) is not None:
            pod = end.pod and f"of {end.pod}"
            about = " ".join(filter(None, (end.time, check.name, end.code, end.gpu, pod)))
            failures.append((moment(end.time), about))
            passed = moment(check.passed.time if check.passed is not None else None)
            failing = failing or failures[-1][0] > passed
    return NodeLine(
        name=health.metadata.name,
        state=status.state,
        since=status.since or "",
        found_by=" ".join(filter(None, (status.found_by, status.code, status.gpu))),
        last_pass=status.last_pass or "",
        last_failure=max(failures, default=(0.0, ""))[1],
        failing=failing,
        measured=status.measured,
        usual=status.usual,
    )
