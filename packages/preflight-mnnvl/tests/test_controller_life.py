"""Domains from their beginning to their end on a real API server with the real garbage collector:
gangs that come first, last and again, scaling, the set's end, what others have put in the way, and
a controller that dies at any of its writes."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import BY_CLIQUE, BY_GROUP, DRIVER, LITERAL, ON, clique, group, pcs
from live import Space, followed, leading, space_of
from preflight_kube.client.client import Client
from preflight_kube.runtime.lease import Leadership
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller import controller
from preflight_mnnvl.controller.cache import MnnvlCache
from preflight_mnnvl.controller.controller import Controller
from preflight_mnnvl.core import reconcile as turn
from preflight_mnnvl.metrics import Metrics
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove import pods
from preflight_testing.waiting import until
from registered import registered
from replica import mortal

pytestmark = pytest.mark.anyio


@pytest.fixture
async def space(server: ApiServer, tmp_path: Path) -> AsyncIterator[Space]:
    async with space_of(server, tmp_path, DRIVER) as found:
        yield found


@asynccontextmanager
async def driven(space: Space) -> AsyncIterator[None]:
    """With the driver's controller running."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(space.driver.run)
        yield
        tasks.cancel_scope.cancel()


def versions(found: dict[str, Any]) -> dict[str, str]:
    return {name: one["metadata"]["resourceVersion"] for name, one in found.items()}


@pytest.mark.parametrize("order", ["first", "last"])
async def test_a_domain_belongs_to_its_podgang_whichever_comes_first_and_to_the_next_of_its_name(
    order: Any, space: Space
) -> None:
    async with leading(space.target, DRIVER):
        set_ = await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.grove.turn(gangs=order)
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})
        await space.client.delete(space.grove.path("podgangs", "t-0"))
        await space.grove.gang("t-0", set_)
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})
        gang = (await space.grove.all("podgangs"))["t-0"]
        await space.settled(space.announced, {"t-0"})
        (cd,) = (await space.domains()).values()
        (owner,) = cd["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
            gang["metadata"]["uid"],
            True,
            True,
        )


async def _settled(space: Space) -> bool:
    return all(one["metadata"].get("finalizers") for one in (await space.domains()).values())


async def test_a_scaling_group_that_is_scaled_has_exactly_its_domains(space: Space) -> None:
    least = 2
    async with leading(space.target, DRIVER), driven(space):
        await space.grove.apply(
            pcs("t", [clique("w")], [group("g", ["w"], BY_GROUP, replicas=3, least=least)])
        )
        await space.grove.turn()
        for replicas in (3, 5, 2):
            await space.grove.scale_group("t-0-g", replicas)
            await space.grove.turn()
            gangs = ["t-0" if i < least else f"t-0-g-{i - least}" for i in range(replicas)]
            wanted = {f"t-0-g-{i}-cd": [("PodGang", gang)] for i, gang in enumerate(gangs)}
            await space.settled(space.owners, wanted, 60)
            if replicas == 3:
                await space.happens(lambda: _settled(space), "the driver has its finalizer on it")
                before = versions(await space.domains())
        after = versions(await space.domains())
        assert {name: before[name] for name in after} == after


@pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])
async def test_of_a_set_that_is_deleted_nothing_is_left_within_ten_seconds(
    config: Config, server: ApiServer, tmp_path: Path
) -> None:
    """The set alone is deleted; the garbage collector and the driver's controller do the rest."""
    async with (
        space_of(server, tmp_path, config) as space,
        leading(space.target, config),
        driven(space),
    ):
        await space.grove.apply(pcs("t", [clique("w"), clique("x")], annotations=ON, replicas=4))
        await space.grove.turn()
        owners = {f"t-{i}-cd": [("PodGang", f"t-{i}")] for i in range(4)}
        await space.settled(space.owners, owners)
        await space.settled(space.announced, {f"t-{i}" for i in range(4)})
        await space.happens(lambda: _settled(space), "the driver has its finalizer on each")
        for stored in (await space.grove.all("podcliques")).values():
            for pod in pods(stored):
                pod["spec"].pop("schedulingGates")
                await space.client.create(f"/api/v1/namespaces/{space.namespace}/pods", pod)
        claims = 4 if config is LITERAL else 16  # for each domain, or for each pod
        await space.settled(lambda: _left(space), [4, 4, claims])
        await space.client.delete(space.grove.path("podcliquesets", "t"))
        await space.settled(lambda: _left(space), [0, 0, 0], 10)
        assert await space.grove.all("podgangs") == {}


