"""The chart's rights and policies, with real tokens: what the programs do they may, and nothing
beyond.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from driven import User, leads, until
from preflight_computedomain.api.crd import crd
from preflight_computedomain.api.names import (
    DOMAINS,
    DRIVER,
    GRANTED,
    LABEL,
    TARGET_LABEL,
    TEMPLATES,
)
from preflight_computedomain.core import slices
from preflight_computedomain.core.claims import KubeletClaim
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, KubeError
from preflight_testing import apiserver
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.helm import UMBRELLA, Object, render
from preflight_testing.rights import granted, read
from test_plugin_service import World

pytestmark = pytest.mark.anyio

HOME = "preflight"
CONTROLLER = "preflight-computedomain-controller"
PLUGIN = "preflight-computedomain-kubelet-plugin"


def devices() -> list[Any]:
    return slices.channel("00010203-0405-0607-0809-0a0b0c0d0e0f.7", "570.158.1")


AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{HOME}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{HOME}/rolebindings",
    "ServiceAccount": f"/api/v1/namespaces/{HOME}/serviceaccounts",
    "DeviceClass": "/apis/resource.k8s.io/v1/deviceclasses",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


def chart(**values: Any) -> list[Object]:
    values = {"enabled": True, "featureGates": {"HostManagedIMEX": True}, **values}
    return render(UMBRELLA, {"preflight-computedomain": values}, namespace=HOME)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with an audit log, and with the chart's roles and policies."""
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path_factory.mktemp("guarded")
    (home / "policy.json").write_text(json.dumps(AUDIT))
    more = [f"--audit-policy-file={home}/policy.json", f"--audit-log-path={home}/audit.log"]
    with apiserver.ApiServer(home, folder, authorization="RBAC", more=more) as server:
        server.define(crd())
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
        for item in chart():
            if item["kind"] in PATHS:
                server.call("POST", PATHS[item["kind"]], item)
        yield server


def token(server: ApiServer, account: str, node: str = "") -> str:
    """A token of ``account``, bound to ``node`` as a kubelet's for a pod there is."""
    asked: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    if node:
        uid = server.call("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
        asked["spec"]["boundObjectRef"] = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": node,
            "uid": uid,
        }
    path = f"/api/v1/namespaces/{HOME}/serviceaccounts/{account}/token"
    return str(server.call("POST", path, asked)["status"]["token"])


def to(server: ApiServer, folder: Path, name: str, token: str | None = None) -> Connection:
    return connection({"KUBECONFIG": str(server.kubeconfig(folder / name, token))})


@pytest.fixture
async def user(guarded: ApiServer, tmp_path: Path) -> AsyncIterator[User]:
    async with Client(to(guarded, tmp_path, "admin"), agent="user") as client:
        made = User(client)
        await made.begin()
        yield made


@asynccontextmanager
async def allowed(
    guarded: ApiServer, user: User, short: Path, google: dict[str, ModuleType], tmp_path: Path
) -> AsyncIterator[World]:
    """A node whose plugin has the chart's rights, and no others."""
    world = World(short, to(guarded, tmp_path, "unused"), google, user)
    await user.client.create("/api/v1/nodes", {"metadata": {"name": world.name}})
    world.target = to(guarded, tmp_path, "plugin", token(guarded, PLUGIN, world.name))
    await world.begin()
    try:
        yield world
    finally:
        await world.end()


