"""The demo's fifth story: a sick GPU is found before a job starts, the job runs elsewhere, and the
repaired node is tested and given work again; nobody does anything but the repair.

Real: AppWrapper's controller and its labeler, beside all that is real in the other stories. What
the platform connector writes on the node is a double's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from kubernetes import client

from ..appwrappers import WrappedRelease, asks, connector
from ..clusters.simulated import SimulatedLab
from ..lab import LabError, until

GPU = 3
CONDITION = "DcgmDiagnosticMemory"
FAULT: dict[str, Any] = {
    "gpu": GPU,
    "test": "memory",
    "error_id": 52,
    "severity": 2,
    "category": 10,
    "text": f"14 single-bit errors in the memory of GPU {GPU}",
}
PATIENCE = 300.0
"""Seconds for a step: a pod with all its checks, on a busy machine."""


@dataclass
class CircleStep:
    """``seconds``: since the story's begin."""

    seconds: float
    who: str
    what: str


@dataclass
class CircleStory:
    """``problem``: why it did not come to its end; empty where it did."""

    node: str
    steps: list[CircleStep] = field(default_factory=list)
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def play(lab: SimulatedLab, say: Callable[[str], None]) -> CircleStory:
    """Let it happen on the lab's first node, to which the scheduler gives what fits; ``say`` hears
    of each step.
    """
    story, began = CircleStory(lab.nodes[0]), 0.0

    def step(who: str, what: str) -> None:
        story.steps.append(CircleStep(round(time.monotonic() - began, 1), who, what))
        say(f"{who}: {what}")

    try:
        lab.wrappers()
        began = time.monotonic()
        _play(lab, story.node, step)
    except LabError as error:
        story.problem = f"the circle: {error}"
    except client.ApiException as error:
        story.problem = f"the circle: the API server says {error.status} {error.reason}"
    return story


def _play(lab: SimulatedLab, node: str, step: Callable[[str, str], None]) -> None:
    lab.configure(node, {"engine": {"seconds": 2.0, "faults": [FAULT]}})
    world = WrappedRelease(lab)
    world.namespace = lab.namespace("circle")

    # A pod that is held back goes within moments of its node's label: what has been seen counts.
    def bound(name: str) -> list[str]:
        pods = (pod for _, pod in lab.history if pod["metadata"]["name"] == name)
        nodes = (pod["spec"].get("nodeName") for pod in pods)
        return list(filter(None, nodes))

    def blamed() -> bool:
        events = (line["event"] for line in lab.node_log(node) if "event" in line)
        return any(e["isFatal"] for e in events if e["metadata"].get("pod") == "translation")

    def standing() -> str:
        conditions = lab.api.read_node(node).status.conditions or []
        return next((str(c.status) for c in conditions if c.type == CONDITION), "")

    with connector(lab):
        _wrap(world, "translation", asks(8))
        until("translation is bound", lambda: node in bound("translation"), PATIENCE)
        step("AppWrapper", f"translation asks for 8 GPUs, and its pod is bound to {node}")
        until(f"a verdict on {node}", blamed, PATIENCE)
        step("dcgm-diag", f"GPU {GPU} of {node} is faulty, and the pod is held back")
        until(f"the condition of {node}", lambda: standing() == "True", PATIENCE)
        step("platform connector", f"{node} has the condition {CONDITION}")
        until(f"the label of {node}", lambda: world.label(node) == "EVICT", PATIENCE)
        step("labeler", f"{node} is marked, and avoided from now on")
        until("translation runs elsewhere", lambda: world.running("translation"), PATIENCE)
        count = world.status("translation").get("resettingCount", 0)
        if (elsewhere := bound("translation")[-1]) == node or count:
            raise LabError(f"translation runs on {elsewhere} after {count} counted resets")
        step("AppWrapper", f"translation runs on {elsewhere}, and the move is not counted")

        lab.configure(node, {})
        step("somebody", f"repairs {node}")
        here = {"kubernetes.io/hostname": node}
        pod = asks(8, nodeSelector=here, restartPolicy="Never")
        pod["containers"][0]["command"] = ["true"]
        lab.api.create_namespaced_pod(world.namespace, {"metadata": {"name": "test"}, "spec": pod})

        def phase() -> str:
            return str(lab.api.read_namespaced_pod("test", world.namespace).status.phase)

        until(f"{node} is tested", lambda: phase() in {"Succeeded", "Failed"}, PATIENCE)
        if phase() == "Failed":
            raise LabError(f"{node} is repaired, and did not pass")
        step("checks", f"all pass on {node}")
        until("nothing stands against it", lambda: standing() == "False", PATIENCE)
        until("the label is gone", lambda: not world.label(node), PATIENCE)
        step("labeler", f"nothing stands against {node} any more")
        _wrap(world, "summary", asks(8, nodeSelector=here))
        until(f"summary runs on {node}", lambda: world.running("summary"), PATIENCE)
        step("AppWrapper", f"summary runs on {node}, with all its GPUs")


def _wrap(world: WrappedRelease, name: str, spec: dict[str, Any]) -> None:
    """An AppWrapper of one pod."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    pod["spec"] = {"restartPolicy": "Never", **spec}
    world.create(name, pod)
