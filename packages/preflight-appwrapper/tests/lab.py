"""A namespace on a real control plane: wrappers in it, a stand-in for kubelets, and a watcher over
every version of everything.

The kubelets bind each pod, run it, and end it when it is deleted; a test says what else happens to
it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from player import PREFIX
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, Conflict, Invalid, KubeError, NotFound
from preflight_testing.apiserver import ApiServer
from versions import Seen, condition, problems

__all__ = ["condition"]

PATIENCE = 45.0
_WRAPPERS = "/apis/workload.codeflare.dev/v1beta2"


def appwrapper(
    *components: dict[str, Any], name: str = "w", suspend: bool = False, **annotations: str
) -> dict[str, Any]:
    """A manifest. ``components``: templates, or a whole component with what it declares."""
    wanted = {PREFIX + key: value for key, value in annotations.items()}
    every = [one if "template" in one else {"template": one} for one in components]
    return {
        "apiVersion": "workload.codeflare.dev/v1beta2",
        "kind": "AppWrapper",
        "metadata": {"name": name, "annotations": wanted},
        "spec": {"suspend": suspend, "components": every},
    }


@dataclass
class Lab:
    """``node``: where pods are put that name no scheduler. ``silent``: nodes without a kubelet.
    ``holds``: pods of which it is true stay pending. ``judged``: nobody writes a status by hand.
    ``created``: called once all that a scenario begins with runs.
    """

    server: ApiServer
    target: Connection
    client: Client
    namespace: str
    node: str = "node-a"
    silent: set[str] = field(default_factory=set)
    holds: Callable[[dict[str, Any]], bool] = lambda _: False
    judged: bool = True
    created: Callable[[], None] = lambda: None
    history: list[Seen] = field(default_factory=list)
    _pods: dict[str, dict[str, Any]] = field(default_factory=dict)

    # --- what a test does

    async def wrap(self, *components: dict[str, Any], **more: Any) -> None:
        await self.client.create(self.wrappers(), appwrapper(*components, **more))

    async def account(self, home: Path, rules: list[dict[str, Any]]) -> Client:
        """The account ``author``, with these rights by its group alone."""
        group, about = "rbac.authorization.k8s.io", {"metadata": {"name": "author"}}
        await self.client.create(self.path("", "serviceaccounts"), about)
        await self.client.create(self.path(f"{group}/v1", "roles"), {**about, "rules": rules})
        subject = {"apiGroup": group, "kind": "Group"}
        subject["name"] = f"system:serviceaccounts:{self.namespace}"
        role = {"apiGroup": group, "kind": "Role", "name": "author"}
        binding = {**about, "roleRef": role, "subjects": [subject]}
        await self.client.create(self.path(f"{group}/v1", "rolebindings"), binding)
        token = self.server.token_of(self.namespace, "author")
        kubeconfig = self.server.kubeconfig(home / "author", token)
        return Client(connection({"KUBECONFIG": str(kubeconfig)}), agent="tests")

    def wrappers(self, name: str = "") -> str:
        return f"{_WRAPPERS}/namespaces/{self.namespace}/appwrappers" + (f"/{name}" if name else "")

    def path(self, group: str, plural: str, name: str = "") -> str:
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    async def get(self, path: str) -> dict[str, Any] | None:
        return await self.client.get_or_none(path, dict[str, Any])

    async def wrapper(self, name: str = "w") -> dict[str, Any]:
        return await self.get(self.wrappers(name)) or {}

    async def events(self, *reasons: str) -> list[dict[str, Any]]:
        """Those of wrappers, with one of these reasons, or all."""
        found = (await self.get(self.path("", "events")) or {}).get("items", [])
        ours = [it for it in found if it["involvedObject"]["kind"] == "AppWrapper"]
        return [it for it in ours if not reasons or it["reason"] in reasons]

    def probe(self) -> dict[str, Any]:
        """The pod that :func:`.player.bare_pod` describes."""
        return next(it for it in self.pods() if it["metadata"]["name"].startswith("probe-"))

    async def suspend(self, value: bool, name: str = "w") -> None:
        await self.client.merge_patch(self.wrappers(name), {"spec": {"suspend": value}})

    async def annotate(self, name: str = "w", **annotations: str) -> None:
        wanted = {PREFIX + key: value for key, value in annotations.items()}
        await self.client.merge_patch(self.wrappers(name), {"metadata": {"annotations": wanted}})

    async def delete(self, name: str = "w") -> None:
        await self.client.delete(self.wrappers(name))

    def pods(self) -> list[dict[str, Any]]:
        return [one for one in self._pods.values() if "deletionTimestamp" not in one["metadata"]]

    async def ends(self, pod: dict[str, Any], *, code: int) -> None:
        """A container of the pod ends."""
        phase = "Failed" if code else "Succeeded"
        ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
        status = {
            "phase": phase,
            "containerStatuses": [
                {
                    "name": "main",
                    "image": "x",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
            ],
        }
        await self.client.merge_patch(
            self.path("", "pods", pod["metadata"]["name"]) + "/status", {"status": status}
        )

    async def label_node(self, name: str, **labels: str | None) -> None:
        wanted = {key.replace("__", "/").replace("_", "."): value for key, value in labels.items()}
        await self.client.merge_patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": wanted}})

    # --- what a test waits for

    async def until(self, what: Callable[[], Awaitable[Any]], said: str = "") -> Any:
        with anyio.move_on_after(PATIENCE):
            while True:
                found = await what()
                if found:
                    return found
                await anyio.sleep(0.02)
        wrapper = await self.wrapper()
        raise AssertionError(
            f"{said or 'it'} does not come: {json.dumps(wrapper.get('status'), indent=1)}"
        )

    async def phase(self, wanted: str, name: str = "w") -> dict[str, Any]:
        async def there() -> Any:
            found = await self.wrapper(name)
            return found if found.get("status", {}).get("phase") == wanted else None

        found: dict[str, Any] = await self.until(there, f"phase {wanted}")
        return found

    async def condition(self, type_: str, status: str, name: str = "w") -> dict[str, Any]:
        async def there() -> Any:
            return (
                found
                if (found := await self.wrapper(name))
                and condition(found, type_).get("status") == status
                else None
            )

        found: dict[str, Any] = await self.until(there, f"{type_}={status}")
        return found

    async def gone(self, path: str) -> None:
        async def absent() -> bool:
            return await self.get(path) is None

        await self.until(absent, f"the end of {path}")

    async def running(self, count: int) -> list[dict[str, Any]]:
        """That many pods run."""

        async def there() -> Any:
            found = [one for one in self.pods() if one.get("status", {}).get("phase") == "Running"]
            return found if len(found) == count else None

        found: list[dict[str, Any]] = await self.until(there, f"{count} running pods")
        return found

    async def anew(self, before: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        """That many pods run, and none of those ``before``."""
        old = {pod["metadata"]["uid"] for pod in before}

        async def there() -> Any:
            found = [one for one in self.pods() if one.get("status", {}).get("phase") == "Running"]
            fresh = not old & {one["metadata"]["uid"] for one in found}
            return found if fresh and len(found) == count else None

        found: list[dict[str, Any]] = await self.until(there, "a second generation of pods")
        return found

    async def first(self, what: str, true: Callable[[Seen], bool]) -> float:
        """When the first version of which ``true`` is true was seen, in seconds since the epoch;
        the watch may still have to bring it.
        """

        async def seen() -> Any:
            return [one.at for one in self.history if one.what == what and true(one)]

        return float(min(await self.until(seen, f"such a version of {what}")))

    # --- the stand-in for kubelets, and the watcher

    async def _follow(
        self, path: str, what: str, params: dict[str, str], started: anyio.Event
    ) -> None:
        version = ""
        async for _, at in self.client.pages(path, dict[str, Any], params=params):
            version = at
        while True:
            with suppress(KubeError):
                async with self.client.watch(
                    path, dict[str, Any], resource_version=version, params=params
                ) as events:
                    started.set()
                    async for event in events:
                        version = event.resource_version or version
                        if event.object is not None:
                            self.history.append(
                                Seen(int(version), what, event.type, event.object, time.time())
                            )
                            if what == "pods":
                                self._pod_changed(event.type, event.object)
            await anyio.sleep(0.1)

    def _pod_changed(self, type_: str, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if type_ == "DELETED":
            self._pods.pop(uid, None)
        else:
            self._pods[uid] = pod

    async def _kubelets(self) -> None:
        done: dict[str, str] = {}
        while True:
            for uid, pod in list(self._pods.items()):
                wanted = self._next(pod)
                if wanted and done.get(uid) != wanted:
                    done[uid] = wanted
                    try:
                        await self._do(wanted, pod)
                    except (NotFound, Conflict, Invalid):
                        done.pop(uid)
            await anyio.sleep(0.01)

    def _next(self, pod: dict[str, Any]) -> str:
        if "deletionTimestamp" in pod["metadata"]:
            return "" if pod["spec"].get("nodeName") in self.silent else "end"
        if self.holds(pod) or pod["status"].get("phase") != "Pending":
            return ""
        if pod["spec"].get("nodeName"):
            return "run"
        return "bind" if pod["spec"].get("schedulerName") == "default-scheduler" else ""

    async def _do(self, what: str, pod: dict[str, Any]) -> None:
        path = self.path("", "pods", pod["metadata"]["name"])
        if what == "bind":
            target = {"apiVersion": "v1", "kind": "Node", "name": self.node}
            body = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": pod["metadata"]["name"]},
                "target": target,
            }
            with suppress(KubeError):  # it answers with a Status, which is not an object
                await self.client.create(f"{path}/binding", body)
        elif what == "run":
            ready = [{"type": "Ready", "status": "True"}]
            await self.client.merge_patch(
                f"{path}/status", {"status": {"phase": "Running", "conditions": ready}}
            )
        else:
            await self.client.delete(path, uid=pod["metadata"]["uid"], grace=0)


@asynccontextmanager
async def lab(server: ApiServer, home: Path) -> AsyncIterator[Lab]:
    target = connection({"KUBECONFIG": str(server.kubeconfig(home / "kubeconfig"))})
    async with Client(target, agent="tests") as client:
        namespace = f"t-{uuid.uuid4().hex[:10]}"
        await client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        for node in ("node-a", "node-b"):
            with suppress(Conflict):  # another test's
                await client.create("/api/v1/nodes", {"metadata": {"name": node, "labels": {}}})
        made = Lab(server, target, client, namespace)
        watched = {
            "wrappers": made.wrappers(),
            "pods": made.path("", "pods"),
            "services": made.path("", "services"),
            "jobs": made.path("batch/v1", "jobs"),
            "deployments": made.path("apps/v1", "deployments"),
        }
        async with anyio.create_task_group() as group:
            for what, path in watched.items():
                started = anyio.Event()
                group.start_soon(made._follow, path, what, {}, started)
                await started.wait()
            group.start_soon(made._kubelets)
            yield made
            group.cancel_scope.cancel()
        found = problems(made.history) if made.judged else []
        assert not found, found[:5]
