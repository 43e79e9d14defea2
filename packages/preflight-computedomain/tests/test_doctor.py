"""What the administrator's commands say of a cluster as it was read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from claimed import DOMAIN, document, parameters, ref
from preflight_computedomain.api.names import API_VERSION, LABEL, TARGET_LABEL
from preflight_computedomain.api.types import (
    ClaimTemplate,
    ComputeDomain,
    Identified,
    Slice,
    UsedClaim,
)
from preflight_computedomain.core import slices, template
from preflight_computedomain.report.doctor import before_uninstall, explain, report
from preflight_computedomain.report.live import ClusterObjects, Pod, read_cluster
from preflight_testing.apidouble import RESOURCES, ApiDouble, Resource, write_kubeconfig

T = TypeVar("T")
OTHER = "d0000000-0000-0000-0000-000000000002"


def made(type_: type[T], body: dict[str, Any]) -> T:
    return msgspec.json.decode(json.dumps(body).encode(), type=type_)


def domain(name: str = "train", uid: str = DOMAIN, **more: Any) -> ComputeDomain:
    channel = {"resourceClaimTemplate": {"name": f"{name}-channel"}, **more.pop("channel", {})}
    metadata = {"name": name, "namespace": "team-a", "uid": uid, **more.pop("metadata", {})}
    body = {"metadata": metadata, "spec": {"channel": channel}, "status": {"status": "Ready"}}
    return made(ComputeDomain, {**body, **more})


def labeled(name: str, **labels: str) -> Identified:
    return made(
        Identified, {"metadata": {"name": name, "namespace": "team-a", "labels": {**labels}}}
    )


def node(name: str, **labels: str) -> Identified:
    return made(Identified, {"metadata": {"name": name, "labels": {**labels}}})


def sliced(name: str, *devices: str) -> Slice:
    body = slices.body(name, "uid", [])
    body["spec"]["devices"] = [{"name": one} for one in devices or ("channel-0",)]
    return made(Slice, body)


def plugin(on: str) -> Pod:
    body = {"metadata": {"name": f"plugin-{on}", "namespace": "preflight"}}
    return made(Pod, {**body, "spec": {"nodeName": on}, "status": {"phase": "Running"}})


def claimed(name: str, of: str = DOMAIN, **status: Any) -> UsedClaim:
    body = document(ref(2 if name == "two" else 1, name), **status)
    opaque = {"driver": "compute-domain.nvidia.com", "parameters": parameters(domainID=of)}
    body["spec"] = {"devices": {"config": [{"opaque": opaque}]}}
    return made(UsedClaim, body)


def templated(of: ComputeDomain, **labels: str) -> ClaimTemplate:
    body = template.body(of)
    body["metadata"]["labels"] |= labels
    return made(ClaimTemplate, body)


HEALTHY = ClusterObjects(
    domains=[domain()],
    templates=[templated(domain())],
    claims=[claimed("one")],
    slices=[sliced("node-1")],
    nodes=[node("node-1", **{"nvidia.com/gpu.clique": "c.1"}), node("cpu-only")],
    plugins=[plugin("node-1")],
)


def seen(**changed: Any) -> ClusterObjects:
    return replace(HEALTHY, **changed)


def test_of_a_cluster_in_order_nothing_is_said() -> None:
    assert report(HEALTHY) == (
        ["1 ComputeDomains; 1 nodes offer channel-0; no problem found."],
        True,
    )


DELETED = {"deletionTimestamp": "2026-05-01T12:00:00Z", "finalizers": ["theirs/f"]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"daemons": [labeled("old")]}, "DaemonSet team-a/old"),
        (
            {"templates": [*HEALTHY.templates, templated(domain("x"), **{TARGET_LABEL: "Daemon"})]},
            "ResourceClaimTemplate team-a/x-channel (a daemon's)",
        ),
        ({"cliques": [labeled("old")]}, "ComputeDomainClique team-a/old"),
        (
            {"nodes": [*HEALTHY.nodes, node("node-2", **{LABEL: "uid"})]},
            f"label {LABEL} on node node-2",
        ),
        (
            {"slices": [sliced("node-1", "channel-0", "daemon-0")]},
            "ResourceSlice node-1-compute-domain.nvidia.com offers daemon-0",
        ),
        (
            {"slices": []},
            "node-1 has no ResourceSlice: look at the log of its plugin, pod preflight/plugin-node-1",
        ),
        (
            {
                "domains": [*HEALTHY.domains, domain("other", OTHER)],
                "templates": [*HEALTHY.templates, templated(domain("other", OTHER))],
                "claims": [claimed("one"), claimed("two", OTHER)],
            },
            "team-a/other, team-a/train",
        ),
        ({"slices": [], "plugins": []}, "node-1 is in an NVLink clique, and has neither"),
        (
            {"nodes": [], "plugins": [*HEALTHY.plugins, plugin("node-2")]},
            "node-2 has no ResourceSlice: look at the log of its plugin",
        ),
        (
            {"domains": [domain(channel={"allocationMode": "All"})]},
            "team-a/train has allocationMode All",
        ),
        (
            {"templates": [templated(domain(), **{LABEL: "another"})]},
            "team-a/train cannot have its ResourceClaimTemplate train-channel, which belongs to something else",
        ),
        (
            {"domains": [domain(channel={"resourceClaimTemplate": {"name": "Train"}})]},
            "team-a/train asks for a ResourceClaimTemplate 'Train', which cannot be an object's name",
        ),
        (
            {"domains": [domain(metadata=DELETED)]},
            "team-a/train is being deleted, and held by theirs/f",
        ),
        (
            {"domains": [domain(status={"status": "NotReady"})]},
            "team-a/train is not Ready: is compute-domain-controller running?",
        ),
        ({"claims": [claimed("old", of="gone")]}, "team-a/old on node-1"),
        ({"unread": ["nodes: forbidden."]}, "nodes: forbidden."),
    ],
    ids=[
        *("daemonset", "daemon-template", "clique", "node-label", "daemon-slice", "no-slice"),
        *(
            "no-plugin",
            "shared",
            "no-slice-nor-label",
            "all",
            "conflict",
            "name",
            "held",
            "not-ready",
            "stale",
        ),
        "unread",
    ],
)
def test_what_is_wrong_is_one_line_with_its_name(changed: dict[str, Any], said: str) -> None:
    lines, sound = report(seen(**changed))
    assert [line for line in lines if said in line] != []
    assert (sound, len([line for line in lines if line.startswith("  ")])) == (False, 1)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"served": False, "domains": [], "slices": []}, "The definition of ComputeDomain is not"),
        (
            {"slices": [sliced("node-1", "channel-0", "daemon-0")], "daemons": [labeled("theirs")]},
            "NVIDIA's own driver manages IMEX here",
        ),
    ],
    ids=["no-definition", "nvidia's-driver"],
)
def test_a_cluster_that_does_not_use_this_part_is_not_judged(
    changed: dict[str, Any], said: str
) -> None:
    ([line], sound) = report(seen(plugins=[], **changed))
    assert (line.startswith(said), sound) == (True, True)
    assert report(seen(plugins=[], unread=["pods: forbidden."], **changed))[1] is False


@pytest.mark.anyio
@pytest.mark.parametrize("used", [False, True])
async def test_apis_that_are_not_served_are_told_where_this_part_is_used(
    used: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resources = [*RESOURCES, Resource("apps/v1", "daemonsets", "DaemonSet")]
    async with ApiDouble(resources, absent=(API_VERSION, "resource.k8s.io/v1")) as api:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", api.url)))
        if used:
            labels = {"name": "preflight-computedomain", "component": "kubelet-plugin"}
            labels = {f"app.kubernetes.io/{key}": value for key, value in labels.items()}
            api.create("pods", {"metadata": {"name": "p", "namespace": "a", "labels": labels}})
        found = await read_cluster()
    told = " ".join(found.unread)
    assert (found.served, "computedomains: this cluster" in told) == (False, used)
    assert ("resourceclaims: this cluster does not serve it; Kubernetes" in told) is used
    assert report(found)[1] is not used


def test_before_an_uninstall_is_told_what_could_not_be_deleted_any_more() -> None:
    lines, free = before_uninstall(HEALTHY)
    assert free is False
    assert [line.split(":")[0].split(" has ")[0] for line in lines] == [
        "ComputeDomain team-a/train",
        "ResourceClaim team-a/one on node-1",
        "ResourceClaimTemplate team-a/train-channel",
        "Do not uninstall yet.",
    ]
    lines, free = before_uninstall(
        seen(unread=["a: not read."], domains=[], templates=[], claims=[])
    )
    assert (lines[0], free) == ("Not read: a: not read.", False)
    assert before_uninstall(seen(domains=[], templates=[], claims=[]))[1] is True


def test_explain_goes_from_the_domain_to_the_pods_that_use_it() -> None:
    used: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": "rank-0", "uid": "p-0"}]}
    pod = {"metadata": {"name": "rank-0", "namespace": "team-a", "uid": "p-0"}}
    placed = {"spec": {"nodeName": "node-1"}, "status": {"phase": "Running"}}
    claims = [claimed("one", **used), claimed("waits", allocation=None), claimed("other", of="x")]
    lines = explain(seen(claims=claims, pods=[made(Pod, {**pod, **placed})]), "team-a", "train")
    assert lines == [
        f"ComputeDomain team-a/train ({DOMAIN}): Ready, mode Single",
        "ResourceClaimTemplate train-channel: there",
        "  claim one: channel 0 of node-1; pod rank-0 (Running on node-1)",
        "  claim waits: not allocated: the scheduler has found no node; used by no pod",
    ]


@pytest.mark.parametrize(
    ("templates", "said"),
    [
        ([], "missing"),
        ([templated(domain(), **{LABEL: "another"})], "belongs to something else"),
        ([templated(domain(uid=OTHER))], "is that of the ComputeDomain team-a/theirs, and is left"),
        ([templated(domain(uid="gone"))], "is that of the ComputeDomain with the uid gone, and is"),
        (HEALTHY.templates, "there"),
    ],
    ids=["missing", "foreign", "another's", "one's that is gone", "there"],
)
def test_explain_says_whose_the_template_is(templates: list[ClaimTemplate], said: str) -> None:
    domains = [domain(), domain("theirs", uid=OTHER)]
    lines = explain(seen(templates=templates, claims=[], domains=domains), "team-a", "train")
    assert f"train-channel: {said}" in lines[1]
    assert lines[2] == "  no claim: no pod refers to the template yet"


def test_explain_of_a_domain_that_is_not_there_says_nothing() -> None:
    assert explain(HEALTHY, "team-b", "train") == []
