"""What people are told on a real API server: `show`, an annotation that is refused, and a namespace
that is ending.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from cliques import BY_CLIQUE, BY_GROUP, DRIVER, ON, clique, group, pcs, podclique
from live import Space, leading, space_of
from preflight_kube.client.client import KubeError
from preflight_mnnvl.config import Config
from preflight_mnnvl.controller import controller
from preflight_mnnvl.report.explain import ExplainedSet
from preflight_mnnvl.report.live import explain_live, show_live
from preflight_testing.apiserver import ApiServer
from preflight_testing.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def space(server: ApiServer, tmp_path: Path) -> AsyncIterator[Space]:
    async with space_of(server, tmp_path, DRIVER) as found:
        yield found


async def test_show_says_set_domain_owner_and_which_pods_have_their_claim(space: Space) -> None:
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
    async with leading(space.target, DRIVER):
        await space.grove.turn()
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})
    container = {"name": "a", "image": "x"}
    entry = {"name": "mnnvl", "resourceClaimTemplateName": "t-0-mnnvl-claim"}
    for name, claims in (("with", [entry]), ("without", [])):
        labels = {"grove.io/podclique": "t-0-w"}
        spec = {"containers": [container], "resourceClaims": claims}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        await space.client.create(f"/api/v1/namespaces/{space.namespace}/pods", body)
    text = await show_live(space.target, space.namespace, "", DRIVER)
    assert text is not None
    assert f"PodCliqueSet {space.namespace}/t\n  ComputeDomain t-0-cd: adopted\n" in text
    assert "belongs to the PodGang t-0" in text
    assert "with on no node yet, with its claim" in text
    assert "without on no node yet, WITHOUT its claim" in text
    assert "  PodGang t-0, one fabric: no: without without the claim\n" in text
    assert await show_live(space.target, space.namespace, "t", DRIVER) == text
    assert await show_live(space.target, space.namespace, "other", DRIVER) is None


async def test_domains_of_a_release_of_any_name_are_not_told_to_be_in_the_way(space: Space) -> None:
    """As the chart installs it, and as the manual has `show` asked: without a configuration."""
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
    async with leading(space.target, Config(instance="preflight")):
        await space.grove.turn()
        await space.settled(space.announced, {"t-0"})
    text = await show_live(space.target, space.namespace, "", None)
    assert text is not None
    assert "  ComputeDomain t-0-cd: adopted\n" in text
    seen = await explain_live(space.target, space.namespace, "t", None)
    assert seen is not None
    assert ([it.result for it in seen[0].cliques], seen[1]) == (["injected"], [])
    text = await show_live(space.target, space.namespace, "", Config(instance="other"))
    assert text is not None
    assert 'belongs to the release "preflight", not to "other"' in text


async def test_a_podgang_says_whether_its_pods_share_one_fabric(space: Space) -> None:
    """Claims of two pods on two nodes of one NVLink clique; then one of the nodes is another's."""
    nodes = [f"{space.namespace}-{i}" for i in (1, 2)]
    for node in nodes:
        labels = {"nvidia.com/gpu.clique": "x.1"}
        await space.client.create("/api/v1/nodes", {"metadata": {"name": node, "labels": labels}})
    await space.grove.apply(pcs("t", [clique("w", replicas=2)], annotations=ON))
    async with leading(space.target, DRIVER):
        await space.grove.turn()
        await space.settled(space.announced, {"t-0"})
        uid = (await space.domains())["t-0-cd"]["metadata"]["uid"]
        assert await one_fabric(space) is None
        for i, node in enumerate(nodes):
            await claimed(space, f"t-0-w-{i}", uid, node)
        await space.happens(
            lambda: says(space, "yes: 2 pods, 2 nodes of the NVLink clique x.1; "), "yes"
        )
        moved = {"metadata": {"labels": {"nvidia.com/gpu.clique": "x.2"}}}
        await space.client.merge_patch(f"/api/v1/nodes/{nodes[1]}", moved)
        await space.happens(lambda: says(space, "no: nodes of 2 NVLink cliques (x.1, x.2)"), "no")
        moved["metadata"]["labels"]["nvidia.com/gpu.clique"] = ""
        await space.client.merge_patch(f"/api/v1/nodes/{nodes[1]}", moved)
        unknown = "not known: the NVLink clique of 1 of 2 nodes is not known; "
        await space.happens(lambda: says(space, unknown), "an empty label is no clique")
    for node in nodes:
        await space.client.delete(f"/api/v1/nodes/{node}")


