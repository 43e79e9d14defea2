"""What happened to every pod, from what the API server, the nodes' connectors and the checks' logs
say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from preflight_testing.matrix.facts import uuids

__all__ = ["DemoCheck", "DemoStory", "PodStory", "answer", "changes", "tell"]

GANG_LABEL = "app.kubernetes.io/gang-id"
CHECK_PREFIX = "preflight-"
_FLOORS = (
    re.compile(r"held to at least ([\d.]+) GB/s"),
    re.compile(r"below the floor of ([\d.]+) GB/s"),
    re.compile(r"\(([\d.]+) expected, from NCCL_ALLREDUCE_THRESHOLD_GBPS\)"),
)
"""What each check's log says that its measurement is held to."""

State = dict[str, Any]
"""A pod as the API server has it."""


@dataclass
class DemoCheck:
    """One check of one pod. Times are seconds since the story's begin; bandwidths are GB/s."""

    name: str
    outcome: str = "not run"
    code: str = ""
    reason: str = ""
    subject: str = ""
    began: float | None = None
    ended: float | None = None
    measured: float | None = None
    expected: float | None = None
    floor: float | None = None
    log: str = ""

    @property
    def good(self) -> bool:
        return self.outcome in {"passed", "skipped"}


@dataclass
class PodStory:
    """``events`` are the HealthEvents about it that its node's connector received."""

    name: str
    node: str
    gang: str
    created: float
    phase: str = "Pending"
    starts_at: float | None = None
    checks: list[DemoCheck] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return self.phase in {"Running", "Succeeded"}

    @property
    def verdict(self) -> str:
        return (
            "runs" if self.runs else "held back" if self.phase == "Failed" else self.phase.lower()
        )

    @property
    def stopped_by(self) -> DemoCheck | None:
        """The check that holds it back."""
        return (
            next((c for c in self.checks if c.ended is not None and not c.good), None)
            if not self.runs
            else None
        )

    @property
    def unhealthy(self) -> list[dict[str, Any]]:
        return [event for event in self.events if not event["isHealthy"]]

    @property
    def pairs(self) -> dict[tuple[int, int], float]:
        """GB/s between two GPUs (indices on the node, the smaller first), where pairs were measured
        to find a slow one.
        """
        mine = uuids(self.node)
        found: dict[tuple[int, int], float] = {}
        for said in " ".join(
            event["metadata"].get("pairs_gbps", "") for event in self.unhealthy
        ).split():
            pair, _, value = said.partition("=")
            one, other = sorted(mine.index(uuid) for uuid in pair.split("+"))
            found[one, other] = float(value)
        return found

    @property
    def edges(self) -> list[str]:
        """Where this pod led the search for a slow node: the matrix of paths between nodes, as
        lines of text.
        """
        lines = (line for check in self.checks for line in check.log.splitlines())
        return [line.partition("edges| ")[2] for line in lines if "edges| " in line]

    def name_of(self, entity: str) -> str:
        """``GPU 3 (GPU-e5e6…)`` for one of its node's GPUs; for anything else the entity itself,
        for nothing the node.
        """
        mine = uuids(self.node)
        return f"GPU {mine.index(entity)} ({entity})" if entity in mine else entity or self.node

    @property
    def blamed(self) -> list[str]:
        """What a fatal event is about: GPUs of the node, else the node."""
        fatal = [event for event in self.unhealthy if event["isFatal"]]
        entities = [e["entityValue"] for event in fatal for e in event["entitiesImpacted"]]
        named = [f"{self.name_of(entity)} of {self.node}" for entity in dict.fromkeys(entities)]
        return named or [self.node] * bool(fatal)

    @property
    def suspected(self) -> bool:
        """Whether a verdict names the node and blames it for nothing."""
        return not self.blamed and any(
            "named and not blamed" in event["message"] for event in self.unhealthy
        )

    @property
    def standing(self) -> str:
        """``blamed``, ``suspected`` or ``innocent``."""
        return "blamed" if self.blamed else "suspected" if self.suspected else "innocent"

    @property
    def on(self) -> str:
        """Who is at fault for what holds it back."""
        if self.blamed:
            return "; ".join(self.blamed)
        suspected = "this node is named, and not blamed"
        return f"nobody: {suspected if self.suspected else 'this node is not to blame'}"


@dataclass
class DemoStory:
    """``seconds``: from the first pod's creation to the last one's end."""

    pods: list[PodStory]
    seconds: float
    as_expected: bool
    problems: list[str]

    @property
    def checks(self) -> list[str]:
        """Every check's name, in the order in which they run."""
        return list(dict.fromkeys(check.name for pod in self.pods for check in pod.checks))

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(pod) for pod in self.pods]


