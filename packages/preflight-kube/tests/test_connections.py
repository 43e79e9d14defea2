"""Connections end with their use: what is cut off, replaced or given up leaves no socket behind."""

from __future__ import annotations

import gc
import ssl
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest
import trustme
from anyio.abc import SocketAttribute, SocketStream
from kube_world import Item, serving
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client import transport
from preflight_kube.client.client import Client
from preflight_testing.apidouble import ApiDouble

pytestmark = pytest.mark.anyio


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """No socket of the block waits for the garbage collector to close it."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    assert [str(one.message) for one in caught] == []


async def test_whoever_is_cut_off_during_the_handshake_leaves_no_connection() -> None:
    came, gone = anyio.Event(), anyio.Event()

    async def silent(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            came.set()
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await stream.receive()
            gone.set()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as group,
    ):
        group.start_soon(listener.serve, silent)
        target = Connection(
            f"https://127.0.0.1:{listener.extra(SocketAttribute.local_port)}",
            ssl.create_default_context(),
        )
        with nothing_left_open():
            async with Client(target, agent="tests") as client, anyio.create_task_group() as asking:
                asking.start_soon(client.get, "/api/v1/namespaces/default", Item)
                await came.wait()
                asking.cancel_scope.cancel()
            with anyio.fail_after(600):
                await gone.wait()
        group.cancel_scope.cancel()


async def test_connections_that_a_replaced_authority_made_old_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TRUST_AGE", 0.0)
    authority = trustme.CA()
    ca = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(ca)
    (tmp_path / "token").write_text("t")
    with ApiDouble(tls=serving(authority)) as double:
        environ = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(double.port),
        }
        with nothing_left_open():
            async with Client(connection(environ, tmp_path), agent="tests") as client:
                for round_ in range(3):
                    ca.write_text(authority.cert_pem.bytes().decode() + "\n" * round_)
                    path = "/api/v1/namespaces"
                    async with client.watch(path, Item, resource_version="", seconds=1) as events:
                        async for _ in events:
                            pass
                    await client.get(f"{path}/default", Item)
