"""Whoever watches in a bench goes on where a watch has ended, and begins anew where nobody knows
any more what happened since.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from preflight_e2e.bench.cluster import BenchServer
from preflight_e2e.bench.following import Follow


def pod(name: str, version: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": version}}


class Api(BaseHTTPRequestHandler):
    """Three watches: one ends, one is told that its version is too old, one goes on."""

    protocol_version = "HTTP/1.1"  # a client closes the connection of a watch itself
    asked: ClassVar[list[str]] = []
    over = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._answer()
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self) -> None:
        if "watch" not in self.path:
            found = {"metadata": {"resourceVersion": "9"}, "items": [pod("a", "7"), pod("b", "8")]}
            first = {"metadata": {"resourceVersion": "1"}, "items": []}
            self._say(first if "limit" in self.path else found)
            return
        self.asked.append(self.path.partition("resourceVersion=")[2].partition("&")[0])
        if len(self.asked) == 1:
            self._say({"type": "ADDED", "object": pod("a", "2")})
        elif len(self.asked) == 2:
            self._say({"type": "ERROR", "object": {"message": "too old"}})
        else:
            self._say({"type": "DELETED", "object": pod("a", "11")})
            self.over.wait(30)

    def _say(self, what: Any) -> None:
        line = json.dumps(what).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))

    def log_message(self, *_: object) -> None:
        pass


def test_a_watch_that_ends_goes_on_and_one_that_is_too_old_begins_with_all_that_is_there() -> None:
    served = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    thread = threading.Thread(target=served.serve_forever)
    thread.start()
    seen: list[tuple[str, str]] = []
    told = threading.Event()

    def see(type_: str, one: dict[str, Any]) -> None:
        seen.append((type_, one["metadata"]["name"]))
        if type_ == "DELETED":
            told.set()

    server = BenchServer(f"http://127.0.0.1:{served.server_address[1]}")
    follow = Follow(server, "/pods", see, dict[str, Any])
    assert told.wait(30)
    follow.close()
    Api.over.set()
    served.shutdown()
    thread.join()
    served.server_close()
    assert Api.asked == ["1", "2", "9"]
    assert seen == [("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "b"), ("DELETED", "a")]
