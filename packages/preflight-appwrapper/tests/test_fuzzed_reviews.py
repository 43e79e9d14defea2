"""Five thousand reviews that a careless or hostile client could cause: none is answered with a
fault of ours.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import msgspec
import pytest
from player import bare_pod, job, service, wrapper
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.webhook.handler import MUTATE, VALIDATE, Reviewer
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.reviews import Reviews
from preflight_kube.client.client import Client, NotFound
from prometheus_client import CollectorRegistry

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

REVIEWS = 5000
SERVED = {
    "/apis/batch/v1": [{"name": "jobs", "kind": "Job", "namespaced": True}],
    "/api/v1": [
        {"name": "pods", "kind": "Pod", "namespaced": True},
        {"name": "services", "kind": "Service", "namespaced": True},
        {"name": "namespaces", "kind": "Namespace", "namespaced": False},
    ],
}
JUNK: list[Any] = [
    None, True, -1, 0, 2**63, 2**200, 1e308, "", "x", "x" * 300, "\u0000", "\ud7ff", "💥", [], {}, [[]], [None], {"": {}},
    {"apiVersion": "v1"}, "../..", "template.spec", "template[99999999999]", "template.spec.template", "48h", "-0",
]  # fmt: skip


class Discovery:
    """What a cluster serves, and that everybody may create it."""

    def clock(self) -> float:
        return 0.0

    async def get(self, path: str, type_: Any) -> Any:
        if path not in SERVED:
            raise NotFound("there is none", 404, "NotFound")
        return msgspec.convert({"resources": SERVED[path]}, type_)

    async def ask(self, path: str, body: object, type_: Any) -> Any:
        return msgspec.convert({"status": {"allowed": True}}, type_)


def review(operation: str) -> dict[str, Any]:
    raw = wrapper(service(), job(), bare_pod())
    raw["spec"]["components"][1]["podSets"] = [{"path": "template.spec.template", "replicas": 2}]
    raw["metadata"]["labels"] = {"workload.codeflare.dev/user": "somebody"}
    request = {
        "uid": "0" * 36,
        "kind": {"group": "workload.codeflare.dev", "version": "v1beta2", "kind": "AppWrapper"},
        "resource": {
            "group": "workload.codeflare.dev",
            "version": "v1beta2",
            "resource": "appwrappers",
        },
        "operation": operation,
        "name": "w",
        "namespace": "ns",
        "userInfo": {"username": "author", "uid": "1", "groups": ["a"], "extra": {"k": ["v"]}},
        "object": raw,
        "oldObject": json.loads(json.dumps(raw)) if operation == "UPDATE" else None,
        "dryRun": False,
    }
    return {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": request}


def places(raw: Any) -> list[tuple[Any, Any]]:
    """Each container with each of its keys or indices."""
    found: list[tuple[Any, Any]] = []
    for key in (
        list(raw) if isinstance(raw, dict) else range(len(raw)) if isinstance(raw, list) else []
    ):
        found += [(raw, key), *places(raw[key])]
    return found


def fuzzed(chance: random.Random) -> bytes:
    made = review(chance.choice(["CREATE", "CREATE", "UPDATE", "DELETE"]))
    for _ in range(chance.randint(1, 4)):
        there = places(made)
        if not there:
            break
        holder, key = chance.choice(there)
        match chance.randint(0, 3):
            case 0:
                holder[key] = chance.choice(JUNK)
            case 1:
                del holder[key]
            case 2 if isinstance(holder, dict):
                holder[chance.choice(["spec", "template", "", "podSets", "labels"])] = holder[key]
            case _:
                holder[key] = [holder[key]] * chance.randint(0, 12)
    data = json.dumps(made).encode()
    if chance.random() < 0.1:
        cut = chance.randrange(len(data))
        data = data[:cut] + chance.choice([b"", b"\xff", b"{", data[cut:] + b"x", b"[" * 5000])
    return data


async def answered(reviews: Reviews, path: str, body: bytes) -> tuple[int, bytes]:
    said: list[Mapping[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        said.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "headers": headers,
        "query_string": b"timeout=10s",
    }
    await reviews(scope, receive, send)
    return int(said[0]["status"]), b"".join(one.get("body", b"") for one in said[1:])


async def test_no_review_is_answered_with_a_fault_of_ours_and_each_denial_has_a_sentence() -> None:
    chance = random.Random(20261122)  # the same reviews each time
    reviewer = Reviewer(cast(Client, Discovery()), WrapperRules())
    reviews = Reviews(reviewer.applications, AdmissionMetrics("appwrapper", CollectorRegistry()))
    seen: Counter[str] = Counter()
    for _ in range(REVIEWS):
        body = fuzzed(chance)
        for path in (MUTATE, VALIDATE):
            status, answer = await answered(reviews, path, body)
            if status != 200:
                assert 400 <= status < 500, (status, answer, body)
                assert answer.strip()
                seen["refused"] += 1
                continue
            response = json.loads(answer)["response"]
            if response["allowed"]:
                seen["allowed"] += 1
                continue
            told = response["status"]
            assert told["code"] < 500, (told, body)
            assert told["message"].rstrip().endswith((".", "again", "…")), told
            seen["denied"] += 1
    assert min(seen["refused"], seen["allowed"], seen["denied"]) > 100, seen