async def test_the_controller_does_all_it_does_with_the_charts_rights_and_uses_each_of_them(
    guarded: ApiServer, user: User, tmp_path: Path
) -> None:
    target = to(guarded, tmp_path, "controller", token(guarded, CONTROLLER))
    async with leads(target, sweep_seconds=0.2, namespace=HOME, lease="compute-domain-controller"):
        await user.create(mode="All")
        await user.ready()
        await user.event("UnsupportedAllocationMode")
        before = await user.template()
        assert before is not None
        await user.patch(
            TEMPLATES,
            "train-a-channel",
            {"metadata": {"labels": {LABEL: None, TARGET_LABEL: None}}},
        )

        async def mended() -> bool:
            found = await user.template()
            return bool(found and LABEL in found["metadata"].get("labels", {}))

        await until(mended)
        await user.delete(DOMAINS, "train-a")
        await user.gone(DOMAINS, "train-a")
        stale = {
            **before,
            "metadata": {**before["metadata"], "name": "stale", "namespace": user.namespace},
        }
        for key in ("uid", "resourceVersion", "creationTimestamp", "managedFields"):
            stale["metadata"].pop(key, None)
        await user.make_template(stale)
        await user.gone(TEMPLATES, "stale")
    account = f"system:serviceaccount:{HOME}:{CONTROLLER}"
    with (guarded.home / "audit.log").open() as log:
        used = read(log)[account]
    assert used.refused == set()
    # Whether the Lease is made here, and renewed before the end, says nothing about ComputeDomains.
    lease = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
    assert used.used - lease == granted(chart())[account] - lease


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"numNodes": 3}}, "immutable|this request changes spec;"),
        ({"metadata": {"labels": {"a": "b"}}}, "this request changes metadata.labels;"),
        (
            {"metadata": {"finalizers": ["example.com/other"]}},
            "this request changes metadata.finalizers;",
        ),
    ],
)
async def test_of_a_computedomain_the_controllers_account_writes_its_finalizer_alone(
    guarded: ApiServer, user: User, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    await user.create()
    async with Client(to(guarded, tmp_path, "c", token(guarded, CONTROLLER)), agent="t") as client:
        await _policies_hold(client)
        with pytest.raises(KubeError, match=said):
            await client.merge_patch(user.at(DOMAINS, "train-a"), change)
    if "metadata" in change:  # the definition's own rule is before any policy
        policy = "preflight-computedomain-finalizers"
        assert "nothing else" in await audited(guarded, policy, f"{HOME}:{CONTROLLER}")


def configuration(driver: str, kind: str) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind}
    return {"requests": ["gpu"], "opaque": {"driver": driver, "parameters": parameters}}


@pytest.mark.parametrize(
    "configured",
    [
        None,
        configuration("gpu.nvidia.com", "GpuConfig"),
        configuration("gpu.nvidia.com", "ComputeDomainChannelConfig"),
        configuration(DRIVER, "ComputeDomainDaemonConfig"),
    ],
    ids=["none", "of-gpus", "of-another-driver", "of-daemons"],
)
async def test_the_controllers_account_leaves_foreign_templates_alone(
    guarded: ApiServer, user: User, tmp_path: Path, configured: dict[str, Any] | None
) -> None:
    devices: dict[str, Any] = {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    }
    if configured:
        devices["config"] = [configured]
    body = {"metadata": {"name": "foreign"}, "spec": {"spec": {"devices": devices}}}
    await user.make_template(body)
    async with Client(to(guarded, tmp_path, "c", token(guarded, CONTROLLER)), agent="t") as client:
        await _policies_hold(client)
        with pytest.raises(KubeError, match="its configuration is a ComputeDomainChannelConfig"):
            await client.delete(user.at(TEMPLATES, "foreign"))
        ours = {"metadata": {"labels": {LABEL: "d0000000-0000-0000-0000-000000000001"}}}
        with pytest.raises(KubeError, match="its configuration is a ComputeDomainChannelConfig"):
            await client.merge_patch(user.at(TEMPLATES, "foreign"), ours)
        # Nor is it the controller's with a label that somebody else gave it.
        await user.patch(TEMPLATES, "foreign", ours)
        with pytest.raises(KubeError, match="its configuration is a ComputeDomainChannelConfig"):
            await client.delete(user.at(TEMPLATES, "foreign"))
        with pytest.raises(KubeError, match="its configuration is a ComputeDomainChannelConfig"):
            await client.merge_patch(
                user.at(TEMPLATES, "foreign"), {"metadata": {"labels": {LABEL: None}}}
            )
        for metadata in ({"name": "another"}, {"name": "another", **ours["metadata"]}):
            with pytest.raises(
                KubeError, match="its configuration is a ComputeDomainChannelConfig"
            ):
                await client.create(user.at(TEMPLATES), {**body, "metadata": metadata})
    policy = "preflight-computedomain-templates"
    assert "nothing else" in await audited(guarded, policy, f"{HOME}:{CONTROLLER}")