def changes(before: State | None, now: State) -> Iterable[str]:
    """What a person wants to hear of the step from ``before`` to ``now``."""
    node = now["spec"].get("nodeName")
    if before is not None and node and not before["spec"].get("nodeName"):
        yield f"bound to {node}"
    was = (
        {}
        if before is None
        else {s["name"]: s for s in before["status"].get("initContainerStatuses", [])}
    )
    for status in now["status"].get("initContainerStatuses", []):
        state, old = status["state"], was.get(status["name"], {}).get("state", {})
        check = status["name"].removeprefix(CHECK_PREFIX)
        if "running" in state and "running" not in old:
            yield f"{check} …"
        elif "terminated" in state and "terminated" not in old:
            result = _result(state["terminated"])
            code = result.get("code", "")
            measured = f", {result['measured']:g} GB/s" if result.get("measured") else ""
            yield f"{check} {result.get('outcome', '?')}{'' if code in {'', 'OK'} else ' ' + code}{measured}"
    phase = now["status"].get("phase")
    if (
        before is not None
        and phase != before["status"].get("phase")
        and phase in {"Running", "Failed"}
    ):
        yield "starts" if phase == "Running" else "held back"


def tell(
    history: Sequence[tuple[float, State]],
    node_logs: Mapping[str, Sequence[Mapping[str, Any]]],
    log: Callable[[str, str], str],
    problems: Sequence[str],
) -> DemoStory:
    """The story of every pod in ``history`` (time, state). ``log`` gives a container's log by pod
    and container.
    """
    begin = min((when for when, _ in history), default=0.0)
    last: dict[str, State] = {}
    pods: dict[str, PodStory] = {}
    for when, state in history:
        meta, at = state["metadata"], when - begin
        pod = pods.setdefault(
            meta["name"], PodStory(meta["name"], "", meta.get("labels", {}).get(GANG_LABEL, ""), at)
        )
        last[pod.name] = state
        pod.node, pod.phase = (
            state["spec"].get("nodeName", ""),
            state["status"].get("phase", "Pending"),
        )
        if pod.runs and pod.starts_at is None:
            pod.starts_at = at
        statuses = [
            s
            for s in state["status"].get("initContainerStatuses", [])
            if s["name"].startswith(CHECK_PREFIX)
        ]
        while len(pod.checks) < len(statuses):
            pod.checks.append(
                DemoCheck(statuses[len(pod.checks)]["name"].removeprefix(CHECK_PREFIX))
            )
        for check, status in zip(pod.checks, statuses, strict=True):
            if "running" in status["state"] and check.began is None:
                check.began = at
            if "terminated" in status["state"] and check.ended is None:
                check.ended = at
                _judge(check, status["state"]["terminated"], log(pod.name, status["name"]))
    for pod in pods.values():
        lines = [line["event"] for line in node_logs.get(pod.node, ()) if "event" in line]
        pod.events = [event for event in lines if event["metadata"].get("pod") == pod.name]
    end = max(
        [c.ended for p in pods.values() for c in p.checks if c.ended is not None], default=0.0
    )
    return DemoStory(list(pods.values()), end, not problems, list(problems))


def _judge(check: DemoCheck, ended: Mapping[str, Any], log: str) -> None:
    result = _result(ended)
    check.outcome = result.get("outcome") or f"exit {ended['exitCode']}"
    for name in ("code", "reason", "subject", "measured", "expected"):
        setattr(check, name, result.get(name, getattr(check, name)))
    if found := next(filter(None, (pattern.search(log) for pattern in _FLOORS)), None):
        check.floor = float(found[1])
    check.log = log


def _result(ended: Mapping[str, Any]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(ended.get("message") or "{}")
    except ValueError:
        return {}
    return found


def answer(story: DemoStory) -> tuple[str, str]:
    """How many sick parts were found, and which: those that are blamed before those that are
    named only. Nothing of the second where there is none.
    """
    blamed = [re.sub(r" \(GPU-[^)]*\)", "", part) for pod in story.pods for part in pod.blamed]
    suspected = [f"{pod.node}'s network (named, not blamed)" for pod in story.pods if pod.suspected]
    parts = [*blamed, *suspected]
    count = f"{len(parts) or 'No'} sick part{'s' * (len(parts) > 1)} found"
    return count, ", ".join(parts)
