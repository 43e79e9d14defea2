"""The world of the AppWrapper bench: wrappers of a stand-in kind, whose pods are made, run and
ended here, on nodes that are none.

The real controllers make twenty objects a second, which would be what is measured.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Self

import yaml
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove_kinds import crd

from .cluster import BenchServer
from .following import Follow
from .load import BenchError, binaries

Json = dict[str, Any]

GROUP: Final = "bench.example.com"
WRAPPERS: Final = "/apis/workload.codeflare.dev/v1beta2/namespaces/default/appwrappers"
LOADS: Final = f"/apis/{GROUP}/v1/namespaces/default/loads"
PODS: Final = "/api/v1/namespaces/default/pods"
LABEL: Final = "workload.codeflare.dev/appwrapper"
NODES: Final = 64
EVICTED: Final = 64
"""Wrappers with a pod on the first node."""
FAILED: Final = 200
"""Further wrappers, of each of which one pod fails."""
FAILURES_PER_S: Final = 10
MERGE: Final = "application/merge-patch+json"
_ENDING: Final = 8
"""Threads that end pods."""


@contextmanager
def api_server(program: str, home: Path, *, more: Sequence[str] = ()) -> Iterator[ApiServer]:
    """A real one that knows AppWrappers and the kind that they wrap. ``program``:
    preflight-appwrapper; ``more``: further arguments of kube-apiserver. Raises :class:`BenchError`
    where it has no binaries.
    """
    home.mkdir(exist_ok=True)
    with ApiServer(home, binaries(), more=more) as server:
        printed = subprocess.run([program, "crd"], stdout=subprocess.PIPE, check=True).stdout
        server.define(yaml.safe_load(printed))
        server.define(load())
        yield server


def load() -> Json:
    """The definition of a kind that makes pods."""
    kept = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return crd(
        GROUP,
        "Load",
        "loads",
        {"v1": {"type": "object", "properties": {"spec": kept, "status": kept}}},
    )


def load_of(called: str) -> Json:
    """A manifest of that kind, whose pods ask for GPUs."""
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    about = {"apiVersion": f"{GROUP}/v1", "kind": "Load", "metadata": {"name": called}}
    return {**about, "spec": {"template": template}}


def wrapper(number: int, pods: int) -> Json:
    sets = [{"path": "template.spec.template", "replicas": pods}]
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name(number)},
        "spec": {
            "suspend": True,
            "components": [{"template": load_of(name(number)), "podSets": sets}],
        },
    }


def name(number: int) -> str:
    return f"w-{number:04}"


def node_of(number: int, index: int) -> str:
    """The first pods of the first 64 wrappers are on the first node, and none of the others."""
    return (
        f"node-{0 if number < EVICTED and index == 0 else 1 + (number * 16 + index) % (NODES - 1)}"
    )


def pod_of(of: Json, index: int, node: str) -> Json:
    """One pod of a component as it was created, bound to a node."""
    template, metadata = of["spec"]["template"], of["metadata"]
    owner = {
        "apiVersion": of["apiVersion"],
        "kind": of["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": f"{metadata['name']}-{index}",
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {**template["spec"], "nodeName": node},
    }


class _Ending:
    """Ends pods as the garbage collector and the kubelets do, beside whoever watches."""

    def __init__(self, server: BenchServer) -> None:
        self._server, self._waiting = server, SimpleQueue[str]()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(_ENDING)]
        for thread in self._threads:
            thread.start()

    def end(self, path: str) -> None:
        self._waiting.put(path)

    def close(self) -> None:
        for _ in self._threads:
            self._waiting.put("")
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        connection, headers = self._server.connect(), self._server.headers()
        now = json.dumps({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0})
        while path := self._waiting.get():
            connection.request("DELETE", path, now, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise BenchError(f"DELETE {path} was answered {answer.status} {text[:200]!r}.")
        connection.close()


class WrapperWorld:
    """Use as a context manager. ``made``: when each component was first seen; ``ready``: how many
    wrappers are; ``came_back``: how many components were created again."""

    def __init__(self, server: ApiServer, wrappers: int, pods: int) -> None:
        self.wrappers, self.each = wrappers, pods
        self.made: dict[str, float] = {}
        self.came_back = 0
        self._server = BenchServer.of(server)
        self._phases: dict[str, str] = {}
        self._ready: set[str] = set()
        self._unhealthy: dict[str, float] = {}
        self._resetting: dict[str, float] = {}
        self._follows: list[Follow[Json]] = []
        self._ending = _Ending(self._server)

    def __enter__(self) -> Self:
        nodes = [("/api/v1/nodes", {"metadata": {"name": f"node-{i}"}}) for i in range(NODES)]
        self._server.burst("POST", nodes)
        self._follows = [
            Follow(self._server, WRAPPERS, self._observe_wrapper, Json),
            Follow(self._server, LOADS, self._observe_load, Json),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for follow in self._follows:
            follow.close()
        self._ending.close()

    # --- what is done

    def wrap(self) -> None:
        self._server.burst(
            "POST", [(WRAPPERS, wrapper(i, self.each)) for i in range(self.wrappers)]
        )

    def resume(self) -> float:
        """Let all of them go on, as Kueue does; when that began, by the monotonic clock."""
        began = time.monotonic()
        patch = {"spec": {"suspend": False}}
        self._server.burst(
            "PATCH", [(f"{WRAPPERS}/{name(i)}", patch) for i in range(self.wrappers)], MERGE
        )
        return began

    def make_pods(self) -> None:
        """All pods of all components, which then run."""
        for first in range(0, self.wrappers, 100):
            numbers = range(first, min(first + 100, self.wrappers))
            loads = {i: self._server.call("GET", f"{LOADS}/{name(i)}") for i in numbers}
            wanted = [pod_of(loads[i], k, node_of(i, k)) for i in numbers for k in range(self.each)]
            self._server.burst("POST", [(PODS, pod) for pod in wanted])
            running = {"status": {"phase": "Running"}}
            paths = [f"{PODS}/{pod['metadata']['name']}/status" for pod in wanted]
            self._server.burst("PATCH", [(path, running) for path in paths], MERGE)

    def beat(self) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {
            "type": "Ready",
            "status": "True",
            "lastHeartbeatTime": now,
            "reason": "KubeletReady",
        }
        patch = {"status": {"conditions": [ready]}}
        self._server.burst(
            "PATCH", [(f"/api/v1/nodes/node-{i}/status", patch) for i in range(NODES)], MERGE
        )

    def fail(self) -> list[float]:
        """One pod of each of 200 wrappers fails, ten a second; seconds from each write to
        ``Unhealthy``, as a watch sees it.
        """
        sent: dict[str, float] = {}
        connection, headers = self._server.connect(), self._server.headers(MERGE)
        failed = json.dumps({"status": {"phase": "Failed"}})
        connection.connect()
        for i in range(EVICTED, EVICTED + FAILED):
            sent[name(i)] = time.monotonic()
            connection.request("PATCH", f"{PODS}/{name(i)}-3/status", failed, headers)
            connection.getresponse().read()
            time.sleep(max(0.0, sent[name(i)] + 1 / FAILURES_PER_S - time.monotonic()))
        connection.close()
        self._wait(lambda: sent.keys() <= self._unhealthy.keys())
        return [self._unhealthy[name] - at for name, at in sent.items()]

    def evict(self) -> float:
        """The first node is marked; seconds until all that have a pod there are Resetting."""
        began = time.monotonic()
        label = {"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": "EVICT"}}}
        self._server.burst("PATCH", [("/api/v1/nodes/node-0", label)], MERGE)
        wanted = {name(i) for i in range(EVICTED)}
        self._wait(lambda: wanted <= self._resetting.keys())
        return max(self._resetting[name] for name in wanted) - began

    # --- what is seen

    def in_phase(self, phase: str) -> int:
        return sum(each == phase for each in list(self._phases.values()))

    @property
    def ready(self) -> int:
        return len(self._ready)

    def _observe_wrapper(self, _: str, raw: Json) -> None:
        at, called, status = time.monotonic(), raw["metadata"]["name"], raw.get("status", {})
        self._phases[called] = status.get("phase", "")
        conditions = {row["type"]: row["status"] for row in status.get("conditions", [])}
        if conditions.get("PodsReady") == "True":
            self._ready.add(called)
        if conditions.get("Unhealthy") == "True":
            self._unhealthy.setdefault(called, at)
        if self._phases[called] == "Resetting":
            self._resetting.setdefault(called, at)

    def _observe_load(self, type_: str, raw: Json) -> None:
        called = raw["metadata"]["name"]
        if type_ == "ADDED":
            self.came_back += called in self.made
            self.made.setdefault(called, time.monotonic())
        elif type_ == "DELETED":
            for i in range(self.each):
                self._ending.end(f"{PODS}/{called}-{i}")

    def _wait(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not done() and time.monotonic() < end:
            time.sleep(0.01)
