"""What one review may cost the webhook and the API server."""

from __future__ import annotations

import tracemalloc
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace
from player import job, service
from preflight_appwrapper.api.rules import WrapperRules
from preflight_appwrapper.webhook.handler import Reviewer
from preflight_kube.admission.review import AdmissionRequest, Response, UserInfo
from preflight_kube.admission.review import GroupVersionKind as Kind
from preflight_kube.admission.review import GroupVersionResource as Resource
from preflight_kube.client.client import Client, NotFound
from preflight_kube.runtime.discovery import RESTMapper

pytestmark = pytest.mark.anyio


class Counting:
    """An API server that serves what it is asked for, where that may be, and counts requests."""

    def __init__(self, *, serves: bool = True) -> None:
        self.asked: list[str] = []
        self.serves, self.now = serves, 0.0

    def clock(self) -> float:
        return self.now

    async def get(self, path: str, type_: Any) -> Any:
        self.asked.append(path)
        if not self.serves:
            raise NotFound("there is none", 404, "NotFound")
        kinds = [{"name": f"k{i}s", "kind": f"K{i}", "namespaced": True} for i in range(64)]
        known = [
            {"name": "jobs", "kind": "Job", "namespaced": True},
            {"name": "services", "kind": "Service", "namespaced": True},
        ]
        return msgspec.convert({"resources": [*kinds, *known]}, type_)

    async def ask(self, path: str, body: object, type_: Any) -> Any:
        self.asked.append(path)
        return msgspec.convert({"status": {"allowed": True}}, type_)


def of(kind: int, version: int = 0) -> dict[str, Any]:
    about = {"apiVersion": f"g{version}.example/v1", "kind": f"K{kind}"}
    return {**about, "metadata": {"generateName": "x-"}}


async def answer(api: Counting, *templates: dict[str, Any]) -> Response:
    return await Reviewer(cast(Client, api), WrapperRules()).validate(request_of(*templates))


def request_of(*templates: dict[str, Any]) -> AdmissionRequest:
    raw = {
        "metadata": {"name": "w", "namespace": "ns"},
        "spec": {"components": [{"template": one} for one in templates]},
    }
    return AdmissionRequest(
        uid="1",
        kind=Kind("workload.codeflare.dev", "v1beta2", "AppWrapper"),
        resource=Resource("workload.codeflare.dev", "v1beta2", "appwrappers"),
        operation="CREATE",
        namespace="ns",
        user_info=UserInfo(username="anna"),
        object=msgspec.Raw(msgspec.json.encode(raw)),
    )


async def test_a_kind_is_asked_about_once_however_many_components_are_of_it() -> None:
    api = Counting()
    made = await answer(api, job(), *(service(f"s{i}") for i in range(63)))
    assert made.allowed, made
    assert len(api.asked) == 4  # two kinds, of two groups and versions


async def test_no_review_asks_more_than_sixteen_times() -> None:
    for kinds, versions in ((15, 1), (8, 8), (1, 1)):
        api = Counting()
        await answer(api, *(of(i, i % versions) for i in range(kinds)), *[of(0)] * 10)
        assert len(api.asked) == kinds + versions
    for kinds, versions in ((16, 1), (9, 8), (64, 64)):
        api = Counting()
        made = await answer(api, *(of(i, i % versions) for i in range(kinds)))
        assert not api.asked
        assert f"has {kinds} kinds of {versions} API groups and versions, and 16" in made.message
        assert "split it into several AppWrappers" in made.message


async def test_what_no_api_server_can_serve_is_asked_for_nowhere() -> None:
    api = Counting()
    kinds = RESTMapper(cast(Client, api))
    for group, version in (
        ("x" * 30_000, "v1"),
        ("x.io", "v" * 64),
        ("x.io", "v1" + "1" * 30_000),
        ("..", "v1"),
        ("x.io", ".."),
        ("a/b", "v1"),
        ("x%2e", "v1"),
        ("x?y", "v1"),
        ("x#y", "v1"),
        ("x.io\n", "v1"),
        ("X.io", "v1"),
        ("", ""),
    ):
        assert await kinds.find((group, version, "K0")) is None
    assert not api.asked
    assert await kinds.find(("x" * 253, "v" * 63, "K0")) is not None


async def test_what_was_asked_for_does_not_stay_for_ever() -> None:
    api = Counting(serves=False)
    kinds = RESTMapper(cast(Client, api))
    name = "g" * 240
    tracemalloc.start()
    try:
        kept = []
        for turn in range(4):
            for i in range(1000):
                assert await kinds.find((f"{name}{turn}-{i}", "v1", "K0")) is None
            api.asked.clear()
            kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert kept[-1] - kept[0] < 100_000  # a thousand more of them had 700,000 bytes


async def test_an_account_that_is_trusted_is_not_asked_about_and_others_are() -> None:
    api = Counting()
    rules = WrapperRules(trusted_users=frozenset({"anna"}))
    reviewer = Reviewer(cast(Client, api), rules)
    request = request_of(of(1))
    await reviewer.validate(request)
    assert not [one for one in api.asked if "subjectaccessreviews" in one]
    await reviewer.validate(replace(request, user_info=UserInfo(username="bob")))
    assert [one for one in api.asked if "subjectaccessreviews" in one]
