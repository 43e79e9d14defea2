"""Leader election, the same against the double and a real kube-apiserver."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.streams.text import TextReceiveStream
from kube_world import config_map, going
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, Fenced, NotFound
from preflight_kube.runtime.lease import Leadership, lead
from preflight_testing.plugin import ApiFixture
from preflight_testing.proxy import proxied
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

DURATION, RETRY = 1.5, 0.2


class Candidate:
    """One candidate within this process, and what it lived through."""

    def __init__(
        self, client: Client, api: ApiFixture, identity: str, duration: float = DURATION
    ) -> None:
        self.client, self.api, self.identity, self.duration = client, api, identity, duration
        self.led: list[Leadership] = []
        self.leads = False
        self.scope = anyio.CancelScope()
        self.finish = anyio.Event()

    async def run(self) -> None:
        with self.scope:
            await lead(
                self.client,
                namespace=self.api.namespace,
                name="leader",
                identity=self.identity,
                duration=self.duration,
                retry=RETRY,
                body=self.body,
            )

    async def begins(self, tasks: anyio.abc.TaskGroup) -> None:
        """Start it, and wait until it leads."""
        tasks.start_soon(self.run)
        await until(lambda: self.leads, f"{self.identity} leads")

    async def body(self, leadership: Leadership) -> None:
        self.led.append(leadership)
        self.leads = True
        try:
            await self.finish.wait()
        finally:
            self.leads = False


def lease_path(api: ApiFixture) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{api.namespace}/leases/leader"


async def spec_of(client: Client, api: ApiFixture) -> dict[str, Any]:
    spec: dict[str, Any] = (await client.get(lease_path(api), dict[str, Any]))["spec"]
    return spec


async def test_a_leader_that_is_cancelled_hands_over_at_once(
    client: Client, api: ApiFixture
) -> None:
    one, two = (Candidate(client, api, name, duration=900) for name in ("one", "two"))
    async with going() as tasks:
        await one.begins(tasks)
        tasks.start_soon(two.run)
        await anyio.sleep(2 * RETRY)
        one.scope.cancel()
        await until(lambda: two.leads, "the second leads, long before the lease runs out")
        assert not one.leads
        assert not one.led[0].valid()
        assert [leadership.epoch for leadership in one.led + two.led] == [1, 2]


async def test_a_body_that_ends_releases_the_lease(client: Client, api: ApiFixture) -> None:
    one = Candidate(client, api, "one")
    one.finish.set()
    async with going(one.run):
        await until(lambda: len(one.led) == 2, "it is a candidate again")
        assert [leadership.epoch for leadership in one.led] == [1, 2]
        assert not one.led[0].valid()
    assert (await spec_of(client, api))["holderIdentity"] == ""


async def test_what_the_body_raises_comes_out_after_the_release(
    client: Client, api: ApiFixture
) -> None:
    async def body(_: Leadership) -> None:
        raise LookupError("a bug")

    with pytest.raises(LookupError, match="a bug"):
        await lead(client, namespace=api.namespace, name="leader", identity="one", body=body)
    assert (await spec_of(client, api))["holderIdentity"] == ""


async def test_a_leader_that_cannot_renew_is_cancelled_before_its_time_is_over(
    target: Connection, client: Client, api: ApiFixture
) -> None:
    async with (
        proxied(target) as (proxy, through),
        Client(through, agent="tests") as cut_off,
        going() as tasks,
    ):
        one, two = Candidate(cut_off, api, "one"), Candidate(client, api, "two")
        await one.begins(tasks)
        tasks.start_soon(two.run)
        proxy.cut(refuse=True)
        await until(lambda: not one.leads, "the body is cancelled")
        assert not two.leads
        await until(lambda: not one.led[0].valid(), "its right to write has ended")
        await until(lambda: two.leads, "the second leads")
        proxy.restore()
        two.scope.cancel()
        await until(lambda: one.leads, "the first leads again")
        assert [leadership.epoch for leadership in one.led + two.led] == [1, 3, 2]
        assert [leadership.valid() for leadership in one.led] == [False, True]


@pytest.mark.parametrize("how", ["taken", "deleted"])
async def test_a_leader_whose_lease_is_lost_is_cancelled(
    client: Client, api: ApiFixture, how: str
) -> None:
    one = Candidate(client, api, "one", duration=15)
    async with going() as tasks:
        await one.begins(tasks)
        if how == "taken":
            other = {"holderIdentity": "another", "leaseTransitions": 7}
            await client.merge_patch(lease_path(api), {"spec": other})
        else:
            await client.delete(lease_path(api))
        await until(lambda: not one.leads, "the body is cancelled")
        await until(lambda: not one.led[0].valid(), "its right to write has ended")


async def test_a_lease_deleted_under_its_leader_lets_nobody_in_before_the_leader_knows(
    target: Connection, client: Client, api: ApiFixture
) -> None:
    async with (
        proxied(target) as (proxy, through),
        Client(through, agent="tests") as cut_off,
        going() as tasks,
    ):
        one, two = Candidate(cut_off, api, "one"), Candidate(client, api, "two")
        await one.begins(tasks)
        tasks.start_soon(two.run)
        await anyio.sleep(2 * RETRY)  # the second has seen who leads
        proxy.cut(refuse=True)
        await client.delete(lease_path(api))
        await until(lambda: two.leads, "the second leads")
        assert not one.led[0].valid()
        assert two.led[0].epoch > one.led[0].epoch


async def test_a_leader_survives_an_edit_of_its_lease_and_nobody_else_leads_while_it_renews(
    client: Client, api: ApiFixture
) -> None:
    one, two = Candidate(client, api, "one"), Candidate(client, api, "two")
    async with going() as tasks:
        await one.begins(tasks)
        tasks.start_soon(two.run)
        await client.merge_patch(lease_path(api), {"metadata": {"labels": {"by": "hand"}}})
        before = (await spec_of(client, api))["renewTime"]
        await anyio.sleep(2 * DURATION)
        assert (len(one.led), two.led) == (1, [])
        assert one.led[0].valid()
        lease = await client.get(lease_path(api), dict[str, Any])
        assert lease["metadata"]["labels"] == {"by": "hand"}
        assert lease["spec"]["renewTime"] > before
        assert lease["spec"]["leaseTransitions"] == 1


async def test_the_clock_of_another_machine_does_not_matter(
    client: Client, api: ApiFixture
) -> None:
    """A holder whose clock is years behind looks long expired to whoever compares clocks."""
    old = "2001-01-01T00:00:00.000000Z"
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 2, "renewTime": old}
    await client.create(
        lease_path(api).rpartition("/")[0], {"metadata": {"name": "leader"}, "spec": spec}
    )
    one = Candidate(client, api, "one")
    async with going() as tasks:
        started = time.monotonic()
        await one.begins(tasks)
        assert time.monotonic() - started >= 2


async def test_a_body_that_holds_up_the_event_loop_finds_its_right_gone(
    client: Client, api: ApiFixture
) -> None:
    async def body(leadership: Leadership) -> None:
        assert leadership.valid()
        time.sleep(DURATION + 0.1)
        assert not leadership.valid()
        with pytest.raises(Fenced):
            await client.fenced(leadership.valid).create(api.path("configmaps"), config_map("late"))
        raise LookupError("seen")

    with pytest.raises(LookupError, match="seen"):
        await lead(
            client,
            namespace=api.namespace,
            name="leader",
            identity="one",
            duration=DURATION,
            retry=RETRY,
            body=body,
        )
    with pytest.raises(NotFound):
        await client.get(api.path("configmaps", "late"), dict[str, Any])


@asynccontextmanager
async def process(
    api: ApiFixture, identity: str, duration: float
) -> AsyncIterator[tuple[anyio.abc.Process, list[str]]]:
    """A candidate as a process of its own, and what it has said so far, by lines."""
    script = Path(__file__).with_name("candidate.py")
    about = str(api.kubeconfig), api.namespace, identity, str(duration)
    command = [sys.executable, str(script), *about]
    said: list[str] = []

    async def listen(stream: anyio.abc.ByteReceiveStream) -> None:
        text = ""
        async for part in TextReceiveStream(stream):
            text += part
            said[:] = text.split("\n")

    async with (
        await anyio.open_process(command, stderr=None) as started,
        going() as tasks,
    ):
        assert started.stdout is not None
        tasks.start_soon(listen, started.stdout)
        try:
            yield started, said
        finally:
            if started.returncode is None:
                os.kill(started.pid, signal.SIGCONT)
                started.kill()
            tasks.cancel_scope.cancel()


async def test_a_leader_that_was_stopped_for_three_durations_writes_nothing(
    client: Client, api: ApiFixture
) -> None:
    marks, duration = api.path("configmaps", "marks"), 2.0
    await client.create(api.path("configmaps"), config_map("marks", epoch="0"))
    async with process(api, "one", duration) as (one, said_one):
        await until(lambda: "leads 1" in said_one, "the first leads")
        async with process(api, "two", duration) as (_, said_two):
            one.send_signal(signal.SIGSTOP)
            await until(lambda: "leads 2" in said_two, "the second leads")
            await anyio.sleep(2 * duration)
            version = (await client.get(marks, dict[str, Any]))["metadata"]["resourceVersion"]
            params = {"fieldSelector": "metadata.name=marks"}
            stream = client.watch(
                api.path("configmaps"), dict[str, Any], resource_version=version, params=params
            )
            writers: list[str] = []
            async with stream as events:
                one.send_signal(signal.SIGCONT)
                # The second goes on writing; a hundred times more once the stopped one has ended.
                ended = 0
                async for event in events:
                    if event.object:
                        writers.append(event.object["data"]["by"])
                    ended += "ends 1 False" in said_one
                    if ended > 100:
                        break
            assert set(writers) == {"two"}
            assert (await client.get(marks, dict[str, Any]))["data"]["epoch"] == "2"
            assert "leads 3" not in said_one + said_two
