"""What the layer does when it is refused: only the double can be made to do this at will."""

from __future__ import annotations

import asyncio
import base64
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme
from blockbuster import blockbuster_ctx
from kube_world import Item, Kept, config_map, serving
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client import transport
from preflight_kube.client.client import READ_ATTEMPTS, Client, KubeError
from preflight_kube.runtime.reflector import Reflector
from preflight_testing.apidouble import ApiAnswer, ApiDouble, ApiRequest, write_kubeconfig
from preflight_testing.waiting import until

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


@pytest.fixture
async def dripping() -> AsyncIterator[Connection]:
    """A server that says yes to everything, and then a blank every few milliseconds."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, EOFError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
            )
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.01)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield Connection(f"http://127.0.0.1:{port}", ssl.create_default_context())


async def test_an_answer_that_comes_byte_by_byte_is_left(
    dripping: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("preflight_kube.client.client.LONGEST", 0.2)
    async with Client(dripping, agent="tests") as client:
        for ask in (client.get(f"{PATH}/one", Item), client.create(PATH, config_map("one"))):
            with (
                anyio.fail_after(600),
                pytest.raises(KubeError, match=r"has not ended after 0\.2 s"),
            ):
                await ask


async def test_a_watch_that_never_ends_a_line_is_left(dripping: Connection) -> None:
    async with Client(dripping, agent="tests", timeout=1) as client:
        with anyio.fail_after(600), pytest.raises(KubeError, match="has not ended after 2 s"):
            await _watched(client)


async def _watched(client: Client) -> None:
    async with client.watch(PATH, Item, resource_version="1", seconds=1) as events:
        async for _ in events:
            raise AssertionError("no event was told")


async def test_a_write_that_is_turned_away_is_not_repeated(
    double: ApiDouble, client: Client
) -> None:
    double.fault = Times(1, "POST", busy(Retry_After="0"))
    with pytest.raises(KubeError) as caught:
        await client.create(PATH, config_map("two"))
    assert (caught.value.status, caught.value.reason) == (429, "TooManyRequests")
    assert client.requests.count["create"] == 1


async def test_an_answer_that_cannot_be_read_is_an_error_that_names_the_path(
    double: ApiDouble, client: Client
) -> None:
    double.fault = Times(1, "GET", ApiAnswer(200, {"metadata": {"name": 5}}))
    with pytest.raises(KubeError, match=f"{PATH}/one: .* cannot be read"):
        await client.get(f"{PATH}/one", Item)


async def test_what_the_double_does_not_implement_is_named(client: Client) -> None:
    with pytest.raises(KubeError, match=r"501 .*GET /api/v1/namespaces/default/pods/p/log"):
        await client.get("/api/v1/namespaces/default/pods/p/log", Item)


async def test_a_reflector_says_why_it_is_behind_and_recovers(
    double: ApiDouble, client: Client
) -> None:
    double.fault = Times(2, "GET", busy(403))
    reflector = Reflector(client, PATH, Kept)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reflector.run)
        await until(lambda: reflector.problem, "a problem")
        assert "busy" in str(reflector.problem)
        assert not reflector.synced.is_set()
        await reflector.synced.wait()
        await until(lambda: reflector.problem is None, "no problem")
        tasks.cancel_scope.cancel()


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


async def test_tls_is_verified_against_the_cluster_s_authority(tmp_path: Path) -> None:
    authority = trustme.CA()
    ca = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(str(ca))
    async with ApiDouble(tls=serving(authority)) as double:
        trusted = write_kubeconfig(tmp_path / "trusted", double.url, ca=ca)
        async with Client(connection({"KUBECONFIG": str(trusted)}), agent="tests") as client:
            await client.create(PATH, config_map("one"))
        stranger = write_kubeconfig(tmp_path / "stranger", double.url)
        async with Client(connection({"KUBECONFIG": str(stranger)}), agent="tests") as client:
            with pytest.raises(KubeError, match=r"no answer to create .*certificate verify failed"):
                await client.create(PATH, config_map("two"))


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


async def test_files_that_a_kubeconfig_names_are_found_beside_it_wherever_we_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    folder, elsewhere = tmp_path / "pki", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.mkdir()
    authority.cert_pem.write_to_path(folder / "ca.crt")
    ours = authority.issue_cert("gang.example.com")
    ours.cert_chain_pems[0].write_to_path(folder / "client.crt")
    ours.private_key_pem.write_to_path(folder / "client.key")
    (folder / "token").write_text("ours\n")
    user = {
        "client-certificate": "pki/client.crt",
        "client-key": "pki/client.key",
        "tokenFile": "pki/token",
    }
    async with ApiDouble(tls=serving(authority, clients=authority), token="ours") as double:
        path = write_kubeconfig(
            tmp_path / "kubeconfig", double.url, ca=Path("pki/ca.crt"), user=user
        )
        monkeypatch.chdir(elsewhere)
        found = connection({"KUBECONFIG": str(path)})
        async with Client(found, agent="tests") as client:
            await client.create(PATH, config_map("one"))
    names = ("ca.crt", "client.crt", "client.key", "token")
    assert set(found.files) == {folder / name for name in names}


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


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"exec": {"command": "login"}}, "its user's exec has no apiVersion"),
        ({"client-certificate-data": base64.b64encode(b"nonsense").decode()}, "cannot be used"),
        ({"tokenFile": "/nowhere/token"}, "cannot be used"),
    ],
)
async def test_a_user_that_cannot_log_in_is_one_sentence(
    tmp_path: Path, user: dict[str, Any], said: str
) -> None:
    path = write_kubeconfig(tmp_path / "kubeconfig", "https://127.0.0.1:1", user=user)
    with pytest.raises(KubeError, match=said) as caught:
        connection({"KUBECONFIG": str(path)})
    assert str(caught.value).startswith(f"{path} (KUBECONFIG): ")


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
