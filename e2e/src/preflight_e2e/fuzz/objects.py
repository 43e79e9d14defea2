"""Objects without end from a seed: realistic ones, and what comes of them when anything in them may
be anything.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from preflight_e2e.bench.admission import pod as training_pod
from preflight_e2e.bench.cluster import PREFIX, addressed, member

from .shots import MERGE, Shot, deep, nested, pod_path
from .vectors import OPTED_IN, POLICY, STRAY, WORKLOADS, CustomKind, status

_OURS = (
    *("gang", "roster", "checked", "node-instance-type", "node-topology"),
    *("gang-id", "gang-source", "generation", "x"),
)
_TEXTS = (
    *("", " ", "\u0085", "a\u2028b", "\u202e", "a\x7f", "NaN", "1e400", "-1", "null", "{}", "[]"),
    *("0", "\ud7ff", "é" * 70, "x" * 64, "x" * 300, "x" * 20_000, "$(A)", "../../etc", "a/b/c"),
    *('{"v":99}', '{"v":1}', "true", "1Ei", "9" * 40),
)
CLAIM = CustomKind("resource.k8s.io/v1", "resourceclaims", "ResourceClaim")
TEMPLATE = CustomKind("resource.k8s.io/v1", "resourceclaimtemplates", "ResourceClaimTemplate")
_NUMBERS = (0, -1, 1, 2**31, 2**31 - 1, 2**63 - 1, -(2**63), 2**64, 10**30, 0.5, 1e300)


class Maker:
    """Stories of a few shots each; the same seed tells the same stories."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._seed, self._number = seed, 0

    def story(self) -> list[Shot]:
        """One object, and what happens to it: created, given a status as a kubelet gives it,
        changed, removed.
        """
        self._number += 1
        makers = (
            *(self._user_pod, self._user_pod, self._stray_pod, self._stray_pod, self._config_map),
            *(self._workload, self._policy, self._claim, self._namespace),
        )
        return list(self._random.choice(makers)(f"z{self._seed}-{self._number}"))

    def _user_pod(self, name: str) -> Iterator[Shot]:
        chance = self._random
        gang = f"g{chance.randrange(30)}" if chance.random() < 0.6 else ""
        template = "t" if chance.random() < 0.2 else ""
        pod = copy.deepcopy(training_pod(name, gang=gang, template=template))
        pod["spec"]["nodeName"] = f"node-{chance.randrange(8)}"
        if chance.random() < 0.4:
            group = chance.choice(WORKLOADS).api.partition("/")[0]
            labels = pod["metadata"].setdefault("labels", {})
            labels[f"{group}/pod-group"] = f"w{chance.randrange(9)}"
        pod = self._hostile(pod, keep=("metadata.name", "kind", "apiVersion"))
        yield Shot("pod", "POST", pod_path(OPTED_IN, dry=chance.random() < 0.2), pod)
        yield from self._lived(OPTED_IN, name)

    def _stray_pod(self, name: str) -> Iterator[Shot]:
        chance = self._random
        pod = member(STRAY, f"g{chance.randrange(30)}", chance.choice((1, 2, 3)), name)
        annotations = pod["metadata"]["annotations"]
        for _ in range(chance.randrange(3)):
            annotations[PREFIX + chance.choice(_OURS)] = self._text()
        if chance.random() < 0.5:
            sound = member(STRAY, "g1", 2, name)["metadata"]["annotations"][PREFIX + "gang"]
            annotations[PREFIX + "gang"] = json.dumps(self._mutated(json.loads(sound)))
        if chance.random() < 0.5:
            kept = ("metadata.name", "metadata.namespace", "kind", "apiVersion")
            pod = self._hostile(pod, keep=kept)
        yield Shot("pod", "POST", pod_path(STRAY), pod)
        yield from self._lived(STRAY, name)

    def _lived(self, namespace: str, name: str) -> Iterator[Shot]:
        chance = self._random
        if chance.random() < 0.7:
            body = addressed(chance.randrange(1, 60_000))
            if chance.random() < 0.5:
                body = {"status": self._mutated(body["status"])}
            yield Shot("status", "PATCH", pod_path(namespace, name) + "/status", body, MERGE)
        if chance.random() < 0.6:
            check = chance.choice(("dcgm-diag", "nccl-loopback", "nccl-allreduce", "x"))
            result = {"v": 1, "check": check, "outcome": "failed", "code": "X"}
            message = self._perhaps(result | {"gated": True, "duration": 1.0})[:4096]
            code = chance.choice((0, 1, 2, 137, 255))
            yield status(name, message, namespace=namespace, check=check, code=code)
        if chance.random() < 0.3:
            labels = {PREFIX + chance.choice(_OURS): chance.choice(("true", "", "x" * 63, None))}
            annotations = {PREFIX + chance.choice(_OURS): self._text()}
            patch = {"metadata": {"annotations": annotations, "labels": labels}}
            yield Shot("pod", "PATCH", pod_path(namespace, name), patch, MERGE)
        if chance.random() < 0.3:
            yield Shot("pod", "DELETE", pod_path(namespace, name) + "?gracePeriodSeconds=0")

    def _config_map(self, name: str) -> Iterator[Shot]:
        chance = self._random
        name = name if chance.random() < 0.5 else f"preflight-g{chance.randrange(30)}"
        meta = {
            "name": name,
            "labels": {"app.kubernetes.io/managed-by": "preflight-gang"},
            "annotations": {
                PREFIX + chance.choice(_OURS): self._text(),
                PREFIX + "gang-id": f"g{chance.randrange(30)}",
                PREFIX + "gang-source": "schedulingGroup",  # whose records have such names
            },
        }
        seat = {"uid": "u", "name": "n", "ip": "10.0.0.1", "node": "n", "attempt": 0}
        record = {"v": 1, "token": "t", "master_port": 29500, "control_port": 29501}
        keys = chance.sample(("peers", "generation", "master_addr", "x"), 2)
        data = {key: self._text() for key in keys}
        data["members"] = self._perhaps(record | {"members": [seat, seat]})
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap"}
        body |= {"metadata": meta, "data": data}
        if chance.random() < 0.3:
            body["immutable"] = True
        path = f"/api/v1/namespaces/{chance.choice((STRAY, OPTED_IN))}/configmaps"
        yield Shot("ConfigMap", "POST", path, body)
        if chance.random() < 0.5:
            yield Shot("ConfigMap", "DELETE", f"{path}/{name}")

    def _workload(self, name: str) -> Iterator[Shot]:
        chance = self._random
        kind = chance.choice(WORKLOADS)
        template = {"spec": {"parallelism": 2, "completions": 2, "template": {}}}
        spec = {
            "minMember": 2,
            "replicatedJobs": [{"name": "a", "replicas": 2, "template": template}],
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
        }
        meta = {"name": f"w{chance.randrange(9)}"}
        shot = kind.created(OPTED_IN, meta, spec=spec)
        kept = ("metadata.name", "metadata", "kind", "apiVersion")
        yield replace(shot, body=self._hostile(shot.body, keep=kept))
        path = kind.path(OPTED_IN, meta["name"])
        yield Shot(kind.kind, "PATCH", path, {"spec": self._mutated(spec)}, MERGE)
        if chance.random() < 0.5:
            yield Shot(kind.kind, "DELETE", path)

    def _policy(self, name: str) -> Iterator[Shot]:
        labels = {"gangIdLabel": "a/b", "gangSizeLabel": "a/c"}
        discovery = {"method": "auto", "labels": labels, "optIn": ["job"]}
        meta = {"name": name, "annotations": {"a": self._text()}}
        spec = self._mutated({"enforcement": "observe", "gangDiscovery": discovery})
        yield POLICY.created(OPTED_IN, meta, spec=spec)
        yield Shot("PreflightConfig", "DELETE", POLICY.path(OPTED_IN, name))

    def _claim(self, name: str) -> Iterator[Shot]:
        device = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}
        first = {"name": "a", "deviceClassName": "gpu.nvidia.com", "count": 1}
        either = {"name": "any", "firstAvailable": [first]}
        spec: Any = self._mutated({"devices": {"requests": [device, either]}})
        for kind, wrapped in ((CLAIM, spec), (TEMPLATE, {"spec": spec})):
            yield Shot(kind.kind, "DELETE", kind.path(OPTED_IN, "t"))
            yield kind.created(OPTED_IN, {"name": "t"}, spec=wrapped)

    def _namespace(self, name: str) -> Iterator[Shot]:
        value = self._random.choice(("enabled", "disabled", "", None, "x" * 63))
        patch = {"metadata": {"labels": {"nvsentinel.nvidia.com/preflight": value}}}
        yield Shot("Namespace", "PATCH", f"/api/v1/namespaces/{STRAY}-labels", patch, MERGE)

    def _hostile(self, body: dict[str, Any], keep: tuple[str, ...]) -> dict[str, Any]:
        """``body`` with a few places changed, but not those of ``keep``."""
        kept = {path: _at(body, path) for path in keep}
        changed = self._mutated(body)
        if not isinstance(changed, dict):
            return body
        for path, value in kept.items():
            *parents, last = path.split(".")
            place: Any = changed
            for parent in parents:
                if not isinstance(place.get(parent), dict):
                    place[parent] = {}
                place = place[parent]
            if value is not None:
                place[last] = value
        return changed

    def _perhaps(self, body: dict[str, Any]) -> str:
        """The text of ``body`` with a few places changed, or any other."""
        if self._random.random() < 0.7:
            return json.dumps(self._mutated(body))
        return self._text()

    def _mutated(self, body: Any) -> Any:
        body = copy.deepcopy(body)
        for _ in range(self._random.choice((0, 1, 1, 2, 4))):
            holders = [place for place in _holders(body) if place]
            if not holders:
                break
            holder = self._random.choice(holders)
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            key = self._random.choice(keys)
            match self._random.randrange(6):
                case 0 if isinstance(holder, dict):
                    del holder[key]
                case 1 if isinstance(holder, dict):
                    holder[self._text()[:300] or "k"] = holder[key]
                case 2 if isinstance(holder, list):
                    times = self._random.choice((1, 50))
                    holder.extend(copy.deepcopy(holder[key]) for _ in range(times))
                case _:
                    holder[key] = self._value()
        return body

    def _value(self) -> Any:
        nest = deep(self._random.choice((30, 300)))
        simple: tuple[Any, ...] = (None, True, [], {}, [None], {"a": None}, nest)
        text, number = self._text(), self._random.choice(_NUMBERS)
        return self._random.choice((text, number, self._random.choice(simple)))

    def _text(self) -> str:
        if self._random.random() < 0.1:
            return nested(self._random.choice((50, 600, 1_100, 5_000)), '{"v":1,"x":', "}")
        return self._random.choice(_TEXTS)


def _holders(body: Any) -> Iterator[Any]:
    if isinstance(body, dict):
        yield body
        for value in body.values():
            yield from _holders(value)
    elif isinstance(body, list):
        yield body
        for value in body:
            yield from _holders(value)


def _at(body: Any, path: str) -> Any:
    for step in path.split("."):
        body = body.get(step) if isinstance(body, dict) else None
    return body
