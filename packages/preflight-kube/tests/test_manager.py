"""A service from start to end, as a process, the same against the double and a real
kube-apiserver.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from kube_world import Item, config_map, names
from preflight_kube import logs
from preflight_kube.auth.connection import Connection
from preflight_kube.cli.commands import BAD_INPUT, DONE, FAILED
from preflight_kube.client.client import Client, KubeError
from preflight_kube.runtime import manager
from preflight_kube.runtime.health import HealthServer
from preflight_kube.runtime.lease import Leadership
from preflight_kube.runtime.manager import Ended, Parts
from preflight_kube.runtime.reflector import Reflector
from preflight_kube.runtime.workqueue import Backoff
from preflight_testing import waiting
from preflight_testing.plugin import ApiFixture
from preflight_testing.proxy import proxied
from prometheus_client import CollectorRegistry

pytestmark = pytest.mark.anyio
until = partial(waiting.until, seconds=90)  # a process takes its time to start


class Managed:
    """A replica as a process."""

    def __init__(self, process: asyncio.subprocess.Process, out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err

    def said(self, message: str) -> list[dict[str, Any]]:
        text = self._out.read_text()
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [line for line in lines if line["msg"] == message]

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            return await http.get(f"http://127.0.0.1:{self.said('started')[0]['port']}{path}")

    async def ready(self) -> None:
        await until(lambda: self.said("started"), "it starts")
        while (await self.get("/readyz")).status_code != 200:
            assert self.process.returncode is None, self.stderr
            await asyncio.sleep(0.02)

    async def ends(self, number: signal.Signals | None = None) -> int:
        if number is not None:
            self.process.send_signal(number)
        return await asyncio.wait_for(self.process.wait(), 30)


@asynccontextmanager
async def managed(
    kubeconfig: Path, folder: Path, *arguments: str, name: str = "one"
) -> AsyncIterator[Managed]:
    out, err = folder / f"{name}.out", folder / f"{name}.err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(Path(__file__).with_name("managed.py")), *arguments),
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "POD_NAME": name},
        )
    try:
        yield Managed(process, out, err)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def by_way_of(through: Connection, api: ApiFixture, folder: Path) -> Path:
    """A kubeconfig for the test's API server, but by way of a proxy."""
    made = folder / "by-way-of"
    made.write_text(api.kubeconfig.read_text().replace(api.server, through.server))
    return made


@pytest.fixture
async def led(api: ApiFixture, client: Client) -> Callable[[int], Any]:
    """Waits until somebody has led so often in the test's namespace."""
    await client.create(api.path("configmaps"), config_map("marks"))

    async def often(times: int) -> None:
        marks: dict[str, Any] = {}
        while int(marks.get("data", {}).get("led", "0")) < times:
            marks = await client.get(api.path("configmaps", "marks"), dict)
            await asyncio.sleep(0.2)  # whoever wrote it has its answer then

    return often


async def test_a_replica_is_ready_leads_and_ends_with_0_at_sigterm_and_the_next_one_leads(
    api: ApiFixture, tmp_path: Path, led: Callable[[int], Any]
) -> None:
    async with (
        managed(api.kubeconfig, tmp_path, api.namespace, "lease", name="one") as one,
        managed(api.kubeconfig, tmp_path, api.namespace, "lease", name="two") as two,
    ):
        await one.ready()
        await two.ready()
        await until(lambda: one.said("leading") or two.said("leading"), "one of them leads")
        leader, other = (one, two) if one.said("leading") else (two, one)
        await led(1)
        assert not other.said("leading")
        assert (await leader.get("/healthz")).status_code == 200
        assert "tests_admission_reviews" in (await leader.get("/metrics")).text
        assert await leader.ends(signal.SIGTERM) == DONE
        assert [line["signal"] for line in leader.said("stopping")] == ["SIGTERM"]
        assert leader.said("released the lease")
        assert {line["component"] for line in leader.said("stopped")} == {"managed"}
        assert leader.stderr == ""
        await until(lambda: other.said("leading"), "the other one leads")
        await led(2)
        assert await other.ends(signal.SIGINT) == DONE


