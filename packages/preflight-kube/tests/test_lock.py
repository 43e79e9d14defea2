"""A lock by a Lease: many of them on one client, the same against the double and a real
kube-apiserver.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client, Fenced, KubeError
from preflight_kube.runtime.lease import Leadership, LeaseLock, LeaseLost
from preflight_testing.plugin import ApiFixture
from preflight_testing.proxy import proxied

pytestmark = pytest.mark.anyio


def lock(
    client: Client, api: ApiFixture, identity: str, name: str = "lock", duration: float = 30.0
) -> LeaseLock:
    return LeaseLock(client, api.namespace, name, identity, duration=duration)


async def held(lock: LeaseLock) -> Leadership:
    taken = await lock.try_acquire()
    assert taken is not None
    assert taken.valid()
    return taken


async def holder(client: Client, one: LeaseLock) -> str:
    return str((await client.get(one.path, dict[str, Any]))["spec"]["holderIdentity"])


async def test_one_holds_it_until_it_is_given_back(client: Client, api: ApiFixture) -> None:
    one, two = lock(client, api, "one"), lock(client, api, "two")
    first = await held(one)
    assert await two.try_acquire() is None
    assert await one.renew(first)
    assert await holder(client, one) == "one"
    assert await one.release(first)
    assert not first.valid()
    assert await holder(client, one) == ""
    second = await held(two)
    assert second.epoch == first.epoch + 1
    assert await one.try_acquire() is None


async def test_what_was_given_back_is_neither_renewed_nor_given_back_again(
    client: Client, api: ApiFixture
) -> None:
    one = lock(client, api, "one")
    taken = await held(one)
    assert await one.release(taken)
    assert not await one.renew(taken)
    assert not await one.release(taken)
    again = await held(one)
    assert again.epoch > taken.epoch


async def test_many_locks_share_a_client_and_do_not_meet(client: Client, api: ApiFixture) -> None:
    locks = [lock(client, api, "one", f"gpu-{i}") for i in range(20)]
    taken: list[Leadership] = []

    async def take(one: LeaseLock) -> None:
        taken.append(await held(one))

    async with anyio.create_task_group() as tasks:
        for one in locks:
            tasks.start_soon(take, one)
    assert len(taken) == len(locks)
    assert [await lock(client, api, "two", f"gpu-{i}").try_acquire() for i in range(20)] == [
        None
    ] * 20


async def test_of_many_who_try_at_once_one_gets_it(client: Client, api: ApiFixture) -> None:
    got: list[Leadership | None] = []

    async def take(identity: str) -> None:
        got.append(await lock(client, api, identity).try_acquire())

    async with anyio.create_task_group() as tasks:
        for i in range(8):
            tasks.start_soon(take, f"candidate-{i}")
    assert len([one for one in got if one is not None]) == 1


async def test_a_silent_holder_loses_it_and_learns_so_when_he_renews(
    client: Client, api: ApiFixture
) -> None:
    one, two = lock(client, api, "one", duration=0.3), lock(client, api, "two")
    first = await held(one)
    second: Leadership | None = None
    with anyio.fail_after(
        20
    ):  # until two has seen no sign of life for a whole second, in which a Lease counts
        while (second := await two.try_acquire()) is None:
            await anyio.sleep(0.05)
    assert not first.valid()
    assert not await one.renew(first)
    assert second is not None
    assert second.epoch > first.epoch
    with pytest.raises(Fenced):
        await client.fenced(first.valid).create(
            api.path("configmaps"), {"metadata": {"name": "late"}}
        )


async def test_who_is_robbed_is_told_and_writes_nothing_more(
    client: Client, api: ApiFixture
) -> None:
    one = lock(client, api, "one")
    taken = await held(one)
    lease = await client.get(one.path, dict[str, Any])
    await client.replace(one.path, {**lease, "spec": {**lease["spec"], "holderIdentity": "robber"}})
    with pytest.raises(LeaseLost, match="robber"):
        await one.renew(taken)
    assert not taken.valid()


async def test_one_that_was_deleted_is_lost_and_nobody_else_may_take_it_before_its_time(
    client: Client, api: ApiFixture
) -> None:
    one, two = lock(client, api, "one"), lock(client, api, "two")
    taken = await held(one)
    assert await two.try_acquire() is None
    await client.delete(one.path)
    assert await two.try_acquire() is None  # one may still believe that he holds it
    with pytest.raises(LeaseLost, match="deleted"):
        await one.renew(taken)


async def test_while_the_server_is_away_the_lock_is_held_and_can_be_renewed_later(
    client: Client, target: Connection, api: ApiFixture
) -> None:
    async with proxied(target) as (proxy, through), Client(through, agent="tests") as cut_off:
        one = lock(cut_off, api, "one", duration=60)
        taken = await held(one)
        proxy.cut(refuse=True)
        with pytest.raises(KubeError):
            await one.renew(taken)
        assert taken.valid()
        proxy.restore()
        assert await one.renew(taken)
        assert await holder(client, one) == "one"
