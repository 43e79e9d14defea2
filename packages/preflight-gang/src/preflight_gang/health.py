"""/healthz, /readyz and /metrics on a plain port, from a thread of their own: a busy event loop still answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

__all__ = ["HealthServer"]

Probe = Callable[[], str]
"""Empty when all is well, else what is not."""


class HealthServer:
    """Serves from construction to :meth:`close`; ``port`` is the one it got. Raises OSError when it cannot listen."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry, healthy: Probe, ready: Probe) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, generate_latest(registry), CONTENT_TYPE_LATEST)
                    return
                probe = {"/healthz": healthy, "/readyz": ready}.get(self.path)
                if probe is None:
                    self._answer(404, b"there is /healthz, /readyz and /metrics\n")
                    return
                trouble = probe()
                self._answer(503 if trouble else 200, (trouble or "ok").encode() + b"\n")

            def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Probes come every few seconds: nothing to tell."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
