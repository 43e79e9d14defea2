"""A control plane for one test: a real API server, real kube-scheduler processes, and our services
as tasks; and a watcher of every version.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import anyio
import httpx
import msgspec
import yaml
from anyio.abc import TaskGroup
from preflight_gpu_scheduler.api import names
from preflight_gpu_scheduler.api.claim import Claim, Spec
from preflight_gpu_scheduler.api.crd import crds
from preflight_gpu_scheduler.api.types import Lease, Pod
from preflight_gpu_scheduler.config import Config, scheduler_config
from preflight_gpu_scheduler.controller.apply import Executor
from preflight_gpu_scheduler.controller.cache import GpuCache
from preflight_gpu_scheduler.controller.controller import Controller
from preflight_gpu_scheduler.core.admission import admit
from preflight_gpu_scheduler.core.filter_prioritize import BindingResult, ExtenderBindingArgs
from preflight_gpu_scheduler.metrics import ExtenderMetrics, GpuControllerMetrics
from preflight_gpu_scheduler.webhook.extender import Application, Extender, serving
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, Conflict, NotFound, Params
from preflight_testing.apidouble.patches import json_patch
from preflight_testing.apiserver import ASSETS, ApiServer
from preflight_testing.waiting import until
from prometheus_client import CollectorRegistry

T = TypeVar("T")
Blow = Callable[[], Awaitable[None]]
Trap = Callable[[str, str], Awaitable[Blow | None]]
PATIENCE = 120.0
"""Seconds after which a test gives up waiting."""


def having(**config: Any) -> Callable[[T], T]:
    """Give a test's ``world`` this configuration."""

    def mark(test: T) -> T:
        vars(test)["having"] = config
        return test

    return mark


class Faulty(Client):
    """A client whose writes and reads of one object may meet a fate: ``trap`` gets (verb, path) of
    each, before it is sent, and may return what to do after it.
    """

    trap: Trap | None = None

    async def get(self, path: str, type_: type[T], *, params: Params | None = None) -> T:
        after = await self.trap("get", path) if self.trap is not None else None
        found = await super().get(path, type_, params=params)
        if after is not None:
            await after()
        return found

    async def _write(
        self, verb: str, method: str, path: str, body: object | None, **more: Any
    ) -> bytes:
        after = await self.trap(verb, path) if self.trap is not None else None
        answer = await super()._write(verb, method, path, body, **more)
        if after is not None:
            await after()
        return answer


