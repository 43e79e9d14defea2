"""What no API server says, and a proxy in front of one may: whoever asks gets one sentence."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, KubeError, NotFound
from preflight_testing.apiserver import free_port

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


class _Handler(BaseHTTPRequestHandler):
    answer: tuple[int, bytes, dict[str, str], str]

    def do_GET(self) -> None:
        status, body, headers, _ = self.answer
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(params=list(ANSWERS.values()), ids=list(ANSWERS))
def answered(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Connection, str]]:
    """A server that gives one answer, and words of the sentence that a client makes of it."""
    if "4096" in request.param[3]:
        for module in ("responses", "client"):
            monkeypatch.setattr(f"preflight_kube.client.{module}.MOST_BYTES", 4096)
    handler = type("Handler", (_Handler,), {"answer": request.param})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield (
            Connection(f"http://127.0.0.1:{server.server_port}", ssl.create_default_context()),
            request.param[3],
        )
        server.shutdown()
        thread.join()


async def test_an_answer_that_is_no_object_is_one_sentence(
    answered: tuple[Connection, str],
) -> None:
    target, said = answered
    async with Client(target, agent="tests", attempts=1) as client:
        with pytest.raises(KubeError, match=said) as caught:
            await client.get("/api/v1/namespaces/one", dict)
        assert not isinstance(caught.value, NotFound), "nobody knows what there is"
        assert str(caught.value).endswith((".", "?"))
        with pytest.raises(KubeError, match=said.replace("get", "create")) as caught:
            await client.create("/api/v1/namespaces", {"metadata": {"name": "one"}})
        assert str(caught.value).endswith((".", "?"))


async def test_a_read_is_tried_as_often_as_the_client_is_told() -> None:
    target = Connection(f"http://127.0.0.1:{free_port()}", ssl.create_default_context())
    async with Client(target, agent="tests", attempts=2) as client:
        with pytest.raises(KubeError, match="no answer to get"):
            await client.get("/api/v1/namespaces/one", dict)
        assert client.requests.count["get"] == 2
