"""What is refused before any work is done on it."""

from __future__ import annotations

import json
import ssl
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from preflight_kube.admission import limits
from preflight_kube.admission.metrics import AdmissionMetrics
from preflight_kube.admission.review import AdmissionRequest, Response
from preflight_kube.admission.reviews import Reviews
from preflight_kube.auth.connection import Connection
from preflight_kube.client import budget
from preflight_kube.client.client import Client
from preflight_kube.clock import Clock
from preflight_testing.apidouble import ApiDouble
from preflight_testing.apidouble.store import Resource
from preflight_testing.attacks import sent
from prometheus_client import CollectorRegistry
from test_review import review


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}], **spec}}


def test_what_workloads_have_is_within_every_limit() -> None:
    env = [{"name": f"A{n}", "value": "x" * 1000} for n in range(100)]
    usual = pod(
        containers=[{"name": f"c{n}", "env": env} for n in range(40)],
        resourceClaims=[{"name": "c"}] * 16,
        tolerations=[{"key": "a"}] * 100,
    )
    assert limits.of_object(json.dumps(usual).encode()) == ""


def test_a_text_that_differs_from_a_small_one_in_digits_alone_is_not_gone_through_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [json.dumps(pod(note=f"a-{number}")) for number in (17, 42)]
    assert limits.of_object(texts[0].encode()) == ""
    monkeypatch.setattr(limits, "_small", lambda _: pytest.fail("it was gone through"))
    assert limits.of_object(texts[1].encode()) == ""


def test_digits_of_an_escape_that_spells_a_name_are_looked_at() -> None:
    long = "n" * (limits.NAME + 1)
    texts = [f'[{{"n\\u0{code}me": "{long}"}}]' for code in ("362", "061")]
    problems = [limits.of_object(text.encode()) for text in texts]
    assert (problems[0], "[0].name: has 318 characters" in problems[1]) == ("", True)


def test_problems_are_said_together_with_path_found_and_limit() -> None:
    whole = pod(
        x=[{"y": [0] * 5000}], containers=[{"name": "c"}] * 1025, z=[{}, {"name": "n" * 318}]
    )
    assert limits.of_value({"apiVersion": "v" * 400, **whole}).split("; ") == [
        "apiVersion: has 400 characters, more than the 317 that a webhook goes through",
        "shorten it. spec.containers: has 1025 entries, more than the 1024 that a webhook goes through",
        "use fewer. spec.z[1].name: has 318 characters, more than the 317 that a webhook goes through",
        "shorten it. spec.x[0].y: has 5000 entries, more than the 4096 that a webhook goes through",
        "use fewer.",
    ]
    many = {"a": [{"name": "n" * 400}] * 100}
    assert limits.of_value(many).count("characters") == 8


def test_a_long_text_that_is_no_name_is_no_problem() -> None:
    config_map = {
        "kind": "ConfigMap",
        "metadata": {},
        "data": {"name": "x" * 9000, "kind": "x" * 900},
    }
    assert (
        limits.of_object(json.dumps({"spec": {"components": [{"template": config_map}]}}).encode())
        == ""
    )


@pytest.mark.parametrize("opening", [b"{", b"["])
def test_a_text_is_measured_before_it_is_decoded(opening: bytes) -> None:
    assert "100001 objects and lists" in limits.of_object(msgspec.Raw(opening * 100_001))


