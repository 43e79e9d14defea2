"""PreflightConfigs of a namespace: which one the controller puts in force, and what it says of the
others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from leading import Leading, leads
from played import played
from preflight_gang.api.crd import crd
from preflight_gang.controller.overrides import OverrideController
from preflight_gang.metrics import Metrics
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_proto.policy import GROUP, KIND, VERSION, Condition, PreflightConfig, accepted, path
from preflight_testing.apidouble import ApiDouble, write_kubeconfig
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.plugin import ApiFixture
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio

OBSERVE = {"enforcement": "observe"}
NONSENSE = {"enforcement": "sometimes"}


def lax() -> dict[str, Any]:
    """A definition of some other time, under which anything could be stored."""
    made = copy.deepcopy(crd())
    whole = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    whole["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return made


class Configs:
    """The PreflightConfigs of the test's own namespace."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self.namespace = client, namespace

    async def create(self, name: str, spec: Any, **metadata: Any) -> str:
        """Its creationTimestamp."""
        about = {"name": name, **metadata}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": about, "spec": spec}
        made = msgspec.json.decode(await self._client.create(path(self.namespace), body))
        return str(made["metadata"]["creationTimestamp"])

    async def create_later(self, name: str, spec: Any, than: str) -> None:
        """Its time is whole seconds: made again until it is younger."""
        while await self.create(name, spec) <= than:
            await self.delete(name)
            await anyio.sleep(0.05)

    async def change(self, name: str, body: dict[str, Any]) -> None:
        await self._client.merge_patch(path(self.namespace, name), body)

    async def delete(self, name: str) -> None:
        await self._client.delete(path(self.namespace, name))

    async def version(self, name: str) -> str:
        found = await self._client.get(path(self.namespace, name), dict)
        return str(found["metadata"]["resourceVersion"])

    async def said(self, name: str) -> Condition | None:
        """About the object as it is now."""
        return accepted(await self._client.get(path(self.namespace, name), PreflightConfig))

    async def judged(self, name: str, reason: str, part: str = "") -> Condition:
        """Wait until the controller says so."""
        last = None
        with anyio.move_on_after(20):
            while (
                (last := await self.said(name)) is None
                or last.reason != reason
                or part not in last.message
            ):
                await anyio.sleep(0.01)
            return last
        raise AssertionError(f"{name} was never {reason} {part!r}; it is {last}")


@pytest.fixture
def defined(api: ApiFixture, request: pytest.FixtureRequest) -> None:
    """The kind exists; what is stored is checked by nobody."""
    if api.kind == "real":
        request.getfixturevalue("real_api_server").define(lax())


@pytest.fixture
def configs(defined: None, client: Client, api: ApiFixture) -> Configs:
    return Configs(client, api.namespace)


async def test_the_oldest_wins_and_the_next_one_follows_when_it_goes(
    configs: Configs, leading: Leading
) -> None:
    born = await configs.create("z-old", OBSERVE)
    await configs.create_later("a-new", OBSERVE, born)
    await configs.judged("z-old", "InForce")
    assert (await configs.judged("a-new", "Superseded", "superseded by z-old")).status == "False"
    await configs.delete("z-old")
    assert (await configs.judged("a-new", "InForce")).status == "True"


async def test_an_invalid_generation_is_counted_once(configs: Configs, leading: Leading) -> None:
    await configs.create("bad", NONSENSE)
    await configs.judged("bad", "Invalid", "enforcement")
    await configs.change("bad", {"metadata": {"labels": {"touched": "yes"}}})
    await settled_here(configs)
    assert leading.counted("preflight_config_errors_total", error="preflightconfig") == 1
    await configs.change("bad", {"spec": {"enforcement": "never"}})
    await until(
        lambda: leading.counted("preflight_config_errors_total", error="preflightconfig") == 2,
        "counted again",
    )


async def test_who_does_not_lead_writes_nothing(configs: Configs, target: Connection) -> None:
    await configs.create("one", OBSERVE)
    asked = 0

    def may_write() -> bool:
        nonlocal asked
        asked += 1
        return False

    async with Client(target, agent="tests") as client:
        policies = OverrideController(client, Metrics())
        async with anyio.create_task_group() as group:
            group.start_soon(policies.mirror)
            group.start_soon(policies.lead, client.fenced(may_write))
            await until(
                lambda: policies.reflector.by_index("namespace", configs.namespace) and asked,
                "it was about to be written",
            )
            group.cancel_scope.cancel()
    assert await configs.said("one") is None


@pytest.fixture(params=["double", "real"])
def bare(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Connection, Callable[[], object]]]:
    """A cluster without the kind, and what brings it there."""
    kubeconfig = tmp_path / "kubeconfig"
    if request.param == "double":
        with ApiDouble(absent=[f"{GROUP}/{VERSION}"]) as double:
            write_kubeconfig(kubeconfig, double.url)
            yield (
                connection({"KUBECONFIG": str(kubeconfig)}),
                lambda: double.within(double.api.absent.clear),
            )
        return
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path / "apiserver"
    home.mkdir()
    with ApiServer(home, folder) as server:
        server.kubeconfig(kubeconfig)
        yield connection({"KUBECONFIG": str(kubeconfig)}), lambda: server.define(crd())


async def test_gangs_are_told_where_the_kind_does_not_exist_and_it_is_found_once_it_does(
    bare: tuple[Connection, Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, define = bare
    monkeypatch.setattr("preflight_gang.controller.overrides.ABSENT_RETRY", 0.2)
    async with (
        Client(target, agent="tests") as client,
        played(client, "default") as cluster,
        leads(target),
    ):
        await cluster.pair()
        await cluster.answered("sealed", "pod-0", "pod-1")
        await anyio.to_thread.run_sync(define)
        configs = Configs(client, "default")
        await configs.create("one", OBSERVE)
        await configs.judged("one", "InForce")


async def settled_here(configs: Configs) -> None:
    """Have the controller judge one thing more, after all that it has to judge here."""
    await configs.create("zz-sentinel", OBSERVE)
    with anyio.fail_after(600):
        while await configs.said("zz-sentinel") is None:
            await anyio.sleep(0.01)
