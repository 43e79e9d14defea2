"""Both webhooks behind a real API server: what a user's set becomes by Grove's own writes, and what
each mistake is answered.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, LITERAL, ON, clique, container, pcs, podclique
from live import Leading, Space, leading, space_of
from preflight_kube.client.client import KubeError
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer
from registered import Registered, registered

pytestmark = pytest.mark.anyio

modes = pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])


@pytest.fixture
async def hooked(server: ApiServer, tmp_path: Path) -> AsyncIterator[tuple[Space, Registered]]:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls") as hook,
    ):
        yield space, hook


def _made(one: Leading) -> float:
    """All that the controller says it has written, or sees as made."""
    families = [*one.metrics.writes.collect(), *one.metrics.domains.collect()]
    return sum(sample.value for family in families for sample in family.samples)


@modes
async def test_no_dry_run_of_sets_or_podcliques_makes_changes_or_counts_anything(
    config: Config, server: ApiServer, tmp_path: Path
) -> None:
    """Creation, change and deletion, each as `kubectl --dry-run=server` asks for it."""
    async with (
        space_of(server, tmp_path, config, webhook=True) as space,
        leading(space.target, config) as one,
        registered(space, config, tmp_path / "tls") as hook,
        anyio.create_task_group() as tasks,
    ):
        if config is DRIVER:
            tasks.start_soon(space.driver.run)
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.turned(1)
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})
        await space.settled(space.announced, {"t-0"})
        await space.happens(lambda: _told(space, config), "all is made and told")
        sets = await space.grove.all("podcliquesets")
        before = await _everything(space)
        count = hook.client.requests.count
        counted = one.writes(), count["create"], count["patch"], _made(one)

        set_path = space.grove.path("podcliquesets", "t?dryRun=All")
        path = space.grove.path("podcliques", "t-0-w?dryRun=All")
        other = {**pcs("u", [clique("w")], annotations=ON)}
        other["metadata"]["namespace"] = space.namespace
        assert (await space.dry_run("podcliquesets", other))["metadata"]["name"] == "u"
        other["metadata"]["annotations"] = {**ON, "grove.io/mnnvl-scope": "pod"}
        assert 'scope "pod"' in (await space.dry_run("podcliquesets", other))["message"]
        await space.client.merge_patch(set_path, {"spec": {"replicas": 4}})
        with pytest.raises(KubeError, match="cannot be changed"):
            await space.client.merge_patch(set_path, {"metadata": {"annotations": None}})
        scaled = {**sets["t"], "spec": {**sets["t"]["spec"], "replicas": 32}}
        for made in space.grove.made(scaled, {})[1:]:
            said = await space.dry_run("podcliques", space.grove.body(scaled, made))
            assert said["spec"]["podSpec"]["resourceClaims"][0]["name"] == "mnnvl"
        await space.client.merge_patch(path, {"spec": {"podSpec": {"resourceClaims": None}}})
        await space.client.delete(path)
        await space.client.delete(set_path)

        assert await _everything(space) == before
        assert (one.writes(), count["create"], count["patch"], _made(one)) == counted
        tasks.cancel_scope.cancel()


async def _told(space: Space, config: Config) -> bool:
    """Set and PodClique are told that the domain was made and adopted;
    the driver has done its part.
    """
    made = config is not DRIVER or await space.all(space.claim_path())
    return bool(made) and len(await space.events()) == 4


async def _everything(space: Space) -> dict[str, Any]:
    """All objects that sets, PodCliques and the add-on may leave."""
    return {
        "domains": await space.domains(),
        "claims": await space.all(space.claim_path("resourceclaims")),
        "templates": await space.all(space.claim_path()),
        "events": sorted(one["metadata"]["name"] for one in await space.events()),
        **{
            plural: await space.grove.all(plural)
            for plural in ("podcliquesets", "podcliques", "podgangs")
        },
    }


async def test_no_request_is_made_where_the_set_is_known_and_none_at_updates(
    hooked: tuple[Space, Registered],
) -> None:
    space, hook = hooked
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON, replicas=4))
    await space.grove.turn()
    before = hook.client.requests.count["get"]
    await space.grove.scale("t", 8)
    await space.grove.turn()
    await space.grove.turn()
    assert len(await space.grove.all("podcliques")) == 8
    assert hook.client.requests.count["get"] == before
    assert hook.counted("PodClique", "injected") >= 8


# --- mistakes

CHANNEL = "compute-domain-default-channel.nvidia.com"


def placed(space: Space, found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "metadata": {**found["metadata"], "namespace": space.namespace}}


def unnamed() -> dict[str, Any]:
    found = podclique("t-0-w", "t", annotations=ON)
    del found["metadata"]["name"]
    found["metadata"]["generateName"] = "t-0-"
    return found


def second_channel() -> dict[str, Any]:
    use = container(resources={"limits": {"nvidia.com/gpu": 1}, "claims": [{"name": "own"}]})
    entries = [{"name": "own", "resourceClaimTemplateName": "theirs"}]
    pod = {"containers": [use], "resourceClaims": entries}
    return podclique("t-0-w", "t", annotations=ON, pod=pod)


def template(name: str, class_: str) -> dict[str, Any]:
    request = {"name": "x", "exactly": {"deviceClassName": class_}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    about = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
    return {**about, "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        pytest.param(
            podclique("t-0-w", "t", annotations={**ON, "grove.io/mnnvl-scope": "Replica"}),
            't-0-w: the scope "Replica" is unknown; write one of replica, clique, scalingGroupReplica.',
            id="an unknown scope",
        ),
        pytest.param(
            unnamed(),
            "t-0-: it has no name yet (generateName), and the names of its objects are made of it; give it a name.",
            id="a generated name",
        ),
        pytest.param(
            second_channel(),
            f't-0-w: spec.podSpec.resourceClaims[0] ("own") asks for a device of class "{CHANNEL}", and a pod cannot '
            "have two channels of a node; remove it, or grove.io/mnnvl-enabled.",
            id="a claim of a class of channels",
        ),
    ],
)
async def test_a_podclique_that_cannot_have_it_is_refused_in_one_sentence(
    found: dict[str, Any], sentence: str, hooked: tuple[Space, Registered]
) -> None:
    space, _ = hooked
    await space.client.create(space.claim_path(), template("theirs", CHANNEL))
    with pytest.raises(KubeError) as refused:
        await space.client.create(space.grove.path("podcliques"), placed(space, found))
    said = f"PodClique {space.namespace}/{sentence}"
    assert (refused.value.status, said in str(refused.value)) == (403, True), str(refused.value)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        pytest.param(DRIVER, "ComputeDomain", id="driver-ComputeDomain"),
        pytest.param(DRIVER, "ResourceClaimTemplate", id="driver-ResourceClaimTemplate"),
        pytest.param(LITERAL, "ComputeDomain", id="literal-ComputeDomain"),
        pytest.param(LITERAL, "ResourceClaim", id="literal-ResourceClaim"),
    ],
)
async def test_what_somebody_else_has_under_our_name_is_named_at_once_and_no_pod_gets_it(
    config: Config, kind: str, server: ApiServer, tmp_path: Path
) -> None:
    theirs = template("t-0-mnnvl-claim", "gpu.nvidia.com") | {"kind": kind}
    if kind == "ResourceClaim":
        theirs["spec"] = theirs["spec"]["spec"]
    async with space_of(server, tmp_path, config, webhook=True) as space:
        path: Callable[..., str] = partial(space.claim_path, f"{kind.lower()}s")
        if kind == "ComputeDomain":
            spec = {"numNodes": 1, "channel": {"resourceClaimTemplate": {"name": "theirs"}}}
            theirs |= {"apiVersion": "resource.nvidia.com/v1beta1", "spec": spec}
            theirs["metadata"]["name"] = "t-0-cd"
            path = space.domain_path
        set_ = await space.grove.apply(pcs("other", [clique("w")]))
        owner = {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "other"}
        theirs["metadata"]["ownerReferences"] = [{**owner, "uid": set_["metadata"]["uid"]}]
        await space.client.create(path(), theirs)
        before, name = await space.all(path()), theirs["metadata"]["name"]
        async with registered(space, config, tmp_path / "tls"):
            asks = placed(space, podclique("t-0-w", "t", annotations=ON))
            with pytest.raises(KubeError) as refused:
                await space.client.create(space.grove.path("podcliques"), asks)
            said = f"PodClique {space.namespace}/t-0-w: the {kind} {name} exists and does not carry"
            assert said in str(refused.value)
            whose = "and belongs to the PodCliqueSet other; delete or rename it."
            assert whose in str(refused.value)
            assert await space.all(path()) == before
            await space.client.delete(path(name=name))

            async def stored() -> bool:
                try:
                    await space.client.create(space.grove.path("podcliques"), asks)
                except KubeError:
                    return False
                return True

            await space.happens(stored, "its end is seen")


async def test_a_podclique_of_1_4_megabytes_is_injected(hooked: tuple[Space, Registered]) -> None:
    space, _ = hooked
    many = [{"name": f"E{i}", "value": "x" * 1000} for i in range(1350)]
    body = podclique("t-0-w", "t", annotations=ON, pod={"containers": [container(env=many)]})
    stored = await space.client.create(space.grove.path("podcliques"), placed(space, body))
    pod = json.loads(stored)["spec"]["podSpec"]
    assert pod["resourceClaims"][0]["name"] == "mnnvl"
    assert pod["containers"][0]["env"] == many


async def test_the_annotations_of_a_set_cannot_be_changed_and_all_else_can(
    hooked: tuple[Space, Registered],
) -> None:
    space, _ = hooked
    path = space.grove.path("podcliquesets", "t")
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
    with pytest.raises(KubeError, match=r"grove\.io/mnnvl-enabled"):
        await space.client.merge_patch(
            path, {"metadata": {"annotations": {"grove.io/mnnvl-enabled": "false"}}}
        )
    await space.client.merge_patch(path, {"metadata": {"finalizers": ["grove.io/x"]}})
    await space.client.merge_patch(path, {"spec": {"replicas": 3}})
    await space.client.delete(path)
    await space.client.merge_patch(path, {"metadata": {"finalizers": None}})


async def test_nodes_of_the_fabric_and_the_drivers_class_that_come_and_go_are_seen(
    server: ApiServer, tmp_path: Path
) -> None:
    config = Config(require_fabric_nodes=True)
    refusal = "MNNVL cannot be had: no node carries the label nvidia.com/gpu.clique, which requireFabricNodes asks for"
    warning = "there is no DeviceClass compute-domain-default-channel.nvidia.com"
    classes, nodes = "/apis/resource.k8s.io/v1/deviceclasses", "/api/v1/nodes"
    class_: dict[str, Any] = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "compute-domain-default-channel.nvidia.com"},
        "spec": {},
    }
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, config, tmp_path / "tls") as hook,
    ):
        body = placed(space, podclique("t-0-w", "t", annotations=ON))
        node = f"{nodes}/node-{space.namespace}"

        async def said() -> str:
            found = await space.dry_run("podcliques", body)
            return str(found.get("message", "")) or " ".join(
                await space.warnings("podcliques", body)
            )

        async def says(text: str) -> bool:
            return text in await said()

        async def is_silent() -> bool:
            return await said() == ""

        def gauge(name: str) -> float | None:
            return hook.metrics.registry.get_sample_value(name)

        assert await says(refusal), await said()
        assert (gauge("mnnvl_supported"), gauge("mnnvl_fabric_nodes")) == (0, 0)
        labels = {"nvidia.com/gpu.clique": "cluster.0"}
        await space.client.create(
            nodes, {"metadata": {"name": f"node-{space.namespace}", "labels": labels}}
        )
        try:
            await space.happens(partial(says, warning), "the node is seen")
            assert (gauge("mnnvl_supported"), gauge("mnnvl_fabric_nodes")) == (1, 1)
            await space.client.create(classes, class_)
            try:
                await space.happens(is_silent, "the class is seen")
            finally:
                await space.client.delete(f"{classes}/{class_['metadata']['name']}")
            await space.happens(partial(says, warning), "it is seen that the class has gone")
            empty = {"metadata": {"labels": {"nvidia.com/gpu.clique": ""}}}
            await space.client.merge_patch(node, empty)  # as nodes without a fabric have it
            await space.happens(partial(says, refusal), "it is seen that there is no such node")
        finally:
            await space.client.delete(node)