async def one_fabric(space: Space) -> str | None:
    meta = (await space.grove.all("podgangs"))["t-0"]["metadata"]
    found: str | None = meta.get("annotations", {}).get("grove.io/mnnvl-one-fabric")
    return found


async def says(space: Space, beginning: str) -> bool:
    return (await one_fabric(space) or "").startswith(beginning)


async def claimed(space: Space, pod: str, domain: str, node: str) -> None:
    """The claim of a pod, as the resource claim controller makes it and the scheduler allocates."""
    driver = "compute-domain.nvidia.com"
    request = {
        "name": "channel",
        "exactly": {"deviceClassName": "compute-domain-default-channel.nvidia.com"},
    }
    opaque = {"driver": driver, "parameters": {"domainID": domain}}
    container = {"name": "a", "image": "x"}
    made = json.loads(
        await space.client.create(
            f"/api/v1/namespaces/{space.namespace}/pods",
            {"metadata": {"name": pod}, "spec": {"containers": [container]}},
        )
    )
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": made["metadata"]["uid"]}
    body = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": f"{pod}-mnnvl-x",
            "annotations": {"resource.kubernetes.io/pod-claim-name": "mnnvl"},
            "ownerReferences": [owner],
        },
        "spec": {
            "devices": {
                "requests": [request],
                "config": [{"requests": ["channel"], "opaque": opaque}],
            }
        },
    }
    result = {"request": "channel", "driver": driver, "pool": node, "device": "channel-0"}
    await space.client.create(space.claim_path("resourceclaims"), body)
    path = space.claim_path("resourceclaims", f"{pod}-mnnvl-x")
    status = {"status": {"allocation": {"devices": {"results": [result]}}}}
    await space.client.merge_patch(f"{path}/status", status)


async def test_where_a_podgang_may_not_be_annotated_adoption_counts_and_one_event_says_what_to_set(
    space: Space,
) -> None:
    set_ = await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
    await space.grove.gang("t-0", set_)
    patch = {"metadata": {"annotations": {"probe": "x"}}}

    async def probe() -> None:
        await space.client.merge_patch(space.grove.path("podgangs", "t-0"), patch)

    async with (
        refused(space, "UPDATE", {"scheduler.grove.io": ["podgangs"]}, probe),
        leading(space.target, DRIVER),
    ):
        await space.grove.turn(gangs="none")
        await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})
        await space.told("MnnvlAnnouncementRefused")
        (event,) = await space.events("MnnvlAnnouncementRefused")
        assert event["involvedObject"]["kind"] == "PodCliqueSet"
        assert "config.authorizer.exemptServiceAccountUserNames" in event["message"]
        assert await space.announced() == set()