async def _policies_hold(client: Client) -> None:
    """A policy takes a moment to be in force."""

    async def refused() -> bool:
        body = {
            "metadata": {"name": f"probe-{uuid.uuid4().hex[:8]}"},
            "spec": {
                "spec": {
                    "devices": {"requests": [{"name": "x", "exactly": {"deviceClassName": "x"}}]}
                }
            },
        }
        try:
            await client.create(
                "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates", body
            )
        except KubeError:
            return True
        return False

    await until(refused)


async def test_the_plugin_does_all_it_does_with_the_charts_rights_and_uses_each_of_them(
    guarded: ApiServer, user: User, short: Path, google: dict[str, ModuleType], tmp_path: Path
) -> None:
    async with allowed(guarded, user, short, google, tmp_path) as world:
        before = await world.published()
        await user.client.merge_patch(
            f"/apis/resource.k8s.io/v1/resourceslices/{before['metadata']['name']}",
            {"spec": {"devices": []}},
        )
        again = await world.published(before["metadata"]["resourceVersion"])
        more = {**again, "metadata": {"name": f"{world.name}-more"}}
        await user.client.create("/apis/resource.k8s.io/v1/resourceslices", more)

        async def removed() -> bool:
            path = f"/apis/resource.k8s.io/v1/resourceslices/{world.name}-more"
            return await user.client.get_or_none(path, dict) is None

        await until(removed)
        domain = await user.create()
        made = (await user.claim("pod-channel", domain["metadata"]["uid"], world.name))["metadata"]
        answer = await world.kubelet.prepare(
            [KubeletClaim(made["namespace"], made["name"], made["uid"])]
        )
        assert answer[made["uid"]].error == ""
    account = f"system:serviceaccount:{HOME}:{PLUGIN}"
    with (guarded.home / "audit.log").open() as log:
        used = read(log, "compute-domain-kubelet-plugin")[account]
    assert used.refused == set()
    assert used.used == granted(chart())[account]


async def test_what_a_claim_is_judged_by_is_read_consistently_and_watched_by_no_node(
    guarded: ApiServer, user: User, short: Path, google: dict[str, ModuleType], tmp_path: Path
) -> None:
    async with allowed(guarded, user, short, google, tmp_path) as world:
        domain = (await user.create())["metadata"]["uid"]
        made = (await user.claim("pod-channel", domain, world.name))["metadata"]
        answer = await world.kubelet.prepare(
            [KubeletClaim(made["namespace"], made["name"], made["uid"])]
        )
        assert answer[made["uid"]].error == ""

    async def asked() -> list[str]:
        found = []
        for line in (guarded.home / "audit.log").read_text().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                about = event.get("objectRef", {})
                if event.get("userAgent", "").startswith("compute-domain-kubelet-plugin") and (
                    about["resource"] in {"computedomains", "resourceclaims"}
                ):
                    found.append(f"{event['verb']} {event['requestURI']}")
        mine = [one for one in found if f"/namespaces/{user.namespace}/" in one]
        assert all("/namespaces/" in one for one in found)
        return mine if len(mine) > 1 else []  # a line is written after its request

    get, list_ = await until(asked)
    assert get.startswith("get ")
    assert get.endswith("/resourceclaims/pod-channel")
    assert list_.startswith("list ")
    assert "resourceVersion" not in list_