names = st.sampled_from(["a", "n" * 317, "n" * 318, "n" * 2000])
tree = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.text('{}[],"\\', max_size=3) | names,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.sampled_from([1, 64, 65, 1024, 1025, 4096, 4097]).map(lambda n: [0] * n)
        | st.dictionaries(
            st.sampled_from(["spec", "containers", "metadata", "components", "name", "kind"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


def nested(levels: int) -> Any:
    made: Any = 0
    for _ in range(levels):
        made = [made]
    return made


def alternating(levels: int) -> Any:
    inner: Any = 0
    for level in range(levels):
        inner = [inner] if level % 2 else {"a": inner}
    return inner


def nested_beside(levels: int, before: str, after: str) -> Any:
    inner: Any = 0
    for _ in range(levels):
        inner = {"a": before, "spec": inner, "z": after}
    return inner


@given(st.dictionaries(st.sampled_from(["spec", "metadata", "components", "kind"]), tree))
@example({"metadata": {"name": '"' * 400}})
@example({"metadata": {"kind": "x", "name": "x" * 400, "value": "x" * 800}})
@example({"metadata": {}, "spec": [{"args": ["x" * 400], "value": "y" * 400, "name": "n" * 400}]})
@example({"spec": nested(126)})
@example({"spec": nested(127)})
@example({"spec": nested(400)})
@example({"spec": alternating(126)})
@example({"spec": alternating(127)})
@example({"spec": alternating(160)})
@example({"spec": alternating(253)})
@example({"spec": "{" * 200})
@example({"spec": nested_beside(126, "}", "{")})
@example({"spec": nested_beside(400, "}", "{")})
@example({"spec": nested_beside(400, '"}', '\\"{,')})
@example({"spec": nested_beside(400, "}]", "")})
def test_the_quick_look_passes_nothing_that_the_whole_one_refuses(whole: dict[str, Any]) -> None:
    for compact in ((",", ":"), None):  # as an API server writes it, and as people do
        text = json.dumps(whole, separators=compact).encode()
        assert limits.of_object(text) == limits.of_value(whole)


def test_a_name_whose_key_is_spelled_with_escapes_is_measured() -> None:
    text = b'{"metadata":{"na\\u006de":"%s"}}' % (b"x" * 318)
    assert "metadata.name: has 318 characters" in limits.of_object(text)


@pytest.mark.anyio
async def test_what_is_on_its_way_out_may_lose_its_finalizers_whatever_it_is() -> None:
    def beyond(**metadata: Any) -> bytes:
        stored = {"metadata": {"name": "a", **metadata}, "spec": {"x": [1] * 5000}}
        return json.dumps(review(operation="UPDATE", object=stored, oldObject=stored)).encode()

    async def never(request: AdmissionRequest) -> Response:
        raise AssertionError(request)

    reviews = Reviews({"/x": never}, AdmissionMetrics("t", CollectorRegistry()))
    assert (await sent(reviews, "/x", beyond()))["allowed"] is False
    going = beyond(deletionTimestamp="2026-01-01T00:00:00Z")
    assert (await sent(reviews, "/x", going))["allowed"] is True


@pytest.mark.anyio
async def test_reviews_of_one_address_ask_no_more_than_their_share_and_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "CALLER_AT_ONCE", 20)
    monkeypatch.setattr(limits, "CALLER_A_SECOND", 0)

    async def asking(request: AdmissionRequest) -> Response:
        for _ in range(10):
            budget.spend("get /x")
        return Response()

    reviews = Reviews({"/x": asking}, AdmissionMetrics("t", CollectorRegistry()))
    content = json.dumps(review()).encode()
    for address, statuses in (("10.0.0.1", [200, 200, 500, 500]), ("10.0.0.2", [200, 200, 500])):
        assert [await status_of(reviews, content, address) for _ in statuses] == statuses


async def status_of(reviews: Reviews, content: bytes, address: str) -> int:
    said: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/x",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "client": (address, 1),
    }
    await reviews(scope, receive, send)
    return int(said[0]["status"])


def test_what_was_sent_for_an_address_is_forgotten_with_time_and_few_addresses_are_kept() -> None:
    now = [0.0]
    callers = budget.Callers(2, 4, most=2, clock=Clock(lambda: now[0]))
    for _ in range(4):
        callers.count("a")
    assert callers.beyond("a")
    assert not callers.beyond("b")
    now[0] = 0.6
    assert not callers.beyond("a")
    callers.count("a")
    assert not callers.beyond("a")
    callers.count("b")
    callers.count("c")
    assert list(callers._sent) == ["b", "c"]


@pytest.mark.anyio
async def test_no_review_sends_more_than_sixteen_requests_however_its_application_asks() -> None:
    kinds = [Resource("v1", "namespaces", "Namespace", namespaced=False)]
    verify = ssl.create_default_context()
    async with (
        ApiDouble(kinds) as double,
        Client(Connection(double.url, verify), agent="t") as client,
    ):

        async def greedy(request: AdmissionRequest) -> Response:
            for n in range(int(request.name)):
                await client.get_or_none(f"/api/v1/namespaces/n{n}", dict)
            return Response()

        reviews = Reviews({"/x": greedy}, AdmissionMetrics("t", CollectorRegistry()))
        for name, allowed in (("17", False), ("16", True)):
            answer = await sent(reviews, "/x", json.dumps(review(name=name)).encode())
            assert answer["allowed"] is allowed
        await greedy(AdmissionRequest("u", None, None, "CREATE", name="20"))  # type: ignore[arg-type]
        assert client.requests.count["get"] == 16 + 16 + 20  # nobody else is counted
        answer = await sent(reviews, "/x", json.dumps(review(name="17")).encode())
        assert answer["status"]["message"] == (
            "the object cannot be judged: get /api/v1/namespaces/n16 would be more than the 16 requests that are sent for it; make it smaller."
        )
