"""The chart's rights and policies on a real API server: what the controller and the labeler need,
and no more.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from control_plane import control_plane
from lab import Lab, appwrapper, lab
from leading import leads
from player import bare_pod, job, service
from preflight_appwrapper.api.names import LABEL
from preflight_appwrapper.api.rules import BrakeRules
from preflight_appwrapper.config import NodeHealthConfig
from preflight_appwrapper.controller.node_labeler import Labeler
from preflight_appwrapper.metrics import Metrics
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client, KubeError
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.grove_kinds import crd
from preflight_testing.helm import PARTS, Object, render
from preflight_testing.rights import granted, read
from preflight_testing.workload_kinds import WORKLOADS

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

HOME = "preflight"
NAME = "preflight-appwrapper"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PATHS = {
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{HOME}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{HOME}/rolebindings",
    "ServiceAccount": f"/api/v1/namespaces/{HOME}/serviceaccounts",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}
KEY = NodeHealthConfig().key
POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
NOT_SENT = {("workload.codeflare.dev", "appwrappers/finalizers", "update")}
"""Asked for by the admission plug-in OwnerReferencesPermissionEnforcement:
no audit log shows it.
"""
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
SELECTED = {
    "selector": {"matchLabels": {"app": "each"}},
    "template": {"metadata": {"labels": {"app": "each"}}, **TEMPLATE},
}
RAY = {"headGroupSpec": {"template": TEMPLATE}}
WRAPPED: list[tuple[str, str, dict[str, Any]]] = [
    ("v1", "Service", service()["spec"]),
    ("apps/v1", "Deployment", SELECTED),
    ("apps/v1", "StatefulSet", {**SELECTED, "serviceName": "each"}),
    ("batch/v1", "Job", job()["spec"]),
    ("scheduling.x-k8s.io/v1alpha1", "PodGroup", {"minMember": 1}),
    ("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Worker": {"template": TEMPLATE}}}),
    ("kubeflow.org/v1", "MPIJob", {"mpiReplicaSpecs": {"Worker": {"template": TEMPLATE}}}),
    ("ray.io/v1", "RayCluster", RAY),
    ("ray.io/v1", "RayJob", {"rayClusterSpec": RAY}),
    (
        "jobset.x-k8s.io/v1alpha2",
        "JobSet",
        {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": TEMPLATE}}}]},
    ),
    (
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        {"leaderWorkerTemplate": {"size": 1, "workerTemplate": TEMPLATE}},
    ),
]
"""One of each kind that the chart lets the controller wrap."""
POD_GROUP = crd(
    "scheduling.x-k8s.io",
    "PodGroup",
    "podgroups",
    {"v1alpha1": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
)


OWNED = "writes wrappedKinds only where it has the label"
LEFT_OUT = "left-out"
"""A namespace that the operator has excluded, in which there was a wrapper before."""
EARLIER = f"/apis/workload.codeflare.dev/v1beta2/namespaces/{LEFT_OUT}/appwrappers/earlier"


def chart() -> list[Object]:
    values = {"labeler": {"enabled": True}, "webhook": {"excludeNamespaces": [LEFT_OUT]}}
    return render(PARTS / NAME, values, namespace=HOME)


@pytest.fixture(scope="module")
def confined(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    folder = assets()
    if folder is None or not (folder / "kube-controller-manager").exists():
        pytest.skip(f"{ASSETS} is not set, or has no kube-controller-manager")
    home = tmp_path_factory.mktemp("confined")
    (home / "policy.json").write_text(json.dumps(POLICY))
    more = [
        f"--audit-policy-file={home}/policy.json",
        f"--audit-log-path={home}/audit.log",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
    ]
    with control_plane(home, folder, more=more) as server:
        for one in (*WORKLOADS, POD_GROUP):
            server.define(one)
        for namespace in (HOME, LEFT_OUT):
            server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        server.call(
            "POST", EARLIER.rpartition("/")[0], appwrapper(job(), name="earlier", suspend=True)
        )
        for item in chart():
            if item["kind"] in PATHS:
                server.call("POST", PATHS[item["kind"]], item)
        yield server


def account(server: ApiServer, home: Path, name: str) -> Connection:
    token = server.token_of(HOME, f"{NAME}-{name}")
    return connection({"KUBECONFIG": str(server.kubeconfig(home / name, token))})


async def enforced(one: Lab, client: Client) -> None:
    """Policies take effect some moments after they are made."""
    path = f"{one.path('', 'services')}?dryRun=All"
    probe = {"apiVersion": "v1", "kind": "Service", **service("probe")}
    await until_refused(one, lambda: client.create(path, probe), OWNED)


async def until_refused(one: Lab, write: Callable[[], Awaitable[Any]], words: str) -> None:
    async def refuses() -> bool:
        try:
            await write()
        except KubeError as error:
            return words in str(error)
        return False

    await one.until(refuses, f"the policy that says: {words}")


class LateClient(Client):
    """Its first status is written against an old version, as when somebody has
    written meanwhile.
    """

    def __init__(self, target: Connection) -> None:
        super().__init__(target, agent="preflight-appwrapper")
        self.old = ["1"]  # one of this client and of those that are made from it

    async def replace_status(self, path: str, body: Any) -> bytes:
        if self.old:
            body = {**body, "metadata": {**body["metadata"], "resourceVersion": self.old.pop()}}
        return await super().replace_status(path, body)


async def test_a_controller_lives_with_the_rights_of_the_chart_and_uses_all_of_them(
    confined: ApiServer, tmp_path: Path
) -> None:
    target = account(confined, tmp_path, "controller")
    async with lab(confined, tmp_path) as one, Client(target, agent="probe") as client:
        await enforced(one, client)
        async with leads(target, client=LateClient(target)) as leading:
            await one.wrap(
                service(),
                job(),
                bare_pod(),
                failureGracePeriodDuration="0s",
                retryPausePeriodDuration="0s",
            )
            await one.running(3)
            await one.ends(one.pods()[0], code=1)

            async def again() -> bool:
                return bool((await one.wrapper())["status"].get("resettingCount") == 1)

            await one.until(again, "a reset")
            await one.running(3)
            await one.suspend(True)
            await one.phase("Suspended")
            await one.delete()
            await one.gone(one.wrappers("w"))
            each = [
                {"apiVersion": api, "kind": kind, "metadata": {"name": "each"}, "spec": spec}
                for api, kind, spec in WRAPPED
            ]
            claiming = bare_pod()  # of which both kinds of claims are read
            claiming["spec"]["resourceClaims"] = [
                {"name": "a", "resourceClaimName": "a"},
                {"name": "b", "resourceClaimTemplateName": "b"},
            ]
            await one.wrap(*each, claiming, name="each")
            await one.phase("Running", "each")
            await one.delete("each")
            await one.gone(one.wrappers("each"))

            async def said() -> bool:
                return (
                    leading.counted("appwrapper_writes_total", kind="event", result="written") >= 5
                )

            await one.until(said, "the Events")
    user = f"system:serviceaccount:{HOME}:{NAME}-controller"
    log = (confined.home.parent / "audit.log").read_text().splitlines()
    found = read(log, "preflight-appwrapper")[user]
    assert not found.refused
    of = {right for right in granted(chart())[user] if right[1] != "leases"}
    assert of - found.used == NOT_SENT


async def refused(request: Any) -> str:
    with pytest.raises(KubeError) as error:
        await request
    return str(error.value)


async def test_the_controllers_token_creates_and_deletes_nothing_foreign_and_changes_no_wrapper(
    confined: ApiServer, tmp_path: Path
) -> None:
    target = account(confined, tmp_path, "controller")
    async with lab(confined, tmp_path) as one, Client(target, agent="probe") as client:
        await enforced(one, client)
        owner = {"apiVersion": "workload.codeflare.dev/v1beta2", "kind": "AppWrapper", "name": "w"}
        ours = {**owner, "uid": "u", "controller": True}
        for metadata in (
            {"labels": {LABEL: "w"}},
            {"ownerReferences": [ours]},
            {"labels": {LABEL: "another"}, "ownerReferences": [ours]},
            {"labels": {LABEL: "w"}, "ownerReferences": [{**ours, "controller": False}]},
            {"labels": {LABEL: "w"}, "ownerReferences": [{**ours, "kind": "Job"}]},
        ):
            forged = {**bare_pod(), "metadata": {"name": "forged", **metadata}}
            said = await refused(client.create(one.path("", "pods"), forged))
            assert "writes pods only where" in said
        await one.client.create(
            one.path("", "services"), {"apiVersion": "v1", "kind": "Service", **service("theirs")}
        )
        said = await refused(client.delete(one.path("", "services", "theirs")))
        assert "writes wrappedKinds only where" in said
        await one.client.merge_patch(
            one.path("", "services", "theirs"), {"metadata": {"labels": {LABEL: "another"}}}
        )
        said = await refused(client.delete(one.path("", "services", "theirs")))
        assert "writes wrappedKinds only where" in said
        await one.wrap(job(), suspend=True)
        said = await refused(client.merge_patch(one.wrappers("w"), {"spec": {"suspend": False}}))
        assert "this request changes spec;" in said
        said = await refused(
            client.merge_patch(one.wrappers("w"), {"metadata": {"finalizers": ["example.com/x"]}})
        )
        assert "this request changes metadata.finalizers;" in said
        await client.merge_patch(
            one.wrappers("w"), {"metadata": {"finalizers": ["workload.codeflare.dev/finalizer"]}}
        )


async def test_the_labeler_makes_one_label_of_a_condition_and_can_do_nothing_else(
    confined: ApiServer, tmp_path: Path
) -> None:
    target = account(confined, tmp_path, "labeler")
    async with (
        lab(confined, tmp_path) as one,
        Client(target, agent="preflight-appwrapper") as client,
    ):
        node = f"/api/v1/nodes/n-{one.namespace}"
        autopilot = {"autopilot.ibm.com/gpuhealth": "PASS"}
        await one.client.create(
            "/api/v1/nodes", {"metadata": {"name": node.rpartition("/")[2], "labels": autopilot}}
        )

        async def labels() -> dict[str, str]:
            return dict(((await one.get(node)) or {})["metadata"].get("labels", {}))

        async def condition(status: str) -> None:
            made = {"type": "DcgmDiagnosticMemory", "status": status, "reason": "r", "message": "m"}
            await one.client.merge_patch(f"{node}/status", {"status": {"conditions": [made]}})

        async def has(value: str | None) -> None:
            async def there() -> bool:
                return (await labels()).get(KEY) == value

            await one.until(there, f"the label {value}")

        async with anyio.create_task_group() as group:
            for _ in range(2):  # the second is the one after a restart
                scope = anyio.CancelScope()

                async def lead(scope: anyio.CancelScope = scope) -> None:
                    with scope:
                        await Labeler(client, NodeHealthConfig(), Metrics(), BrakeRules()).run()

                group.start_soon(lead)
                await condition("True")
                await has("EVICT")
                scope.cancel()
            assert await labels() == {**autopilot, KEY: "EVICT"}
            group.start_soon(Labeler(client, NodeHealthConfig(), Metrics(), BrakeRules()).run)
            await condition("False")
            await has(None)
            assert await labels() == autopilot
            group.cancel_scope.cancel()

        async def policy() -> bool:
            try:
                await client.merge_patch(
                    f"{node}?dryRun=All", {"metadata": {"labels": {"other": "x"}}}
                )
            except KubeError as error:
                return "labeler writes metadata.labels[" in str(error)
            return False

        await one.until(policy, "the policy")
        for body in (
            {"spec": {"unschedulable": True}},
            {"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}},
            {"metadata": {"labels": {"autopilot.ibm.com/gpuhealth": None}}},
            {"metadata": {"annotations": {"a": "b"}}},
        ):
            said = await refused(client.merge_patch(node, body))
            assert f"writes metadata.labels[{KEY}] of nodes, and nothing else" in said


async def only_appwrappers(one: Lab, home: Path) -> Client:
    """Who has `appwrappers: *` in all namespaces, and nothing else."""
    name = f"alice-{one.namespace}"
    rules = [
        {"apiGroups": ["workload.codeflare.dev"], "resources": ["appwrappers"], "verbs": ["*"]}
    ]
    await one.client.create(one.path("", "serviceaccounts"), {"metadata": {"name": "alice"}})
    await one.client.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "alice", "namespace": one.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    await one.client.create(
        f"{RBAC}/clusterrolebindings",
        {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]},
    )
    token = one.server.token_of(one.namespace, "alice")
    kubeconfig = one.server.kubeconfig(home / "alice", token)
    return Client(connection({"KUBECONFIG": str(kubeconfig)}), agent="tests")


async def test_there_are_no_appwrappers_where_nobody_judges_them(
    confined: ApiServer, tmp_path: Path
) -> None:
    target = account(confined, tmp_path, "controller")
    async with (
        lab(confined, tmp_path) as one,
        Client(target, agent="probe") as controller,
        await only_appwrappers(one, tmp_path) as alice,
    ):
        await enforced(one, controller)
        ours = {"kind": "AppWrapper", "name": "w", "uid": "u", "controller": True}
        owner = {"apiVersion": "workload.codeflare.dev/v1beta2", **ours}
        pod = {**bare_pod(), "metadata": {"name": "owned", "labels": {LABEL: "w"}}}
        pod["metadata"]["ownerReferences"] = [owner]
        for namespace in ("kube-system", HOME, LEFT_OUT):
            there = f"/apis/workload.codeflare.dev/v1beta2/namespaces/{namespace}/appwrappers"
            for client in (alice, one.client):
                said = await refused(
                    client.create(there, appwrapper(job(), name="w", suspend=True))
                )
                assert "Nobody judges AppWrappers of this namespace" in said
                assert "create it in another namespace" in said
            said = await refused(controller.create(f"/api/v1/namespaces/{namespace}/pods", pod))
            assert "only where AppWrappers of its namespace are judged" in said
        await alice.create(one.wrappers(), appwrapper(job(), name="w", suspend=True))
        said = await refused(alice.merge_patch(EARLIER, {"spec": {"suspend": False}}))
        assert "Nobody judges AppWrappers of this namespace" in said
        await alice.merge_patch(EARLIER, {"metadata": {"finalizers": ["example.com/x"]}})
        await alice.merge_patch(EARLIER, {"metadata": {"finalizers": []}})
        await alice.delete(EARLIER)
        await one.gone(EARLIER)


async def test_a_wrapper_is_not_deleted_without_what_it_has_made(
    confined: ApiServer, tmp_path: Path
) -> None:
    target = account(confined, tmp_path, "controller")
    async with lab(confined, tmp_path) as one, Client(target, agent="probe") as controller:
        await enforced(one, controller)
        await one.client.create(one.wrappers(), appwrapper(job(), name="w", suspend=True))
        path = one.wrappers("w")
        await until_refused(
            one,
            lambda: one.client.delete(f"{path}?dryRun=All", propagation="Orphan"),
            "delete it without --cascade=orphan",
        )
        await one.client.delete(path, propagation="Foreground")
        await one.gone(path)


async def test_templates_are_what_was_judged_also_where_no_webhook_is_called(
    confined: ApiServer, tmp_path: Path
) -> None:
    target = account(confined, tmp_path, "controller")
    async with lab(confined, tmp_path) as one, Client(target, agent="probe") as controller:
        await enforced(one, controller)
        await one.client.create(one.wrappers(), appwrapper(job(), name="probe", suspend=True))
        probe = f"{one.wrappers('probe')}?dryRun=All"
        changed = {"spec": {"components": [{"template": job("other")}]}}
        await until_refused(
            one,
            lambda: one.client.merge_patch(probe, changed),
            "cannot be changed once they are judged",
        )
        large = job()
        large["spec"]["x"] = [{}] * 300_000
        for name, template in (("w", job()), ("large", large)):
            await one.wrap(template, name=name, suspend=True)
            for other in (job("other"), job(parallelism=9), {**template, "more": 1}):
                said = await refused(
                    one.client.merge_patch(
                        one.wrappers(name), {"spec": {"components": [{"template": other}]}}
                    )
                )
                assert "cannot be changed once they are judged" in said
            said = await refused(
                one.client.merge_patch(one.wrappers(name), {"spec": {"components": []}})
            )
            assert "cannot be changed once they are judged" in said
            kueue = {"template": template, "podSetInfos": [{"labels": {"a": "b"}}]}
            await one.client.merge_patch(
                one.wrappers(name), {"spec": {"suspend": False, "components": [kueue]}}
            )
            await one.client.merge_patch(one.wrappers(name), {"spec": {"suspend": True}})
