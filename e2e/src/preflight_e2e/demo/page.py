"""The report: one HTML file that needs nothing else, light and dark, on a phone and on a wall."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Any

from preflight_testing.matrix.facts import GPUS
from preflight_testing.matrix.scenario import Scenario

from .circle import CircleStory
from .story import DemoCheck, DemoStory, PodStory, answer

__all__ = ["page"]

STYLE = Path(__file__).with_name("page.css")
MARKS = {
    "passed": "✓",
    "skipped": "–",
    "failed": "✕",
    "inconclusive": "?",
    "misconfigured": "!",
    "not run": "·",
}
"""Beside each colour: nobody has to tell red from green."""


def page(story: DemoStory, circle: CircleStory, scenario: Scenario, seconds: float) -> str:
    """The whole document. ``seconds`` is how long the run took from its first
    process to its last.
    """
    running = sum(pod.runs for pod in story.pods)
    held = len(story.pods) - running
    expected = (
        "as expected"
        if story.as_expected
        else f"{len(story.problems)} differences from what was expected"
    )
    sections = [
        _section(
            "Verdicts", "What each pod's checks found, and what became of it.", _verdicts(story)
        ),
        _section(
            "Circle",
            f"After them, with nobody's hands but for the repair: a GPU of {circle.node} falls sick, the job moves, and the node comes back.",
            _circle(circle),
        ),
        _section(
            "Timeline",
            "Each pod from its creation through its checks; seconds since the first pod was created.",
            _timeline(story),
        ),
        _section(
            "Bandwidth",
            "Bus bandwidth that the NCCL checks measured, beside what it is held to.",
            _bandwidths(story),
        ),
        _section(
            "HealthEvents", "As the nodes' platform connectors received them.", _events(story)
        ),
        _section("Logs", "What `kubectl logs` shows of each check.", _logs(story)),
    ]
    problems = "".join(f"<li>{escape(p)}</li>" for p in story.problems)
    count, parts = answer(story)
    return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Preflight: {running} of {len(story.pods)} pods run</title>
<style>{STYLE.read_text()}</style>
<header>
<p class="brand">Preflight · demo</p>
<h1>{count}{f": <em>{escape(parts)}</em>" if parts else ""}</h1>
<p>Nobody{" else" if parts else ""} is blamed. {running} pods run, {held} are held back, in {seconds:.0f} s; all {expected}. What was wrong: {escape(scenario.fault)}.</p>
{f'<ul class="problems">{problems}</ul>' if problems else ""}
<p class="note">The webhook, the gang controller, AppWrapper's controller and labeler, the checks and torchrun are real. API server, scheduler, kubelet, GPUs with their tools and
platform connectors are doubles: bandwidths between GPUs come from a simulation of their links; those between pods are gloo's over this machine's
loopback, on which the kernel paces what each node sends.</p>
</header>
<main>
{"".join(sections)}
</main>
</html>
"""


def _section(title: str, about: str, body: str) -> str:
    return f'<section id="{title.lower()}"><h2>{title}</h2><p class="about">{escape(about)}</p>{body}</section>\n'


# --- verdicts


def _verdicts(story: DemoStory) -> str:
    heads = "".join(f"<th>{escape(check)}</th>" for check in story.checks)
    gangs = dict.fromkeys(pod.gang for pod in story.pods)
    bodies = "".join(
        _gang(gang, [pod for pod in story.pods if pod.gang == gang], story.checks) for gang in gangs
    )
    return f"""<table class="cards verdicts"><thead><tr><th>pod</th><th>node</th>{heads}<th>result</th></tr></thead>{bodies}</table>"""


def _gang(name: str, pods: list[PodStory], checks: list[str]) -> str:
    rows = "".join(_pod(pod, len(checks)) for pod in pods)
    return f'<tbody><tr class="gang"><th colspan="{len(checks) + 3}">gang {escape(name)}</th></tr>{rows}</tbody>'


def _pod(pod: PodStory, checks: int) -> str:
    cells = "".join(
        f'<td data-label="{escape(check.name)}">{_chip(check)}</td>' for check in pod.checks
    )
    state = "good" if pod.runs else "bad"
    badge = (
        "" if pod.standing == "innocent" else f'<mark class="{pod.standing}">{pod.standing}</mark>'
    )
    head = f'<th scope="row">{escape(pod.name)}</th><td data-label="node">{escape(pod.node)}{badge}</td>'
    row = f'<tr class="{pod.standing}">{head}{cells}<td data-label="result"><b class="{state}">{pod.verdict}</b></td></tr>'
    return row + (_why(pod, pod.stopped_by, checks + 3) if pod.stopped_by else "")


