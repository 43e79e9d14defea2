"""What three checks add to the start of a healthy pod beyond their tools' own time, on the cluster
of KUBECONFIG.

Gangs of two pods, one gang at a time, with checks and without in turn. Nodes, GPUs and tools are
the lab's stand-ins, torch is real (gloo). A pod's start is the first line of its own container, by
the time that its container runtime writes beside it; it counts from the pod's creation by the clock
of this machine, whose difference to the nodes' falls out, as it is in both.

A tool's time is what the check's log says of it, and for nccl-allreduce torch's loading and its
run.
"""

from __future__ import annotations

import datetime
import re
import statistics
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from preflight_testing.helm import ChartError

from ..clusters import ClusterError, cluster
from ..engine import ImageError, find_engine
from ..images import FAKE_NODE, build_all, build_fake_node
from ..lab import Lab, LabError, until
from .load import BenchError

CHECKS: Final = ("dcgm-diag", "nccl-loopback", "nccl-allreduce")
GANG: Final = 2
PATIENCE: Final = 120.0
VALUES: Final = {
    "checks": [
        {"name": "dcgm-diag", "image": "preflight-dcgm-diag:e2e"},
        {"name": "nccl-loopback", "image": "preflight-nccl-loopback:e2e"},
        {
            "name": "nccl-allreduce",
            "image": "preflight-nccl-allreduce:e2e",
            "env": [{"name": "NCCL_ALLREDUCE_BACKEND", "value": "gloo"}],
        },
    ]
}
_TOOLS = re.compile(r"^took [\d.]+ s; \d+ run\(s\) of its tools: ([\d.]+) s of that$")
_LOADED = re.compile(r"^torch is loaded after ([\d.]+) s$")


class Line(NamedTuple):
    """One line of a container's log; ``at`` in seconds since the epoch."""

    at: float
    text: str


class StartedPod(NamedTuple):
    """A pod that has started: when it was created, and the logs of its checks in their order;
    ``started``: its own container's first line.
    """

    created: float
    checks: tuple[tuple[Line, ...], ...]
    started: float

    @property
    def seconds(self) -> float:
        return self.started - self.created

    @property
    def tools(self) -> float:
        return sum(tools_of(check) for check in self.checks)


def lines(log: str) -> tuple[Line, ...]:
    """A log with timestamps (RFC 3339), as the API server gives it. Raises ValueError for another
    one.
    """
    lines = []
    for line in log.splitlines():
        at, _, text = line.partition(" ")
        # The runtime writes nanoseconds, of which a datetime takes six digits.
        whole = re.sub(r"(\.\d{6})\d*", r"\1", at)
        lines.append(Line(datetime.datetime.fromisoformat(whole).timestamp(), text))
    return tuple(lines)


def tools_of(check: Sequence[Line]) -> float:
    """Seconds in which a tool of the check worked: torch, while it was loaded and while it
    measured, and what it ran as commands.
    """
    spans: list[tuple[float, float]] = []
    commands = begun = 0.0
    for line in check:
        if match := _TOOLS.match(line.text):
            commands += float(match[1])
        if match := _LOADED.match(line.text):
            spans.append((line.at - float(match[1]), line.at))
        if line.text.startswith("here: median ") and begun:
            spans.append((begun, line.at))
        if line.text.startswith("round "):
            begun = line.at
    return commands + _covered(spans)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of ``spans``."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def added(checked: Sequence[StartedPod], plain: Sequence[StartedPod]) -> float:
    """Seconds: the median of what pods with checks take beyond the tools, less the median of pods
    without.
    """
    return statistics.median(pod.seconds - pod.tools for pod in checked) - statistics.median(
        pod.seconds for pod in plain
    )


def shares(checked: Sequence[StartedPod], plain: Sequence[StartedPod]) -> dict[str, float]:
    """Where the time of ``checked`` goes, medians in seconds: up to the first check's first line
    beyond what a pod needs anyway, in each check beyond its tools, and from the last line of one
    container to the first of the next, which is the kubelet's, the runtime's and Python's."""
    figures = {
        "to the first check, beyond a pod's own start": statistics.median(
            pod.checks[0][0].at - pod.created for pod in checked
        )
        - statistics.median(pod.seconds for pod in plain)
    }
    for number, name in enumerate(CHECKS):
        own = [
            pod.checks[number][-1].at - pod.checks[number][0].at - tools_of(pod.checks[number])
            for pod in checked
        ]
        figures[f"{name}, beyond its tools"] = statistics.median(own)
    for number, name in enumerate(CHECKS):
        following = [*CHECKS[1:], "the pod's own container"][number]
        gaps = []
        for pod in checked:
            begins = pod.checks[number + 1][0].at if number + 1 < len(CHECKS) else pod.started
            gaps.append(begins - pod.checks[number][-1].at)
        figures[f"{name} to {following}"] = statistics.median(gaps)
    return figures


