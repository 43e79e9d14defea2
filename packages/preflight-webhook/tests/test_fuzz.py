"""Thousands of reviews that nobody meant to send: each gets an answer or a clear refusal, and the
server goes on.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import yaml
from hypothesis import settings
from pods import judged, review
from preflight_webhook.config.config import parse
from preflight_webhook.core.detect.devices import DeviceClaim, Ref
from preflight_webhook.webhook.handler import Admission, ServingState

CONFIG = """
checks: [{name: dcgm-diag, image: d}, {name: nccl-loopback, image: l}, {name: nccl-allreduce, image: a, placement: last}]
skipNcclWithoutNetwork: false
ncclEnvPatterns: ['*', LD_PRELOAD]
ncclMountPatterns: ['*', /data*]
podSelection: {enabled: true}
gpuDetection: {deviceClasses: [gpu.nvidia.com]}
unresolvedClaims: allow
gangDiscovery: {optIn: [kubeflow, lws, jobset, grove, kueueWorkload, job]}
checkImagePullSecrets: [ours]
"""
POD = """
metadata:
  name: p
  labels: {app.kubernetes.io/gang-id: g, app.kubernetes.io/gang-size: "2", preflight.nvsentinel.nvidia.com/checked: "true"}
  annotations: {nvsentinel.nvidia.com/preflight-checks: "nccl-loopback,nccl-allreduce"}
  ownerReferences: [{kind: Job, uid: "1", controller: true}]
