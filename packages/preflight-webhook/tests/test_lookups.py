"""The cache of resource claims: how often the API server is asked,
and what becomes of its answers.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import httpx
import pytest
from handled import handled
from preflight_kube.admission.limits import REQUESTS
from preflight_kube.admission.reviews import Unavailable
from preflight_kube.auth.connection import Connection
from preflight_kube.client import budget
from preflight_kube.client.client import Client
from preflight_webhook.core import limits
from preflight_webhook.core.detect.devices import DeviceClaim, Ref
from preflight_webhook.metrics import Metrics
from preflight_webhook.service import ATTEMPTS
from preflight_webhook.webhook.claim_lookups import Lookups

T = TypeVar("T")
OWN = Ref("resourceclaimtemplates", "own")
MADE = {
    "spec": {
        "spec": {
            "devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
            }
        }
    }
}
ABSENT = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "reason": "NotFound",
    "code": 404,
}
V1 = {"versions": [{"version": "v1beta1"}, {"version": "v1"}]}


def sent(answer: httpx.Response) -> httpx.Response:
    """As it comes over a wire: not yet read."""
    return httpx.Response(
        answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content)
    )


class Api:
    """An API server that counts what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.group: dict[str, Any] | None = V1
        self.answer: Callable[[httpx.Request], Awaitable[httpx.Response] | httpx.Response] = (
            lambda _: httpx.Response(200, json=MADE)
        )
        self.now, self.metrics = 100.0, Metrics()

    def lookups(self) -> Lookups:
        target = Connection("https://api", ssl.create_default_context(), "token")
        client = Client(target, agent="preflight-webhook", attempts=ATTEMPTS)
        return Lookups(client, self.metrics, clock=lambda: self.now)

    async def handle(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        assert request.headers["accept-encoding"] == "identity"  # nothing is unpacked
        if request.url.path == "/apis/resource.k8s.io":
            return sent(
                httpx.Response(404, text="404 page not found\n")
                if self.group is None
                else httpx.Response(200, json=self.group)
            )
        answer = self.answer(request)
        return sent(answer if isinstance(answer, httpx.Response) else await answer)

    def counted(self, result: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "preflight_webhook_lookups_total", {"result": result}
            )
            or 0.0
        )


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Api:
    made = Api()
    handled(monkeypatch, made.handle)
    return made