def measure(
    load_command: str | None, pods: int, say: Callable[[str], None]
) -> tuple[list[StartedPod], list[StartedPod]]:
    """At least ``pods`` of each kind, with checks and without. Raises :class:`BenchError`."""
    try:
        with cluster("existing", load_command) as target:
            if load_command is not None:
                engine = find_engine()
                for built in [build_fake_node(engine), *build_all(engine, e2e=True)]:
                    target.load(built.archive)
            return _on(Lab(target.kubeconfig, say), -(-pods // GANG), say)
    except (ClusterError, LabError, ChartError, ImageError) as error:
        raise BenchError(str(error)) from None


def _on(
    lab: Lab, gangs: int, say: Callable[[str], None]
) -> tuple[list[StartedPod], list[StartedPod]]:
    checked: list[StartedPod] = []
    plain: list[StartedPod] = []
    namespaces: list[str] = []
    try:
        lab.fake_nodes()
        if len(lab.nodes) < GANG:
            raise BenchError(
                f"a gang of {GANG} needs as many nodes, the cluster has {len(lab.nodes)}."
            )
        lab.values(VALUES)
        with_checks = lab.namespace(f"pf-bench-{uuid.uuid4().hex[:4]}")
        without = f"{with_checks}-plain"
        namespaces += [with_checks, without]
        lab.api.create_namespace({"metadata": {"name": without}})
        until(
            f"{without} has its account",
            lambda: lab.api.list_namespaced_service_account(without).items,
        )
        for number in range(gangs + 1):
            pairs = [
                _gang(lab, namespace, f"gang-{number}") for namespace in (with_checks, without)
            ]
            if number:  # the first one reads images from the disk
                checked += pairs[0]
                plain += pairs[1]
                say(f"gang {number} of {gangs}")
    finally:
        for namespace in namespaces:
            lab.remove_namespace(namespace)
        lab.close()
    return checked, plain


def _gang(lab: Lab, namespace: str, name: str) -> list[StartedPod]:
    """A gang's pods, once all have started. Raises :class:`BenchError` where a
    check did not pass.
    """
    created: dict[str, float] = {}
    for rank in range(GANG):
        body = _body(f"{name}-{rank}", name, lab.nodes[rank])
        created[body["metadata"]["name"]] = time.time()
        lab.api.create_namespaced_pod(namespace, body)
    return [_started(lab, namespace, pod, at) for pod, at in created.items()]


def _started(lab: Lab, namespace: str, name: str, created: float) -> StartedPod:
    def ended() -> Any:
        seen = lab.api.read_namespaced_pod(name, namespace)
        return seen if seen.status.phase in {"Succeeded", "Failed"} else None

    seen = until(f"{name} in {namespace} ends", ended, PATIENCE)
    names = [name_.name for name_ in seen.spec.init_containers or []]
    logs = {name_: _log(lab, namespace, name, name_) for name_ in [*names, "main"]}
    if seen.status.phase != "Succeeded" or any(
        " passed OK: " not in logs[name_][-1].text for name_ in names
    ):
        words = "; ".join(log[-1].text for log in logs.values() if log)
        raise BenchError(f"{name} in {namespace} is not healthy: {words}")
    return StartedPod(created, tuple(logs[name_] for name_ in names), logs["main"][0].at)


def _log(lab: Lab, namespace: str, pod: str, container: str) -> tuple[Line, ...]:
    answer = lab.api.read_namespaced_pod_log(
        pod, namespace, container=container, timestamps=True, _preload_content=False
    )
    return lines(answer.data.decode(errors="replace"))


def _body(name: str, gang: str, node: str) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"app.kubernetes.io/gang-id": gang, "app.kubernetes.io/gang-size": str(GANG)},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"kubernetes.io/hostname": node},
            "containers": [
                {
                    "name": "main",
                    "image": FAKE_NODE,
                    "command": ["echo", "started"],
                    "resources": {"limits": {"nvidia.com/gpu": "4"}},
                }
            ],
        },
    }


def delays(checked: Sequence[StartedPod], plain: Sequence[StartedPod]) -> Mapping[str, Any]:
    """The figures for the bench's JSON."""
    return {
        "start_delay_s": round(added(checked, plain), 3),
        "start_delay_shares_s": {
            what: round(seconds, 3) for what, seconds in shares(checked, plain).items()
        },
    }
