"""Rounds of life in the cluster of the soak: workloads come, are checked, fail, move and go, and a
node turns sick and well. Schedulers, kubelets and the garbage collector are played here.
"""

from __future__ import annotations

import json
import time
import urllib.request
from typing import Any, Final

from preflight_testing import grove
from preflight_testing.helm import Object

from ..attack_requests import Attacked, merged
from .compute_domain_plugin import Plugin, allocated
from .load import BenchError, until

TEAM: Final = "team"
MADE: Final = (
    *("podgangs", "podcliques", "podcliquesets", "appwrappers", "pods", "gpuclaims"),
    *("computedomains", "resourceclaims", "resourceclaimtemplates", "configmaps", "events"),
)
"""All that a round leaves, by namespace."""
LOCKS: Final = "gpu-scheduler-leases/leases"
GPUS: Final = {"resources": {"limits": {"nvidia.com/gpu": "8"}}}
SICK: Final = "DcgmDiagnosticFailed"
LABEL: Final = "preflight.nvsentinel.nvidia.com/gpu-health"
PATIENCE: Final = 180.0


class SoakLife:
    """``extender``: its port; ``plugin``: the one of node n1."""

    def __init__(self, cluster: Attacked, extender: int, plugin: Plugin) -> None:
        self._cluster, self._extender, self._plugin = cluster, extender, plugin
        self._ask("PATCH", "nodes/n2/status", {"status": {"capacity": {"cpu": "4"}}})
        controller = cluster.who("token preflight-gpu-scheduler-controller")
        cluster.ask("DELETE", cluster.path(f"{LOCKS}/gpu-n1-0"), **controller)  # nobody's

    def play(self, number: int) -> None:
        """One round, after which nothing of it is left."""
        name = f"r{number}"
        self._wrap(name)
        self._condition(True)
        self._wait(lambda: self._phase(name) not in {"Running", ""}, f"wrapper {name} leaves n2")
        self._wait(lambda: self._label() == "EVICT", "node n2 is labelled")
        self._wait(lambda: self._health() == "Sick", "the NodeHealth of n2 says so")
        self._gang(name, passes=number % 2 == 0)
        self._gpus(name)
        self._channel(name)
        self._fabric(name)
        self._condition(False)
        self._wait(lambda: not self._label(), "node n2 is not labelled")
        self._wait(lambda: self._health() != "Sick", "the NodeHealth of n2 is well")
        self._run(name)
        self._set("team/pods", name, {"phase": "Succeeded"})
        self._wait(lambda: not self._read(f"{TEAM}/pods/{name}"), "the end of its pod")
        self.clear()

    def clear(self) -> None:
        """Delete all workloads; returns when they and the Leases of their GPUs have gone."""

        def left() -> list[str]:
            places = [
                f"{item['metadata']['namespace']}/{kind}"
                for kind in MADE
                for item in self._list(kind)
            ]
            for where in {*places}:  # and Events of that again
                self._ask("DELETE", where, {"gracePeriodSeconds": 0})
            return places

        self._wait(lambda: not left(), "all that was made has gone")
        self._wait(lambda: not self._list(LOCKS), "every GPU is free")

    # --- scenes

    def _wrap(self, name: str) -> None:
        spec = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x", **GPUS}]}
        about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        wrapped = {"components": [{"template": {**about, "spec": spec}}]}
        self._make(f"{TEAM}/appwrappers", {"metadata": {"name": name}, "spec": wrapped})
        self._run(name)
        self._wait(lambda: self._phase(name) == "Running", f"wrapper {name} runs")

    def _run(self, name: str) -> None:
        """The pod of a wrapper, once it is there, is bound and runs."""
        pod = self._wait(lambda: self._living(name), f"pod {name} is created")
        target = {"apiVersion": "v1", "kind": "Node", "name": "n2"}
        self._make(f"{TEAM}/pods/{name}/binding", {"metadata": {"name": name}, "target": target})
        passed = [{"terminated": {"exitCode": 0, "reason": "Completed"}} for _ in checks(pod)]
        self._check(pod, passed, "Running")

    def _gang(self, name: str, *, passes: bool) -> None:
        labels = {"app.kubernetes.io/gang-id": name, "app.kubernetes.io/gang-size": "2"}
        spec = {"nodeName": "n1", "containers": [{"name": "c", "image": "x", **GPUS}]}
        abouts = [{"name": f"{name}-{i}", "labels": labels} for i in range(2)]
        members = [self._make(f"{TEAM}/pods", {"metadata": o, "spec": spec}) for o in abouts]
        running: Object = {"running": {"startedAt": _now()}}
        for i, pod in enumerate(members, 1):
            states = [running, *({"waiting": {}} for _ in checks(pod)[1:])]
            self._check(pod, states, "Pending", ip=f"10.1.0.{i}")
        for pod in members:
            where = f"{TEAM}/pods/{pod['metadata']['name']}"
            self._wait(lambda: '"answer":"sealed"' in _roster(self._read(where)), "a sealed roster")  # noqa: B023
        for pod in members:
            ended = [_ended(check, passes) for check in checks(pod)]
            self._check(pod, ended, "Running" if passes else "Failed")

    def _gpus(self, name: str) -> None:
        """A pod is given two GPUs by the extender, as kube-scheduler asks for them, and ends."""
        called = f"{name}-gpus"
        about = {"name": called, "annotations": {"gpu.scheduling/claim": name}}
        claim = merged(self._cluster.objects["gpuclaim"], {"metadata": {"name": name}})
        self._make(f"{TEAM}/gpuclaims", claim)
        body = merged(self._cluster.objects["claim-pod"], {"metadata": about})
        pod = self._make(f"{TEAM}/pods", body)
        ask = {"Pod": pod, "NodeNames": ["n1"]}
        self._wait(lambda: self._extend("filter", ask)["NodeNames"], "filter passes node n1")
        self._extend("prioritize", ask)
        bind = {"PodName": called, "PodNamespace": TEAM, "PodUID": pod["metadata"]["uid"]}
        if error := self._extend("bind", {**bind, "Node": "n1"})["Error"]:
            raise BenchError(f"{called} was not bound: {error}")
        self._set(f"{TEAM}/pods", called, {"phase": "Succeeded"})

    def _channel(self, name: str) -> None:
        change = {"metadata": {"name": name}, "spec": {"numNodes": 0}}
        domain = merged(self._cluster.objects["computedomain"], change)
        uid = self._make("default/computedomains", domain)["metadata"]["uid"]
        where = f"default/computedomains/{name}"
        self._wait(lambda: self._read(where).get("status", {}).get("status") == "Ready", "a domain")
        claim = allocated(self._cluster.server, name, uid, "n1")
        with self._plugin.connected() as call:
            call("NodePrepareResources", claim)
            call("NodeUnprepareResources", claim)

    def _fabric(self, name: str) -> None:
        """A set, its PodCliques and PodGang, as Grove makes them; the domain is adopted."""
        about = {"name": name, "annotations": {"grove.io/mnnvl-enabled": "true"}}
        body = merged(self._cluster.objects["podcliqueset"], {"metadata": about})
        set_ = self._make(f"{TEAM}/podcliquesets", body)
        for clique in grove.made(set_, {}):
            self._make(f"{TEAM}/podcliques", grove.podclique(set_, clique, TEAM))
            self._wait(lambda: self._list(f"{TEAM}/computedomains"), "a domain of the set")
            self._make(f"{TEAM}/podgangs", grove.gang(clique.gang, set_))

        def adopted() -> bool:
            domains = self._list(f"{TEAM}/computedomains")
            return any(o["metadata"].get("ownerReferences") for o in domains)

        self._wait(adopted, "the domain's adoption")

    # --- nodes and pods

    def _condition(self, sick: bool) -> None:
        about = {"type": SICK, "reason": "Tested", "message": "GPU:0 x" if sick else ""}
        self._set("nodes", "n2", {"conditions": [{**about, "status": str(sick)}]})

    def _label(self) -> str:
        return str(self._read("nodes/n2")["metadata"].get("labels", {}).get(LABEL, ""))

    def _health(self) -> str:
        return str(self._read("nodehealths/n2").get("status", {}).get("state", ""))

    def _phase(self, name: str) -> str:
        return str(self._read(f"{TEAM}/appwrappers/{name}").get("status", {}).get("phase", ""))

    def _living(self, name: str) -> Object | None:
        pod = self._read(f"{TEAM}/pods/{name}")
        return pod if pod and "deletionTimestamp" not in pod["metadata"] else None

    def _check(self, pod: Object, states: list[Object], phase: str, *, ip: str = "") -> None:
        """Say how far a pod's checks are, as its kubelet does."""
        named = {"image": "x", "imageID": "x", "restartCount": 0, "ready": False}
        statuses = [
            {**named, "name": check, "state": state}
            for check, state in zip(checks(pod), states, strict=True)
        ]
        address = {"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}
        status = {"phase": phase, "initContainerStatuses": statuses, **address}
        self._set(f"{TEAM}/pods", pod["metadata"]["name"], status)

    def _end_pods(self) -> None:
        """What kubelets do with pods that are to go."""
        for pod in self._list("pods"):
            about = pod["metadata"]
            if "deletionTimestamp" in about:
                where = f"{about['namespace']}/pods/{about['name']}"
                self._ask("DELETE", where, {"gracePeriodSeconds": 0})

    # --- requests

    def _wait(self, holds: Any, what: str) -> Any:
        def held() -> Any:
            self._end_pods()
            return holds()

        return until(held, what, PATIENCE, 0.2)

    def _ask(self, method: str, what: str, body: Any = None) -> Any:
        media = "application/merge-patch+json" if method == "PATCH" else ""
        answer = self._cluster.ask(method, self._cluster.path(what), body, media=media)
        if answer.status >= 300 and not (answer.status == 404 and method in {"GET", "DELETE"}):
            raise BenchError(f"{method} {what}: {answer.status} {answer.words}")
        return answer.body

    def _make(self, where: str, body: Object) -> Object:
        created: Object = self._ask("POST", where, self._cluster.about(where) | body)
        return created

    def _set(self, where: str, name: str, status: Object) -> None:
        self._ask("PATCH", f"{where}/{name}/status", {"status": status})

    def _read(self, what: str) -> Object:
        """Empty where it is not there."""
        answer: Object = self._ask("GET", what)
        return {} if answer.get("code") == 404 else answer

    def _list(self, where: str) -> list[Object]:
        items: list[Object] = self._ask("GET", where)["items"]
        return items

    def _extend(self, verb: str, body: Object) -> Any:
        url = f"http://127.0.0.1:{self._extender}/{verb}"
        with urllib.request.urlopen(url, json.dumps(body).encode()) as answer:
            return json.loads(answer.read())


def checks(pod: Object) -> list[str]:
    return [check["name"] for check in pod["spec"].get("initContainers", ())]


def _roster(pod: Object) -> str:
    return str(pod["metadata"]["annotations"].get("preflight.nvsentinel.nvidia.com/roster", ""))


def _ended(check: str, passed: bool) -> Object:
    name = check.removeprefix("preflight-")
    outcome, code = ("passed", "") if passed else ("failed", "X")
    result = {
        **{"v": 1, "check": name, "outcome": outcome, "code": code, "gated": True},
        **{"duration": 1.0, "subject": "", "reason": "", "measured": None, "expected": None},
    }
    exit_ = {"exitCode": int(not passed), "reason": "Completed" if passed else "Error"}
    times = {"startedAt": _now(), "finishedAt": _now()}
    return {"terminated": {**exit_, **times, "message": json.dumps(result)}}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