class Watcher:
    """Follows every version of every pod: no GPU may be two living pods' at any of them, by its id
    and by its UUID.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}
        self.doubles: list[str] = []
        self.versions = 0

    async def run(self, client: Client, version: str, ready: anyio.Event) -> None:
        while True:
            async with client.watch(
                "/api/v1/pods", Pod, resource_version=version, seconds=280
            ) as events:
                ready.set()
                async for event in events:
                    version = event.resource_version or version
                    if event.object is not None:
                        self.note(event.type, event.object)

    def note(self, kind: str, pod: Pod) -> None:
        self.versions += 1
        if kind == "DELETED":
            self.pods.pop(pod.metadata.uid, None)
        else:
            self.pods[pod.metadata.uid] = pod
        seen: dict[tuple[str, int | str], str] = {}
        for one in self.pods.values():
            allocated = one.allocated
            if not one.bound or one.ended or allocated is None:
                continue
            whats: tuple[int | str, ...] = (*allocated.ids, *one.uuids)
            for what in whats:
                other = seen.setdefault((allocated.node, what), one.metadata.name)
                if other != one.metadata.name:
                    self.doubles.append(
                        f"{allocated.node}:{what} is {other}'s and {one.metadata.name}'s"
                    )

    @property
    def given(self) -> dict[tuple[str, int], str]:
        """(node, id) → pod, of those that live and are bound now."""
        return {
            (one.allocated.node, gpu): one.metadata.name
            for one in self.pods.values()
            if one.bound and not one.ended and one.allocated is not None
            for gpu in one.allocated.ids
        }


class Plane:
    """One test's cluster: namespaces, nodes, claims, pods. ``group`` runs what the test starts."""

    def __init__(self, server: ApiServer, home: Path, group: TaskGroup, config: Config) -> None:
        self.server, self.home, self.group, self.config = server, home, group, config
        self.kubeconfig = server.kubeconfig(home / "kubeconfig")
        self.target: Connection = connection({"KUBECONFIG": str(self.kubeconfig)})
        self.client = Client(self.target, agent="test", concurrency=64)
        self.watcher = Watcher()
        self.namespace = f"team-{uuid.uuid4().hex[:8]}"
        self._claims: dict[tuple[str, str], Claim] = {}
        self._nodes: list[str] = []
        self._namespaces: list[str] = []
        self.cleanup: list[str] = []
        """Further objects that are deleted at the end, by path."""
        self._processes: list[subprocess.Popen[bytes]] = []

    # --- objects

    async def make_namespace(self, name: str) -> str:
        await self.client.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self._namespaces.append(name)
        return name

    async def node(
        self,
        name: str,
        gpus: int = 8,
        *,
        islands: int = 1,
        cpu: str = "64",
        labels: dict[str, str] | None = None,
        observed: str | None = None,
        status: dict[str, Any] | None = None,
    ) -> None:
        counted = {self.config.count_resource: str(gpus)} if self.config.count_resource else {}
        amounts = {"cpu": cpu, "memory": "512Gi", "pods": "200", **counted}
        if status is None:
            ready = [{"type": "Ready", "status": "True"}]
            status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
        about = {"name": name, "labels": {"kubernetes.io/hostname": name[:63], **(labels or {})}}
        await self.client.create("/api/v1/nodes", {"metadata": about, "status": status})
        # A node begins as not ready for the API server, and nobody here takes that taint away.
        await self.client.merge_patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})
        self._nodes.append(name)
        size = max(1, gpus // islands)
        devices = [
            {
                "id": n,
                "uuid": f"GPU-{name[:100]}-{n}",
                "island": f"nvlink-{n // size}",
                "bandwidthGBps": 450,
            }
            for n in range(gpus)
        ]
        await self.status_of(
            name,
            {"total": gpus, "devices": devices, **({"observedTime": observed} if observed else {})},
        )

    async def status_of(self, node: str, status: dict[str, Any]) -> None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GpuNodeStatus",
            "metadata": {"name": node},
            "spec": {"nodeName": node},
        }
        path = f"/apis/{names.API_VERSION}/gpunodestatuses"
        with suppress(Conflict):
            await self.client.create(path, body)
        await self.client.merge_patch(f"{path}/{node}/status", {"status": status})

    async def claim(
        self, name: str, count: int, *, namespace: str = "", gang: str = "", **spec: Any
    ) -> None:
        where = namespace or self.namespace
        raw = {"devices": {"count": count}, **({"gangRef": gang} if gang else {}), **spec}
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "GpuClaim",
            "metadata": {"name": name},
            "spec": raw,
        }
        await self.client.create(f"/apis/{names.API_VERSION}/namespaces/{where}/gpuclaims", body)
        self._claims[where, name] = Claim(
            namespace=where, name=name, uid="", spec=msgspec.convert(raw, Spec)
        )

    async def delete_claim(self, name: str) -> None:
        path = f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/gpuclaims/{name}"
        await self.client.delete(path)
        del self._claims[self.namespace, name]

    async def pod(
        self,
        name: str,
        claim: str,
        *,
        namespace: str = "",
        cpu: str = "10m",
        native: str = "",
        counted: int = 0,
        port: int = 0,
        spec: dict[str, Any] | None = None,
        owner: str = "",
        **annotations: str,
    ) -> None:
        """As our webhook would admit it. ``native``: the PodGroup that it is in; ``counted``: GPUs
        that it asks for itself, as one does whose claim comes later; ``port``: of the host;
        ``spec``: more of it;
        ``owner``: the uid of the controller that made it.
        """
        where = namespace or self.namespace
        said = {
            names.CLAIM_ANNOTATION: claim,
            **{names.PREFIX + k.replace("_", "-"): v for k, v in annotations.items()},
        }
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": said},
            "spec": {
                "containers": [
                    {"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu}}}
                ],
                "terminationGracePeriodSeconds": 0,
            },
        }
        body["spec"] |= spec or {}
        if port:
            body["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
        body["metadata"]["labels"] = {"of": claim}
        if owner:
            job = {"apiVersion": "batch/v1", "kind": "Job", "name": owner, "uid": owner}
            body["metadata"]["ownerReferences"] = [{**job, "controller": True}]
        if counted:
            asked = {self.config.count_resource: str(counted)}
            resources = body["spec"]["containers"][0]["resources"]
            resources |= {"limits": asked, "requests": {**resources["requests"], **asked}}
        if native:
            body["spec"]["schedulingGroup"] = {"podGroupName": native}
        verdict = admit(body, self._claims.get((where, claim)), self.config)
        assert not verdict.refused, verdict.refused
        body = json_patch(body, list(verdict.patch))
        await self.client.create(f"/api/v1/namespaces/{where}/pods", body)

    async def try_pod(
        self,
        name: str,
        *,
        claim: str,
        init: bool = False,
        annotations: dict[str, str] | None = None,
        **more: Any,
    ) -> Any:
        """As a user makes it; the object as it was stored. ``env``, ``envFrom`` and ``resources``
        are the container's.
        """
        container: dict[str, Any] = {"name": "main", "image": "none"}
        container |= {key: more.pop(key) for key in ("env", "envFrom", "resources") if key in more}
        spec: dict[str, Any] = {"containers": [container], **more}
        if init:
            spec["initContainers"] = [{"name": "i", "image": "none"}]
        about = {
            "name": name,
            "annotations": {names.CLAIM_ANNOTATION: claim, **(annotations or {})},
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
        where = f"/api/v1/namespaces/{self.namespace}/pods"
        said = json.loads(await self.client.create(where, body))
        if name == "probe":
            await self.client.delete(f"{where}/{name}", grace=0)
        return said

    async def serving(self, port: int) -> None:
        """Wait until one of our services says that it is ready."""

        async def ready() -> bool:
            try:
                async with httpx.AsyncClient(timeout=60) as http:
                    return (await http.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200
            except httpx.HTTPError:
                return False

        await self.until("the service is ready", ready)

    async def delete_pod(self, name: str, *, namespace: str = "") -> None:
        await self.client.delete(
            f"/api/v1/namespaces/{namespace or self.namespace}/pods/{name}", grace=0
        )

    async def read_pod(self, name: str, *, namespace: str = "") -> Pod:
        return await self.client.get(
            f"/api/v1/namespaces/{namespace or self.namespace}/pods/{name}", Pod
        )

    async def end_pod(self, name: str, phase: str = "Succeeded") -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        await self.client.merge_patch(path, {"status": {"phase": phase}})

    async def leases(self) -> dict[str, Lease]:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.config.lock_namespace}/leases"
        return {
            one.metadata.name: one
            async for page, _ in self.client.pages(path, Lease)
            for one in page
        }

    async def raw(self, path: str) -> Any:
        return await self.client.get(path, dict)

    # --- services

    async def extender(self, target: Connection | None = None, port: int = 0) -> Extending:
        """One as a task of this process."""
        made = Extending(self, target or self.target, port)
        await made.start()
        return made

    async def services(self, gates: str = "") -> Extending:
        """An extender, which it returns, a scheduler that asks it, and a controller."""
        extender = await self.extender()
        self.scheduler(extender.port, gates=gates)
        await self.controller()
        return extender

    async def controller(
        self, trap: Trap | None = None, target: Connection | None = None
    ) -> anyio.CancelScope:
        """One as a task of this process, which leads without asking."""
        scope, ready = anyio.CancelScope(), anyio.Event()
        self.group.start_soon(self._control, scope, ready, trap, target or self.target)
        await ready.wait()
        return scope

    async def _control(
        self, scope: anyio.CancelScope, ready: anyio.Event, trap: Trap | None, target: Connection
    ) -> None:
        with scope:
            client = Faulty(target, agent="gpu-scheduler-controller", concurrency=32)
            client.trap = trap
            async with client:
                state = GpuCache(client, self.config, gangs=True)
                acting = Controller(
                    client, self.config, state, GpuControllerMetrics(CollectorRegistry())
                )
                async with anyio.create_task_group() as group:
                    for one in state.reflectors:
                        group.start_soon(one.run)
                    for one in state.reflectors:
                        await one.wait_synced()
                    group.start_soon(acting.lead)
                    ready.set()

    def scheduler(
        self, port: int, name: str = "scheduler", kubeconfig: Path | None = None, gates: str = ""
    ) -> subprocess.Popen[bytes]:
        """A real kube-scheduler that asks the extender at ``port``."""
        folder = os.environ[ASSETS]
        access = str(kubeconfig or self.kubeconfig)
        made = scheduler_config(self.config, kubeconfig=access, port=port)
        made["leaderElection"] = {"leaderElect": False}
        (self.home / f"{name}.yaml").write_text(yaml.safe_dump(made))
        command = [
            f"{folder}/kube-scheduler",
            f"--config={self.home}/{name}.yaml",
            "--secure-port=0",
            "-v=2",
        ]
        return self._begin(name, [*command, *([f"--feature-gates={gates}"] if gates else [])])

    def _begin(self, name: str, command: list[str], **around: str) -> subprocess.Popen[bytes]:
        with (self.home / f"{name}.log").open("ab") as log:
            environ = os.environ | around
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environ)
        self._processes.append(process)
        return process

    def command(
        self,
        *arguments: str,
        name: str = "service",
        environment: dict[str, str] | None = None,
        configured: bool = True,
    ) -> subprocess.Popen[bytes]:
        """One of our services as a process of its own; ``configured``: with this test's
        configuration.
        """
        file = self.home / "config.yaml"
        file.write_bytes(msgspec.json.encode(self.config))
        command = [sys.executable, "-m", "preflight_gpu_scheduler", *arguments]
        command += ["--config", str(file)] if configured else []
        around = {"KUBECONFIG": str(self.kubeconfig), **(environment or {})}
        return self._begin(name, command, **around)

    def log(self, name: str = "scheduler") -> str:
        return (self.home / f"{name}.log").read_text()

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            for process in self._processes:
                if process.poll() is None:
                    process.send_signal(signal.SIGCONT)
                    process.kill()
                await anyio.to_thread.run_sync(process.wait)
            for path in self.cleanup:
                await self.client.delete(path)
            for name in self._namespaces:  # pods of one test would fill the nodes of another
                await self.client.delete(f"/api/v1/namespaces/{name}/pods", grace=0)
            for name in self._nodes:
                for path in ("/api/v1/nodes", f"/apis/{names.API_VERSION}/gpunodestatuses"):
                    with suppress(NotFound):
                        await self.client.delete(f"{path}/{name}")
            await self.client.__aexit__(None, None, None)

    # --- waiting

    async def until(
        self, what: str, fact: Callable[[], Any | Awaitable[Any]], seconds: float = PATIENCE
    ) -> Any:
        end = time.monotonic() + seconds
        while True:
            found = fact()
            if hasattr(found, "__await__"):
                found = await found
            if found:
                return found
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-3000:] for path in self.home.glob("*.log"))
                raise AssertionError(
                    f"not within {seconds} s: {what}; given {self.watcher.given}\n{logs}"
                )
            await anyio.sleep(0.02)

    async def placed(self, name: str, *, claim: str, count: int, gpus: int) -> Pod:
        """A pod with a claim for ``count`` GPUs, bound to the node ``a`` of ``gpus``, with all
        services at work.
        """
        await self.node("a", gpus)
        await self.claim(claim, count)
        extender = await self.extender()
        self.scheduler(extender.port)
        await self.controller()
        await self.pod(name, claim)
        return await self.bound(name)

    async def bound(self, name: str, *, namespace: str = "", seconds: float = PATIENCE) -> Pod:
        async def fact() -> Pod | None:
            pod = await self.read_pod(name, namespace=namespace)
            return pod if pod.bound else None

        found = await self.until(f"{name} is bound", fact, seconds)
        assert isinstance(found, Pod)
        return found

    async def said(
        self, reason: str, name: str = "", words: str = "", *, namespace: str = ""
    ) -> str:
        """The last Event of this reason that says so about an object whose name begins so; empty
        for none.
        """
        events = await self.raw(f"/api/v1/namespaces/{namespace or self.namespace}/events")
        found = [
            str(one["message"])
            for one in events["items"]
            if one["reason"] == reason
            and one["involvedObject"]["name"].startswith(name)
            and words in one["message"]
        ]
        return found[-1] if found else ""

    async def told(
        self, reason: str, name: str = "", words: str = "", *, namespace: str = ""
    ) -> str:
        """Wait until it is said."""
        said = partial(self.said, reason, name, words, namespace=namespace)
        return str(await self.until(f"{reason} is told", said))

    async def locked(self, number: int) -> None:
        """Wait until so many leases are there."""

        async def fact() -> bool:
            return len(await self.leases()) == number

        await self.until(f"{number} leases are there", fact)

    async def explained(self) -> None:
        """Wait until each lease is a bound, living pod's that names its GPU, and each such pod has
        all of its leases.
        """

        async def fact() -> bool:
            held = {one.gpu: one.holder for one in (await self.leases()).values()}
            given = {
                (one.allocated.node, gpu): uid
                for uid, one in self.watcher.pods.items()
                if one.bound and not one.ended and one.allocated is not None and one.claim
                for gpu in one.allocated.ids
            }
            return held == given

        await self.until("every lease is a living pod's", fact)


