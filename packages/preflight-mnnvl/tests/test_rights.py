"""What the chart grants, on an API server with RBAC, an audit log and the chart's policies: exactly
what is used, and what a stolen token could do.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from cliques import DRIVER, ON, clique, container, pcs, podclique
from live import Space, api_server, space_of
from preflight_kube.auth.connection import connection
from preflight_kube.client.client import Client, KubeError
from preflight_mnnvl.config import Config
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import UMBRELLA, Object, render
from preflight_testing.rights import compared, granted, read
from preflight_testing.waiting import until
from registered import registered
from replica import replica

pytestmark = pytest.mark.anyio

AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
HOMES = {"driver": "home-driver", "literal": "home-literal"}
KINDS = {
    "ClusterRole": "rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


def chart(mode: str) -> list[Object]:
    values = {"enabled": True, "mode": mode, "fullnameOverride": f"mnnvl-{mode}"}
    return render(UMBRELLA, {"preflight-mnnvl": values}, namespace=HOMES[mode])


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    home = tmp_path_factory.mktemp("audited")
    (home / "policy.json").write_text(json.dumps(AUDIT))
    more = [f"--audit-policy-file={home}/policy.json", f"--audit-log-path={home}/audit.log"]
    with api_server(home, more=more, authorization="RBAC") as server:
        for mode, namespace in HOMES.items():
            server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            for item in chart(mode):
                if item["kind"] == "ServiceAccount":
                    server.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", item)
                elif item["kind"] in KINDS:
                    server.call("POST", f"/apis/{KINDS[item['kind']].format(namespace)}", item)
        yield server


def account(server: ApiServer, folder: Path, mode: str, part: str) -> Path:
    name = f"mnnvl-{mode}-{part}"
    return server.kubeconfig(folder / f"{name}.kubeconfig", server.token_of(HOMES[mode], name))


async def everything(space: Space, config: Config) -> None:
    """All that either of them ever has to do."""
    await space.grove.apply(pcs("t", [clique("a"), clique("b")], annotations=ON, replicas=2))
    await space.grove.turn(gangs="none")
    await space.settled(space.owners, {f"t-{i}-cd": [("PodCliqueSet", "t")] for i in (0, 1)})
    await space.grove.turn()
    await space.settled(space.owners, {f"t-{i}-cd": [("PodGang", f"t-{i}")] for i in (0, 1)})
    await space.settled(space.announced, {"t-0", "t-1"})
    # A PodClique of a set that nobody knows, and of others' claims.
    request = {"name": "x", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    devices = {"devices": {"requests": [request]}}
    group = {"apiVersion": "resource.k8s.io/v1"}
    claim = {**group, "kind": "ResourceClaim", "metadata": {"name": "own"}, "spec": devices}
    template = {
        **group,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": "own"},
        "spec": {"spec": devices},
    }
    await space.client.create(space.claim_path("resourceclaims"), claim)
    await space.client.create(space.claim_path(), template)
    uses = container(gpus=1)
    uses["resources"]["claims"] = [{"name": "c"}, {"name": "d"}]
    entries = [
        {"name": "c", "resourceClaimName": "own"},
        {"name": "d", "resourceClaimTemplateName": "own"},
    ]
    other = podclique(
        "u-0-w", "u", annotations=ON, pod={"containers": [uses], "resourceClaims": entries}
    )
    other["metadata"]["namespace"] = space.namespace
    await space.client.create(space.grove.path("podcliques"), other)
    if config.mode == "literal":
        # Something of the claim's name that no mirror has is found when it is in the way
        (one,) = [
            name
            for name in await space.all(space.claim_path("resourceclaims"))
            if name == "t-1-mnnvl-claim"
        ]
        await space.client.merge_patch(
            space.claim_path("resourceclaims", one),
            {"metadata": {"labels": {"grove.io/mnnvl-managed": None}}},
        )
        await space.told("MnnvlDomainBlocked")
        await space.client.delete(
            space.domain_path("t-0-cd")
        )  # a domain that was lost is the controller's to make
        await space.told("MnnvlDomainRecreated")


@pytest.mark.parametrize("mode", ["driver", "literal"])
async def test_the_chart_grants_exactly_what_is_used(
    mode: Any, audited: ApiServer, tmp_path: Path
) -> None:
    config = Config(mode=mode, instance="preflight" if mode == "driver" else "preflight-literal")
    hook = connection({"KUBECONFIG": str(account(audited, tmp_path, mode, "webhook"))})
    async with (
        space_of(audited, tmp_path, config, webhook=True) as space,
        replica(
            account(audited, tmp_path, mode, "controller"), HOMES[mode], tmp_path / "one", mode=mode
        ) as one,
        registered(space, config, tmp_path / "tls", hook),
    ):
        await until(lambda: one.leads, "it leads")
        await everything(space, config)
        # Who keeps the certificate is tested by itself.
        allowed = {
            user: rights
            for user, rights in granted(chart(mode)).items()
            if not user.endswith("-certs")
        }

        def told() -> list[str]:
            with (audited.home / "audit.log").open() as lines:
                return compared(read(lines), allowed)

        with anyio.move_on_after(60):
            while any("never did" in said for said in told()):
                await anyio.sleep(0.5)
    assert told() == []


async def test_who_keeps_the_certificate_may_exactly_what_that_takes(
    audited: ApiServer, tmp_path: Path
) -> None:
    """A first certificate, and another one when it is lost; the bundles of both configurations
    follow.
    """
    home, name = HOMES["driver"], "mnnvl-driver"
    made = chart("driver")
    registrations = "/apis/admissionregistration.k8s.io/v1"
    paths = []
    for item in made:
        if item["kind"].endswith("WebhookConfiguration"):
            for hook in item["webhooks"]:  # whose service is not there: it is nobody's webhook
                hook["namespaceSelector"] = {"matchLabels": {"none": "none"}}
            audited.call("POST", f"{registrations}/{item['kind'].lower()}s", item)
            paths.append(f"{registrations}/{item['kind'].lower()}s/{name}")
    (job,) = [one for one in made if one["kind"] == "Job"]
    (container_,) = job["spec"]["template"]["spec"]["containers"]
    access = account(audited, tmp_path, "driver", "certs")
    secret = f"/api/v1/namespaces/{home}/secrets/{name}-webhook-tls"
    bundles: list[set[str]] = []
    for _ in range(2):
        done = await anyio.run_process(
            [sys.executable, "-m", "preflight_mnnvl", *container_["args"], "--settle-seconds", "0"],
            env={**os.environ, "KUBECONFIG": str(access)},
            check=False,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)
        found = [await anyio.to_thread.run_sync(audited.call, "GET", path) for path in paths]
        bundles.append(
            {hook["clientConfig"]["caBundle"] for one in found for hook in one["webhooks"]}
        )
        stored = audited.call("GET", secret)
        stored["data"]["tls.crt"] = ""
        audited.call("PUT", secret, stored)
    assert [len(one) for one in bundles] == [1, 1]
    allowed = {user: rights for user, rights in granted(made).items() if user.endswith("-certs")}
    with (audited.home / "audit.log").open() as lines:
        assert compared(read(lines), allowed) == []


@pytest.fixture(params=["driver", "literal"])
async def stolen(
    request: pytest.FixtureRequest, audited: ApiServer, tmp_path: Path
) -> AsyncIterator[tuple[Space, Client]]:
    """Somebody who has the controller's token, of a release of either mode."""
    access = account(audited, tmp_path, request.param, "controller")
    target = connection({"KUBECONFIG": str(access)})
    config = Config(mode=request.param)
    async with space_of(audited, tmp_path, config) as space, Client(target, agent="thief") as thief:
        yield space, thief


