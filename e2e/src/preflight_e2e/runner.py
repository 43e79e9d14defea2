"""Runs scenarios on a lab and compares what happened with what the row says."""

from __future__ import annotations

import datetime
import json
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from kubernetes import client
from preflight_testing.matrix.facts import uuids
from preflight_testing.matrix.scenario import (
    Interrupt,
    Scenario,
    ScenarioClaim,
    ScenarioPod,
    ScenarioStep,
)

from .lab import Lab, LabError, until

IMAGE = "preflight-fake-node:dev"
PATIENCE = 300.0
"""Seconds for one pod to end: schedule, diagnose, report within a budget of 10 s."""


@dataclass
class ScenarioOutcome:
    """What came of one scenario; ``problems`` is empty when all is as the row says."""

    id: str
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why it was not run."""
    seconds: float = 0.0
    roster_seconds: float | None = None
    """The longest time from a gang's last address until its last member had read
    its sealed roster.
    """

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "pods": self.pods,
            "events": self.events,
            "as_expected": not self.problems,
            "problems": self.problems,
        }


def run(
    lab: Lab, scenario: Scenario, say: Callable[[str], None], nodes: Sequence[str] | None = None
) -> ScenarioOutcome:
    """One scenario in a namespace of its own, on ``nodes`` (default: the lab's), which are healthy
    before and after.
    """
    nodes = lab.nodes if nodes is None else nodes
    started = time.monotonic()
    outcome = ScenarioOutcome(scenario.id)
    if scenario.skipped_below is not None and len(lab.nodes) < scenario.skipped_below:
        outcome.skipped = f"needs {scenario.skipped_below} nodes, the cluster has {len(lab.nodes)}"
        say(f"skip {scenario.id} ({outcome.skipped})")
        return outcome
    lab.values(scenario.values)
    bound = dict(zip(scenario.letters, nodes, strict=False))
    if missing := [letter for letter in scenario.letters if letter not in bound]:
        outcome.problems.append(
            f"needs {len(scenario.letters)} nodes, the cluster has {len(lab.nodes)} (no node for {', '.join(missing)})"
        )
        return outcome
    namespace = lab.namespace(f"pf-{scenario.id}-{uuid.uuid4().hex[:4]}", scenario.labels)
    try:
        for step in scenario.steps:
            for letter, node in bound.items():
                lab.configure(node, step.nodes.get(letter, {}))
            before = {node: len(lab.node_log(node)) for node in bound.values()}
            for item in step.objects:
                lab.create(
                    namespace,
                    item.collection,
                    json.loads(json.dumps(msgspec.to_builtins(item.body))),
                )
            with lab.addresses(namespace) as addressed:
                for pod in step.pods:
                    _create(lab, namespace, pod, bound[pod.node], outcome)
                created = time.monotonic()
                for pod in step.pods:
                    if pod.interrupt is not None:
                        _interrupt(lab, namespace, pod.name, pod.interrupt)
                for pod in step.pods:
                    if not pod.denied:
                        _judge(lab, namespace, pod, bound, before, outcome, created)
                if step.rosters:
                    _rosters(lab, namespace, step, addressed, outcome)
    except client.ApiException as error:
        outcome.problems.append(f"the API server says: {_message(error)}")
    except LabError as error:  # this row's own end, and no other's
        outcome.problems.append(f"{error}")
    finally:
        lab.remove_namespace(namespace)
        for node in bound.values():
            lab.configure(node, {}, wait=False)  # whoever has it next waits for what he configures
    outcome.seconds = time.monotonic() - started
    note = (
        f", rosters read {outcome.roster_seconds:.2f} s after the last address"
        if outcome.roster_seconds
        else ""
    )
    say(
        f"{'ok  ' if not outcome.problems else 'FAIL'} {scenario.id} ({outcome.seconds:.0f} s{note})"
    )
    for problem in outcome.problems:
        say(f"     {problem}")
    return outcome


def _create(
    lab: Lab, namespace: str, pod: ScenarioPod, node: str, outcome: ScenarioOutcome
) -> None:
    command = (
        ["sh", "-c", "env; exec sleep 3600"] if pod.stays else ["env"]
    )  # what it is given is in its log
    labels = {}
    if pod.gang is not None:
        labels = {
            "app.kubernetes.io/gang-id": pod.gang[0],
            "app.kubernetes.io/gang-size": str(pod.gang[1]),
        }
    body: dict[str, Any] = {
        "metadata": {"name": pod.name, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            # By affinity, so that the scheduler is asked as for any pod.
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": "main",
                    "image": IMAGE,
                    "command": command,
                    "resources": {"limits": {"nvidia.com/gpu": str(pod.gpus)}} if pod.gpus else {},
                }
            ],
        },
    }
    if pod.claims:
        spec = body["spec"]
        spec["resourceClaims"] = [_claim(claim) for claim in pod.claims]
        spec["containers"][0]["resources"]["claims"] = [
            {"name": claim.name} for claim in pod.claims
        ]
    _merge(body, json.loads(json.dumps(msgspec.to_builtins(pod.merge))))
    try:
        lab.api.create_namespaced_pod(namespace, body)
    except client.ApiException as error:
        message = _message(error)
        if not pod.denied or pod.denied not in message:
            outcome.problems.append(
                f"{pod.name}: refused with: {message}; expected {pod.denied or 'it to be created'}"
            )
        outcome.pods.append(
            {"namespace": namespace, "name": pod.name, "node": "", "phase": "Denied", "checks": []}
        )
        return
    if pod.denied:
        outcome.problems.append(f"{pod.name}: created, expected a refusal that says {pod.denied!r}")


def _message(error: client.ApiException) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, LookupError):  # not the API server's own words
        return f"{error.status} {error.reason}"


def _claim(claim: ScenarioClaim) -> dict[str, str]:
    source = {"resourceClaimTemplateName": claim.template, "resourceClaimName": claim.claim}
    return {"name": claim.name, **{key: value for key, value in source.items() if value}}


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _interrupt(lab: Lab, namespace: str, pod: str, what: Interrupt) -> None:
    """End one check's process in place, as a crash would, once it is as far as ``when``."""
    container = f"preflight-{what.check}"
    until(
        f"{container} of {pod} says {what.when!r}",
        lambda: what.when in lab.log(namespace, pod, container),
        PATIENCE,
    )
    lab.terminate(namespace, pod, container)


def _rosters(
    lab: Lab,
    namespace: str,
    step: ScenarioStep,
    addressed: dict[str, float],
    outcome: ScenarioOutcome,
) -> None:
    """How long it took from the gang's last address until the last member had read its sealed
    roster.
    """
    read = {}
    for pod in step.pods:
        for check in pod.checks:
            times = _ROSTER.findall(lab.log(namespace, pod.name, f"preflight-{check.check}"))
            if times:
                read[pod.name] = datetime.datetime.fromisoformat(times[-1]).timestamp()
    if missing := [
        pod.name for pod in step.pods if pod.checks and pod.name not in read | addressed
    ]:
        outcome.problems.append(f"no roster read by {', '.join(missing)}")
        return
    seconds = max(read.values()) - max(addressed[name] for name in read)
    outcome.roster_seconds = max(seconds, outcome.roster_seconds or 0.0)


_GPU = re.compile(r"\bGPU-[0-9a-f-]{36}\b")
_ROSTER = re.compile(r"^roster: generation .* at (\S+)$", re.MULTILINE)


def _judge(
    lab: Lab,
    namespace: str,
    pod: ScenarioPod,
    bound: dict[str, str],
    before: dict[str, int],
    outcome: ScenarioOutcome,
    created: float,
) -> None:
    """Wait for the pod's end and compare it, its checks, its events and what the
    engine was asked.
    """
    node = bound[pod.node]
    seen = until(f"{pod.name} ends", lambda: _ended(lab, namespace, pod), PATIENCE)
    checks = [
        _check(status)
        for status in seen.status.init_container_statuses or []
        if status.name.startswith("preflight-")
    ]
    outcome.pods.append(
        {
            "namespace": namespace,
            "name": pod.name,
            "node": seen.spec.node_name,
            "phase": seen.status.phase,
            "checks": checks,
        }
    )
    log = lab.node_log(node)[before[node] :]
    events = [
        line["event"]
        for line in log
        if "event" in line and line["event"]["metadata"].get("pod") == pod.name
    ]
    outcome.events += events

    def differs(what: str, saw: object, expected: object) -> None:
        outcome.problems.append(f"{pod.name}: {what}: saw {saw}, expected {expected}")

    took = time.monotonic() - created
    if pod.within is not None and took > pod.within:
        differs("its end", f"{took:.0f} s after its creation", f"within {pod.within:g} s")
    starts = seen.status.phase in {"Running", "Succeeded"}
    if starts != pod.starts:
        differs("its own container starts", starts, pod.starts)
    wanted = [
        {"check": c.check, "outcome": c.outcome, "code": c.code, "exit_code": c.exit_code}
        for c in pod.checks
    ]
    if checks != wanted:
        differs("checks", checks, wanted)
    for check in pod.checks:
        text = lab.log(namespace, pod.name, f"preflight-{check.check}")
        says = check.says.format_map(bound)
        if says not in text:
            differs(
                f"the log of preflight-{check.check}",
                f"…{text[-600:]}",
                f"a line with {says!r}",
            )
    if pod.init_image:
        images = {c.name: c.image for c in seen.spec.init_containers or []}
        if set(images.values()) != {pod.init_image}:
            differs("images of its init containers", images, pod.init_image)
    asked = {uuid for line in log if "diag" in line for uuid in line["diag"]["gpus"]}
    if pod.tests is not None and asked != {uuids(node)[index] for index in pod.tests}:
        differs("GPUs diagnosed", sorted(uuids(node).index(u) for u in asked), list(pod.tests))
    if pod.given is not None:
        if pod.given:  # a container that has only just started has said nothing yet
            until(
                f"{pod.name} says which GPUs it has",
                lambda: _GPU.search(lab.log(namespace, pod.name, "main")),
            )
        got = set(_GPU.findall(lab.log(namespace, pod.name, "main")))
        if got != {uuids(node)[index] for index in pod.given}:
            differs(
                "GPUs of its own container",
                sorted(uuids(node).index(u) for u in got),
                list(pod.given),
            )
    # Not every check asks the engine: then what the kubelet handed out is what it tested.
    given = {uuid for line in log for ids in line.get("allocated", []) for uuid in ids}
    _compare_events(pod, node, events, asked or given, differs)


def _compare_events(
    pod: ScenarioPod,
    node: str,
    events: list[dict[str, Any]],
    tested: set[str],
    differs: Callable[[str, object, object], None],
) -> None:
    mine = uuids(node)

    def short(event: dict[str, Any]) -> tuple[object, ...]:
        entities = [e["entityValue"] for e in event["entitiesImpacted"]]
        return (
            event["checkName"],
            event["isFatal"],
            event["recommendedAction"],
            ",".join(event["errorCode"]),
            *entities,
        )

    saw = sorted(short(e) for e in events if not e["isHealthy"])
    wanted = sorted(
        (e.check_name, e.fatal, e.action, e.code, *([mine[e.gpu]] if e.gpu is not None else []))
        for e in pod.events
    )
    if saw != wanted:
        differs("unhealthy events", saw, wanted)
    foreign = {e["nodeName"] for e in events} - {node}
    if foreign:
        differs("nodes named in events", foreign, node)
    cleared = {
        (e["checkName"], e["entitiesImpacted"][0]["entityValue"])
        for e in events
        if e["isHealthy"] and e["entitiesImpacted"]
    }
    for name in pod.clears:
        missing = {uuid for uuid in tested if (name, uuid) not in cleared}
        if missing or not tested:
            differs(f"healthy events {name}", sorted(cleared), f"one for each of {sorted(tested)}")


def _ended(lab: Lab, namespace: str, pod: ScenarioPod) -> Any:
    seen = lab.api.read_namespaced_pod(pod.name, namespace)
    running = seen.status.phase == "Running" and pod.stays
    return seen if running or seen.status.phase in {"Succeeded", "Failed"} else None


def _check(status: Any) -> dict[str, Any]:
    """One check as its container's status tells it."""
    ended = status.state.terminated
    if ended is None:
        outcome = "not ended" if status.state.running else "not run"
        return {
            "check": status.name.removeprefix("preflight-"),
            "outcome": outcome,
            "code": "",
            "exit_code": None,
        }
    try:
        result = json.loads(ended.message or "{}")
    except ValueError:
        result = {}
    name = status.name.removeprefix("preflight-")
    return {
        "check": result.get("check", name),
        "outcome": result.get("outcome", ""),
        "code": result.get("code", ""),
        "exit_code": ended.exit_code,
    }
