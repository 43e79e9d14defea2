"""A cluster that is full of the largest objects there can be: a real API server, before which its
lists of some kinds have one object that it has stored, hundreds of times.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import trustme
from preflight_testing.apidouble import write_kubeconfig
from preflight_testing.apidouble.selectors import selection
from preflight_testing.apiserver import ApiServer

from .attack_requests import Attacked, at, merged

SIZE: Final = 1_000_000
"""Bytes of one object: of 1.5 MiB, in which an API server keeps who wrote each field, too."""

NAME: Final = "filled-"
_NAMESPACE: Final = re.compile(r"/namespaces/[^/]+(?=/)")
_HOPS: Final = {"connection", "transfer-encoding", "content-length", "host"}


def largest(base: dict[str, Any], shape: dict[str, Any], size: int = SIZE) -> dict[str, Any]:
    """``base`` in a ``shape`` of `memory.toml`, as large as may be: the entry at the last pointer
    of ``repeat`` as often as ``size`` bytes, or its own number, allow. ``#`` in it is its number,
    and ``"=#"`` that as no text.
    """
    body: dict[str, Any] = merged(json.loads(json.dumps(base)), shape["change"])
    for pointer, most in shape["repeat"].items():
        above, _, last = pointer.rpartition("/")
        into: Any = at(above, body)
        key: Any = int(last) if isinstance(into, list) else last
        entries = list(into[key].items() if isinstance(into[key], dict) else into[key])
        entry = next((entry for entry in entries if "#" in json.dumps(entry)), entries[-1])
        text = json.dumps(entry, separators=(",", ":"))
        room = (size - len(json.dumps(body, separators=(",", ":")))) // (len(text) + 4)
        numbers = range(max(1, min(most, room)))
        new = [json.loads(text.replace('"=#"', str(n)).replace("#", str(n))) for n in numbers]
        if isinstance(into[key], dict):
            others = {k: v for k, v in into[key].items() if "#" not in k}
            into[key] = others | dict(new)
        else:
            into[key] = new
    return body


def largest_of_each(
    cluster: Attacked, table: dict[str, Any], shape: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    """By the path of its collection, an object of each kind of `memory.toml`, in a shape that all
    can have, or one of its own.
    """
    of_all = {each["shape"]: each for each in table["everywhere"]}
    for kind in table["kinds"]:
        base = {**cluster.objects, **table["object"]}[kind["object"]]
        body = merged(cluster.about(kind["at"]) | base, kind.get("change", {}))
        text = json.dumps(body).replace(json.dumps(body["metadata"]["name"]), f'"{NAME}"')
        body = json.loads(text)
        namespace = kind["at"].rpartition("/")[0]
        body["metadata"] |= {"uid": "0000-00000", "resourceVersion": "1", "generation": 1}
        body["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z"}
        body["metadata"] |= {"namespace": namespace} if namespace else {}
        own = [*kind.get("own", ())]
        at_ = int(shape.removeprefix("own ")) if shape.startswith("own ") else 0
        chosen = of_all.get(shape) or (own[at_] if at_ < len(own) else None)
        path = _NAMESPACE.sub("", cluster.path(kind["at"]))
        yield path, largest(body, chosen) if chosen else body


class FilledCluster:
    """While it is entered, a server of its own at ``server``. ``objects``: by the path of a
    collection, an object as it is stored there, called :data:`NAME`. ``watched``: the collections
    of which somebody has read all ``count``, each of them twice.
    """

    def __init__(self, home: Path, behind: ApiServer, count: int) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.watched: set[str] = set()
        self.answering: set[int] = set()
        """By thread, which list or watch is being answered from what is full."""
        self.ended = threading.Event()
        self._texts: dict[str, tuple[str, str, str]] = {}
        self._home, self._behind, self._count = home, behind, count
        self._trusted = ssl.create_default_context(cafile=str(behind.ca))
        authority = trustme.CA()
        self._ca = home / "filled.crt"
        authority.cert_pem.write_to_path(str(self._ca))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        filled = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(OSError):
                    super().handle_one_request()
                    return
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                filled.answer(self)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.socket = context.wrap_socket(
            self._http.socket, server_side=True, do_handshake_on_connect=False
        )
        self._thread = threading.Thread(target=self._http.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def kubeconfig(self, path: Path, token: str) -> Path:
        """Write a kubeconfig that leads here."""
        server = f"https://127.0.0.1:{self._http.server_port}"
        return write_kubeconfig(path, server, ca=self._ca, user={"token": token})

    def text(self, path: str, number: int, version: int) -> bytes:
        """One object of a filled collection."""
        if path not in self._texts:
            about = self.objects[path]["metadata"]
            uid, old = f'"uid":"{about["uid"]}"', f'"resourceVersion":"{about["resourceVersion"]}"'
            text = json.dumps(self.objects[path], separators=(",", ":"))
            self._texts[path] = text, uid, old
        text, uid, old = self._texts[path]
        text = text.replace(f'"{NAME}"', f'"{NAME}{number}"')
        text = text.replace(uid, f'{uid[:-5]}{number:04}"', 1)
        return text.replace(old, f'"resourceVersion":"{version}"', 1).encode()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """A filled collection's, an object's of it, or what the API server answers."""
        url = urlsplit(request.path)
        path, query = _NAMESPACE.sub("", url.path), parse_qs(url.query)
        length = int(request.headers.get("Content-Length", 0))
        body = request.rfile.read(length)
        above, _, rest = path.partition(f"/{NAME}")
        if path in self.objects and request.command == "GET":
            self.answering.add(threading.get_ident())
            try:
                (self._watch if "watch" in query else self._list)(request, path, query)
            finally:
                self.answering.discard(threading.get_ident())
        elif above in self.objects and rest:
            number = int(rest.partition("/")[0])
            self._send(request, self.text(above, number, 2_000_000 + number))
        else:
            self._forward(request, body)

    def _selected(self, path: str, query: dict[str, list[str]]) -> int:
        labels, [fields] = query.get("labelSelector", [""]), query.get("fieldSelector", [""])
        with suppress(NotImplementedError):
            if not selection(labels[0], fields)(self.objects[path]):
                return 0
        return self._count

    def _list(
        self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]
    ) -> None:
        count, first = self._selected(path, query), int(query.get("continue", ["0"])[0])
        last = min(count, first + int(query.get("limit", ["500"])[0]))
        more = f',"continue":"{last}"' if last < count else ""
        items = b",".join(self.text(path, n, 1_000_000 + n) for n in range(first, last))
        about = f'{{"kind":"List","metadata":{{"resourceVersion":"1500000"{more}}},"items":['
        self._send(request, about.encode() + items + b"]}")

    def _watch(
        self, request: BaseHTTPRequestHandler, path: str, query: dict[str, list[str]]
    ) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        if int(query.get("resourceVersion", ["0"])[0]) < 2_000_000:
            for number in range(self._selected(path, query)):
                text = self.text(path, number, 2_000_000 + number)
                event = b'{"type":"MODIFIED","object":' + text + b"}\n"
                request.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
        self.watched.add(path)
        self.answering.discard(threading.get_ident())
        self.ended.wait()
        request.close_connection = True

    def _send(self, request: BaseHTTPRequestHandler, content: bytes) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def _forward(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        host = self._behind.server.removeprefix("https://")
        asked = http.client.HTTPSConnection(host, context=self._trusted)
        try:
            headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOPS}
            asked.request(request.command, request.path, body or None, headers)
            answer = asked.getresponse()
            request.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOPS | {"date"}:
                    request.send_header(name, value)
            request.send_header("Transfer-Encoding", "chunked")
            request.end_headers()
            while (piece := answer.read1(65_536)) and not self.ended.is_set():
                request.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            request.wfile.write(b"0\r\n\r\n")
        finally:
            asked.close()