@pytest.mark.parametrize(
    "how",
    [
        *("another-node", "all-nodes", "by-selector", "by-device", "no-node", "another-driver"),
        *("another-pool", "counters", "another-device", "two-devices", "another-name"),
    ],
)
async def test_the_plugins_account_writes_the_slice_of_its_own_node_alone(
    guarded: ApiServer, user: User, tmp_path: Path, how: str
) -> None:
    mine, other = (f"node-{uuid.uuid4().hex[:8]}" for _ in range(2))
    for name in (mine, other):
        await user.client.create("/api/v1/nodes", {"metadata": {"name": name}})
    body = slices.body(other if how == "another-node" else mine, "some-uid", devices())
    if how == "all-nodes":
        del body["spec"]["nodeName"]
        body["spec"]["allNodes"] = True
    if how == "by-selector":
        wanted = {"key": "kubernetes.io/hostname", "operator": "In", "values": [mine]}
        terms = [{"matchExpressions": [wanted]}]
        body["spec"] |= {"nodeSelector": {"nodeSelectorTerms": terms}}
        del body["spec"]["nodeName"]
    if how == "by-device":
        del body["spec"]["nodeName"]
        body["spec"]["perDeviceNodeSelection"] = True
        body["spec"]["devices"][0]["nodeName"] = mine
    if how == "another-driver":
        body["spec"]["driver"] = "gpu.example.com"
    if how == "another-pool":
        body["spec"]["pool"] = {"name": other, "generation": 999, "resourceSliceCount": 1}
    if how == "counters":
        counters = {"name": "all", "counters": {"channels": {"value": "1"}}}
        body["spec"]["sharedCounters"] = [counters]
        del body["spec"]["devices"]
    if how == "another-device":
        body["spec"]["devices"][0]["name"] = "channel-1"
    if how == "two-devices":
        body["spec"]["devices"].append({"name": "channel-1"})
    bound = token(guarded, PLUGIN, "" if how == "no-node" else mine)
    path = "/apis/resource.k8s.io/v1/resourceslices"
    async with Client(to(guarded, tmp_path, "p", bound), agent="t") as client:

        async def refused() -> str:
            name = f"{mine}-more" if how == "another-name" else body["metadata"]["name"]
            fresh = {**body, "metadata": {"name": name}}
            try:
                await client.create(path, fresh)
            except KubeError as error:
                return str(error)
            await user.client.delete(f"{path}/{name}")  # the policy is not in force yet
            return ""

        said = await until(refused)
        assert {
            "another-node": "the token's own node",
            "all-nodes": "and no other selection",
            "by-selector": "and no other selection",
            "by-device": "and no other selection",
            "no-node": "the token's own node",
            "another-driver": f"its driver is {DRIVER}",
            "another-pool": "its pool is of the token's own node",
            "counters": "the device channel-0 alone or none, and no sharedCounters",
            "another-device": "the device channel-0 alone or none",
            "two-devices": "the device channel-0 alone or none",
            "another-name": f"its name is that of the token's own node, and -{DRIVER}",
        }[how] in said
        policy = "preflight-computedomain-slices"
        assert f"ValidatingAdmissionPolicy '{policy}'" in said
        assert await audited(guarded, policy, f"{HOME}:{PLUGIN}") != ""
        if how == "another-node":  # nor may it change or delete what is there
            theirs = {**body, "metadata": {"name": f"theirs-{other}"}}
            await user.client.create(path, theirs)
            with pytest.raises(KubeError, match="the token's own node, and no other selection"):
                await client.delete(f"{path}/theirs-{other}")
            found = await user.client.get(f"{path}/theirs-{other}", dict)
            with pytest.raises(KubeError, match="the token's own node, and no other selection"):
                await client.replace(
                    f"{path}/theirs-{other}", {**found, "spec": {**found["spec"], "devices": []}}
                )


async def test_a_node_with_the_longest_name_has_its_slice(
    guarded: ApiServer, user: User, tmp_path: Path
) -> None:
    node = f"{uuid.uuid4().hex[:8]}{'-n' * 122}x"
    assert len(node) == 253
    await user.client.create("/api/v1/nodes", {"metadata": {"name": node}})
    bound = token(guarded, PLUGIN, node)
    async with Client(to(guarded, tmp_path, "p", bound), agent="t") as client:
        await client.create(
            "/apis/resource.k8s.io/v1/resourceslices", slices.body(node, "a-uid", devices())
        )


async def audited(server: ApiServer, policy: str, by: str = "") -> str:
    """What the API server's audit log says of a failure of ``policy``; a line is written after its
    request.
    """

    async def found() -> str:
        for line in (server.home / "audit.log").read_text().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                said = event.get("annotations", {}).get(
                    "validation.policy.admission.k8s.io/validation_failure", "[]"
                )
                for one in json.loads(said):
                    if one["policy"] == policy and by in event["user"]["username"]:
                        return str(one["message"])
        return ""

    return str(await until(found))