class Called(Extender):
    """An extender to which something may happen when it is asked to bind a pod, by name."""

    called: Callable[[str], Awaitable[None]]

    async def bind(self, args: ExtenderBindingArgs) -> BindingResult:
        await self.called(args.pod_name)
        return await super().bind(args)


class Extending:
    """An extender in this process, and its way to the API server."""

    def __init__(self, plane: Plane, target: Connection, port: int) -> None:
        self._plane, self._target, self.port = plane, target, port
        self.scope = anyio.CancelScope()
        self.state: GpuCache | None = None
        self.trap: Trap | None = None
        self.called: Callable[[str], Awaitable[None]] | None = None
        self._ended = anyio.Event()

    async def start(self) -> None:
        ready = anyio.Event()
        self._plane.group.start_soon(self._run, ready)
        await ready.wait()

    async def _run(self, ready: anyio.Event) -> None:
        plane = self._plane
        try:
            with self.scope:
                client = Faulty(self._target, agent="gpu-scheduler-extender", concurrency=64)
                client.trap = self._trapped
                async with client:
                    meters = ExtenderMetrics(CollectorRegistry())
                    self.state = state = GpuCache(client, plane.config)
                    executor = Executor(client, plane.config, state, meters)
                    extender = Called(client, plane.config, state, meters, executor)
                    extender.called = self._called

                    server = serving(Application(extender, meters), self.port)
                    async with anyio.create_task_group() as group:
                        for one in state.reflectors:
                            group.start_soon(one.run)
                        for one in state.reflectors:
                            await one.wait_synced()
                        group.start_soon(server.run)
                        await until(lambda: not server.unready(), "the extender serves")
                        self.port = server.port
                        ready.set()
        finally:
            self._ended.set()

    def sees(self, pod: tuple[str, str]) -> bool:
        return self.state is not None and self.state.pod(pod) is not None

    async def _trapped(self, verb: str, path: str) -> Callable[[], Awaitable[None]] | None:
        return await self.trap(verb, path) if self.trap is not None else None

    async def _called(self, pod: str) -> None:
        if self.called is not None:
            await self.called(pod)

    async def kill(self) -> None:
        """As if the process had died: whatever it was at is left as it is."""
        self.scope.cancel()
        await self._ended.wait()


