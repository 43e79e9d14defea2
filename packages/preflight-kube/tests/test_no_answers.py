"""What no API server says, and a proxy in front of one may: whoever asks gets one sentence."""

from __future__ import annotations

import gzip
import json
import ssl

import pytest
from anyio.abc import SocketStream
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_testing.apiserver import free_port
from test_http1 import served

pytestmark = pytest.mark.anyio

PAGE = b"<html><body>Please log in</body></html>\n"
PROXY = r"does a proxy stand in between\?"
ANSWERS: dict[str, tuple[int, bytes, dict[str, str], str]] = {
    "a page": (200, PAGE, {"Content-Type": "text/html"}, PROXY),
    "a list": (200, b"[1]", {}, PROXY),
    "half an object": (200, b'{"metadata":{', {}, PROXY),
    "nothing": (200, b"", {}, PROXY),
    "no content": (204, b"", {}, PROXY),
    "brackets without an end": (200, b"[" * 100_000, {}, PROXY),
    "packed": (200, gzip.compress(b"{}"), {"Content-Encoding": "gzip"}, PROXY),
    "too much": (200, b'{"x":"' + b"x" * 5000, {}, "has more than 4096 bytes"),
    "elsewhere": (302, b"", {"Location": "https://elsewhere.example.com/"}, "answered 302"),
    "elsewhere, by what is not an address": (
        302,
        b"",
        {"Location": "mailto:admin@example.com"},
        "answered 302",
    ),
    "elsewhere, by what is not a name": (302, b"", {"Location": "http://xn--/"}, "answered 302"),
    "a proxy's page of what it has not": (404, PAGE, {}, PROXY),
    "a proxy's object of what it has not": (404, b'{"error":"no route"}', {}, PROXY),
    "a proxy's page": (502, PAGE, {}, r"answered 502 \(<html>"),
    "a pause that is not a number": (503, b"", {"Retry-After": "nan"}, "answered 503"),
    "a refusal that is a list": (403, json.dumps([1]).encode(), {}, r"answered 403 \(\[1\]\)"),
}


@pytest.mark.parametrize(
    ("status", "body", "headers", "said"), ANSWERS.values(), ids=ANSWERS.keys()
)
async def test_an_answer_that_is_no_object_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, headers: dict[str, str], said: str
) -> None:
    for module in ("responses", "client") if "4096" in said else ():
        monkeypatch.setattr(f"preflight_kube.client.{module}.MOST_BYTES", 4096)
    lines = [f"{key}: {value}" for key, value in {"Content-Length": len(body), **headers}.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} Said", *lines, "", ""]).encode()

    async def serve(stream: SocketStream) -> None:
        async with stream:
            async for _ in stream:
                await stream.send(head + body)

    async with served(serve) as client:
        for asked in (
            client.get("/api/v1/namespaces/one", dict),
            client.create("/api/v1/namespaces", {"metadata": {"name": "one"}}),
        ):
            with pytest.raises(KubeError, match=said) as caught:
                await asked
            assert not isinstance(caught.value, NotFound), "nobody knows what there is"
            assert str(caught.value).endswith((".", "?"))


async def test_a_read_is_tried_as_often_as_the_client_is_told() -> None:
    target = Connection(f"http://127.0.0.1:{free_port()}", ssl.create_default_context())
    async with Client(target, agent="tests", attempts=2) as client:
        with pytest.raises(KubeError, match="no answer to get"):
            await client.get("/api/v1/namespaces/one", dict)
        assert client.requests.count["get"] == 2
