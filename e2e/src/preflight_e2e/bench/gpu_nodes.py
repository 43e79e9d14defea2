"""A cluster of GPU nodes without kubelets on a real API server: objects, who makes them, and who
watches what becomes of the pods.
"""

from __future__ import annotations

import http.client
import itertools
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from preflight_testing.apiserver import ApiServer

from .load import BenchError, until

Json = dict[str, Any]
GPUS = 8
"""On each node, on one NVLink island."""
NAMESPACE, LOCKS = "team", "gpu-scheduler-leases"
SCHEDULER, STOCK = "gpu-scheduler", "stock"
PREFIX = "gpu.scheduling/"
GROUP = "/apis/gpu.scheduling/v1"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
PAGE = f"{PODS}?limit=500"
WRITERS = 16
PATIENCE = 300.0
BEAT = 30.0
"""Seconds between two reports of one node."""
UNUSED = 30.0
"""Seconds after which a connection is not used again: the API server ends one that is idle for 90,
and a request that meets the end of it may have been done or not.
"""


class ThreadedClient:
    """Requests by many threads, each on a connection of its own."""

    def __init__(self, server: ApiServer) -> None:
        self._server, self._local = server, threading.local()
        self._host = server.server.removeprefix("https://")

    def connection(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self._server.ca))
        return http.client.HTTPSConnection(self._host, context=context, timeout=PATIENCE)

    def call(
        self, method: str, path: str, body: Json | None = None, kind: str = "application/json"
    ) -> bytes:
        """The answer. Raises BenchError where it is a refusal."""
        if not hasattr(self._local, "connection"):
            self._local.connection = self.connection()
        elif time.monotonic() - self._local.used > UNUSED:
            self._local.connection.close()  # the next request opens it again
        held: http.client.HTTPSConnection = self._local.connection
        held.request(method, path, None if body is None else json.dumps(body), self.headers(kind))
        answer = held.getresponse()
        text = answer.read()
        self._local.used = time.monotonic()
        if answer.status >= http.client.BAD_REQUEST:
            raise BenchError(f"{method} {path}: {answer.status} {text[:300]!r}")
        return text

    def headers(self, kind: str = "application/json") -> dict[str, str]:
        return {"Authorization": f"Bearer {self._server.token}", "Content-Type": kind}

    def get(self, path: str) -> Any:
        return json.loads(self.call("GET", path))

    def patch(self, path: str, body: Json) -> None:
        self.call("PATCH", path, body, "application/merge-patch+json")

    def each(self, work: Callable[[Any], Any], things: Iterable[Any]) -> list[Any]:
        """``work`` on all of them, :data:`WRITERS` at a time."""
        with ThreadPoolExecutor(WRITERS) as pool:
            return list(pool.map(work, things))

    def requests(self) -> float:
        """Those so far that an extender may send: to pods, bindings and leases, but no lists and
        watches.
        """
        text = self.call("GET", "/metrics").decode()
        counters = re.findall(
            r"^apiserver_request_total\{([^}]*)\} ([0-9.e+]+)", text, re.MULTILINE
        )
        return sum(float(number) for labels, number in counters if _an_extenders(labels))


def _an_extenders(labels: str) -> bool:
    labels_ = dict(re.findall(r'(\w+)="([^"]*)"', labels))
    if labels_.get("resource") == "leases":
        return labels_["verb"] in {
            "POST",
            "DELETE",
            "PATCH",
        }  # the API server itself renews one by PUT
    return labels_.get("resource") == "pods" and labels_["verb"] in {
        "POST",
        "GET",
        "PATCH",
        "DELETE",
    }


class Nodes:
    """``number`` nodes of :data:`GPUS` GPUs, which report themselves every :data:`BEAT` seconds."""

    def __init__(self, api: ThreadedClient, number: int) -> None:
        self.api, self.names = api, [f"node-{n:05}" for n in range(number)]
        self._ended = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Nodes:
        for name in (NAMESPACE, LOCKS):
            self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.api.each(self._make, self.names)
        self._beats.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._beats.join()

    def _make(self, name: str) -> None:
        self.node(name, {f"{PREFIX}gpu": str(GPUS), "nvidia.com/gpu": str(GPUS)})
        kind = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuNodeStatus"}
        self.api.call(
            "POST",
            f"{GROUP}/gpunodestatuses",
            {**kind, "metadata": {"name": name}, "spec": {"nodeName": name}},
        )
        devices = [
            {
                "id": n,
                "uuid": f"GPU-{name}-{n}",
                "name": "NVIDIA H100",
                "island": "nvlink-0",
                "bandwidthGBps": 450,
            }
            for n in range(GPUS)
        ]
        self._report(name, {"total": GPUS, "devices": devices})

    def node(self, name: str, counted: Mapping[str, str]) -> None:
        """One without a GpuNodeStatus; ``counted``: what it has beside CPU, memory and pods."""
        amounts = {"cpu": "128", "memory": "2Ti", "pods": "200", **counted}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        about = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.api.call("POST", "/api/v1/nodes", {"metadata": about, "status": status})

    def forget(self, name: str) -> None:
        """The node goes, and what was said of it."""
        for path in ("/api/v1/nodes", f"{GROUP}/gpunodestatuses"):
            self.api.call("DELETE", f"{path}/{name}")

    def _report(self, name: str, status: Json) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.api.patch(
            f"{GROUP}/gpunodestatuses/{name}/status", {"status": {**status, "observedTime": now}}
        )

    def _beat(self) -> None:
        for name in itertools.cycle(self.names):
            if self._ended.wait(BEAT / len(self.names)):
                return
            with suppress(BenchError):  # an agent tries again, too
                self._report(name, {})

    def claim(self, name: str, count: int, gang: str = "") -> None:
        spec: Json = {"devices": {"count": count}, **({"gangRef": gang} if gang else {})}
        body = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.api.call("POST", f"{GROUP}/namespaces/{NAMESPACE}/gpuclaims", body)

    def pods(self, bodies: Sequence[Json]) -> list[Json]:
        """As they were stored."""
        return [
            json.loads(answer)
            for answer in self.api.each(lambda body: self.api.call("POST", PODS, body), bodies)
        ]

    def delete(self, name: str) -> None:
        self.api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    def clear(self) -> None:
        """All pods go, and, as the controller sees to it, all leases."""
        # One by one: of a request for all 8,000 the API server thinks longer than it allows itself.
        while names := [pod["metadata"]["name"] for pod in self.api.get(PAGE)["items"]]:
            self.api.each(self.delete, names)
        until(lambda: self.leases() == 0, "no lease is left")

    def leases(self) -> int:
        page = self.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{LOCKS}/leases?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))


