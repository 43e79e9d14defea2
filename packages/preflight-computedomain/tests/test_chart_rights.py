"""The chart's rights, with real tokens: what the programs do they may, and each right is used. What
the policies refuse beyond that: test_table_of_rights.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import ModuleType

import pytest
from driven import User, leads, template_of, until
from preflight_computedomain.api.names import DOMAINS, LABEL, SLICES, TARGET_LABEL, TEMPLATES
from preflight_computedomain.api.rights import RIGHTS
from preflight_computedomain.core import slices
from preflight_computedomain.core.claims import KubeletClaim
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import Impersonator
from preflight_testing.helm import UMBRELLA, Object, render
from preflight_testing.rights import granted, read
from test_plugin_service import World

pytestmark = pytest.mark.anyio

HOME = "preflight"
CONTROLLER = "preflight-computedomain-controller"
PLUGIN = "preflight-computedomain-kubelet-plugin"
AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def chart() -> list[Object]:
    values = {"enabled": True, "featureGates": {"HostManagedIMEX": True}}
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
    with ApiServer(home, folder, authorization="RBAC", more=more) as server:
        cluster = Impersonator(server)
        cluster.create("/api/v1/namespaces", {"metadata": {"name": HOME}})
        cluster.install(chart())
        for account in (CONTROLLER, PLUGIN):
            path = f"/api/v1/namespaces/{HOME}/serviceaccounts"
            cluster.create(path, {"metadata": {"name": account}})
        server.served(DOMAINS)
        yield server


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
    """A node whose plugin has the chart's rights, and no others, and has prepared a claim."""
    world = World(short, to(guarded, tmp_path, "unused"), google, user)
    await user.client.create("/api/v1/nodes", {"metadata": {"name": world.name}})
    token = guarded.token_of(HOME, PLUGIN, world.name)
    world.target = to(guarded, tmp_path, "plugin", token)
    await world.begin()
    try:
        domain = (await user.create())["metadata"]["uid"]
        about = (await user.claim("pod-channel", domain, world.name))["metadata"]
        claim = KubeletClaim(about["namespace"], about["name"], about["uid"])
        assert (await world.kubelet.prepare([claim]))[claim.uid].error == ""
        yield world
    finally:
        await world.end()


async def test_the_controller_does_all_it_does_with_the_charts_rights_and_uses_each_of_them(
    guarded: ApiServer, user: User, tmp_path: Path
) -> None:
    target = to(guarded, tmp_path, "controller", guarded.token_of(HOME, CONTROLLER))
    async with leads(target, sweep_seconds=0.2, namespace=HOME, lease="compute-domain-controller"):
        await user.create(mode="All")
        await user.ready()
        await user.event("UnsupportedAllocationMode")
        nothing = {"metadata": {"labels": {LABEL: None, TARGET_LABEL: None}}}
        await user.patch(TEMPLATES, "train-a-channel", nothing)
        await until(user.template, lambda it: LABEL in it["metadata"].get("labels", {}))
        await user.delete(DOMAINS, "train-a")
        await user.gone(DOMAINS, "train-a")
        await user.make_template(template_of("gone-long-ago", "stale"))
        await user.gone(TEMPLATES, "stale")
    account = f"system:serviceaccount:{HOME}:{CONTROLLER}"
    with (guarded.home / "audit.log").open() as log:
        used = read(log)[account]
    assert used.refused == set()
    # Whether the Lease is made here, and renewed before the end, says nothing about ComputeDomains.
    lease = {("coordination.k8s.io", "leases", verb) for verb in ("get", "create", "update")}
    assert used.used - lease == granted(chart())[account] - lease


async def test_the_plugin_does_all_it_does_with_the_charts_rights_and_uses_each_of_them(
    guarded: ApiServer, user: User, short: Path, google: dict[str, ModuleType], tmp_path: Path
) -> None:
    async with allowed(guarded, user, short, google, tmp_path) as world:
        before = (await world.published())["metadata"]
        nothing: Object = {"spec": {"devices": []}}
        await user.client.merge_patch(f"{SLICES}/{before['name']}", nothing)
        again = await world.published(before["resourceVersion"])
        more = f"{world.name}-more"
        await user.client.create(SLICES, {**again, "metadata": {"name": more}})
        path = f"{SLICES}/{more}"
        await until(lambda: user.client.get_or_none(path, dict), lambda it: it is None)
    account = f"system:serviceaccount:{HOME}:{PLUGIN}"
    with (guarded.home / "audit.log").open() as log:
        used = read(log, "compute-domain-kubelet-plugin")[account]
    assert used.refused == set()
    assert used.used == granted(chart())[account]


async def test_what_a_claim_is_judged_by_is_read_consistently_and_watched_by_no_node(
    guarded: ApiServer, user: User, short: Path, google: dict[str, ModuleType], tmp_path: Path
) -> None:
    async with allowed(guarded, user, short, google, tmp_path):
        pass

    def asked() -> list[str]:
        found = []
        for line in (guarded.home / "audit.log").read_text().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                about = event.get("objectRef", {})
                if event.get("userAgent", "").startswith("compute-domain-kubelet-plugin") and (
                    about["resource"] in {"computedomains", "resourceclaims"}
                ):
                    found.append(f"{event['verb']} {event['requestURI']}")
        assert all("/namespaces/" in one for one in found)
        return [one for one in found if f"/namespaces/{user.namespace}/" in one]

    # A line is written after its request.
    get, list_ = await until(asked, lambda lines: len(lines) > 1)
    assert get.startswith("get ")
    assert get.endswith("/resourceclaims/pod-channel")
    assert list_.startswith("list ")
    assert "resourceVersion" not in list_


def written_out(component: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb of each right that the table gives an account."""
    may: set[tuple[str, str, str]] = set()
    for right in {account.component: account.rights for account in RIGHTS.accounts}[component]:
        group, resource = str(right.group), str(right.resource)  # none is on several at once
        may |= {(group, resource, verb) for verb in right.verbs.split()}
    return may


async def test_a_plugins_own_token_has_the_rights_of_the_table_and_writes_slices_of_its_node_alone(
    guarded: ApiServer, user: User
) -> None:
    for node in ("own", "other"):
        await user.client.create("/api/v1/nodes", {"metadata": {"name": node}})
    token = guarded.token_of(HOME, PLUGIN, "own")

    def posted(path: str, body: Object) -> tuple[int, Object]:
        headers = [("Authorization", f"Bearer {token}"), ("Content-Type", "application/json")]
        answer, text = guarded.exchange("POST", path, json.dumps(body).encode(), headers)
        return answer.status, json.loads(text)

    asked = {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1"}
    path = f"/apis/{asked['apiVersion']}/selfsubjectrulesreviews"
    status, review = posted(path, {**asked, "spec": {"namespace": user.namespace}})
    assert status == 201
    may = {
        (group, resource, verb)
        for rule in review["status"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    about_itself = {right for right in may if right[1].startswith("selfsubject")}
    assert may - about_itself == written_out("kubelet-plugin")

    def of(node: str) -> tuple[int, Object]:
        body = slices.body(node, "a-uid", slices.channel("0.7", "570.158.1"))
        return posted(f"{SLICES}?dryRun=All", body)

    _, refused = await until(lambda: of("other"), lambda answer: answer[0] == 403)
    assert "it names the token's own node, and no other selection" in refused["message"]
    assert of("own")[0] == 201
