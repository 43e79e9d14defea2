"""The cluster of the gang bench: members as the webhook leaves them, addresses as kubelets write
them, and who watches.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec
from preflight_testing.apiserver import ApiServer

from .following import Follow
from .load import BenchError, until

PREFIX = "preflight.nvsentinel.nvidia.com/"
_WRITERS = 8


@dataclass(frozen=True)
class BenchServer:
    """An API server; ``ca`` where it speaks TLS, ``token`` where it asks for one."""

    url: str
    ca: str | None = None
    token: str | None = None

    @classmethod
    def of(cls, server: ApiServer) -> BenchServer:
        """A real one, for its administrator."""
        return cls(server.server, str(server.ca), server.token)

    def connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self.url)
        assert url.hostname is not None
        if self.ca is None:
            return http.client.HTTPConnection(url.hostname, url.port, timeout=60)
        context = ssl.create_default_context(cafile=self.ca)
        return http.client.HTTPSConnection(url.hostname, url.port, context=context, timeout=60)

    def headers(self, kind: str = "application/json") -> dict[str, str]:
        return {"Content-Type": kind} | (
            {"Authorization": f"Bearer {self.token}"} if self.token else {}
        )

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request, its answer decoded. Raises :class:`BenchError`."""
        connection = self.connect()
        connection.request(method, path, None if body is None else json.dumps(body), self.headers())
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if answer.status >= 300:
            raise BenchError(
                f"{self.url}: {method} {path} was answered {answer.status} {data[:200]!r}."
            )
        return json.loads(data)

    def burst(
        self, method: str, requests: Iterable[tuple[str, Any]], kind: str = "application/json"
    ) -> float:
        """Send (path, body) after (path, body) over a few connections; when the last was answered,
        by the monotonic clock. Raises :class:`BenchError` for one that is refused.
        """

        def answered(path: str, status: int, text: bytes) -> None:
            if status >= 300:
                raise BenchError(
                    f"{self.url}: {method} {path} was answered {status} {text[:200]!r}."
                )

        return self._together(method, requests, kind, _WRITERS, answered)[1]

    def create(
        self, path: str, bodies: Iterable[Any], writers: int, good: Callable[[bytes], bool]
    ) -> tuple[list[str], float]:
        """Create all by as many ``writers``: the answers that refuse one or are not ``good``, and
        the seconds from the moment at which all begin to the last answer.
        """
        bad = []

        def answered(_: str, status: int, text: bytes) -> None:
            if status != http.client.CREATED or not good(text):
                bad.append(text.decode())

        requests = ((path, body) for body in bodies)
        began, last = self._together("POST", requests, "application/json", writers, answered)
        return bad, last - began

    def _together(
        self,
        method: str,
        requests: Iterable[tuple[str, Any]],
        kind: str,
        writers: int,
        answered: Callable[[str, int, bytes], None],
    ) -> tuple[float, float]:
        """When the first began, on connections that were open by then, and when the last answer
        came.
        """
        waiting = iter([(path, json.dumps(body)) for path, body in requests])
        lock, begin = threading.Lock(), threading.Barrier(writers)

        def send() -> tuple[float, float]:
            connection, headers = self.connect(), self.headers(kind)
            connection.connect()
            begin.wait(60)
            began = last = time.monotonic()
            while True:
                with lock:
                    path, body = next(waiting, (None, None))
                if path is None:
                    connection.close()
                    return began, last
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                text = answer.read()
                last = time.monotonic()
                answered(path, answer.status, text)

        with ThreadPoolExecutor(writers) as pool:
            spans = [future.result() for future in [pool.submit(send) for _ in range(writers)]]
        return min(began for began, _ in spans), max(last for _, last in spans)


class _Meta(msgspec.Struct):
    name: str
    annotations: dict[str, str] = {}


class _Pod(msgspec.Struct):
    metadata: _Meta


class RosterWatch:
    """Watches the pods of a namespace: ``rosters`` (the annotation's text) and ``at``, both by pod
    name.
    """

    def __init__(self, server: BenchServer, namespace: str) -> None:
        self.rosters: dict[str, str] = {}
        self.at: dict[str, float] = {}
        path = f"/api/v1/namespaces/{namespace}/pods"
        self._follow = Follow(server, path, lambda _, pod: self._observe(pod.metadata), _Pod)

    def wait(self, done: Callable[[dict[str, str]], bool], seconds: float) -> None:
        """Until the rosters are so. Raises :class:`BenchError` when they are not in time."""
        what = "the pods have the rosters that are waited for"
        until(lambda: done(self.rosters), what, seconds, 0.02)

    def close(self) -> None:
        self._follow.close()

    def _observe(self, pod: _Meta) -> None:
        roster = pod.annotations.get(PREFIX + "roster", "")
        if roster and self.rosters.get(pod.name) != roster:
            self.at[pod.name] = time.monotonic()
            self.rosters[pod.name] = roster


def record_name(gang: str, source: str = "labels") -> str:
    """The ConfigMap of a gang whose id is a plain name."""
    words = re.sub("[A-Z]", lambda letter: "-" + letter[0].lower(), source)
    return f"preflight-{gang}" if source == "schedulingGroup" else f"preflight-{gang}.{words}"


def member(
    namespace: str, gang: str, size: int, name: str, source: str = "labels"
) -> dict[str, Any]:
    """A pod of a gang, as the webhook leaves it: dcgm-diag and nccl-allreduce injected, one stamp,
    no answer yet.
    """
    stamp = {
        "v": 2,
        "id": gang,
        "source": source,
        "config_map": record_name(gang, source),
        "takes_part": True,
        "size": size,
    }
    digest = hashlib.sha256(f"{namespace}\0{gang}\0{source}".encode()).hexdigest()[:16]
    mounts = [{"name": "preflight-gang-config", "mountPath": "/etc/preflight"}]
    env = [{"name": f"NCCL_SETTING_{i}", "value": f"value-{i}"} for i in range(12)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {PREFIX + "checked": "true", PREFIX + "gang": digest, "job-name": gang},
            "annotations": {PREFIX + "gang": json.dumps(stamp), PREFIX + "roster": ""},
        },
        "spec": {
            "nodeName": f"node-{name}",
            "restartPolicy": "Never",
            "initContainers": [
                {"name": "preflight-dcgm-diag", "image": "x", "env": env},
                {
                    "name": "preflight-nccl-allreduce",
                    "image": "x",
                    "env": env,
                    "volumeMounts": mounts,
                },
            ],
            "containers": [{"name": "train", "image": "x", "env": env}],
            "volumes": [{"name": "preflight-gang-config", "emptyDir": {}}],
        },
    }


def addressed(number: int) -> dict[str, Any]:
    """The status with which a kubelet tells a pod's address: the first check runs."""
    ip = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    running = {"running": {"startedAt": "2026-11-21T08:00:00Z"}}
    checks = [
        {
            "name": "preflight-dcgm-diag",
            "state": running,
            "image": "x",
            "imageID": "x",
            "ready": False,
        },
        {
            "name": "preflight-nccl-allreduce",
            "state": {"waiting": {"reason": "PodInitializing"}},
            "image": "x",
            "imageID": "x",
            "ready": False,
        },
    ]
    common = {"restartCount": 0}
    return {
        "status": {
            "phase": "Pending",
            "podIP": ip,
            "podIPs": [{"ip": ip}],
            "initContainerStatuses": [check | common for check in checks],
        }
    }
