"""What no API server says, and a proxy in front of one may: the commands end with one sentence."""

from __future__ import annotations

import gzip
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from preflight_webhook.cluster import kube
from preflight_webhook.cluster.kube import Client, Connection, KubeError

PAGE = b"<html><body>Please log in</body></html>\n"
PROXY = "does a proxy stand in between"
ANSWERS: dict[str, tuple[int, bytes, dict[str, str], str]] = {
    "a page": (200, PAGE, {"Content-Type": "text/html"}, PROXY),
    "a list": (200, b"[1]", {}, PROXY),
    "half an object": (200, b'{"metadata":{', {}, PROXY),
    "nothing": (200, b"", {}, PROXY),
    "brackets without an end": (200, b"[" * 100_000, {}, PROXY),
    "packed": (200, gzip.compress(b"{}"), {"Content-Encoding": "gzip"}, PROXY),
    "too much": (200, b'{"x":"' + b"x" * 5000, {}, "has more than 4096 bytes"),
    "elsewhere": (302, b"", {"Location": "https://elsewhere.example.com/"}, "answered 302"),
    "elsewhere, by what is no address": (302, b"", {"Location": "mailto:admin@example.com"}, "no answer to GET"),
    "elsewhere, by what is no name": (302, b"", {"Location": "http://xn--/"}, "no answer to GET"),
    "a proxy's page of what it has not": (404, PAGE, {}, PROXY),
    "a proxy's object of what it has not": (404, b'{"error":"no route"}', {}, PROXY),
    "a proxy's page": (502, PAGE, {}, r"answered 502 \(<html>"),
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
def answered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Client, str]]:
    """A client of a server that gives one answer, and words of the sentence that it makes of it."""
    monkeypatch.setattr(kube, "MOST_BYTES", 4096 if "4096" in request.param[3] else kube.MOST_BYTES)
    handler = type("Handler", (_Handler,), {"answer": request.param})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        target = Connection(f"http://127.0.0.1:{server.server_port}", ssl.create_default_context())
        with Client(target) as client:
            yield client, request.param[3]
        server.shutdown()
        thread.join()


def test_an_answer_that_is_no_object_is_one_sentence(answered: tuple[Client, str]) -> None:
    client, words = answered
    with pytest.raises(KubeError, match=words) as caught:
        client.get("/api/v1/namespaces/one")
    assert str(caught.value).endswith((".", "?"))
    with pytest.raises(KubeError, match=words.replace("GET", "POST")):
        client.create("/api/v1/namespaces", {"metadata": {"name": "one"}})
