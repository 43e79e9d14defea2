"""The extender's port: plain HTTP for the kube-scheduler beside it, on loopback. Whoever can call
bind can place any pod.

Whatever a call is, its answer has status 200: the scheduler shows any other one as "failed filter
with status code 500".
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import anyio
import msgspec
import uvicorn
from preflight_kube.cli.commands import BadInput
from preflight_kube.logs import get_logger
from preflight_kube.runtime import ports

from preflight_gpu_scheduler.core import filter_prioritize
from preflight_gpu_scheduler.core.filter_prioritize import (
    BindingArgs,
    BindingResult,
    FilterArgs,
    FilterResult,
    PreemptionArgs,
    PreemptionResult,
)
from preflight_gpu_scheduler.metrics import ExtenderMetrics
from preflight_gpu_scheduler.webhook.extender import Answer, Extender

__all__ = ["Application", "listener", "serve"]

log = get_logger(__name__)
_HEAD: Final = [(b"content-type", b"application/json")]
_CALLS: Final[dict[str, tuple[type[Any], Callable[[str], Answer]]]] = {
    "filter": (FilterArgs, lambda why: FilterResult(error=why)),
    "prioritize": (FilterArgs, lambda _: ()),
    "preempt": (PreemptionArgs, lambda _: PreemptionResult()),
    "bind": (BindingArgs, BindingResult),
}
"""By verb, a method of the extender: what it gets, and the answer where something is wrong."""
FAULT: Final = "the extender failed at this; its log says where"
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Application:
    """An ASGI callable: /filter, /prioritize, /preempt, /bind."""

    def __init__(self, extender: Extender, metrics: ExtenderMetrics) -> None:
        self._extender, self._metrics = extender, metrics

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request of HTTP; uvicorn calls it."""
        verb, started = str(scope.get("path", "")).strip("/"), time.perf_counter()
        body = await _body(receive)
        try:
            answer, error = await self._answer(verb, body)
        except Exception:
            log.exception("a fault of this program", verb=verb)
            answer, error = _refused(verb, FAULT), FAULT
        known = verb if verb in _CALLS else "other"
        self._metrics.seconds.labels(known).observe(time.perf_counter() - started)
        self._metrics.calls.labels(known, "error" if error else "ok").inc()
        encoded = msgspec.json.encode(answer)
        head = [*_HEAD, (b"content-length", str(len(encoded)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": encoded})

    async def _answer(self, verb: str, body: bytes) -> tuple[Answer, str]:
        """The answer, and what is wrong."""
        if verb not in _CALLS:
            error = f"{verb:.40} is none of {', '.join(_CALLS)}"
            return _refused(verb, error), error
        args = filter_prioritize.read_call(body, _CALLS[verb][0])
        if isinstance(args, str):
            log.warning("call unreadable", verb=verb, error=args)
            return _refused(verb, args), args
        answer = getattr(self._extender, verb)(args)
        if verb == "bind":
            answer = await answer
        return answer, getattr(answer, "error", "")


def _refused(verb: str, why: str) -> Answer:
    return _CALLS[verb][1](why) if verb in _CALLS else BindingResult(why)


async def _body(receive: Receive) -> bytes:
    """The call's bytes; of one that is too long no more than shows that it is, though all of it is
    read.
    """
    kept: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        piece = message.get("body", b"")
        if size <= filter_prioritize.MOST_BODY:
            kept.append(piece)
        size += len(piece)
        if not message.get("more_body"):
            return b"".join(kept)


def listener(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host``, an address of this machine's loopback. Raises BadInput
    where it is another one, or cannot be had.
    """
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise BadInput(
            f"--listen: {host} is not a loopback address, and whoever can call bind can place any pod; use 127.0.0.1."
        )
    listening = ports.listen(host, port)
    listening.listen(1024)
    return listening


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the service's own handler stops it


async def serve(application: Application, listening: socket.socket) -> None:
    """Until cancelled, on a socket that is closed at the end."""
    config = uvicorn.Config(
        application,
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        http="httptools",
        timeout_keep_alive=300,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listening]))
    try:
        await asyncio.wait([serving])
        serving.result()
    finally:
        server.should_exit = True
        with anyio.CancelScope(shield=True):
            # Connections are closed; a bind under way has a moment to end.
            await asyncio.wait([serving])
        listening.close()