async def test_mode_all_is_warned_of_when_it_is_applied(guarded: ApiServer, user: User) -> None:
    channel = {"resourceClaimTemplate": {"name": "x"}, "allocationMode": "All"}

    def post() -> str:
        body = {
            "apiVersion": "resource.nvidia.com/v1beta1",
            "kind": "ComputeDomain",
            "metadata": {"name": f"try-{uuid.uuid4().hex[:8]}"},
            "spec": {"channel": channel},
        }
        request = urllib.request.Request(
            guarded.server + user.at(DOMAINS),
            data=json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {guarded.token}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(
            request, context=ssl.create_default_context(cafile=str(guarded.ca))
        ) as answer:
            return str(answer.headers.get("Warning", ""))

    async def warned() -> str:
        return await asyncio.to_thread(post)

    assert "set Single" in await until(warned)
    assert "set Single" in await audited(guarded, "preflight-computedomain-allocation-mode")


async def test_mode_all_is_denied_where_the_values_say_so(guarded: ApiServer, user: User) -> None:
    values = {
        "enabled": True,
        "featureGates": {"HostManagedIMEX": True},
        "fullnameOverride": "strict",
    }
    strict = render(
        UMBRELLA, {"preflight-computedomain": {**values, "admission": {"allocationMode": "Deny"}}}
    )
    for item in strict:
        if item["metadata"]["name"] == "strict-allocation-mode":
            if (
                item["kind"] == "ValidatingAdmissionPolicy"
            ):  # the other tests' namespaces are not of this release
                mine = {"matchLabels": {"kubernetes.io/metadata.name": user.namespace}}
                item["spec"]["matchConstraints"]["namespaceSelector"] = mine
            guarded.call("POST", PATHS[item["kind"]], item)

    async def denied() -> str:
        try:
            await user.create(f"try-{uuid.uuid4().hex[:8]}", mode="All")
        except KubeError as error:
            return str(error)
        return ""

    assert "set Single" in await until(denied)
    await user.create("single", mode="Single")


async def test_nobody_but_the_controller_says_which_cliques_a_computedomain_has(
    guarded: ApiServer, user: User, tmp_path: Path
) -> None:
    mine = {"matchLabels": {"kubernetes.io/metadata.name": user.namespace}}
    for item in chart(exclusiveCliques=True):
        if item["metadata"]["name"] == "preflight-computedomain-cliques":
            if item["kind"] == "ValidatingAdmissionPolicy":
                item["spec"]["matchConstraints"]["namespaceSelector"] = mine
            guarded.call("POST", PATHS[item["kind"]], item)
    await user.create()
    taken = {"metadata": {"annotations": {GRANTED: "a.1"}}}
    path = user.at(DOMAINS, "train-a")

    async def denied() -> str:
        try:
            await user.client.merge_patch(f"{path}?dryRun=All", taken)
        except KubeError as error:
            return str(error)
        return ""

    assert "the controller alone writes it" in await until(denied)
    async with Client(to(guarded, tmp_path, "c", token(guarded, CONTROLLER)), agent="t") as client:
        await client.merge_patch(path, taken)
    await user.client.merge_patch(path, {"metadata": {"annotations": {"other": "x"}}})
    with pytest.raises(KubeError, match="the controller alone writes it"):
        await user.client.merge_patch(path, {"metadata": {"annotations": {GRANTED: None}}})


@pytest.mark.parametrize("account", [CONTROLLER, "default"])
async def test_no_other_account_of_a_pod_writes_slices_at_all(
    guarded: ApiServer, user: User, tmp_path: Path, account: str
) -> None:
    node = f"node-{uuid.uuid4().hex[:8]}"
    await user.client.create("/api/v1/nodes", {"metadata": {"name": node}})
    if account == "default":
        with suppress(urllib.error.HTTPError):
            guarded.call("POST", PATHS["ServiceAccount"], {"metadata": {"name": account}})
    async with Client(
        to(guarded, tmp_path, "o", token(guarded, account, node)), agent="t"
    ) as client:
        with pytest.raises(KubeError, match="cannot create resource"):
            await client.create(
                "/apis/resource.k8s.io/v1/resourceslices", slices.body(node, "some-uid", devices())
            )