async def _left(space: Space) -> list[int]:
    """How many domains, claim templates and claims there are."""
    paths = (space.domain_path(), space.claim_path(), space.claim_path("resourceclaims"))
    return [len(await space.all(path)) for path in paths]


async def test_a_domain_that_nobody_needs_before_there_was_a_podgang_is_handed_to_the_collector(
    space: Space,
) -> None:
    async with leading(space.target, DRIVER):
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON, replicas=2))
        await space.grove.turn(gangs="none")
        await space.settled(space.owners, {f"t-{i}-cd": [("PodCliqueSet", "t")] for i in (0, 1)})
        await space.grove.scale("t", 1)
        await space.grove.turn(gangs="none")
        await space.settled(space.owners, {"t-0-cd": [("PodCliqueSet", "t")]}, 60)


async def test_nothing_is_let_go_while_podcliques_are_not_followed_and_it_is_once_they_are(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, level = 0, False

    def are_level(_: MnnvlCache) -> bool:
        nonlocal asked
        asked += 1
        return level

    monkeypatch.setattr(MnnvlCache, "cliques_are_level", property(are_level))
    monkeypatch.setattr(turn, "RELEASE_PATIENCE", 0.1)
    monkeypatch.setattr(controller, "OVERLAY_TTL", 0.2)
    async with leading(space.target, DRIVER) as one:
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.grove.turn(gangs="none")
        await space.settled(space.owners, {"t-0-cd": [("PodCliqueSet", "t")]})
        await space.grove.scale("t", 0)
        await space.grove.turn(gangs="none")
        await until(lambda: asked >= 3, "it is asked again and again")
        assert await space.owners() == {"t-0-cd": [("PodCliqueSet", "t")]}
        assert await space.events("MnnvlDomainReleased") == []
        level = True
        await space.settled(space.domains, {}, 60)
        assert one.counted("mnnvl_writes_total", kind="ComputeDomain", result="released") == 1


async def test_100_podgangs_at_once_adopt_their_domains_by_one_write_each(space: Space) -> None:
    async with leading(space.target, DRIVER) as one:
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON, replicas=100))
        await space.grove.turn(gangs="none")
        gangs = {f"t-{i}" for i in range(100)}
        await space.settled(space.owners, {f"{g}-cd": [("PodCliqueSet", "t")] for g in gangs}, 60)
        await space.grove.turn()
        await space.settled(space.announced, gangs, 60)
        assert await space.owners() == {f"{gang}-cd": [("PodGang", gang)] for gang in gangs}
        assert one.counted("mnnvl_writes_total", kind="ComputeDomain", result="created") == 100
        assert one.counted("mnnvl_writes_total", kind="ComputeDomain", result="adopted") == 100
        assert one.counted("mnnvl_writes_total", kind="PodGang", result="announced") == 100
        assert one.client.requests.count["patch"] == 200


async def test_reapplied_templates_write_nothing(server: ApiServer, tmp_path: Path) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        leading(space.target, DRIVER) as one,
        driven(space),
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        await space.grove.apply(pcs("t", [clique("w"), clique("r", gpus=None)], annotations=ON))
        await space.grove.turn()
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})
        await space.happens(lambda: _settled(space), "the driver has its finalizer on it")
        await space.told("MnnvlDomainAdopted", 2)
        before, domains = await space.grove.all("podcliques"), versions(await space.domains())
        writes = one.counted("mnnvl_writes_total", kind="ComputeDomain", result="adopted")
        for _ in range(100):
            assert await space.grove.turn() == 0
        assert (
            await space.grove.all("podcliques") == before
        )  # version, generation, claims: all of it
        assert versions(await space.domains()) == domains
        assert one.counted("mnnvl_writes_total", kind="ComputeDomain", result="created") == 1
        assert (
            one.counted("mnnvl_writes_total", kind="ComputeDomain", result="adopted") == writes <= 1
        )