async def test_a_replica_is_not_ready_before_it_can_read_and_leads_again_after_it_lost_its_lease(
    target: Connection, api: ApiFixture, tmp_path: Path, led: Callable[[int], Any]
) -> None:
    async with proxied(target) as (proxy, through):
        proxy.cut(refuse=True)
        kubeconfig = by_way_of(through, api, tmp_path)
        async with managed(kubeconfig, tmp_path, api.namespace, "lease") as one:
            await until(lambda: one.said("watch failed, mirror is behind the cluster"), "it tries")
            answer = await one.get("/readyz")
            assert answer.status_code == 503
            assert "/api/v1/configmaps has been behind the cluster" in answer.text
            assert (await one.get("/healthz")).status_code == 200
            assert not one.said("leading")
            proxy.restore()
            await one.ready()
            await led(1)
            proxy.cut(refuse=True)
            await until(lambda: one.said("no longer leading"), "it stops acting")
            proxy.restore()
            await until(lambda: len(one.said("leading")) == 2, "it leads again")
            await led(2)
            assert await one.ends(signal.SIGTERM) == DONE


async def test_a_part_that_raises_ends_the_process_with_one_line_that_says_why(
    api: ApiFixture, client: Client, tmp_path: Path, led: Callable[[int], Any]
) -> None:
    async with managed(api.kubeconfig, tmp_path, api.namespace, "lease") as one:
        await one.ready()
        await client.create(api.path("configmaps"), config_map("raise"))
        assert await one.ends() == FAILED
        [line] = one.said("ended by a fault of its own; it is restarted, please report this line")
        assert line["error"].startswith("LookupError: the test wants it")
        assert "at" in line
        assert one.stderr == ""


# --- within this process


class Stopped(Exception):
    pass


async def stop(leadership: Leadership) -> None:
    raise Stopped


async def serving(target: Connection, parts: Callable[[Client], Parts]) -> None:
    async def build(client: Client) -> Parts:
        return parts(client)

    async with Client(target, agent="tests") as client:
        replica = manager._Replica(client, CollectorRegistry(), None, 0.0)
        await replica.run(build, "127.0.0.1", 0)


async def test_parts_that_ask_the_api_server_are_built_again_until_it_answers(
    target: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager, "_BUILDING", Backoff(0.01, 0.01))
    tries: list[int] = []

    def parts(client: Client) -> Parts:
        tries.append(1)
        if len(tries) < 3:
            raise KubeError("no answer")
        return Parts(lead=stop)

    with pytest.raises(ExceptionGroup) as raised:
        await serving(target, parts)
    assert raised.group_contains(Stopped)
    assert len(tries) == 3


async def test_without_an_election_it_acts_once_it_has_read_the_cluster(
    target: Connection, api: ApiFixture
) -> None:
    there: list[str] = []

    def parts(client: Client) -> Parts:
        namespaces = Reflector(client, "/api/v1/namespaces", Item)

        async def lead(leadership: Leadership) -> None:
            there.extend(names(namespaces.store.values()))
            await stop(leadership)

        return Parts(reflectors=[namespaces], lead=lead)

    with pytest.raises(ExceptionGroup):
        await serving(target, parts)
    assert api.namespace in there


async def brief(*_: Leadership) -> None: ...


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        (Parts(tasks={"the sweeper": brief}), "the sweeper has ended"),
        (Parts(lead=brief), "the leader's work has ended"),
    ],
    ids=["a task", "the leader's work"],
)
async def test_what_returns_is_a_fault_that_names_it(
    target: Connection, parts: Parts, why: str
) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await serving(target, lambda _: parts)
    assert raised.group_contains(Ended, match=why)


async def test_a_taken_port_is_said_in_one_sentence(
    target: Connection, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "set_up", lambda *_: None)  # pytest's own logging stays

    async def build(client: Client) -> Parts:
        return Parts()

    registry = CollectorRegistry()
    listener = HealthServer("127.0.0.1", 0, registry, str, str)
    how: dict[str, Any] = {
        "component": "tests",
        "registry": registry,
        "host": "127.0.0.1",
        "port": listener.port,
    }
    run = partial(manager.run, build, target, **how)
    try:
        status = await asyncio.get_running_loop().run_in_executor(None, run)
        said = capsys.readouterr().err
        assert (status, said.count("\n")) == (BAD_INPUT, 1)
        assert "cannot be listened on" in said
    finally:
        listener.close()


async def test_a_replica_whose_event_loop_is_stuck_is_neither_healthy_nor_ready() -> None:
    client = cast(Client, SimpleNamespace(mirrors=SimpleNamespace(trouble=lambda _: "")))
    replica = manager._Replica(client, CollectorRegistry(), None, 0.0)
    replica._parts = Parts()
    assert (replica.unhealthy(), replica.unready()) == ("", "")
    replica._beat -= manager.STUCK + 1
    assert replica.unhealthy().startswith("the event loop has not turned for ")
    assert replica.unready() == replica.unhealthy()
