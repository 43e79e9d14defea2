"""An HTTP server's answers in JSON, for what stands in for a service that is not ours."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler


class JsonHandler(BaseHTTPRequestHandler):
    """Subclasses answer requests with :meth:`answer`; nothing is logged."""

    wbufsize = -1  # head and body in one piece

    def answer(self, what: object, status: int = 200) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass
