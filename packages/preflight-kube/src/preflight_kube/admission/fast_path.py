"""uvicorn's HTTP protocol, but for requests that can be answered where their last byte is read.

A review is answered from what is in memory. By way of ASGI it takes a task of its own, two turns of
the loop, and two messages, which leave in two TLS records: a good part of what it costs.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from preflight_kube.admission.connections import Bounded

LONGEST: Final = 128 * 1024
"""Bytes of a body that is kept here until it is whole; a longer one is the application's to bound
as it comes.
"""
_HEAD: Final = b"%scontent-type: %s\r\ncontent-length: %d\r\n%s\r\n"
_CLOSE: Final = b"connection: close\r\n"


class HttpAnswer(NamedTuple):
    """``last``: of this connection; the client's next request goes elsewhere."""

    status: int
    body: bytes
    content_type: bytes
    last: bool = False


class AtOnce(Bounded):
    """For an ASGI application whose ``at_once(scope, body)`` has the answer to a whole request, or
    None where that must go the way of ASGI. Whatever is out of the ordinary goes uvicorn's own way.
    """

    _due: Any = None

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        length = None
        for name, value in cycle.scope["headers"]:
            if name == b"content-length":
                length = int(value)
                break
        if (
            cycle.more_body
            and length is not None
            and length <= LONGEST
            and not cycle.waiting_for_100_continue
        ):
            self._due = cycle
        else:
            super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Of the parser: more of the body. uvicorn would stop reading at 64 KiB until somebody
        takes it.
        """
        if self._due is not None:
            self._due.body += body
        else:
            Bounded.on_body(self, body)

    def on_message_complete(self) -> None:
        """Answer at once where that is possible, else go on as uvicorn does."""
        cycle, self._due = self._due, None
        if cycle is None or cycle is not self.cycle or cycle.response_complete:
            Bounded.on_message_complete(self)
            return
        app = self.config.loaded_app
        answer = None if self.flow.write_paused else app.at_once(cycle.scope, cycle.body)
        if answer is None:
            Bounded.on_message_complete(self)
            super()._start_asgi_task(cycle, app)
            return
        self.open = cycle.more_body = False
        cycle.keep_alive = cycle.keep_alive and not answer.last
        end = b"" if cycle.keep_alive else _CLOSE
        head = _HEAD % (STATUS_LINE[answer.status], answer.content_type, len(answer.body), end)
        self.transport.write(head + answer.body)
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()