def pod(name: str, claim: str, count: int, *, gang: int = 0, scheduler: str = SCHEDULER) -> Json:
    """As the webhook admits it; without a claim, one that the stock scheduler
    places by counting.
    """
    resource = f"{PREFIX}gpu" if claim else "nvidia.com/gpu"
    amounts = {resource: str(count), "cpu": "1", "memory": "1Gi"}
    variables = [
        {
            "name": variable,
            "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}{key}']"}},
        }
        for variable, key in (
            ("NVIDIA_VISIBLE_DEVICES", "nvidia-visible-devices"),
            ("CUDA_VISIBLE_DEVICES", "cuda-visible-devices"),
        )
    ]
    main: Json = {"name": "main", "image": "none", "resources": {"limits": amounts}}
    marks = {}
    if claim:
        main["env"] = [*variables, {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"}]
        marks[f"{PREFIX}claim"] = claim
    spec: Json = {
        "schedulerName": scheduler,
        "terminationGracePeriodSeconds": 0,
        "containers": [main],
    }
    if gang:
        marks[f"{PREFIX}gang-size"] = str(gang)
        spec["schedulingGates"] = [{"name": f"{PREFIX}waiting"}]
    return {"metadata": {"name": name, "annotations": marks}, "spec": spec}


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""
    resource_version: str = msgspec.field(name="resourceVersion", default="")
    annotations: dict[str, str] = {}


class _Spec(msgspec.Struct):
    node: str = msgspec.field(name="nodeName", default="")


class _Pod(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Change(msgspec.Struct):
    type: str
    object: _Pod


class BindTally:
    """What becomes of pods: when each was bound, and whether a GPU is ever two living ones'."""

    def __init__(self) -> None:
        self.bound: dict[str, float] = {}
        """By name, of those that live: the monotonic second in which it was seen to be bound."""
        self.doubles = 0
        self._owners: dict[str, str] = {}
        self._has: dict[str, list[str]] = {}

    @property
    def given(self) -> int:
        """GPUs that living pods have."""
        return len(self._owners)

    def note(self, kind: str, name: str, uid: str, node: str, allocated: str) -> None:
        """One version of a pod, by the watch's word for it."""
        if kind == "DELETED":
            self.bound.pop(name, None)
            for gpu in self._has.pop(uid, ()):
                if self._owners.get(gpu) == uid:
                    del self._owners[gpu]
        elif node and uid not in self._has:
            on, _, ids = allocated.partition(":")
            gpus = [f"{on}:{gpu}" for gpu in ids.split(",") if gpu]
            for gpu in gpus:
                self.doubles += self._owners.setdefault(gpu, uid) != uid
            self._has[uid] = gpus
            self.bound[name] = time.monotonic()


class Watching(BindTally):
    """Reads every version of every pod."""

    def __init__(self, api: ThreadedClient) -> None:
        super().__init__()
        self._api, self._ended = api, False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def alive(self) -> None:
        """Raises BenchError where it does not see every version any more."""
        if self._ended:
            raise BenchError(
                "the watch of all pods was broken off, so nothing can be said of what was given twice."
            )

    def _run(self) -> None:
        try:
            version = self._api.get(f"{PODS}?limit=1")["metadata"]["resourceVersion"]
            while version:
                version = self._follow(version)
        except (OSError, ssl.SSLError, http.client.HTTPException, msgspec.MsgspecError):
            pass  # of the server that ends, or said by `alive`
        self._ended = True

    def _follow(self, version: str) -> str:
        """From ``version`` on; the one to go on from, empty where there is none."""
        connection = self._api.connection()
        path = (
            f"{PODS}?watch=1&resourceVersion={version}&timeoutSeconds=600&allowWatchBookmarks=true"
        )
        connection.request("GET", path, headers=self._api.headers())
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            return ""
        while line := answer.readline():
            change = _CHANGES.decode(line)
            if change.type == "ERROR":
                return ""
            about = change.object.metadata
            version = about.resource_version or version
            if change.type != "BOOKMARK":
                allocated = about.annotations.get(f"{PREFIX}allocated", "")
                self.note(change.type, about.name, about.uid, change.object.spec.node, allocated)
        connection.close()
        return version


_CHANGES = msgspec.json.Decoder(_Change)
