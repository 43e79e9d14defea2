"""The chart's rights are enough: every service as a process with its own account, on an API server
that writes an audit log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from doors import PATH, admitting
from plane import Plane, plane
from preflight_gpu_scheduler.api import names
from preflight_testing.apiserver import ASSETS, GANG_APIS, ApiServer, assets, free_port, version
from preflight_testing.helm import UMBRELLA, Object, render
from preflight_testing.rights import Rights, granted, read

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-gpu-scheduler"
ACCOUNTS = ("scheduler", "controller", "agent", "webhook", "certs")
RBAC = "/apis/rbac.authorization.k8s.io/v1"
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
SELDOM = {
    ("coordination.k8s.io", "leases", "get"),  # after a conflict only
    ("coordination.k8s.io", "leases", "patch"),
    ("", "pods", "get"),
    ("", "events", "create"),
    ("gpu.scheduling", "gpunodestatuses", "delete"),  # of nodes that are gone
    ("coordination.k8s.io", "leases", "update"),
    ("coordination.k8s.io", "leases", "delete"),
    ("scheduling.x-k8s.io", "podgroups", "watch"),  # where the cluster has them
    ("scheduling.volcano.sh", "podgroups", "watch"),
}
"""Rights that a quiet life does not use; the crashes and conflicts of other tests do."""


ON = {NAME: {"enabled": True, "kubeScheduler": {"image": "x"}}}
ADMISSION = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}


def chart() -> list[Object]:
    return [
        o for o in render(UMBRELLA, ON, namespace=HOME) if o["kind"] in {"ServiceAccount", *KINDS}
    ]


KINDS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "Role": "roles",
    "RoleBinding": "rolebindings",
}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    home = tmp_path_factory.mktemp("audited")
    (home / "policy.json").write_text(json.dumps(POLICY))
    more = [f"--audit-policy-file={home}/policy.json", f"--audit-log-path={home}/audit.log"]
    gates, groups = GANG_APIS.get(version(folder / "kube-apiserver"), ([], []))
    with ApiServer(
        home, folder, authorization="RBAC", feature_gates=gates, runtime_config=groups, more=more
    ) as server:
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": HOME}})
        yield server


def _of_kubernetes(o: Object) -> bool:
    """Whether it binds a role that is not the chart's, as those of every kube-scheduler."""
    return str(o.get("roleRef", {}).get("name", NAME)).startswith(("system:", "extension-"))


async def _accounts(world: Plane) -> dict[str, Path]:
    """Create them; a kubeconfig for each part. The policies that hold them to what they do are
    there, too; the agent's token is that of a pod on node ``b``.
    """
    for o in render(UMBRELLA, ON, namespace=HOME):
        if o["kind"] in ADMISSION:
            path = f"/apis/admissionregistration.k8s.io/v1/{ADMISSION[o['kind']]}"
            await world.client.create(path, o)
    for o in chart():
        namespace = o["metadata"].get("namespace")
        if o["kind"] == "ServiceAccount":
            await world.client.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", o)
        else:
            place = f"/namespaces/{namespace}" if namespace else ""
            await world.client.create(f"{RBAC}{place}/{KINDS[o['kind']]}", o)
    found = {}
    for part in ACCOUNTS:
        token = await anyio.to_thread.run_sync(
            world.server.token_of, HOME, f"{NAME}-{part}", "b" if part == "agent" else ""
        )
        found[part] = world.server.kubeconfig(world.home / f"{part}.kubeconfig", token)
    return found


async def _certificates(world: Plane, environment: dict[str, str]) -> None:
    """Made, found to be good, and made anew for another Service."""
    entry = {
        "name": "nobody.gpu.scheduling",
        "clientConfig": {"url": "https://127.0.0.1:1/"},
        "namespaceSelector": {"matchLabels": {"nobody": "has-this"}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    await world.client.create(PATH, {"metadata": {"name": NAME}, "webhooks": [entry]})
    world.cleanup.append(f"{PATH}/{NAME}")
    words = ("certs", "--namespace", HOME, "--settle-seconds", "0")
    for service in (NAME, NAME, "another"):
        process = world.command(
            *words, "--service", service, name="certs", environment=environment, configured=False
        )
        assert await anyio.to_thread.run_sync(process.wait) == 0, world.log("certs")


def test_no_service_is_refused_anything_and_none_may_do_what_it_never_does(
    audited: ApiServer,
) -> None:
    async def body() -> None:
        async with plane(audited, lock_namespace=names.LOCK_NAMESPACE) as world:
            await world.node("a", 2)
            await world.node("b", 0)
            access = await _accounts(world)
            await world.client.delete(f"/apis/{names.API_VERSION}/gpunodestatuses/b")
            port = free_port()
            run = {part: {"KUBECONFIG": str(path)} for part, path in access.items()}
            plain = ("--host", "127.0.0.1", "--port", "0")
            world.command(
                "extender",
                "--extender-port",
                str(port),
                *plain,
                environment=run["scheduler"],
                name="extender",
            )
            world.command(
                "controller",
                "--namespace",
                HOME,
                *plain,
                environment=run["controller"],
                name="controller",
            )
            world.command("agent", "--node", "b", *plain, environment=run["agent"], name="agent")
            world.scheduler(port, kubeconfig=access["scheduler"])
            await admitting(world, environment=run["webhook"])
            for field in ("resourceClaimName", "resourceClaimTemplateName"):
                entry = {"name": "devices", field: "not-there"}
                await world.try_pod("probe", claim="none-yet", resourceClaims=[entry])
            await _certificates(world, run["certs"])
            await world.claim("one", 1)
            await world.pod("p", "one")
            await world.bound("p")
            await world.pod("late", "later", counted=1)
            await world.claim("later", 1)
            await world.bound("late")
            await world.pod("waits", "one")
            await world.delete_pod("p")
            await world.bound("waits")
            await world.explained()

            await world.status_of("a", {"total": 3, "devices": [{"id": n} for n in range(3)]})

            async def counted() -> bool:
                node = await world.raw("/api/v1/nodes/a")
                return bool(node["status"]["capacity"][names.COUNT_RESOURCE] == "3")

            await world.until("three GPUs are counted", counted)

            async def told() -> bool:
                raw = await world.client.get_or_none(
                    f"/apis/{names.API_VERSION}/gpunodestatuses/b", dict
                )
                return bool(raw and raw.get("status", {}).get("observedTime"))

            await world.until("the agent has written", told)

    anyio.run(body)
    every = read((audited.home / "audit.log").read_text().splitlines())
    allowed = granted([o for o in chart() if not _of_kubernetes(o)])
    for part in ACCOUNTS:
        user = f"system:serviceaccount:{HOME}:{NAME}-{part}"
        assert every.get(user, Rights()).refused == set(), part
        unused = allowed.get(user, set()) - every[user].used - SELDOM
        assert unused == set(), part
