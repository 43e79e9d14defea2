"""What is particular to the GPU scheduler's chart; and what a real API server makes of its objects
and policies.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from preflight_e2e import umbrella
from preflight_e2e.umbrella import configs, named, of, scheduler, specs
from preflight_testing.apiserver import ApiServer
from preflight_testing.fields import Impersonator
from preflight_testing.helm import GPU_SCHEDULER, Object, Release, only
from preflight_testing.plugin import real_api_server

__all__ = ["real_api_server"]

NAME = GPU_SCHEDULER.name
ACCOUNTS = ["agent", "certs", "controller", "scheduler", "webhook"]


made = partial(umbrella.rendered, GPU_SCHEDULER)


def kinds(objects: list[Object], kind: str) -> list[str]:
    return sorted(name.removeprefix(f"{NAME}-") for name in named(kind, objects))


def test_each_part_has_an_account_of_its_own() -> None:
    objects = made()
    assert kinds(objects, "ServiceAccount") == ACCOUNTS
    assert kinds(objects, "Deployment") == ["controller", "scheduler", "webhook"]
    assert kinds(objects, "DaemonSet") == ["agent"]
    assert kinds(objects, "CustomResourceDefinition") == [
        "gpuclaims.gpu.scheduling",
        "gpunodestatuses.gpu.scheduling",
    ]


def test_under_another_name_the_certificate_is_kept_where_the_webhook_reads_it() -> None:
    objects = made(fullnameOverride="other")
    [container] = only(objects, "Job")["spec"]["template"]["spec"]["containers"]
    said = dict(word.removeprefix("--").split("=") for word in container["args"][1:])
    assert (said["secret"], said["service"], said["mutating"]) == ("other-tls", "other", "other")
    pod = named("Deployment", objects)["other-webhook"]["spec"]["template"]["spec"]
    mounted = [one["secret"] for one in pod["volumes"] if "secret" in one]
    assert [one["secretName"] for one in mounted] == ["other-tls"]
    assert [item["key"] for one in mounted for item in one["items"]] == ["tls.crt", "tls.key"]
    readable = {
        name
        for role in of("Role", objects)
        for rule in role["rules"]
        for name in rule.get("resourceNames", [])
        if "secrets" in rule["resources"]
    }
    assert readable == {"other-tls"}


def test_the_extender_is_not_reachable_from_outside_its_pod() -> None:
    deployed = specs("Deployment", made())["scheduler"]
    for container in deployed["template"]["spec"]["containers"]:
        assert not [port for port in container.get("ports", ()) if port["containerPort"] == 9443]
        assert not [one for one in container.get("args", ()) if "--listen" in one]


def test_admission_alone_is_open_to_all() -> None:
    monitoring = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    found = specs("NetworkPolicy", made(networkPolicy={"metricsFrom": monitoring}))
    metrics = {"from": monitoring, "ports": [{"port": "metrics", "protocol": "TCP"}]}
    admission = {"ports": [{"port": "admission", "protocol": "TCP"}]}
    assert {name: spec.get("ingress") for name, spec in found.items()} == {
        "agent": [metrics],
        "certs": None,
        "controller": [metrics],
        "scheduler": [metrics],
        "webhook": [admission, metrics],
    }


def test_the_configuration_in_the_cluster_is_what_the_values_say() -> None:
    found = configs(scheduler(reservationSeconds=120, countResource=""))[NAME]
    assert found["reservationSeconds"] == 120
    assert found["countResource"] == ""
    assert found["lockNamespace"] == "gpu-scheduler-leases"


def writes(objects: list[Object], part: str) -> set[tuple[str, str]]:
    """(verb, resource) by which a part may change something."""
    rules = [
        rule
        for o in objects
        if o["kind"] in {"ClusterRole", "Role"}
        and o["metadata"]["labels"]["app.kubernetes.io/component"] == part
        for rule in o["rules"]
    ]
    return {
        (verb, resource)
        for rule in rules
        for verb in {*rule["verbs"]} - {"get", "list", "watch"}
        for resource in rule["resources"]
    }


def test_where_nothing_is_counted_the_controller_may_write_nothing_of_a_node() -> None:
    counted, not_counted = made(), made(countResource="")
    assert writes(counted, "controller") - writes(not_counted, "controller") == {
        ("patch", "nodes/status")
    }
    names = {kind: {*kinds(counted, kind)} - {*kinds(not_counted, kind)} for kind in POLICIES}
    assert names == {kind: {"controller-nodes"} for kind in POLICIES}


POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


@pytest.mark.parametrize(
    ("value", "resource"), [(None, "gpu.scheduling/gpu"), ("example.com/gpu", "example.com/gpu")]
)
def test_what_the_controller_counts_is_what_it_may_write(value: str | None, resource: str) -> None:
    objects = made(countResource=value)
    config = configs(scheduler(countResource=value))[NAME]
    assert config.get("countResource", resource) == resource
    policy = specs(POLICIES[0], objects)["controller-nodes"]
    [compared] = [v for v in policy["variables"] if v["name"] == "changed"]
    assert f"k in ['{resource}']" in compared["expression"]


def test_certificates_of_somebody_else_leave_no_job_and_no_rights() -> None:
    objects = made(certificates={"selfManaged": False, "secretName": "theirs"})
    assert not {"Job", "CronJob"} & {o["kind"] for o in objects}
    assert kinds(objects, "ServiceAccount") == [one for one in ACCOUNTS if one != "certs"]
    assert not [name for o in objects if (name := o["metadata"]["name"]).endswith("-certs")]
    volumes = specs("Deployment", objects)["webhook"]["template"]["spec"]["volumes"]
    assert [one["secret"]["secretName"] for one in volumes if "secret" in one] == ["theirs"]


def test_a_certificate_of_ours_is_kept_in_the_secret_that_the_webhook_reads() -> None:
    objects = made(certificates={"secretName": "mine"})
    job = only(objects, "Job")["spec"]["template"]["spec"]
    assert "--secret=mine" in job["containers"][0]["args"]
    role = named("Role", objects)[f"{NAME}-certs"]
    assert [rule.get("resourceNames") for rule in role["rules"]] == [["mine"], None]


def test_every_namespaced_object_stands_in_the_releases_namespace_or_in_that_of_the_locks() -> None:
    found = {
        (o["kind"], o["metadata"]["namespace"])
        for o in made("elsewhere")
        if "namespace" in o["metadata"] and o["metadata"]["namespace"] != "elsewhere"
    }
    assert found == {
        ("Role", "gpu-scheduler-leases"),
        ("RoleBinding", "gpu-scheduler-leases"),
        ("RoleBinding", "kube-system"),
    }


# --- on a real API server

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Cluster:
    """The chart in a real API server that knows who asks."""

    def __init__(self, server: ApiServer, home: Path) -> None:
        self.server = server
        Release("preflight", server.kubeconfig(home / "kubeconfig")).install(
            scheduler(), wait=False
        )
        server.call("DELETE", f"{CONFIGURATIONS}/{NAME}")  # nobody answers here
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})

    def ask(
        self, method: str, path: str, body: Any, user: str, *, node: str = ""
    ) -> tuple[int, str]:
        """As ``user``; status and message. A patch is a merge patch."""
        media = "application/merge-patch+json" if method == "PATCH" else ""
        # What may be done by right is not asked here, only what the policies say.
        who: Any = {"user": user, "groups": ("system:masters",), "node": node}
        answer = Impersonator(self.server).ask(method, path, body, media=media, **who)
        return answer.status, answer.words

    def until_denied(self, ask: Callable[[], tuple[int, str]], sentence: str) -> None:
        """A policy takes a moment to be in force."""
        end = time.monotonic() + 60
        while sentence not in (answer := ask())[1]:
            assert time.monotonic() < end, answer
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cluster(real_api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    installed = Cluster(real_api_server, tmp_path_factory.mktemp("release"))
    real_api_server.served("/apis/gpu.scheduling/v1/gpunodestatuses")
    return installed


def account(part: str) -> str:
    return f"system:serviceaccount:preflight:{NAME}-{part}"


def test_the_api_server_takes_every_policy(cluster: Cluster) -> None:
    listed = cluster.server.call(
        "GET", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    )["items"]
    ours = {one["metadata"]["name"] for one in listed if one["metadata"]["name"].startswith(NAME)}
    assert ours == {*named("ValidatingAdmissionPolicy", made())}
    assert ours


def test_an_agent_writes_the_status_of_its_own_node_only(cluster: Cluster) -> None:
    path = "/apis/gpu.scheduling/v1/gpunodestatuses"

    def status(name: str) -> Object:
        return {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuNodeStatus",
            "metadata": {"name": name},
            "spec": {"nodeName": name},
        }

    cluster.until_denied(
        lambda: cluster.ask(
            "POST", f"{path}?dryRun=All", status("other"), account("agent"), node="mine"
        ),
        "the token's own node",
    )
    assert (
        cluster.ask("POST", f"{path}?dryRun=All", status("mine"), account("agent"), node="mine")[0]
        == 201
    )
    for name in ("other", "mine"):
        assert cluster.ask("POST", path, status(name), "administrator")[0] == 201
    body = {"status": {"total": 0}}

    def written(name: str, node: str) -> tuple[int, str]:
        where = f"{path}/{name}/status?dryRun=All"
        return cluster.ask("PATCH", where, body, account("agent"), node=node)

    assert "the token's own node" in written("other", "mine")[1]
    assert "the token's own node" in written("mine", "")[1], "a token of no node"
    assert written("mine", "mine") == (200, "")


def test_nobody_but_the_scheduler_and_the_controller_writes_locks(cluster: Cluster) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/gpu-scheduler-leases/leases"
    lease = {"metadata": {"name": "gpu-a-0"}, "spec": {"holderIdentity": "x"}}
    cluster.until_denied(
        lambda: cluster.ask("POST", f"{path}?dryRun=All", lease, "tenant"), "which GPU is whose"
    )
    assert cluster.ask("POST", f"{path}?dryRun=All", lease, account("scheduler"))[0] == 201
    assert cluster.ask("POST", f"{path}?dryRun=All", lease, account("controller"))[0] == 201
    elsewhere = "/apis/coordination.k8s.io/v1/namespaces/team/leases?dryRun=All"
    assert cluster.ask("POST", elsewhere, lease, "tenant")[0] == 201


def test_a_pods_gpus_are_changed_by_nobody_else_and_the_rest_of_it_not_by_us(
    cluster: Cluster,
) -> None:
    path, spec = "/api/v1/namespaces/team/pods", {"containers": [{"name": "c", "image": "x"}]}
    said = {"gpu.scheduling/claim": "two", "other": "kept"}
    gates = [{"name": "gpu.scheduling/waiting"}, {"name": "example.com/theirs"}]
    whole = {
        "metadata": {"name": "p", "annotations": said},
        "spec": {**spec, "schedulingGates": gates},
    }
    cluster.server.call("POST", path, whole)

    def patched(annotations: Any, user: str, **more: Any) -> tuple[int, str]:
        body = {"metadata": {"annotations": annotations}, **more}
        return cluster.ask("PATCH", f"{path}/p?dryRun=All", body, user)

    cluster.until_denied(
        lambda: patched({"gpu.scheduling/claim": "more"}, "tenant"), "which GPUs a pod has"
    )
    raised = {"metadata": {"annotations": {"gpu.scheduling/reclaimed": "1"}}}
    assert cluster.ask("PATCH", f"{path}/p", raised, account("controller"))[0] == 200
    told = ("claim", "allocated", "reserved", "nvidia-visible-devices", "cuda-visible-devices")
    for key, value in (("reclaimed", None), ("claim", None), *((one, "a:0") for one in told)):
        refused = patched({f"gpu.scheduling/{key}": value}, "tenant")
        assert "which GPUs a pod has" in refused[1], key
    assert patched({"other": "changed"}, "tenant")[0] == 200
    controller = account("controller")
    cluster.until_denied(
        lambda: patched({"other": "changed"}, controller), "changes metadata.annotations other;"
    )
    assert "metadata.annotations other;" in patched({"other": None}, controller)[1]
    assert patched({"gpu.scheduling/reclaimed": "2"}, controller)[0] == 200
    theirs, ours = [{"name": "example.com/theirs"}], [{"name": "gpu.scheduling/waiting"}]
    assert patched({}, controller, spec={"schedulingGates": theirs})[0] == 200
    assert (
        "changes spec.schedulingGates;"
        in patched({}, controller, spec={"schedulingGates": ours})[1]
    )


def test_a_binding_carries_annotations_of_ours_only(cluster: Cluster) -> None:
    cluster.server.call(
        "POST",
        "/api/v1/namespaces/team/pods",
        {"metadata": {"name": "b"}, "spec": {"containers": [{"name": "c", "image": "x"}]}},
    )

    def bound(annotations: dict[str, str]) -> tuple[int, str]:
        body = {
            "metadata": {"name": "b", "annotations": annotations},
            "target": {"kind": "Node", "name": "a"},
        }
        path = "/api/v1/namespaces/team/pods/b/binding?dryRun=All"
        return cluster.ask(
            "POST", path, {"apiVersion": "v1", "kind": "Binding", **body}, account("scheduler")
        )

    cluster.until_denied(
        lambda: bound({"example.com/admin": "yes"}),
        "changes metadata.annotations example.com/admin;",
    )
    assert bound({"gpu.scheduling/allocated": "a:0"})[0] == 201


def test_the_controller_writes_nothing_of_a_node_but_the_counted_resource(cluster: Cluster) -> None:
    amounts = {"cpu": "4", "pods": "10"}
    cluster.server.call(
        "POST",
        "/api/v1/nodes",
        {"metadata": {"name": "n"}, "status": {"capacity": amounts, "allocatable": amounts}},
    )

    def written(capacity: dict[str, str]) -> tuple[int, str]:
        body = {"status": {"capacity": capacity}}
        return cluster.ask(
            "PATCH", "/api/v1/nodes/n/status?dryRun=All", body, account("controller")
        )

    cluster.until_denied(lambda: written({"cpu": "400"}), "changes status.capacity cpu;")
    assert written({"gpu.scheduling/gpu": "8"})[0] == 200


BUNDLE = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="


@pytest.fixture(scope="module")
def configuration(cluster: Cluster) -> Object:
    """As the chart makes it, but that no pod comes to it, as nobody answers here."""
    made_of_it = only(made(), "MutatingWebhookConfiguration")
    [webhook] = made_of_it["webhooks"]
    webhook["namespaceSelector"] = {"matchLabels": {"nobody": "has-this"}}
    stored: Object = cluster.server.call("POST", CONFIGURATIONS, made_of_it)
    return stored


def test_the_certs_account_sets_the_ca_bundle_and_changes_nothing_else_of_the_webhook(
    cluster: Cluster, configuration: Object
) -> None:
    path = f"{CONFIGURATIONS}/{NAME}?dryRun=All"
    [webhook] = configuration["webhooks"]

    def written(webhooks: list[Object], **about: Any) -> tuple[int, str]:
        body = {"webhooks": webhooks, **({"metadata": about} if about else {})}
        return cluster.ask("PATCH", path, body, account("certs"))

    fresh = {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": BUNDLE}}
    everything = [{**webhook["rules"][0], "resources": ["*"], "apiGroups": ["*"]}]
    theirs = {"url": "https://example.com/all", "caBundle": BUNDLE}
    cluster.until_denied(
        lambda: written([{**webhook, "rules": everything}]), "changes rules; find out"
    )
    assert written([fresh]) == (200, "")
    for what, (status, said) in {
        "clientConfig.url, clientConfig.service": written([{**fresh, "clientConfig": theirs}]),
        "namespaceSelector": written([{**fresh, "namespaceSelector": {}}]),
        "matchConditions": written([{**fresh, "matchConditions": []}]),
        "failurePolicy": written([{**fresh, "failurePolicy": "Ignore"}]),
        "reinvocationPolicy": written([{**fresh, "reinvocationPolicy": "Never"}]),
        "the list of webhooks": written([]),
        "labels": written([fresh], labels={"a": "b"}),
        "annotations": written([fresh], annotations={"cert-manager.io/inject-ca-from": "a/b"}),
    }.items():
        assert (status, f"{what}" in said, "nothing else" in said) == (403, True, True), said
    assert cluster.ask("DELETE", path, None, account("certs"))[0] == 403
    other = {"metadata": {"name": "another"}, "webhooks": []}
    assert cluster.ask("POST", f"{CONFIGURATIONS}?dryRun=All", other, account("certs"))[0] == 403
    assert cluster.ask("PATCH", path, {"webhooks": []}, "administrator")[0] == 200


def test_the_certs_account_writes_its_one_secret_of_its_one_type(cluster: Cluster) -> None:
    path = "/api/v1/namespaces/preflight/secrets?dryRun=All"
    data = {"tls.crt": BUNDLE, "tls.key": BUNDLE}
    good = {"metadata": {"name": f"{NAME}-tls"}, "type": "kubernetes.io/tls", "data": data}
    of_the_controller = {"kubernetes.io/service-account.name": f"{NAME}-controller"}
    token = {
        "metadata": {"name": f"{NAME}-tls", "annotations": of_the_controller},
        "type": "kubernetes.io/service-account-token",
    }

    def made_by(body: Object, part: str = "certs") -> tuple[int, str]:
        return cluster.ask("POST", path, body, account(part))

    cluster.until_denied(lambda: made_by({**good, "metadata": {"name": "x"}}), "and nothing else")
    assert made_by(good) == (201, "")
    assert "and nothing else" in made_by(token)[1]
    assert made_by({**good, "metadata": {"name": "x"}}, "controller")[0] == 201
