"""Nodes and their kubelets: a pod's containers run one after the other as processes of this
machine.

No container, no image, no network or mount namespace: an image is a name in a table, and where a
variable's value lies under a mount's path, the process is given the folder that stands for it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from preflight_testing.apidouble.store import ApiRefused, Object, Resource, Store

from .scheduler import GPU, ended, gpus
from .volumes import KINDS, SOURCES, folder, project
from .volumes import field as field_of

REFRESH = (60.0, 70.0)
"""Seconds between two looks at a projected volume; a change of the pod's own annotations is one at
once.
"""
AT_ONCE = 0.25
"""Seconds that "at once" takes: a kubelet 1.36 was measured to take 0.20 to 0.31."""
CRASH_BACKOFF = (2.0, 30.0)
"""Seconds before a crashed container is started again: doubled each time, up to the second. A
kubelet takes 10 and 300.
"""
LEAST_GRACE = 2.0
"""Seconds that a kubelet gives at least between SIGTERM and SIGKILL."""
MAX_MESSAGE = 4096

_POD = {
    "containers",
    "initContainers",
    "volumes",
    "nodeName",
    "nodeSelector",
    "affinity",
    "restartPolicy",
    "hostNetwork",
}
_IGNORED = {
    "terminationGracePeriodSeconds",
    "securityContext",
    "imagePullPolicy",
    "resources",
    "terminationMessagePolicy",
}
_CONTAINER = {"name", "image", "command", "args", "env", "volumeMounts", "terminationMessagePath"}


def unimplemented(pod: Object, images: Iterable[str]) -> list[str]:
    """What the pod asks of a node that this double does not do, by name. ``images`` are those that
    have an entry point.
    """
    spec = pod["spec"]
    missing = sorted(f"spec.{name}" for name in spec.keys() - _POD - _IGNORED)
    missing += sorted(
        f"spec.affinity.{name}" for name in (spec.get("affinity") or {}).keys() - {"nodeAffinity"}
    )
    for kind in ("initContainers", "containers"):
        for c in spec.get(kind) or []:
            missing += sorted(
                f"spec.{kind}[{c['name']}].{name}" for name in c.keys() - _CONTAINER - _IGNORED
            )
            if c["image"] not in images and not c.get("command"):
                missing.append(f"spec.{kind}[{c['name']}].image {c['image']}")
            sources = {key for e in c.get("env") or [] for key in e.get("valueFrom", {})}
            missing += sorted(
                f"spec.{kind}[{c['name']}].env.valueFrom.{name}" for name in sources - {"fieldRef"}
            )
    for volume in spec.get("volumes") or []:
        missing += sorted(
            f"spec.volumes[{volume['name']}].{name}" for name in volume.keys() - KINDS - {"name"}
        )
        used = {key for source in volume.get("projected", {}).get("sources", []) for key in source}
        missing += sorted(
            f"spec.volumes[{volume['name']}].projected.{name}" for name in used - SOURCES
        )
    return missing


@dataclass
class SimulatedNode:
    """``root``: the folder that is its file system; ``environ``: what every process finds there;
    ``gpus``: UUIDs by index.
    """

    name: str
    address: str
    root: Path
    environ: Mapping[str, str]
    gpus: Sequence[str]
    labels: Mapping[str, str] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)

    def allocate(self, count: int) -> list[str]:
        given = [uuid for uuid in self.gpus if uuid not in self.held][:count]
        self.held.update(given)
        return given

    def as_object(self) -> Object:
        size = {GPU: str(len(self.gpus))}
        addresses = [{"type": "InternalIP", "address": self.address}]
        labels = {"kubernetes.io/hostname": self.name, **self.labels}
        status = {"allocatable": size, "capacity": size, "addresses": addresses}
        return {"metadata": {"name": self.name, "labels": labels}, "status": status}


@dataclass
class Kubelets:
    """All nodes' kubelets. ``images``: the command that an image's entry point stands for;
    ``logs``: one folder for all.
    """

    store: Store
    resources: Mapping[str, Resource]
    nodes: Mapping[str, SimulatedNode]
    images: Mapping[str, Sequence[str]]
    logs: Path
    pod_address: Callable[[], str]
    _pods: dict[str, tuple[_Pod, asyncio.Task[None]]] = field(default_factory=dict)

    async def run(self) -> None:
        """Look after pods for as long as this runs; when it is cancelled no process is left."""
        for node in self.nodes.values():
            created = self.store.create(self.resources["nodes"], "", node.as_object())
            self.store.update(
                self.resources["nodes"],
                created,
                created | {"status": node.as_object()["status"]},
                status=True,
            )
        try:
            while True:
                news = self.store.news
                self._sync()
                await news.wait()
        finally:
            tasks = [task for _, task in self._pods.values()]
            for task in tasks:
                if not task.cancelling():  # the end of the event loop has told all at once
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _sync(self) -> None:
        there = {
            p["metadata"]["uid"]: p
            for p in self.store.objects.get(self.resources["pods"], {}).values()
        }
        for uid, pod in there.items():
            if (
                uid not in self._pods
                and pod["spec"].get("nodeName") in self.nodes
                and not ended(pod)
            ):
                life = _Pod(self, pod, self.nodes[pod["spec"]["nodeName"]])
                self._pods[uid] = life, asyncio.create_task(life.live())
            elif (
                uid in self._pods
                and pod["metadata"].get("annotations") != self._pods[uid][0].annotations
            ):
                self._pods[uid][0].annotations = pod["metadata"].get("annotations")
                self._pods[uid][0].changed.set()
        for uid, (_, task) in self._pods.items():
            if uid not in there or "deletionTimestamp" in there[uid]["metadata"]:
                task.cancel()


class _Pod:
    """One pod's life on its node."""

    def __init__(self, kubelets: Kubelets, pod: Object, node: SimulatedNode) -> None:
        self.kubelets, self.node, self.spec = kubelets, node, pod["spec"]
        self.where = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self.annotations, self.changed = pod["metadata"].get("annotations"), asyncio.Event()
        self.root = node.root / "pods" / pod["metadata"]["name"]
        self.root.mkdir(parents=True, exist_ok=True)
        self.gpus = node.allocate(gpus(pod))
        self.folders = {
            v["name"]: folder(v, self.root, node.root) for v in self.spec.get("volumes") or []
        }
        address = node.address if self.spec.get("hostNetwork") else kubelets.pod_address()
        self.status: dict[str, Any] = {
            "phase": "Pending",
            "hostIP": node.address,
            "podIP": address,
            "startTime": _now(),
        }
        self.containers = {
            c["name"]: {k: c[k] for k in ("name", "image")}
            | {"imageID": "", "ready": False, "restartCount": 0}
            | _waiting()
            for c in (*self._listed("initContainers"), *self._listed("containers"))
        }

    async def live(self) -> None:
        refreshing = asyncio.create_task(self._refresh())
        try:
            self.patch_status()
            for container in self._listed("initContainers"):
                if await self._run(container, again_after_success=False) != 0:
                    self.patch_status(phase="Failed")
                    return
            self.patch_status(phase="Running")
            again = self.spec.get("restartPolicy", "Always") == "Always"
            ends = await asyncio.gather(
                *(self._run(c, again_after_success=again) for c in self._listed("containers"))
            )
            self.patch_status(phase="Failed" if any(ends) else "Succeeded")
        except (OSError, KeyError) as error:  # no such program, a full disk
            self.patch_status(
                phase="Failed", reason="NodeError", message=f"{self.node.name}: {error!r}"
            )
        finally:
            refreshing.cancel()
            self.node.held.difference_update(self.gpus)
            if (pod := self._pod()) and "deletionTimestamp" in pod["metadata"]:
                self.kubelets.store.delete(
                    self.kubelets.resources["pods"], pod, {"gracePeriodSeconds": 0}
                )

    def _listed(self, kind: str) -> list[dict[str, Any]]:
        return list(self.spec.get(kind) or [])

    def _pod(self) -> Object | None:
        pod: Object | None = self.kubelets.store.objects[self.kubelets.resources["pods"]].get(
            self.where
        )
        return pod

    def patch_status(self, **changes: Any) -> None:
        self.status |= changes
        if (pod := self._pod()) is None:
            return
        started = self.status["phase"] != "Pending"
        conditions = {
            "PodScheduled": True,
            "Initialized": started,
            "ContainersReady": started,
            "Ready": started,
        }
        listed = {
            f"{kind[:-1]}Statuses": [dict(self.containers[c["name"]]) for c in self._listed(kind)]
            for kind in ("initContainers", "containers")
        }
        entries = [{"type": name, "status": str(holds)} for name, holds in conditions.items()]
        status = (
            self.status | listed | {"podIPs": [{"ip": self.status["podIP"]}], "conditions": entries}
        )
        self.kubelets.store.update(
            self.kubelets.resources["pods"], pod, pod | {"status": status}, status=True
        )

    async def _refresh(self) -> None:
        while True:
            self._project()
            self.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(random.uniform(*REFRESH)):
                    await self.changed.wait()
                    await asyncio.sleep(AT_ONCE)

    def _project(self) -> None:
        def config_map(name: str) -> Object | None:
            with suppress(ApiRefused):
                return self.kubelets.store.get(
                    self.kubelets.resources["configmaps"], self.where[0], name
                )
            return None

        if pod := self._pod():
            for volume in self.spec.get("volumes") or []:
                if "projected" in volume:
                    project(volume, self.folders[volume["name"]], pod, config_map)

    async def _run(self, container: Object, *, again_after_success: bool) -> int:
        """Run it until it need not run again; its last exit status."""
        status, pause = self.containers[container["name"]], CRASH_BACKOFF[0]
        while True:
            code = await self._once(container, status)
            again = code != 0 and self.spec.get("restartPolicy", "Always") != "Never"
            if not again and not (code == 0 and again_after_success):
                return code
            self._end(
                status,
                {"state": _waiting("CrashLoopBackOff")["state"], "lastState": status["state"]},
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, CRASH_BACKOFF[1])
            status["restartCount"] += 1

    async def _once(self, container: Object, status: Object) -> int:
        result = self.root / f"{container['name']}.termination"
        result.write_text("")
        identity, started = f"process://{uuid.uuid4().hex}", _now()
        self._project()
        argv = [
            *(container.get("command") or self.kubelets.images[container["image"]]),
            *container.get("args", []),
        ]
        log = (
            self.kubelets.logs / f"{self.where[1]}.{container['name']}.{status['restartCount']}.log"
        )
        try:
            with log.open("wb") as out:
                starting = asyncio.create_task(
                    asyncio.create_subprocess_exec(
                        *argv,
                        env=self._environ(container, result),
                        stdout=out,
                        stderr=out,
                        cwd=self.root,
                        start_new_session=True,
                    )
                )
                process = await asyncio.shield(starting)
            self._end(
                status,
                {
                    "state": {"running": {"startedAt": started}},
                    "started": True,
                    "containerID": identity,
                },
            )
            code = await process.wait()
        except asyncio.CancelledError:  # a process that is just being started ends like any other
            await _stop(
                await starting, max(LEAST_GRACE, self.spec.get("terminationGracePeriodSeconds", 30))
            )
            raise
        code = code if code >= 0 else 128 - code
        end = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "message": result.read_text()[:MAX_MESSAGE],
        }
        end |= {"startedAt": started, "finishedAt": _now(), "containerID": identity}
        self._end(status, {"state": {"terminated": end}, "ready": code == 0})
        return code

    def _end(self, status: Object, changes: Object) -> None:
        status |= changes
        self.patch_status()

    def _environ(self, container: Object, result: Path) -> dict[str, str]:
        mounts = {
            m["mountPath"]: str(self.folders[m["name"]])
            for m in container.get("volumeMounts") or []
        }
        mounted = rf"^((?:unix://)?)({'|'.join(map(re.escape, mounts))})(?=/|$)"
        pod = self._pod() or {}
        values: dict[str, str] = {}
        for variable in container.get("env") or []:
            value = variable.get("value", "")
            if "valueFrom" in variable:
                value = field_of(pod, variable["valueFrom"]["fieldRef"]["fieldPath"])
            value = re.sub(r"\$\((\w+)\)", lambda match: values.get(match[1], match[0]), value)
            values[variable["name"]] = re.sub(
                mounted, lambda match: match[1] + mounts[match[2]], value
            )
        temporary = mounts.get("/tmp", str(self.root))
        visible = {
            "NVIDIA_VISIBLE_DEVICES": ",".join(self.gpus),
            "TMPDIR": temporary,
            "PREFLIGHT_RESULT_PATH": str(result),
        }
        return {**self.node.environ, **visible, **values}


async def _stop(process: asyncio.subprocess.Process, grace: float) -> None:
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), patience)
            return


def _waiting(reason: str = "PodInitializing") -> Object:
    return {"state": {"waiting": {"reason": reason}}}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