spec:
  schedulingGroup: {podGroupName: g}
  resourceClaims: [{name: c, resourceClaimTemplateName: t}]
  imagePullSecrets: [{name: s}]
  initContainers:
  - {name: i, restartPolicy: Always, resources: {requests: {cpu: "1"}}}
  - {name: preflight-dcgm-diag, image: x}
  containers:
  - name: main
    env: [{name: NCCL_TOPO_FILE, value: /data/t/x.xml}, {name: NCCL_ALGO, value: $(NCCL_PROTO)}, {name: NCCL_PROTO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    envFrom: [{prefix: NCCL_, configMapRef: {name: e}}]
    volumeMounts: [{name: t, mountPath: /data/t, subPath: s}, {name: shm, mountPath: /dev/shm}, {name: t, mountPath: /data/u, subPathExpr: $(A)}]
    resources: {limits: {nvidia.com/gpu: "8", cpu: "1", memory: 1Gi}}
    securityContext: {capabilities: {add: [IPC_LOCK]}}
  - {name: side, resources: {claims: [{name: c}]}}
  hostAliases: [{ip: 10.0.0.1, hostnames: [dcgm.a.svc]}]
  dnsConfig: {searches: [a], options: [{name: ndots, value: "5"}]}
  securityContext: {appArmorProfile: {type: Localhost, localhostProfile: x}}
  volumes: [{name: t, configMap: {name: t}}, {name: shm, emptyDir: {medium: Memory}}, {name: preflight-tmp, emptyDir: {}}]
"""
REVIEW = review(yaml.safe_load(POD), uid="u", dryRun=False)
ODD: list[Any] = [
    None, True, 0, -1, 1e308, "", "x", "preflight-x", "\u0000", "é" * 300, "1e999", "9" * 400, "-1", "1Ki", [], {}, [None],
    [{}], {"a": None}, [[[]]], {"name": 5}, "../..", "$(A)$(", "*[", "preflight.nvsentinel.nvidia.com/gang", 2**70,
]  # fmt: skip


class NoApiServer:
    def known(self, _: str, _refs: tuple[Ref, ...]) -> None:
        return None

    async def claims(self, _: str, refs: tuple[Ref, ...]) -> dict[Ref, DeviceClaim | None]:
        await asyncio.sleep(0)
        return dict.fromkeys(refs)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    children = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in children:
        yield (*path, key)
        yield from places(child, (*path, key))


KINDS: dict[str, Any] = {
    "null": None,
    "a bool": True,
    "a number": 7,
    "a string": "x",
    "a list": ["x"],
    "a list of lists": [["x"]],
    "a map": {"x": ["y"]},
    "nothing": ...,
}
"""What may stand in a JSON value's place; ... takes it away."""


def replaced(place: tuple[Any, ...], other: Any) -> bytes:
    """The review with ``other`` at one place of its pod."""
    strange = copy.deepcopy(REVIEW)
    *way, last = place
    there: Any = strange["request"]["object"]
    for key in way:
        there = there[key]
    if other is ...:
        del there[last]
    else:
        there[last] = other
    return json.dumps(strange).encode()


def mutated(chance: random.Random) -> bytes:
    """A review with some of its values replaced, removed, doubled or moved,
    or some of its bytes.
    """
    strange = copy.deepcopy(REVIEW)
    everywhere = [place for place in places(strange) if len(place) > 2 or chance.random() < 0.05]
    for _ in range(chance.randint(1, 3)):
        *way, last = chance.choice(everywhere)
        there: Any = strange
        try:
            for key in way:
                there = there[key]
            match chance.randint(0, 4):
                case 0:
                    del there[last]
                case 1 if isinstance(there, list):
                    there.append(there[last])
                case 2 if isinstance(there, dict):
                    there[chance.choice(["name", "preflight.nvsentinel.nvidia.com/x", "value"])] = (
                        there[last]
                    )
                case _:
                    there[last] = copy.deepcopy(chance.choice(ODD))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took it away
    body = bytearray(json.dumps(strange).encode())
    if chance.random() < 0.3:
        for _ in range(chance.randint(1, 5)):
            body[chance.randrange(len(body))] = chance.randrange(256)
    if chance.random() < 0.05:
        del body[chance.randrange(len(body)) :]
    return bytes(body)


async def posted(app: Admission, body: bytes, path: str) -> tuple[int, bytes]:
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        await asyncio.sleep(0)
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await app({"type": "http", "path": path, "method": "POST", "headers": headers}, receive, send)
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize("seed", range(5))
def test_strange_reviews_are_answered_or_refused(seed: int) -> None:
    chance, state = random.Random(seed), ServingState(parse(CONFIG))
    state.lookups = NoApiServer()  # type: ignore[assignment]

    async def story() -> set[int]:
        app, seen = Admission(state), set()
        for number in range(20 * settings().max_examples):
            body = mutated(chance)
            path = "/mutate-pod/confined" if number % 10 == 0 else "/mutate-pod"
            status, answer = await posted(app, body, path)
            assert status in {200, 400}, (body, answer)
            if status == 200:
                assert json.loads(answer)["response"]["allowed"] in {True, False}
            seen.add(status)
        return seen

    assert asyncio.run(story()) == {200, 400}


def test_the_pod_that_is_changed_gets_checks_that_inherit() -> None:
    decision, pod = judged(REVIEW["request"]["object"], parse(CONFIG), {})
    [loopback] = [
        c for c in pod["spec"]["initContainers"] if c["name"] == "preflight-nccl-loopback"
    ]
    assert decision.result == "injected"
    assert "/data/t" in [mount["mountPath"] for mount in loopback["volumeMounts"]]


@pytest.mark.parametrize("other", KINDS.values(), ids=KINDS)
def test_a_value_of_another_type_anywhere_in_a_pod_is_answered_or_refused(other: Any) -> None:
    state = ServingState(parse(CONFIG))
    state.lookups = NoApiServer()  # type: ignore[assignment]

    async def story() -> set[int]:
        app, statuses = Admission(state), set()
        for place in places(REVIEW["request"]["object"]):
            status, answer = await posted(app, replaced(place, other), "/mutate-pod")
            assert status in {200, 400}, (place, answer)
            statuses.add(status)
        return statuses

    assert 200 in asyncio.run(story())