async def test_32_podcliques_of_one_domain_at_once_make_one(space: Space) -> None:
    async with leading(space.target, DRIVER) as one:
        await space.grove.apply(pcs("t", [clique(f"w{i}") for i in range(32)], annotations=ON))
        sets = await space.grove.all("podcliquesets")
        await space.grove.cliques(sets, writers=32)
        await space.settled(space.owners, {"t-0-cd": [("PodCliqueSet", "t")]})
        assert (len(await space.grove.all("podcliques")), space.grove.refused) == (32, [])
        assert one.counted("mnnvl_writes_total", kind="ComputeDomain", result="created") == 1
        assert one.counted("mnnvl_writes_total", kind="ComputeDomain", result="conflict") == 0


async def test_of_many_podcliques_by_32_writers_each_domain_is_made_once_and_none_is_refused(
    server: ApiServer, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """1,000 of 250 domains with `--full`, else 200."""
    domains = 250 if pytestconfig.getoption("full") else 50
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        leading(space.target, DRIVER) as one,
        registered(space, DRIVER, tmp_path / "tls") as hook,
    ):
        await space.grove.apply(
            pcs("t", [clique(name) for name in "abcd"], annotations=ON, replicas=domains)
        )
        await space.grove.cliques(await space.grove.all("podcliquesets"), writers=32)
        assert (len(await space.grove.all("podcliques")), space.grove.refused) == (4 * domains, [])
        assert hook.counted("PodClique", "failed") == 0
        names = [f"t-{i}-cd" for i in range(domains)]
        await space.settled(space.names, sorted(names), 120)
        made = one.counted("mnnvl_writes_total", kind="ComputeDomain", result="created")
        assert made == domains
        assert one.counted("mnnvl_writes_total", kind="ComputeDomain", result="conflict") == 0


async def test_a_quota_that_refuses_a_domain_is_told_on_set_and_clique(space: Space) -> None:
    counted = "count/computedomains.resource.nvidia.com"
    at = f"/api/v1/namespaces/{space.namespace}/resourcequotas"
    quota: dict[str, Any] = {"metadata": {"name": "none"}, "spec": {"hard": {counted: "0"}}}
    await space.client.create(at, quota)
    # As the controller of quotas writes it, which is not here.
    status = {"hard": {counted: "0"}, "used": {counted: "0"}}
    await space.client.merge_patch(f"{at}/none/status", {"status": status})
    async with leading(space.target, DRIVER):
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.grove.turn()
        await space.told("MnnvlDomainRefused", 2)
        events = await space.events("MnnvlDomainRefused")
        assert {one["involvedObject"]["kind"] for one in events} == {"PodCliqueSet", "PodClique"}
        assert all("exceeded quota: none" in one["message"] for one in events)
        await space.client.delete(f"{at}/none")
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})


async def test_a_domain_of_somebody_else_is_told_on_set_and_clique_and_left_as_it_is(
    space: Space,
) -> None:
    theirs = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "t-0-cd"},
        "spec": {"numNodes": 2, "channel": {"resourceClaimTemplate": {"name": "theirs"}}},
    }
    await space.client.create(space.domain_path(), theirs)
    before = await space.domains()
    async with leading(space.target, DRIVER):
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.grove.turn()
        await space.told("MnnvlDomainBlocked", 2)
        kinds = {one["involvedObject"]["kind"] for one in await space.events("MnnvlDomainBlocked")}
        assert kinds == {"PodCliqueSet", "PodClique"}
        assert await space.domains() == before
        await space.client.delete(space.domain_path("t-0-cd"))
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})