def _chip(check: DemoCheck) -> str:
    word = check.outcome if check.good or not check.code else check.code
    number = f"<small>{check.measured:.3g} GB/s</small>" if check.measured is not None else ""
    kind = check.outcome.replace(" ", "-")
    return f'<span class="chip {kind}" title="{escape(check.reason)}"><i>{MARKS.get(check.outcome, "?")}</i>{escape(word)}</span>{number}'


def _why(pod: PodStory, check: DemoCheck, columns: int) -> str:
    reported = "".join(
        f"<dd>{escape(e['checkName'])}, {'<b>fatal</b>' if e['isFatal'] else 'not fatal'}, {escape(e['recommendedAction'])}, <code>{escape(','.join(e['errorCode']))}</code></dd>"
        for e in pod.unhealthy
    )
    return f"""<tr class="why"><td colspan="{columns}"><dl><dt>found</dt><dd>{escape(check.reason)}</dd><dt>on</dt><dd>{escape(pod.on)}</dd>
<dt>reported</dt>{reported or "<dd>nothing</dd>"}</dl></td></tr>"""


# --- the circle


def _circle(circle: CircleStory) -> str:
    steps = "".join(
        f"<li><b>{step.seconds:.1f} s</b><span><small>{escape(step.who)}</small>{escape(step.what)}</span></li>"
        for step in circle.steps
    )
    problem = f'<p class="problems">{escape(circle.problem)}</p>' if circle.problem else ""
    return f'<ol class="circle">{steps}</ol>{problem}'


# --- timeline


def _timeline(story: DemoStory) -> str:
    longest = max(story.seconds, 1.0)
    step = next(s for s in (1, 2, 5, 10, 20, 30, 60, 120) if longest / s <= 8)
    whole = step * (int(longest / step) + 1)
    ticks = "".join(
        f'<span style="left:{100 * t / whole:.2f}%">{t}</span>' for t in range(0, whole + 1, step)
    )
    rows = "".join(_lane(pod, whole, step) for pod in story.pods)
    kinds = "".join(
        f'<span class="key"><i class="bar {kind}"></i>{kind}</span>'
        for kind in ("passed", "failed", "inconclusive")
    )
    return f'<p class="legend">{kinds}<span class="key"><i class="start"></i>the workload starts</span></p><div class="timeline"><div class="lane axis"><b></b><div class="track">{ticks}</div></div>{rows}</div>'


def _lane(pod: PodStory, whole: float, step: float) -> str:
    bars = ""
    for check in pod.checks:
        if check.began is None or check.ended is None:
            continue
        left, width = 100 * check.began / whole, 100 * (check.ended - check.began) / whole
        said = f"{check.name} {check.outcome}{'' if check.code in {'OK', ''} else ' ' + check.code}, {check.began:.1f} to {check.ended:.1f} s"
        label = f"<em>{escape(check.name)}</em>" if width > 9 else ""
        bars += f'<span class="bar {check.outcome}" style="left:{left:.2f}%;width:{max(width, 0.6):.2f}%" title="{escape(said)}">{label}</span>'
    if pod.starts_at is not None:
        bars += f'<span class="start" style="left:{100 * pod.starts_at / whole:.2f}%" title="starts after {pod.starts_at:.1f} s"></span>'
    grid = f"background-size:{100 * step / whole:.3f}% 100%"
    return f'<div class="lane"><b>{escape(pod.name)}<small>{escape(pod.node)}</small></b><div class="track" style="{grid}">{bars}</div></div>'


# --- bandwidth


def _bandwidths(story: DemoStory) -> str:
    plots = ""
    for name in story.checks:
        measured = [
            (pod, c)
            for pod in story.pods
            for c in pod.checks
            if c.name == name and c.measured is not None
        ]
        if measured:
            plots += _plot(name, measured)
    return plots + "".join(_pairs(pod) + _edges(pod) for pod in story.pods)


def _plot(name: str, measured: list[tuple[PodStory, DemoCheck]]) -> str:
    values = [v for _, c in measured for v in (c.measured, c.floor, c.expected) if v is not None]
    most = 1.08 * max(values)
    rows = "".join(_measured(pod, check, most) for pod, check in measured)
    has_floor = any(c.floor is not None for _, c in measured)
    about = (
        "floor: below it the pod is held back; expected: healthy hardware"
        if has_floor
        else "no floor: gloo, the stand-in for GPUs and network, has none"
    )
    marks = (
        '<span class="key"><i class="mark floor"></i>floor</span><span class="key"><i class="mark expected"></i>expected</span>'
        if has_floor
        else ""
    )
    return f'<figure><figcaption><b>{escape(name)}</b> GB/s; {about}</figcaption><p class="legend">{marks}</p><div class="bars">{rows}</div></figure>'


