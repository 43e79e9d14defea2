"""The plain port: it answers whatever is connected to it."""

from __future__ import annotations

import contextlib
import errno
import gc
import http.client
import socket
import threading
import warnings
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from preflight_kube.runtime import health, ports
from preflight_kube.runtime.health import HealthServer
from preflight_kube.runtime.ports import PortTaken, listen
from prometheus_client import CollectorRegistry


@pytest.fixture
def server() -> Iterator[HealthServer]:
    made = HealthServer("127.0.0.1", 0, CollectorRegistry(), lambda: "", lambda: "not yet")
    yield made
    made.close()


def ask(server: HealthServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    line = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        line.request(method, path)
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def test_probes_and_metrics_are_answered(server: HealthServer) -> None:
    assert ask(server, "/healthz") == (200, b"ok\n")
    assert ask(server, "/readyz?x=1") == (503, b"not yet\n")
    assert ask(server, "/metrics")[0] == 200
    assert ask(server, "/else")[0] == 404
    assert ask(server, "/healthz", "POST")[0] == 405
    assert ask(server, "/healthz", "HEAD") == (200, b"")


def test_two_colons_are_all_addresses_of_both_families() -> None:
    try:
        server = HealthServer("::", 0, CollectorRegistry(), lambda: "", lambda: "")
    except PortTaken as error:
        pytest.skip(f"no IPv6 here: {error}")
    with contextlib.closing(server), contextlib.closing(listen("::", 0)) as tls:
        tls.listen()
        for host in ("127.0.0.1", "::1"):
            for port in (server.port, tls.getsockname()[1]):
                socket.create_connection((host, port), timeout=60).close()


def test_fifteen_hundred_idle_connections_take_neither_threads_nor_the_probes_answers(
    server: HealthServer,
) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(15):
            for _ in range(100):
                idle = stack.enter_context(
                    socket.create_connection(("127.0.0.1", server.port), timeout=60)
                )
                idle.send(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
            assert ask(server, "/healthz")[0] == 200
        assert threading.active_count() < 10


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\n"])
def test_who_does_not_go_on_is_cut_off(
    sent: bytes, server: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "REQUEST_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as line:
        line.send(sent)
        with contextlib.suppress(ConnectionResetError):
            assert line.recv(100) == b""


def test_a_header_without_end_is_cut_off(server: HealthServer) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as line,
        contextlib.suppress(OSError),
    ):
        line.sendall(b"GET / HTTP/1.1\r\nX: ")
        for _ in range(200):
            line.sendall(b"x" * 65536)
        pytest.fail("13 MB of one header were taken")
    assert ask(server, "/healthz")[0] == 200


def test_who_connects_while_the_server_ends_is_let_go_and_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(20):
            server = HealthServer("127.0.0.1", 0, CollectorRegistry(), str, str)
            with contextlib.ExitStack() as stack:
                for _client in range(20):
                    client = stack.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex(("127.0.0.1", server.port))
                server.close()
        gc.collect()
    assert ([str(warning.message) for warning in caught], caplog.text) == ([], "")


def test_a_family_of_addresses_that_the_node_does_not_have_is_a_port_that_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(*_: object) -> socket.socket:
        raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")

    without = SimpleNamespace(**{**vars(socket), "socket": refused})
    monkeypatch.setattr(ports, "socket", without)
    with pytest.raises(PortTaken, match=r"::1:0 cannot be listened on \(Address family not"):
        listen("::1", 0)