@pytest.mark.parametrize(
    ("patch", "what"),
    [
        ({"spec": {"priorityClassName": "high"}}, "spec"),
        ({"metadata": {"labels": {"x": "y"}}}, "metadata.labels"),
        ({"metadata": {"annotations": {"x": "y"}}}, "metadata.annotations x"),
        ({"metadata": {"finalizers": ["x.y/z"]}}, "metadata.finalizers"),
        ({"metadata": {"ownerReferences": None}}, "metadata.ownerReferences"),
    ],
)
async def test_with_the_controllers_token_nothing_of_a_podgang_changes_but_its_two_annotations(
    patch: dict[str, Any], what: str, stolen: tuple[Space, Client]
) -> None:
    space, thief = stolen
    set_ = await space.grove.apply(pcs("t", [clique("w")]))
    await space.grove.gang("t-0", set_)
    path = space.grove.path("podgangs", "t-0")
    with pytest.raises(KubeError, match=f"this request changes {what};"):
        await thief.merge_patch(path, patch)
    for said in ("true", None):
        await thief.merge_patch(
            path, {"metadata": {"annotations": {"grove.io/mnnvl-resources-adopted": said}}}
        )
    with pytest.raises(KubeError, match="forbidden"):
        await thief.delete(path)
    with pytest.raises(KubeError, match="forbidden"):
        await thief.merge_patch(f"{path}/status", {"status": {"phase": "Running"}})
    with pytest.raises(KubeError, match="forbidden"):
        await thief.create(space.grove.path("podgangs"), {"metadata": {"name": "another"}})