def _measured(pod: PodStory, check: DemoCheck, most: float) -> str:
    assert check.measured is not None
    marks = "".join(
        f'<span class="mark {kind}" style="left:{100 * value / most:.2f}%" title="{kind} {value:g} GB/s"></span>'
        for kind, value in (("floor", check.floor), ("expected", check.expected))
        if value is not None
    )
    bar = f'<span class="bar {check.outcome}" style="width:{100 * check.measured / most:.2f}%"></span>'
    beside = f" of at least {check.floor:g}" if check.floor is not None else ""
    return f'<div class="lane"><b>{escape(pod.name)}<small>{escape(pod.node)}</small></b><div class="track">{bar}{marks}</div><span class="value">{check.measured:.3g}<small>{beside}</small></span></div>'


def _pairs(pod: PodStory) -> str:
    """The pairs of GPUs that were measured alone to find the slow one, from the event that names
    it.
    """
    pairs = pod.pairs
    if not pairs:
        return ""
    most, size = max(pairs.values()), 34
    cells = ""
    for row in range(GPUS):
        labels = f'<text x="{28 + row * size + size / 2 - 1}" y="16">{row}</text><text x="14" y="{22 + row * size + size / 2 + 4}">{row}</text>'
        cells += labels + "".join(
            _cell(row, column, pairs, most, size) for column in range(GPUS) if column != row
        )
    side = 28 + GPUS * size
    return f"""<figure class="pairs"><figcaption><b>{escape(pod.name)}</b> two GPUs alone, GB/s: who is slow with every partner is at fault</figcaption>
<svg viewBox="0 0 {side} {side}" role="img" aria-label="Bandwidth of pairs of GPUs of {escape(pod.node)}">{cells}</svg></figure>"""


def _edges(pod: PodStory) -> str:
    """The paths between nodes that were measured to find a slow one, as its gang's leader logged
    them.
    """
    if not pod.edges:
        return ""
    about, *rows = (escape(line) for line in pod.edges)
    return f"""<figure class="edges"><figcaption><b>gang {escape(pod.gang)}</b> {about}</figcaption><pre>{"<br>".join(rows)}</pre></figure>"""


def _cell(
    row: int, column: int, pairs: dict[tuple[int, int], float], most: float, size: int
) -> str:
    value = pairs.get((min(row, column), max(row, column)))
    at = f'x="{28 + column * size}" y="{22 + row * size}" width="{size - 2}" height="{size - 2}" rx="4"'
    if value is None:
        return f'<rect {at} class="none"><title>GPU {row} and {column}: not measured</title></rect>'
    kind = "failed" if value < 0.8 * most else "passed"
    text = f'<text x="{28 + column * size + size / 2 - 1}" y="{22 + row * size + size / 2 + 3}" class="on">{value:.0f}</text>'
    return f'<rect {at} class="{kind}"><title>GPU {row} and {column}: {value:g} GB/s</title></rect>{text}'


# --- events and logs


def _events(story: DemoStory) -> str:
    rows = "".join(_event(pod, event) for pod in story.pods for event in pod.unhealthy)
    cleared = "".join(_cleared(pod) for pod in story.pods)
    heads = "".join(
        f"<th>{head}</th>"
        for head in ("node", "checkName", "fatal", "action", "about", "code and message")
    )
    return f"""<table class="cards"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table><details><summary>Healthy events: what passed clears what earlier runs had raised</summary>
<div class="scroll"><table><thead><tr><th>node</th><th>checkName: GPUs</th></tr></thead><tbody>{cleared}</tbody></table></div></details>"""


def _event(pod: PodStory, event: dict[str, Any]) -> str:
    about = (
        ", ".join(pod.name_of(entity["entityValue"]) for entity in event["entitiesImpacted"])
        or "the node"
    )
    cells = {
        "checkName": escape(event["checkName"]),
        "fatal": '<b class="bad">yes</b>' if event["isFatal"] else "no",
        "action": escape(event["recommendedAction"]),
        "about": escape(about),
        "code and message": f"<span><code>{escape(','.join(event['errorCode']))}</code><br>{escape(event['message'])}</span>",
    }
    listed = "".join(f'<td data-label="{name}">{cell}</td>' for name, cell in cells.items())
    return f'<tr><th scope="row">{escape(pod.node)}</th>{listed}</tr>'


def _cleared(pod: PodStory) -> str:
    names: dict[str, int] = {}
    for event in pod.events:
        if event["isHealthy"]:
            names[event["checkName"]] = names.get(event["checkName"], 0) + len(
                event["entitiesImpacted"]
            )
    said = ", ".join(f"{name}: {count or 'the node'}" for name, count in sorted(names.items()))
    return f"<tr><td>{escape(pod.node)}</td><td>{escape(said or 'none')}</td></tr>"


def _logs(story: DemoStory) -> str:
    def logs() -> Iterable[str]:
        for pod in story.pods:
            for check in pod.checks:
                if check.log:
                    yield f"<details><summary>{escape(pod.name)} {escape(check.name)} {_chip(check)}</summary><pre>{escape(check.log.strip())}</pre></details>"

    return "".join(logs())