def run(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


def test_a_known_claim_takes_no_request_and_an_unknown_one_takes_one(api: Api) -> None:
    async def story() -> None:
        lookups = api.lookups()
        for _ in range(50):
            [claim] = (await lookups.claims("ml", [OWN])).values()
            assert claim is not None
            assert claim.requests[0].classes == ("gpu.nvidia.com",)
        path = "/apis/resource.k8s.io/v1/namespaces/ml/resourceclaimtemplates/own"
        assert api.asked == ["/apis/resource.k8s.io", path]
        await lookups.claims("other", [OWN])
        assert len(api.asked) == 3  # a namespace of its own

    run(story())
    assert (api.counted("found"), api.counted("known")) == (2, 49)


def test_a_pod_with_as_many_claims_as_it_may_have_takes_one_request_for_each(api: Api) -> None:
    async def story() -> None:
        refs = [Ref(OWN.plural, f"own-{i}") for i in range(limits.CLAIMS)]
        lookups = api.lookups()
        for _ in range(2):
            with budget.requests(REQUESTS):  # those of a review
                assert len(await lookups.claims("ml", [*refs, *refs])) == limits.CLAIMS
        assert len(api.asked) == 1 + limits.CLAIMS  # and which versions there are, for everybody

    run(story())
    assert limits.CLAIMS == 16


def test_known_claims_are_told_without_letting_another_request_in_between(api: Api) -> None:
    async def story() -> None:
        lookups = api.lookups()
        await lookups.claims("ml", [OWN])
        others: list[str] = []
        asyncio.get_running_loop().call_soon(others.append, "another request")
        await lookups.claims("ml", [OWN, OWN])
        assert others == []

    run(story())


def test_a_gang_of_128_created_at_once_takes_one_request(api: Api) -> None:
    async def slowly(_: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0)
        return httpx.Response(200, json=MADE)

    api.answer = slowly

    async def story() -> None:
        lookups = api.lookups()
        found = await asyncio.gather(*(lookups.claims("ml", [OWN]) for _ in range(128)))
        assert all(one[OWN] for one in found)

    run(story())
    assert len(api.asked) == 2


def test_one_that_gives_up_does_not_take_the_answer_from_the_others(api: Api) -> None:
    gate = asyncio.Event()

    async def held(_: httpx.Request) -> httpx.Response:
        await gate.wait()
        return httpx.Response(200, json=MADE)

    api.answer = held

    async def story() -> DeviceClaim | None:
        lookups = api.lookups()
        first = asyncio.create_task(lookups.claims("ml", [OWN]))
        second = asyncio.create_task(lookups.claims("ml", [OWN]))
        while len(api.asked) < 2:
            await asyncio.sleep(0)
        first.cancel()
        gate.set()
        return (await second)[OWN]

    assert run(story())


def test_a_claim_is_asked_for_again_after_five_seconds_and_an_absent_one_after_a_second(
    api: Api,
) -> None:
    async def story() -> None:
        lookups = api.lookups()
        await lookups.claims("ml", [OWN])
        api.now += 4
        await lookups.claims("ml", [OWN])
        assert len(api.asked) == 2
        api.now += 2
        api.answer = lambda _: httpx.Response(404, json=ABSENT)
        assert await lookups.claims("ml", [OWN]) == {OWN: None}
        before = len(api.asked)
        assert await lookups.claims("ml", [OWN]) == {OWN: None}
        assert len(api.asked) == before
        api.now += 1.1
        api.answer = lambda _: httpx.Response(200, json=MADE)
        assert (await lookups.claims("ml", [OWN]))[OWN]

    run(story())


def test_no_more_claims_are_kept_than_there_is_room_for(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preflight_webhook.webhook.claim_lookups.MOST_BYTES", 8 * 1024)

    async def story() -> None:
        lookups = api.lookups()
        for number in range(30):
            await lookups.claims("ml", [Ref(OWN.plural, f"claim-{number}")])

    run(story())
    kept = api.metrics.registry.get_sample_value("preflight_webhook_claims_kept")
    assert kept is not None
    assert 5 < kept < 15


def test_an_absent_group_is_an_empty_one_and_looked_for_again_after_a_minute(api: Api) -> None:
    api.group = None

    async def story() -> None:
        lookups = api.lookups()
        assert await lookups.claims("ml", [OWN]) == {OWN: None}
        api.now += 2
        assert await lookups.claims("ml", [OWN]) == {OWN: None}
        assert api.asked == ["/apis/resource.k8s.io"]
        api.now += 60
        api.group = V1
        assert (await lookups.claims("ml", [OWN]))[OWN]

    run(story())


@pytest.mark.parametrize(
    ("served", "asked"), [(["v1beta1", "v1beta2"], "v1beta2"), (["v1beta1"], "v1beta1")]
)
def test_the_newest_known_version_is_asked(api: Api, served: list[str], asked: str) -> None:
    api.group = {"versions": [{"version": one} for one in served]}
    run(api.lookups().claims("ml", [OWN]))
    assert f"/{asked}/" in api.asked[-1]


def refuse(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda _: httpx.Response(403), "does the ServiceAccount have get on it?"),
        (lambda _: httpx.Response(500), "answered 500"),
        (lambda _: httpx.Response(200, text="no json"), "cannot be read"),
        (refuse, "(ConnectError refused)"),
    ],
)
def test_what_cannot_be_found_out_is_told_and_not_kept(api: Api, answer: Any, says: str) -> None:
    async def story() -> None:
        lookups, api.answer = api.lookups(), answer
        with pytest.raises(Unavailable) as caught:
            await lookups.claims("ml", [OWN])
        assert says in str(caught.value)
        api.answer = lambda _: httpx.Response(200, json=MADE)
        assert (await lookups.claims("ml", [OWN]))[OWN]

    run(story())
    assert api.counted("failed") == 1


def test_versions_of_any_kind_are_passed_over(api: Api) -> None:
    api.group = {"versions": [{"version": ["v1"]}, {"version": {}}, {"version": "v1"}, {}, 1]}
    assert run(api.lookups().claims("ml", [OWN]))[OWN]


def test_an_api_server_that_hangs_is_given_up(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight_webhook.webhook.claim_lookups.PATIENCE", 0.05)

    async def hang(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    api.answer = hang
    with pytest.raises(Unavailable, match=r"no answer within 0.05 s"):
        run(api.lookups().claims("ml", [OWN]))


def test_whose_a_claim_is_and_which_comes_with_the_api_servers_answer(api: Api) -> None:
    claim = {
        **{
            "metadata": {"name": "train", "uid": "8f0c", "annotations": {"a": "b"}},
            "spec": MADE["spec"]["spec"],
        },
        "status": {"reservedFor": [{"resource": "pods", "name": "other", "uid": "1"}]},
    }
    api.answer = lambda _: httpx.Response(200, json=claim)

    async def story() -> DeviceClaim | None:
        [found] = (await api.lookups().claims("ml", [Ref("resourceclaims", "train")])).values()
        return found

    found = run(story())
    assert found is not None
    assert (found.uid, found.used_by) == ("8f0c", "other")