@asynccontextmanager
async def plane(server: ApiServer, **config: Any) -> AsyncIterator[Plane]:
    """A fresh lock namespace and scheduler name; nodes are deleted at the end."""
    mark = uuid.uuid4().hex[:8]
    settings = {"lock_namespace": f"leases-{mark}", "scheduler_name": f"gpu-{mark}", **config}
    for definition in crds():
        await anyio.to_thread.run_sync(server.define, definition)
    with tempfile.TemporaryDirectory() as home:
        async with anyio.create_task_group() as group:
            made = Plane(server, Path(home), group, Config(**settings))
            try:
                await made.make_namespace(made.namespace)
                await made.make_namespace(made.config.lock_namespace)
                version = ""
                async for _, listed in made.client.pages("/api/v1/pods", Pod, limit=1):
                    version = listed
                watching = anyio.Event()
                group.start_soon(made.watcher.run, made.client, version, watching)
                await watching.wait()
                yield made
                assert made.watcher.doubles == []
            finally:
                group.cancel_scope.cancel()
                await made.close()


async def bind(world: Plane, port: int, name: str, seconds: float = 60) -> bool:
    """As kube-scheduler asks for it, to the node ``a``; whether the pod was bound."""
    pod = await world.read_pod(name)
    asked = {
        "PodName": name,
        "PodNamespace": world.namespace,
        "PodUID": pod.metadata.uid,
        "Node": "a",
    }
    async with httpx.AsyncClient(timeout=seconds) as http:
        answer = await http.post(f"http://127.0.0.1:{port}/bind", json=asked)
    assert answer.status_code == 200
    return not answer.json()["Error"]