@asynccontextmanager
async def refused(
    space: Space,
    operation: str,
    kinds: dict[str, list[str]],
    probe: Callable[[], Awaitable[object]],
) -> AsyncIterator[None]:
    """An operation on some kinds, plurals by group, is refused to everybody in the namespace;
    ``probe`` is refused once that is in force.
    """
    name = f"refused-{space.namespace}"
    group = "/apis/admissionregistration.k8s.io/v1"
    rules = [
        {
            "apiGroups": [one],
            "apiVersions": ["v1alpha1"],
            "resources": plurals,
            "operations": [operation],
        }
        for one, plurals in kinds.items()
    ]
    refusal = {"expression": "false", "message": "only Grove may", "reason": "Forbidden"}
    policy = {
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": rules}, "validations": [refusal]},
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": space.namespace}}
    binding = {
        "metadata": {"name": name},
        "spec": {
            "policyName": name,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    await space.client.create(f"{group}/validatingadmissionpolicies", policy)
    await space.client.create(f"{group}/validatingadmissionpolicybindings", binding)
    try:
        # Asked until it is refused.
        with pytest.raises(KubeError, match="only Grove may"), anyio.fail_after(600):  # noqa: PT012
            while True:
                await probe()
                await anyio.sleep(0.1)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await space.client.delete(f"{group}/validatingadmissionpolicybindings/{name}")
            await space.client.delete(f"{group}/validatingadmissionpolicies/{name}")
            # A server goes on refusing for a moment: what ends the test deletes in its namespace.
            await space.happens(partial(_allowed, probe), "nothing is refused any more")


async def _allowed(probe: Callable[[], Awaitable[object]]) -> bool:
    try:
        await probe()
    except KubeError as error:
        return "only Grove may" not in str(error)
    return True


async def test_in_a_namespace_that_is_being_deleted_the_controller_makes_nothing_says_so_and_goes_on_with_others(
    server: ApiServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its sets, PodCliques and PodGangs are held; the domain, which they need, goes at once."""
    caplog.set_level("INFO")
    async with (
        space_of(server, tmp_path, DRIVER) as ending,
        space_of(server, tmp_path, DRIVER) as other,
        leading(other.target, DRIVER) as one,
    ):
        for space in (ending, other):
            await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
            await space.grove.turn()
            await space.settled(space.announced, {"t-0"})
        path = f"/api/v1/namespaces/{ending.namespace}"
        held = {
            "grove.io": ["podcliquesets", "podcliques"],
            "scheduler.grove.io": ["podgangs"],
        }
        probe = f"{ending.grove.path('podcliques', 't-0-w')}?dryRun=All"
        async with refused(ending, "DELETE", held, lambda: ending.client.delete(probe)):
            await ending.client.delete(path)
            await ending.settled(ending.domains, {})
            await until(lambda: _said(caplog), "it is in the log")
            await other.grove.scale("t", 3)
            await other.grove.turn()
            wanted = {f"t-{i}-cd": [("PodGang", f"t-{i}")] for i in range(3)}
            await other.settled(other.owners, wanted)
            await other.settled(other.announced, {"t-0", "t-1", "t-2"})
            about = {"kind": "ComputeDomain", "namespace": ending.namespace, "name": "t-0-cd"}
            assert _said(caplog)[0] == about
            # Once for what was lost, and for looks that were due anyway: not again and again.
            tried = one.counted("mnnvl_writes_total", kind="ComputeDomain", result="refused")
            assert 1 <= tried == len(_said(caplog)) <= 5
            assert not [
                record
                for record in caplog.records
                if record.levelname in {"WARNING", "ERROR"}
                and ending.namespace in str(vars(record).get("about"))
            ]
            assert (await ending.client.get(path, dict))["status"]["phase"] == "Terminating"
        await ending.settled(partial(ending.client.get_or_none, path, dict), None, 60)


def _said(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [
        vars(record)["about"]
        for record in caplog.records
        if record.getMessage() == "the namespace is being deleted, nothing is made in it"
    ]


async def test_explain_live_says_how_the_cluster_differs_from_the_set(space: Space) -> None:
    on_clique = BY_CLIQUE
    await space.grove.apply(
        pcs("t", [clique("w", annotations=on_clique), clique("x", annotations=on_clique)])
    )
    told, differs = await found(space)
    assert [one.name for one in told.domains] == ["t-0-w-cd", "t-0-x-cd"]
    assert "ComputeDomain t-0-w-cd is not there" in differs
    assert any(one.startswith("PodClique t-0-x is not there;") for one in differs)
    async with leading(space.target, DRIVER):
        await space.grove.turn(gangs="none")
        await space.settled(
            space.owners, {f"t-0-{name}-cd": [("PodCliqueSet", "t")] for name in "wx"}
        )
        _, differs = await found(space)
        assert [one.partition(":")[0] for one in differs] == [
            f"ComputeDomain t-0-{name}-cd is owned-by-set" for name in "wx"
        ]
        await space.grove.turn()
        await space.settled(space.announced, {"t-0"})
    assert (await found(space))[1] == []
    await space.client.merge_patch(
        space.grove.path("podcliques", "t-0-w"),
        {"metadata": {"annotations": {"mnnvl.nvsentinel.nvidia.com/domain": None}}},
    )
    _, differs = await found(space)
    assert [one.partition(", ")[0] for one in differs][:1] == ["PodClique t-0-w has no domain"]
    assert await explain_live(space.target, space.namespace, "none", DRIVER) is None


async def test_a_scaling_group_that_was_scaled_is_as_expected(space: Space) -> None:
    """Grove takes the replicas that the set says at the group's creation alone."""
    by_group = BY_GROUP
    await space.grove.apply(
        pcs("t", [clique("w", replicas=1)], [group("g", ["w"], by_group, replicas=2)])
    )
    async with leading(space.target, DRIVER):
        for replicas, gangs in (
            (2, {"t-0", "t-0-g-0"}),
            (3, {"t-0", "t-0-g-0", "t-0-g-1"}),
            (1, {"t-0"}),
        ):
            if replicas != 2:
                await space.grove.scale_group("t-0-g", replicas)
            await space.grove.turn()
            await space.settled(space.announced, gangs)

            async def seen() -> tuple[list[str], int, list[str]]:
                told, differs = await found(space)
                return [one.name for one in told.domains], told.nodes_needed, differs

            domains = [f"t-0-g-{i}-cd" for i in range(replicas)]
            await space.settled(seen, (domains, replicas, []))


async def found(space: Space) -> tuple[ExplainedSet, list[str]]:
    seen = await explain_live(space.target, space.namespace, "t", DRIVER)
    assert seen is not None
    return seen


@pytest.mark.parametrize("where", ["set", "group"])
async def test_a_podclique_without_its_claim_is_counted_and_told(
    space: Space, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "UNCLAIMED_PATIENCE", 0.1)
    on = ON if where == "group" else None
    set_ = await space.grove.apply(
        pcs("t", [clique("w")], [group("g", ["w"], on)], ON if where == "set" else None)
    )
    bare = podclique("t-0-g-0-w", "t", group="t-0-g", index="0")
    owner = {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "name": "t"}
    bare["metadata"] |= {
        "namespace": space.namespace,
        "ownerReferences": [{**owner, "uid": set_["metadata"]["uid"]}],
    }
    path = space.grove.path("podcliques", "")
    await space.client.create(path.rstrip("/"), bare)
    async with leading(space.target, DRIVER) as one:

        async def told() -> set[str]:
            found = await space.events("MnnvlUnclaimed")
            what = "for its namespace. Delete it, and Grove makes it anew with its claim, if one answers now."
            assert all(each["message"].endswith(what) for each in found)
            return {each["involvedObject"]["kind"] for each in found}

        await space.settled(told, {"PodClique", "PodCliqueSet"})
        value = one.metrics.registry.get_sample_value("mnnvl_unclaimed_podcliques")
        assert value == 1


async def test_whose_podclique_would_be_made_without_a_claim_again_is_not_told_to_delete_it(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "UNCLAIMED_PATIENCE", 0.1)
    await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
    bare = podclique("t-0-w", "t")
    bare["metadata"]["namespace"] = space.namespace
    await space.client.create(space.grove.path("podcliques", "").rstrip("/"), bare)
    async with leading(space.target, Config(on_unsupported="ignore", require_fabric_nodes=True)):

        async def told() -> set[tuple[str, str]]:
            found = await space.events()
            return {(one["reason"], one["message"].partition(": ")[2]) for one in found}

        why = (
            "MNNVL cannot be had: no node carries the label nvidia.com/gpu.clique, which requireFabricNodes asks for; "
            "add such nodes, or remove grove.io/mnnvl-enabled."
        )
        await space.settled(told, {("MnnvlUnsupported", why)})
