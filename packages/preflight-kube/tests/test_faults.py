"""What the layer does when it is refused: only the double can be made to do this at will."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from anyio.abc import SocketStream
from blockbuster import blockbuster_ctx
from kube_world import Item, Kept, config_map, serving
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client import transport
from preflight_kube.client.client import READ_ATTEMPTS, Client, KubeError
from preflight_kube.runtime.reflector import Reflector
from preflight_testing.apidouble import ApiAnswer, ApiDouble, ApiRequest
from preflight_testing.waiting import until
from test_http1 import served

pytestmark = pytest.mark.anyio

PATH = "/api/v1/namespaces/default/configmaps"


class Times:
    """A fault for the first so many requests of one method."""

    def __init__(self, count: int, method: str, answer: ApiAnswer) -> None:
        self.left, self.method, self.answer = count, method, answer

    def __call__(self, request: ApiRequest) -> ApiAnswer | None:
        if request.method != self.method or not self.left:
            return None
        self.left -= 1
        return self.answer


def busy(code: int = 429, **headers: str) -> ApiAnswer:
    said = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "busy",
        "reason": "TooManyRequests",
    }
    return ApiAnswer(
        code, {**said, "code": code}, tuple((k.replace("_", "-"), v) for k, v in headers.items())
    )


@pytest.fixture
async def double() -> AsyncIterator[ApiDouble]:
    async with ApiDouble() as made:
        made.create("configmaps", {"metadata": {"name": "one", "namespace": "default"}})
        yield made


@pytest.fixture
async def client(double: ApiDouble) -> AsyncIterator[Client]:
    async with Client(to(double), agent="tests") as made:
        yield made


def to(double: ApiDouble, **how: Any) -> Connection:
    return Connection(double.url, ssl.create_default_context(), **how)


def by_file(double: ApiDouble, token: Path) -> Connection:
    """By a token that stands in a file, as a pod has it."""
    said = token.read_text().strip()
    return to(double, token=said, files=(token,), again=lambda: by_file(double, token))


@pytest.mark.parametrize("code", [429, 503])
async def test_a_read_is_repeated_when_the_server_says_after_how_long(
    double: ApiDouble, client: Client, code: int
) -> None:
    double.fault = Times(2, "GET", busy(code, Retry_After="0"))
    assert (await client.get(f"{PATH}/one", Item)).metadata.name == "one"
    assert client.requests.count["get"] == 3


async def test_a_read_is_not_repeated_for_ever(double: ApiDouble, client: Client) -> None:
    double.fault = Times(100, "GET", busy(Retry_After="0"))
    with pytest.raises(KubeError, match="429"):
        await client.get(f"{PATH}/one", Item)
    assert client.requests.count["get"] == READ_ATTEMPTS


@pytest.mark.parametrize(
    "answer",
    [busy(500), busy(503), busy(403, Retry_After="0")],
    ids=["500 without a header", "503 without one", "403"],
)
async def test_another_refusal_of_a_read_is_final(
    double: ApiDouble, client: Client, answer: ApiAnswer
) -> None:
    double.fault = Times(1, "GET", answer)
    with pytest.raises(KubeError, match="busy"):
        await client.get(f"{PATH}/one", Item)
    assert client.requests.count["get"] == 1


async def dripping(stream: SocketStream) -> None:
    """Says yes to everything, and then a blank every few milliseconds."""
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream):
        async with stream:
            await stream.receive()
            await stream.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
            while True:
                await stream.send(b" ")
                await anyio.sleep(0.01)


async def test_an_answer_that_comes_byte_by_byte_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight_kube.client.client.LONGEST", 0.2)
    async with served(dripping) as client:
        for ask in (client.get(f"{PATH}/one", Item), client.create(PATH, config_map("one"))):
            with (
                anyio.fail_after(600),
                pytest.raises(KubeError, match=r"has not ended after 0\.2 s"),
            ):
                await ask


async def test_a_watch_that_never_ends_a_line_is_left() -> None:
    async with served(dripping) as client:
        client._timeout = 1
        with anyio.fail_after(600), pytest.raises(KubeError, match="has not ended after 2 s"):
            async with client.watch(PATH, Item, resource_version="1", seconds=1) as events:
                await anext(events)


async def test_an_answer_that_cannot_be_read_is_an_error_that_names_the_path(
    double: ApiDouble, client: Client
) -> None:
    double.fault = Times(1, "GET", ApiAnswer(200, {"metadata": {"name": 5}}))
    with pytest.raises(KubeError, match=f"{PATH}/one: .* cannot be read"):
        await client.get(f"{PATH}/one", Item)


@pytest.mark.parametrize(("age", "requests"), [(10.0, 3), (0.0, 2)], ids=["refused", "old"])
async def test_a_rotated_token_is_read_again_when_it_is_refused_and_when_its_file_has_changed(
    age: float, requests: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRUST_AGE", age)
    file = tmp_path / "token"
    file.write_text("old\n")
    async with (
        ApiDouble(token="old") as double,
        Client(by_file(double, file), agent="tests") as client,
    ):
        await client.create(PATH, config_map("one"))
        double.token = "new"
        file.write_text("new\n")
        await client.create(PATH, config_map("two"))
        assert client.requests.count["create"] == 2
        assert len(double.requests) == requests


async def test_a_token_that_comes_after_the_refusal_is_taken_at_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    async with (
        ApiDouble(token="new") as double,
        Client(by_file(double, file), agent="tests") as client,
    ):
        with pytest.raises(KubeError) as caught:
            await client.create(PATH, config_map("one"))
        assert caught.value.status == 401
        file.write_text("new\n")
        await client.create(PATH, config_map("one"))


async def test_a_plug_in_is_asked_again_before_its_certificate_has_ended() -> None:
    """Nobody has to be refused for that, as whose handshake a proxy ends without a word."""
    authority, former = trustme.CA(), trustme.CA()

    def by(url: str, ours: trustme.CA, **how: Any) -> Connection:
        verify = ssl.create_default_context()
        authority.configure_trust(verify)
        ours.issue_cert("gang.example.com").configure_cert(verify)
        return Connection(url, verify, **how)

    async with ApiDouble(tls=serving(authority, clients=authority)) as double:
        url = double.url
        ended = by(url, former, expires=time.time(), again=lambda: by(url, authority))
        async with Client(ended, agent="tests") as client:
            await client.create(PATH, config_map("one"))


async def test_a_pod_reaches_the_server_by_its_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("ours\n")
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.crt"))
    found = connection(
        {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}, tmp_path
    )
    assert (found.server, found.token) == ("https://[fd00::1]:6443", "ours")
    assert found.files == (tmp_path / "token", tmp_path / "ca.crt")


async def test_a_pod_without_a_token_is_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(KubeError, match="let the pod mount its ServiceAccount's token"):
        connection({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


@pytest.mark.parametrize("text", ["", "a: [", None])
async def test_a_file_that_is_no_kubeconfig_is_one_sentence(
    tmp_path: Path, text: str | None
) -> None:
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(KubeError, match=r"\(KUBECONFIG\): "):
        connection({"KUBECONFIG": str(path)})


async def test_nothing_in_the_layer_blocks_the_event_loop(
    tmp_path: Path, double: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("any")
    monkeypatch.setattr(transport, "TRUST_AGE", 0.0)
    client = Client(by_file(double, file), agent="tests")
    with blockbuster_ctx("preflight_kube"):
        async with client, anyio.create_task_group() as tasks:
            reflector = Reflector(client, PATH, Kept)
            tasks.start_soon(reflector.run)
            await reflector.synced.wait()
            await client.create(PATH, config_map("two"))
            await until(lambda: len(reflector.store) == 2, "the store follows")
            tasks.cancel_scope.cancel()


async def test_a_plug_in_s_certificate_that_is_refused_is_asked_for_anew_before_the_next_request() -> (
    None
):
    """The double believes everybody once the plug-in has been asked: it reads no certificate."""
    asked = 0
    async with ApiDouble(token="new") as double:
        old = Connection(double.url, ssl.create_default_context())

        def again() -> Connection:
            nonlocal asked
            asked += 1
            double.token = None
            return old

        async with Client(replace(old, again=again), agent="tests") as client:
            with pytest.raises(KubeError, match="401"):
                await client.get("/api/v1/namespaces/default", Item)
            await client.get("/api/v1/namespaces/default", Item)
            await client.get("/api/v1/namespaces/default", Item)
    assert asked == 1
