"""Both webhooks behind a real API server: what a user's set becomes by Grove's own writes, and what
each mistake is answered.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, LITERAL, clique, container, group, pcs, podclique
from live import Leading, Space, fixture, leading, space_of
from preflight_kube.client import KubeError
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer
from registered import registered

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("labels", ["grove", "requirement"])
modes = pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])
ON = {"grove.io/mnnvl-enabled": "true"}
EXAMPLES: dict[str, dict[str, tuple[str, list[str]]]] = {
    "e1-distributed-training": {
        f"distributed-training-{i}-cd": (
            f"distributed-training-{i}",
            [f"distributed-training-{i}-parameter-server", f"distributed-training-{i}-worker"],
        )
        for i in (0, 1)
    },
    "e2-multi-model-serving": {
        f"multi-model-serving-0-{name}-cd": (
            "multi-model-serving-0",
            [f"multi-model-serving-0-{name}"],
        )
        for name in ("llama-70b", "mixtral")
    },
    "e3-scalable-inference": {
        f"scalable-inference-0-inference-pool-{i}-cd": (
            gang,
            [f"scalable-inference-0-inference-pool-{i}-gpu-worker"],
        )
        for i, gang in enumerate(
            [
                "scalable-inference-0",
                "scalable-inference-0-inference-pool-0",
                "scalable-inference-0-inference-pool-1",
            ]
        )
    },
}

PODCLIQUES = {"e1-distributed-training": 4, "e2-multi-model-serving": 3, "e3-scalable-inference": 3}
"""Of each example."""


@both
@modes
@pytest.mark.parametrize("name", list(EXAMPLES))
async def test_an_example_becomes_what_the_requirement_says(
    name: str, config: Config, labels: str, server: ApiServer, tmp_path: Path
) -> None:
    wanted = EXAMPLES[name]
    key = "resourceClaimTemplateName" if config is DRIVER else "resourceClaimName"
    async with (
        space_of(server, tmp_path, config, labels, webhook=True) as space,
        leading(space.target, config),
        registered(space, config, tmp_path / "tls"),
    ):
        await space.grove.apply(fixture(name))
        await space.turned(PODCLIQUES[name])
        await space.settled(
            space.owners, {cd: [("PodGang", gang)] for cd, (gang, _) in wanted.items()}
        )
        await space.settled(space.announced, {gang for gang, _ in wanted.values()})
        claimed: dict[str, list[str]] = {}
        for one in (await space.grove.all("podcliques")).values():
            if entries := one["spec"]["podSpec"].get("resourceClaims"):
                (entry,) = entries
                assert entry == {"name": "mnnvl", key: entry[key]}
                (only,) = one["spec"]["podSpec"]["containers"]
                assert only["resources"]["claims"] == [{"name": "mnnvl"}]
                claimed.setdefault(entry[key].removesuffix("-mnnvl-claim") + "-cd", []).append(
                    one["metadata"]["name"]
                )
            else:
                assert not any("mnnvl" in key for key in one["metadata"].get("annotations", {}))
        assert {cd: sorted(names) for cd, names in claimed.items()} == {
            cd: names for cd, (_, names) in wanted.items()
        }
        for cd, one in (await space.domains()).items():
            said = one["metadata"]["labels"]
            assert (said["grove.io/mnnvl-managed"], said["grove.io/podgang"]) == (
                "true",
                wanted[cd][0],
            )
            assert one["spec"]["numNodes"] == 0
        assert await space.grove.turn() == 0  # the template again: nothing is stored


async def test_a_clique_without_gpus_stays_as_it_was_sent(
    server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        await space.grove.apply(fixture("e2-multi-model-serving"))
        await space.grove.turn()
        sets = await space.grove.all("podcliquesets")
        (sent,) = [
            space.grove.body(sets["multi-model-serving"], one)
            for one in space.grove.made(sets["multi-model-serving"], {})
            if one.name.endswith("-router")
        ]
        stored = (await space.grove.all("podcliques"))["multi-model-serving-0-router"]
        assert stored["spec"] == sent["spec"]
        assert stored["metadata"]["labels"] == sent["metadata"]["labels"]
        assert stored["metadata"].get("annotations") == sent["metadata"].get("annotations")


@modes
async def test_a_dry_run_leaves_nothing(config: Config, server: ApiServer, tmp_path: Path) -> None:
    async with (
        space_of(server, tmp_path, config, webhook=True) as space,
        leading(space.target, config) as one,
        registered(space, config, tmp_path / "tls") as hook,
    ):
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        set_ = (await space.grove.all("podcliquesets"))["t"]
        (made,) = space.grove.made(set_, {})
        before = one.writes(), hook.client.requests.count["create"]
        said = await space.dry_run("podcliques", space.grove.body(set_, made))
        claims = said["spec"]["podSpec"]["resourceClaims"]
        assert [entry["name"] for entry in claims] == ["mnnvl"]
        assert await space.domains() == {}
        assert await space.all(space.claim_path("resourceclaims")) == {}
        assert (one.writes(), hook.client.requests.count["create"]) == before
        assert _made(one) == 0


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
    """Set and PodClique are told that the domain was made and adopted; the driver has done its part."""
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


@modes
async def test_32_podcliques_of_one_domain_are_admitted_at_once(
    config: Config, server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, config, webhook=True) as space,
        leading(space.target, config),
        registered(space, config, tmp_path / "tls"),
    ):
        await space.grove.apply(pcs("t", [clique(f"w{i}") for i in range(32)], annotations=ON))
        await space.grove.cliques(await space.grove.all("podcliquesets"), writers=32)
        assert (len(await space.grove.all("podcliques")), space.grove.refused) == (32, [])
        await space.settled(lambda: _names(space), ["t-0-cd"])


async def _names(space: Space) -> list[str]:
    return sorted(await space.domains())


async def test_no_request_is_made_where_the_set_is_known_and_none_at_updates(
    server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls") as hook,
    ):
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


def with_labels(name: str, **labels: str | None) -> dict[str, Any]:
    found = podclique(name, "t", annotations=ON)
    for key, value in labels.items():
        full = {
            "part_of": "app.kubernetes.io/part-of",
            "pcs": "grove.io/pcs-name",
            "index": "grove.io/podcliqueset-replica-index",
        }[key]
        if value is None:
            found["metadata"]["labels"].pop(full)
        else:
            found["metadata"]["labels"][full] = value
    return found


def with_claim(name: str, **entry: str) -> dict[str, Any]:
    use = container(resources={"limits": {"nvidia.com/gpu": 1}, "claims": [{"name": name}]})
    return podclique(
        "t-0-w",
        "t",
        annotations=ON,
        pod={"containers": [use], "resourceClaims": [{"name": name, **entry}]},
    )


CLIQUES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown scope": (
        podclique("t-0-w", "t", annotations={**ON, "grove.io/mnnvl-scope": "Replica"}),
        'the scope "Replica" is unknown; write one of replica, clique, scalingGroupReplica',
    ),
    "a missing label": (
        with_labels("t-0-w", index=None),
        "needs the label grove.io/pcs-replica-index or grove.io/podcliqueset-replica-index, and it has neither",
    ),
    "labels that contradict": (
        with_labels("t-0-w", pcs="other"),
        "contradict each other; mend one of them",
    ),
    "a claim called as ours": (with_claim("mnnvl", resourceClaimTemplateName="theirs"), '"mnnvl"'),
    "Grove's own feature": (
        podclique("t-0-w", "t", annotations={**ON, "grove.io/mnnvl-group": "g"}),
        "grove.io/mnnvl-group",
    ),
    "a name that is too long": (
        podclique(f"t-0-{'w' * 245}", "t", annotations={**ON, "grove.io/mnnvl-scope": "clique"}),
        "more than 253; shorten the names of set and clique",
    ),
}


@pytest.mark.parametrize("mistake", list(CLIQUES))
async def test_a_podclique_that_cannot_have_it_is_refused_in_one_sentence(
    mistake: str, server: ApiServer, tmp_path: Path
) -> None:
    found, wanted = CLIQUES[mistake]
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        body = copy.deepcopy(found)
        body["metadata"]["namespace"] = space.namespace
        with pytest.raises(KubeError) as refused:
            await space.client.create(space.grove.path("podcliques"), body)
        assert (refused.value.status, wanted in str(refused.value)) == (403, True), str(
            refused.value
        )
        assert body["metadata"]["name"][:100] in str(refused.value)


async def test_a_clique_called_like_a_replica_of_a_scaling_group_is_refused_by_name(
    server: ApiServer, tmp_path: Path
) -> None:
    async with space_of(server, tmp_path, DRIVER, webhook=True) as space:
        await space.grove.apply(SETS["names that meet"][0])  # as one that is older than the webhook
        async with registered(space, DRIVER, tmp_path / "tls"):
            await space.grove.turn()
            assert any("t-0-p-1-cd would be called like" in said for said in space.grove.refused)
            assert not {"t-0-p-1", "t-0-p-1-w"} <= set(await space.grove.all("podcliques"))


async def test_a_generated_name_is_refused(server: ApiServer, tmp_path: Path) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        body = podclique("t-0-w", "t", annotations=ON)
        body["metadata"] = {
            **body["metadata"],
            "namespace": space.namespace,
            "generateName": "t-0-",
        }
        del body["metadata"]["name"]
        with pytest.raises(KubeError, match=r"it has no name yet"):
            await space.client.create(space.grove.path("podcliques"), body)


async def test_a_users_claim_of_a_compute_domain_class_is_refused(
    server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        request = {
            "name": "x",
            "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"},
        }
        theirs = {
            "metadata": {"name": "theirs"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
        await space.client.create(
            space.claim_path(),
            {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", **theirs},
        )
        body = with_claim("own", resourceClaimTemplateName="theirs")
        body["metadata"]["namespace"] = space.namespace
        with pytest.raises(KubeError, match="compute-domain"):
            await space.client.create(space.grove.path("podcliques"), body)


@pytest.mark.parametrize("value", ["True", "yes"])
async def test_what_only_looks_enabled_is_not_and_a_warning_says_so(
    value: str, server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        body = podclique("t-0-w", "t", annotations={"grove.io/mnnvl-enabled": value})
        body["metadata"]["namespace"] = space.namespace
        warnings = await space.warnings("podcliques", body)
        assert [
            one
            for one in warnings
            if f'grove.io/mnnvl-enabled is "{value}"; only "true" switches it on' in one
        ]
        assert "resourceClaims" not in (await space.dry_run("podcliques", body))["spec"]["podSpec"]


async def test_a_dry_run_of_an_update_changes_and_makes_nothing(
    server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, LITERAL, webhook=True) as space,
        registered(space, LITERAL, tmp_path / "tls") as hook,
    ):
        await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
        await space.turned(1)
        before, asked = await space.grove.all("podcliques"), hook.client.requests.count["create"]
        patch = {"spec": {"podSpec": {"containers": [container("other")], "resourceClaims": None}}}
        said = await space.client.merge_patch(
            space.grove.path("podcliques", "t-0-w?dryRun=All"), patch
        )
        assert json.loads(said)["spec"]["podSpec"]["resourceClaims"][0]["name"] == "mnnvl"
        assert await space.grove.all("podcliques") == before
        assert hook.client.requests.count["create"] == asked


@pytest.mark.parametrize("amount", [8, "8", "0", "8Gi", {"x": 1}, -1, None])
async def test_any_amount_of_gpus_gets_an_answer(
    amount: object, server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls") as hook,
    ):
        body = podclique("t-0-w", "t", annotations=ON, pod={"containers": [container(gpus=amount)]})
        body["metadata"]["namespace"] = space.namespace
        try:
            await space.client.create(space.grove.path("podcliques"), body)
        except KubeError as error:
            assert error.status == 403 and "nvidia.com/gpu" in str(error)  # noqa: PT018
        assert hook.counted("PodClique", "failed") == 0


async def test_a_podclique_of_1_4_megabytes_is_injected(server: ApiServer, tmp_path: Path) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        many = [{"name": f"E{i}", "value": "x" * 1000} for i in range(1350)]
        body = podclique("t-0-w", "t", annotations=ON, pod={"containers": [container(env=many)]})
        body["metadata"]["namespace"] = space.namespace
        said = json.loads(await space.client.create(space.grove.path("podcliques"), body))
        assert said["spec"]["podSpec"]["resourceClaims"][0]["name"] == "mnnvl"
        assert said["spec"]["podSpec"]["containers"][0]["env"] == many


SETS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown scope": (
        pcs("t", [clique("w")], annotations={**ON, "grove.io/mnnvl-scope": "pod"}),
        '"pod"',
    ),
    "a scope that cannot apply": (
        pcs("t", [clique("w")], annotations={**ON, "grove.io/mnnvl-scope": "scalingGroupReplica"}),
        "scalingGroupReplica",
    ),
    "both features": (
        pcs("t", [clique("w")], annotations={**ON, "grove.io/mnnvl-group": "g"}),
        "grove.io/mnnvl-group",
    ),
    "names that meet": (
        pcs(
            "t",
            [clique("w"), clique("p-1", annotations={**ON, "grove.io/mnnvl-scope": "clique"})],
            [group("p", ["w"], {**ON, "grove.io/mnnvl-scope": "scalingGroupReplica"}, replicas=2)],
        ),
        "p-1",
    ),
}


@pytest.mark.parametrize("mistake", list(SETS))
async def test_a_wrong_set_is_refused_when_it_is_applied(
    mistake: str, server: ApiServer, tmp_path: Path
) -> None:
    found, wanted = SETS[mistake]
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        with pytest.raises(KubeError) as refused:
            await space.grove.apply(found)
        assert (refused.value.status, wanted in str(refused.value)) == (403, True), str(
            refused.value
        )


async def test_the_annotations_of_a_set_cannot_be_changed_and_all_else_can(
    server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
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