async def test_a_set_that_is_applied_anew_while_its_old_domain_ends_has_lost_nothing_for_the_next_leader(
    space: Space,
) -> None:
    on = pcs("t", [clique("w")], annotations=ON)
    async with (
        Client(space.target, agent="preflight-mnnvl") as client,
        anyio.create_task_group() as tasks,
    ):
        standby = Controller(client, DRIVER, Metrics())
        await followed(tasks, standby.cache)
        path = space.domain_path("t-0-cd")
        async with leading(space.target, DRIVER):
            await space.grove.apply(on)
            await space.grove.turn(gangs="first")
            await space.settled(space.announced, {"t-0"})
            await space.told("MnnvlDomainCreated", 2)
            await space.client.merge_patch(path, {"metadata": {"finalizers": ["a.test/slow"]}})
            await space.client.delete(space.grove.path("podcliquesets", "t"))
            for plural in ("podcliques", "podgangs"):
                await space.settled(partial(space.grove.all, plural), {})
            await space.happens(lambda: _ending(space), "the domain is being deleted")
            await space.grove.apply(on)
            await space.grove.turn(gangs="first")
        tasks.start_soon(standby.lead, Leadership(2, math.inf))
        await space.client.merge_patch(path, {"metadata": {"finalizers": None}})
        await space.settled(space.announced, {"t-0"})
        await space.told("MnnvlDomainCreated", 4)
        assert await space.events("MnnvlDomainRecreated") == []
        (made,) = (await space.domains()).values()
        assert "annotations" not in made["metadata"]
        tasks.cancel_scope.cancel()


async def _ending(space: Space) -> bool:
    return all("deletionTimestamp" in one["metadata"] for one in (await space.domains()).values())


# --- a controller that is killed

WRITES = [
    *(pytest.param(DRIVER, "objects", i, id=f"driver-{i}") for i in range(5)),
    *(pytest.param(LITERAL, "objects", i, id=f"literal-{i}") for i in range(5)),
    pytest.param(DRIVER, "events", 0, id="event"),
]
"""All that are made of two domains, and in mode literal of one and its claim: each object, its
adoption, and the PodGang's annotation; the first Event.
"""


@pytest.mark.parametrize("when", ["early", "late"])
@pytest.mark.parametrize(("config", "kind", "step"), WRITES)
async def test_a_controller_that_is_killed_at_a_write_is_continued_by_the_next_and_makes_nothing_twice(
    config: Config, kind: str, step: int, when: str, server: ApiServer, tmp_path: Path
) -> None:
    """By SIGKILL, before the write is sent, or after it has arrived."""
    names = "a" if config is LITERAL else "ab"
    async with space_of(server, tmp_path, config) as space:
        await space.grove.apply(pcs("t", [clique(name, annotations=BY_CLIQUE) for name in names]))
        await space.grove.turn(gangs="none")
        access = server.kubeconfig(tmp_path / "admin.kubeconfig")
        at = (kind, str(step), when)
        async with mortal(access, space.namespace, tmp_path / "mortal", config.mode, *at) as one:
            with anyio.fail_after(600):
                while one.returncode is None and not await _made(space):
                    await anyio.sleep(0.02)
                await space.grove.turn()
                assert await one.wait() == -signal.SIGKILL
        before = await _uids(space)
        async with leading(space.target, config) as next_:
            await space.grove.turn()
            await space.settled(
                space.owners, {f"t-0-{name}-cd": [("PodGang", "t-0")] for name in names}
            )
            await space.settled(space.announced, {"t-0"})
            await space.happens(lambda: _made(space), "all is there")
            after = await _uids(space)
            assert {name: after[name] for name in before} == before
            for made, suffix in (("ComputeDomain", "-cd"), ("ResourceClaim", "-claim")):
                created = next_.counted("mnnvl_writes_total", kind=made, result="created")
                assert created == len(
                    [name for name in after.keys() - before if name.endswith(suffix)]
                )


async def _uids(space: Space) -> dict[str, str]:
    found = {**await space.domains(), **await space.all(space.claim_path("resourceclaims"))}
    return {name: one["metadata"]["uid"] for name, one in found.items()}


async def _made(space: Space) -> bool:
    """Whether both objects are there: two domains, or one and its claim."""
    return len(await _uids(space)) == 2
