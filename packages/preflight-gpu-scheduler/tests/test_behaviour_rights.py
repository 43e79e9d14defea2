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
from preflight_testing.fields import Impersonator
from preflight_testing.helm import UMBRELLA, Object, render
from preflight_testing.rights import Rights, granted, read

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-gpu-scheduler"
ACCOUNTS = ("scheduler", "controller", "agent", "webhook", "certs")
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


def chart() -> list[Object]:
    on = {NAME: {"enabled": True, "kubeScheduler": {"image": "x"}}}
    return [
        o for o in render(UMBRELLA, on, namespace=HOME) if o["kind"] != "CustomResourceDefinition"
    ]


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


def _accounts(world: Plane) -> dict[str, Path]:
    """Create them; a kubeconfig for each part. The policies that hold them to what they do are
    there, too; the agent's token is that of a pod on node ``b``.
    """
    cluster = Impersonator(world.server)
    cluster.install(chart())
    found = {}
    for part in ACCOUNTS:
        account = f"{NAME}-{part}"
        about = {"metadata": {"name": account}}
        cluster.create(f"/api/v1/namespaces/{HOME}/serviceaccounts", about)
        token = world.server.token_of(HOME, account, "b" if part == "agent" else "")
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
            access = await anyio.to_thread.run_sync(_accounts, world)
            await world.client.delete(f"/apis/{names.API_VERSION}/gpunodestatuses/b")
            port = free_port()
            run = {part: {"KUBECONFIG": str(path)} for part, path in access.items()}
            plain = ("--host", "127.0.0.1", "--port", "0")
            own = {
                "extender": ("scheduler", "--extender-port", str(port)),
                "controller": ("controller", "--namespace", HOME),
                "agent": ("agent", "--node", "b"),
            }
            for verb, (part, *words) in own.items():
                world.command(verb, *words, *plain, environment=run[part], name=verb)
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
