"""Both webhooks behind a real API server: what a user's set becomes by Grove's own writes, and what
each mistake is answered.
"""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, LITERAL, clique, container, group, pcs, podclique
from live import Leading, Space, leading, space_of
from preflight_kube.client.client import KubeError
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer
from registered import registered

pytestmark = pytest.mark.anyio

modes = pytest.mark.parametrize("config", [DRIVER, LITERAL], ids=["driver", "literal"])
ON = {"grove.io/mnnvl-enabled": "true"}


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
    "a scope of something else": (
        podclique("t-0-w", "t", annotations={**ON, "grove.io/mnnvl-scope": "pod"}),
        'the scope "pod" is unknown; write one of replica, clique, scalingGroupReplica',
    ),
    "a missing label": (
        with_labels("t-0-w", index=None),
        "needs the label grove.io/pcs-replica-index or grove.io/podcliqueset-replica-index, and it has neither; add one of them",
    ),
    "labels that contradict": (
        with_labels("t-0-w", pcs="other"),
        "contradict each other; correct one of them",
    ),
    "a claim called as ours": (
        with_claim("mnnvl", resourceClaimTemplateName="theirs"),
        'spec.podSpec.resourceClaims[0] is called "mnnvl", which is the name of the claim that is added here; rename it',
    ),
    "Grove's own feature": (
        podclique("t-0-w", "t", annotations={**ON, "grove.io/mnnvl-group": "g"}),
        'grove.io/mnnvl-group is "g" at the PodClique while grove.io/mnnvl-enabled is "true", and only one of the two can be had; remove one',
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
        said = str(refused.value)
        name = body["metadata"]["name"]
        about = f"PodClique {space.namespace}/{name if len(name) <= 120 else name[:119] + '…'}: "
        assert (refused.value.status, about in said, f"{wanted}." in said) == (403, True, True), (
            said
        )


@pytest.mark.parametrize("kind", ["ComputeDomain", "ResourceClaimTemplate"])
async def test_what_somebody_else_has_under_our_name_is_named_at_once_and_no_pod_gets_it(
    kind: str, server: ApiServer, tmp_path: Path
) -> None:
    request = {"name": "x", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    channel = {"resourceClaimTemplate": {"name": "theirs"}}
    name, version, spec = {
        "ComputeDomain": ("t-0-cd", "resource.nvidia.com/v1beta1", {"numNodes": 1, "channel": channel}),
        "ResourceClaimTemplate": ("t-0-mnnvl-claim", "resource.k8s.io/v1", {"spec": {"devices": {"requests": [request]}}}),
    }[kind]  # fmt: skip
    async with space_of(server, tmp_path, DRIVER, webhook=True) as space:
        set_ = await space.grove.apply(pcs("other", [clique("w")]))
        owner = {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "other"}
        meta = {"name": name, "ownerReferences": [{**owner, "uid": set_["metadata"]["uid"]}]}
        path = space.domain_path if kind == "ComputeDomain" else space.claim_path
        body = {"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec}
        await space.client.create(path(), body)
        async with registered(space, DRIVER, tmp_path / "tls"):
            await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
            await space.grove.turn()
            assert "t-0-w" not in await space.grove.all("podcliques")
            (said,) = {one for one in space.grove.refused if "t-0-w" in one}
            assert f"the {kind} {name} exists and does not carry" in said
            assert "and belongs to the PodCliqueSet other; delete or rename it." in said
            await space.client.delete(path(name=name))

            async def stored() -> bool:
                await space.grove.turn()
                return "t-0-w" in await space.grove.all("podcliques")

            await space.happens(stored, "its end is seen")


async def test_of_two_sets_whose_domains_could_be_called_alike_each_has_its_own(
    server: ApiServer, tmp_path: Path
) -> None:
    scoped = {**ON, "grove.io/mnnvl-scope": "scalingGroupReplica"}
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        leading(space.target, DRIVER),
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        await space.grove.apply(pcs("llm", [clique("w")], [group("pool", ["w"], scoped)]))
        await space.grove.apply(pcs("llm-0-pool", [clique("v")], annotations=ON))
        await space.turned(2)
        stored = await space.grove.all("podcliques")
        claims = {
            name: one["spec"]["podSpec"]["resourceClaims"][0]["resourceClaimTemplateName"]
            for name, one in stored.items()
        }
        assert claims["llm-0-pool-0-w"] == "llm-0-pool-0-mnnvl-claim"
        assert re.fullmatch(r"llm-0-pool-0-[0-9a-f]{10}-mnnvl-claim", claims["llm-0-pool-0-v"])
        own = claims["llm-0-pool-0-v"].removesuffix("-mnnvl-claim")
        await space.settled(
            space.owners,
            {"llm-0-pool-0-cd": [("PodGang", "llm-0")], f"{own}-cd": [("PodGang", "llm-0-pool-0")]},
        )
        assert await space.events("MnnvlDomainBlocked") == []


@pytest.mark.parametrize("kind", ["ComputeDomain", "ResourceClaim"])
async def test_in_literal_mode_what_somebody_else_has_under_our_name_is_named_at_once(
    kind: str, server: ApiServer, tmp_path: Path
) -> None:
    request = {"name": "x", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    channel = {"resourceClaimTemplate": {"name": "theirs"}}
    name, version, spec = {
        "ComputeDomain": ("t-0-cd", "resource.nvidia.com/v1beta1", {"channel": channel}),
        "ResourceClaim": (
            "t-0-mnnvl-claim",
            "resource.k8s.io/v1",
            {"devices": {"requests": [request]}},
        ),
    }[kind]
    labels = {"app.kubernetes.io/managed-by": "helm"}
    metadata = {"name": name, "labels": labels}
    theirs = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
    async with space_of(server, tmp_path, LITERAL, webhook=True) as space:
        paths = (space.domain_path(), space.claim_path("resourceclaims"))
        before = await space.client.create(paths[kind == "ResourceClaim"], theirs)
        body = podclique("t-0-w", "t", annotations=ON)
        body["metadata"]["namespace"] = space.namespace
        sentence = f"PodClique {space.namespace}/t-0-w: the {kind} {name} exists and is managed by helm; delete or rename it."
        async with registered(space, LITERAL, tmp_path / "tls"):
            with pytest.raises(KubeError, match=re.escape(sentence)):
                await space.client.create(space.grove.path("podcliques"), body)
        there = {**await space.all(paths[0]), **await space.all(paths[1])}
        assert there[name]["metadata"]["uid"] == json.loads(before)["metadata"]["uid"]


async def test_a_clique_called_like_a_replica_of_a_scaling_group_has_a_domain_of_its_own(
    server: ApiServer, tmp_path: Path
) -> None:
    cliques = [clique("w"), clique("p-1", annotations={**ON, "grove.io/mnnvl-scope": "clique"})]
    scoped = {**ON, "grove.io/mnnvl-scope": "scalingGroupReplica"}
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls"),
    ):
        await space.grove.apply(pcs("t", cliques, [group("p", ["w"], scoped, replicas=2)]))
        await space.turned(3)
        claims = {
            name: found["spec"]["podSpec"]["resourceClaims"][0]["resourceClaimTemplateName"]
            for name, found in (await space.grove.all("podcliques")).items()
        }
        assert claims["t-0-p-1-w"] == "t-0-p-1-mnnvl-claim"
        assert len(set(claims.values())) == 3


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
        sentence = r"PodClique \S+/t-0-: it has no name yet \(generateName\), and the names of its objects are made of it; give it a name\."
        with pytest.raises(KubeError, match=sentence):
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
        sentence = (
            r'PodClique \S+/t-0-w: spec\.podSpec\.resourceClaims\[0\] \("own"\) asks for a device of class '
            r'"compute-domain-default-channel\.nvidia\.com", and a pod cannot have two channels of a node; remove it, or grove\.io/mnnvl-enabled\.'
        )
        with pytest.raises(KubeError, match=sentence):
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


PATH = "spec.podSpec.containers[0].resources.limits[nvidia.com/gpu]"
AMOUNTS: list[tuple[object, bool | str]] = [
    (8, True),
    (0.5, True),
    ("8", True),
    ("8Gi", True),
    ("1e3", True),
    (0, False),
    ("0", False),
    ("0Ki", False),
    ("eight", f'{PATH} is "eight", which is not an amount; write e.g. 8.'),
    ("", f'{PATH} is "", which is not an amount; write e.g. 8.'),
    ({"x": 1}, "which is not an amount; write e.g. 8."),
    (True, f"{PATH} is True, which is not an amount; write e.g. 8."),
]
"""An amount of GPUs, and whether its container gets a claim, or how it is refused."""


@pytest.mark.parametrize(("amount", "wanted"), AMOUNTS)
async def test_an_amount_of_gpus_is_taken_as_kubernetes_takes_it_or_refused_by_its_place(
    amount: object, wanted: bool | str, server: ApiServer, tmp_path: Path
) -> None:
    async with (
        space_of(server, tmp_path, DRIVER, webhook=True) as space,
        registered(space, DRIVER, tmp_path / "tls") as hook,
    ):
        body = podclique("t-0-w", "t", annotations=ON, pod={"containers": [container(gpus=amount)]})
        body["metadata"]["namespace"] = space.namespace
        said = await space.dry_run("podcliques", body)
        if isinstance(wanted, str):
            assert (said["code"], said["message"].endswith(wanted)) == (403, True), said
            assert f"PodClique {space.namespace}/t-0-w: {PATH} is " in said["message"]
        else:
            assert ("resourceClaims" in said["spec"]["podSpec"]) is wanted
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
        body = podclique("t-0-w", "t", annotations=ON)
        body["metadata"]["namespace"] = space.namespace
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
