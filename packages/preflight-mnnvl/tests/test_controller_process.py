"""The controller as a process on a real API server: killed, stopped for longer than its lease, its
watches ended by 410, the API server started anew, and a cluster whose ComputeDomains come, go and
come back."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest
from cliques import DRIVER, ON, clique, pcs
from live import Space, api_server, space_of
from preflight_testing.apiserver import ApiServer
from preflight_testing.grove_kinds import compute_domains
from preflight_testing.waiting import until
from replica import LEASE_SECONDS, replica

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A server of one's own: it is stopped here, and loses a kind."""
    with api_server(tmp_path_factory.mktemp("own")) as server:
        yield server


@pytest.fixture
async def space(own: ApiServer, tmp_path: Path) -> AsyncIterator[Space]:
    async with space_of(own, tmp_path, DRIVER) as found:
        yield found


def kubeconfig(space: Space, folder: Path) -> Path:
    return space.server.kubeconfig(folder / "admin.kubeconfig")


async def uids(space: Space) -> dict[str, str]:
    return {name: one["metadata"]["uid"] for name, one in (await space.domains()).items()}


async def adopted(space: Space, replicas: int) -> None:
    await space.grove.turn()
    wanted = {f"t-{i}-cd": [("PodGang", f"t-{i}")] for i in range(replicas)}
    await space.settled(space.owners, wanted, 60)


async def test_its_metrics_say_what_there_is_and_what_was_done(
    space: Space, tmp_path: Path
) -> None:
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON, replicas=2))
    none = pcs("u", [clique("w")])  # asks later, and its PodClique was stored without
    await space.grove.apply(none)
    async with replica(kubeconfig(space, tmp_path), space.namespace, tmp_path / "one") as one:
        await until(lambda: one.leads, "it leads")
        await space.grove.turn(gangs="none")
        await space.settled(space.owners, {f"t-{i}-cd": [("PodCliqueSet", "t")] for i in (0, 1)})
        await adopted(space, 2)
        await space.settled(space.announced, {"t-0", "t-1"})
        await space.client.merge_patch(
            space.grove.path("podcliques", "u-0-w"), {"metadata": {"annotations": ON}}
        )
        wanted = {
            "mnnvl_leader": 1,
            "mnnvl_supported": 1,
            "mnnvl_fabric_nodes": 0,
            "mnnvl_unclaimed_podcliques": 1,
            "mnnvl_adoption_seconds_count": 2,
            'mnnvl_domains{state="wanted"}': 2,
            'mnnvl_domains{state="made"}': 2,
            'mnnvl_domains{state="adopted"}': 2,
            'mnnvl_domains{state="owned-by-set"}': 0,
            'mnnvl_domains{state="blocked"}': 0,
            'mnnvl_writes_total{kind="ComputeDomain",result="created"}': 2,
            'mnnvl_writes_total{kind="ComputeDomain",result="adopted"}': 2,
            'mnnvl_writes_total{kind="PodGang",result="announced"}': 2,
        }

        async def told() -> dict[str, float | None]:
            found = await one.metrics()
            return {name: found.get(name) for name in wanted}

        await space.settled(told, wanted, 60)


async def test_a_leader_that_is_killed_is_replaced_and_one_that_was_stopped_for_long_writes_nothing_when_it_goes_on(
    space: Space, tmp_path: Path
) -> None:
    access = kubeconfig(space, tmp_path)
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON, replicas=1))
    async with replica(access, space.namespace, tmp_path / "one") as one:
        await until(lambda: one.leads, "it leads")
        await adopted(space, 1)
        async with replica(access, space.namespace, tmp_path / "two") as two:
            one.send(signal.SIGSTOP)
            await until(lambda: two.leads, "the other leads")
            await anyio.sleep(3 * LEASE_SECONDS)
            await space.grove.scale("t", 3)
            await adopted(space, 3)
            before = await uids(space)
            one.send(signal.SIGCONT)
            await until(
                lambda: one.said("no longer leading") or one.said("lease renewal failed"),
                "it sees that it is late",
                60,
            )
            await two.kill()
            await until(lambda: one.leads, "it leads again")
            await space.grove.scale("t", 4)
            await adopted(space, 4)
            after = await uids(space)
            assert {name: after[name] for name in before} == before


async def test_compaction_and_an_api_server_that_starts_anew_change_nothing(
    space: Space, tmp_path: Path
) -> None:
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON, replicas=2))
    async with replica(kubeconfig(space, tmp_path), space.namespace, tmp_path / "one") as one:
        await until(lambda: one.leads, "it leads")
        await adopted(space, 2)
        before = await uids(space)
        await anyio.to_thread.run_sync(
            space.server.forget
        )  # etcd is compacted, and all watches end with 410
        await space.grove.scale("t", 3)
        await adopted(space, 3)
        after = await uids(space)
        assert {name: after[name] for name in before} == before


async def test_a_cluster_that_loses_computedomains_stays_ready_and_gets_them_again(
    space: Space, tmp_path: Path
) -> None:
    definition = (
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/computedomains.resource.nvidia.com"
    )
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
    async with replica(kubeconfig(space, tmp_path), space.namespace, tmp_path / "one") as one:
        await until(lambda: one.leads, "it leads")
        await adopted(space, 1)
        await space.client.delete(definition)
        await space.told("MnnvlUnsupported")
        assert (await one.get("/readyz")).status_code == 200
        space.server.define(compute_domains())
        await space.settled(space.names, ["t-0-cd"], 90)
        assert (await one.get("/readyz")).status_code == 200
        assert one.process.returncode is None