@pytest.mark.parametrize("kind", ["ComputeDomain", "ResourceClaim"])
async def test_with_the_controllers_token_nothing_without_our_label_changes(
    kind: str, stolen: tuple[Space, Client], request: pytest.FixtureRequest
) -> None:
    """In mode `driver` claims are the driver's, and the token may nothing there."""
    space, thief = stolen
    if kind == "ComputeDomain":
        path, version = space.domain_path, "resource.nvidia.com/v1beta1"
        spec: Object = {"numNodes": 0, "channel": {"resourceClaimTemplate": {"name": "x"}}}
        change: Object = {"numNodes": 7}
    else:
        path, version = partial(space.claim_path, "resourceclaims"), "resource.k8s.io/v1"
        spec = {
            "devices": {
                "requests": [{"name": "mnnvl", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
            }
        }
        change = {"devices": {"requests": None}}
    mine = {
        "grove.io/mnnvl-managed": "true",
        "app.kubernetes.io/managed-by": "preflight-mnnvl",
    }
    end = "cd" if kind == "ComputeDomain" else "mnnvl-claim"
    our_name, their_name = f"ours-{end}", f"theirs-{end}"
    ours, theirs = (
        {
            "apiVersion": version,
            "kind": kind,
            "metadata": {"name": name, "labels": labels},
            "spec": spec,
        }
        for name, labels in ((our_name, mine), (their_name, {}))
    )
    refused = "only where it has the labels|, and nothing else, but this request changes "
    if (kind, "driver") == ("ResourceClaim", request.node.callspec.params["stolen"]):
        refused = "forbidden"
        await space.client.create(path(), ours)
    else:
        await thief.create(path(), ours)
        await thief.merge_patch(path(our_name), {"metadata": {"labels": {"grove.io/podgang": "b"}}})
    with pytest.raises(KubeError, match=refused):
        await thief.create(path(), theirs)
    await space.client.create(path(), theirs)
    before = (await space.all(path()))[their_name]
    for name, patch in (
        (their_name, {"metadata": {"labels": {"grove.io/podgang": "b"}}}),
        (their_name, {"metadata": {"labels": mine}}),
        (their_name, {"metadata": {"ownerReferences": None, "annotations": {"a": "b"}}}),
        (our_name, {"metadata": {"annotations": {"a": "b"}}}),
        (our_name, {"metadata": {"labels": None}}),
        (our_name, {"metadata": {"labels": {"grove.io/mnnvl-managed": "false"}}}),
        (our_name, {"spec": change}),
    ):
        with pytest.raises(KubeError, match=rf"{refused}|immutable|Required|Invalid"):
            await thief.merge_patch(path(name), patch)
    for name in (our_name, their_name):
        with pytest.raises(KubeError, match="forbidden"):
            await thief.delete(path(name))
    assert (await space.all(path()))[their_name] == before


async def test_where_owner_references_are_guarded_domains_are_adopted_with_the_rights_of_the_value(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """An API server with the plug-in, and the chart with
    `rbac.ownerReferencesPermissionEnforcement`.
    """
    guard = ["--enable-admission-plugins=OwnerReferencesPermissionEnforcement"]
    values = {
        "enabled": True,
        "fullnameOverride": "mnnvl-driver",
        "rbac": {"ownerReferencesPermissionEnforcement": True},
    }
    home = HOMES["driver"]
    with api_server(tmp_path_factory.mktemp("guarded"), more=guard, authorization="RBAC") as server:
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": home}})
        for item in render(UMBRELLA, {"preflight-mnnvl": values}, namespace=home):
            if item["kind"] == "ServiceAccount":
                server.call("POST", f"/api/v1/namespaces/{home}/serviceaccounts", item)
            elif item["kind"] in KINDS:
                server.call("POST", f"/apis/{KINDS[item['kind']].format(home)}", item)
        async with (
            space_of(server, tmp_path, DRIVER) as space,
            replica(
                account(server, tmp_path, "driver", "controller"), home, tmp_path / "one"
            ) as one,
        ):
            await until(lambda: one.leads, "it leads")
            await space.grove.apply(pcs("t", [clique("w")], annotations=ON))
            await space.grove.turn(gangs="none")
            await space.settled(space.owners, {"t-0-cd": [("PodCliqueSet", "t")]})
            await space.grove.turn()
            await space.settled(space.owners, {"t-0-cd": [("PodGang", "t-0")]})
            await space.settled(space.announced, {"t-0"})
            target = connection(
                {"KUBECONFIG": str(account(server, tmp_path, "driver", "controller"))}
            )
            async with Client(target, agent="thief") as thief:
                with pytest.raises(KubeError, match=r"forbidden|denied"):
                    await thief.delete(space.domain_path("t-0-cd"))
