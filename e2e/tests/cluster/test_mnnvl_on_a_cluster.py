"""Multi-node NVLink where pods run: a set's pods share a domain, one on each node, beside
preflight's webhook and unmodified templates.

Needs the lab's fake nodes, four of them, the images of webhook and `preflight-mnnvl`, and no
release of the charts. The driver of channels, the controller of ComputeDomains and Grove are
stand-ins; scheduler, kubelets and garbage collector are real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, utils
from preflight_e2e.grove import Grove
from preflight_e2e.images import ROOT
from preflight_e2e.installed_release import Installed, until
from preflight_e2e.lab import FAKES, Lab
from preflight_testing.grove_kinds import GROVE, compute_domains

pytestmark = [pytest.mark.timeout(420), pytest.mark.fakes]

EXAMPLE = ROOT / "packages/preflight-mnnvl/tests/fixtures/e1-distributed-training.yaml"
FAKE = ROOT / "e2e/fakes/node/compute_domains.yaml"
IMAGE = os.environ.get("PREFLIGHT_WEBHOOK_IMAGE", "preflight-webhook:dev")
SAYS = "echo channel=$FAKE_IMEX_CHANNEL domain=$FAKE_IMEX_DOMAIN"
CHECK = "preflight-dcgm-diag"
FABRIC = "nvidia.com/gpu.clique"
NAME = "distributed-training"


class Place:
    """A namespace with a set in it."""

    def __init__(self, lab: Lab, installed: Installed) -> None:
        self.lab, self.installed = lab, installed
        self.namespace = installed.opted_in()
        self.grove = Grove(self.namespace)
        self.api: Any = client.CoreV1Api()
        self.claims: Any = client.ResourceV1Api()
        self.custom: Any = client.CustomObjectsApi()

    def domains(self) -> dict[str, dict[str, Any]]:
        at = ("resource.nvidia.com", "v1beta1", self.namespace, "computedomains")
        return {
            one["metadata"]["name"]: one
            for one in self.custom.list_namespaced_custom_object(*at)["items"]
        }

    def pods(self) -> list[Any]:
        found: list[Any] = self.api.list_namespaced_pod(self.namespace).items
        return [one for one in found if one.metadata.deletion_timestamp is None]

    def running(self) -> list[Any]:
        return [one for one in self.pods() if one.status.phase == "Running"]

    def turns_until(self, holds: Any, what: str) -> None:
        """Grove's turns go on, as they do."""

        def after_a_turn() -> bool:
            self.grove.turn()
            return bool(holds())

        until(after_a_turn, what)


def example(replicas: int) -> dict[str, Any]:
    """E1 with GPUs of which a node has several pods' worth, so that they are not what keeps pods
    apart.
    """
    set_: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    del set_["metadata"]["namespace"]
    set_["spec"]["replicas"] = replicas
    for clique in set_["spec"]["template"]["cliques"]:
        pod = clique["spec"]["podSpec"]
        pod["terminationGracePeriodSeconds"] = 1
        for container in pod["containers"]:
            limits = {"nvidia.com/gpu": "1"}
            container |= {
                "image": IMAGE,
                "command": ["sh", "-c", f"{SAYS}; sleep 3600"],
                "resources": {"limits": limits},
            }
    return set_


@pytest.fixture(scope="module")
def fabric(fake_nodes: Lab) -> Iterator[Lab]:
    """Nodes that hand out channels, and all kinds; the controller of ComputeDomains does not run
    yet.
    """
    if len(fake_nodes.nodes) < 4:
        pytest.skip(f"needs four nodes, there are {len(fake_nodes.nodes)}")
    definitions: Any = client.ApiextensionsV1Api()
    apps: Any = client.AppsV1Api()
    rights: Any = client.RbacAuthorizationV1Api()
    classes: Any = client.ResourceV1Api()
    kinds = [*GROVE, compute_domains()]
    named = "fake-compute-domains"
    try:
        for kind in kinds:
            definitions.create_custom_resource_definition(kind)
        for document in yaml.safe_load_all(FAKE.read_text()):
            if document["kind"] == "Deployment":
                document["spec"]["replicas"] = 0
            utils.create_from_dict(client.ApiClient(), document)  # type: ignore[no-untyped-call]
        fake_nodes.become({"dra": {"channels": 1}})
        for node in fake_nodes.nodes:
            fake_nodes.api.patch_node(node, {"metadata": {"labels": {FABRIC: "rack.0"}}})

        def offered() -> bool:
            slices = classes.list_resource_slice().items
            return len(
                [one for one in slices if one.spec.driver == "compute-domain.nvidia.com"]
            ) == len(fake_nodes.nodes)

        until(offered, "every node offers its channel")
        yield fake_nodes
    finally:
        for node in fake_nodes.nodes:
            fake_nodes.api.patch_node(node, {"metadata": {"labels": {FABRIC: None}}})
        fake_nodes.become({})
        deletions: list[Callable[[], Any]] = [
            lambda: apps.delete_namespaced_deployment(named, FAKES),
            lambda: fake_nodes.api.delete_namespaced_service_account(named, FAKES),
            lambda: rights.delete_cluster_role(f"preflight-{named}"),
            lambda: rights.delete_cluster_role_binding(f"preflight-{named}"),
            lambda: classes.delete_device_class("compute-domain-default-channel.nvidia.com"),
            *(
                partial(definitions.delete_custom_resource_definition, kind["metadata"]["name"])
                for kind in kinds
            ),
        ]
        for delete in deletions:
            with suppress(client.ApiException):  # it was never made
                delete()


@pytest.fixture(scope="module")
def place(fabric: Lab) -> Iterator[Place]:
    """Both webhooks, the controller, and the set's six pods of one domain,
    as far as they can run.
    """
    made = Installed(Path(os.environ["KUBECONFIG"]))
    check = {
        "name": "dcgm-diag",
        "image": IMAGE,
        "container": {"command": ["sh", "-c", SAYS], "args": None},
    }
    mnnvl = {
        "enabled": True,
        "fullnameOverride": f"{made.name}-mnnvl",
        "image": {"repository": "preflight-mnnvl", "tag": "dev"},
        "replicas": 1,
        "webhook": {"namespaceSelector": {"matchLabels": {"preflight-e2e": made.name}}},
    }
    try:
        made.release.install(
            {**made.with_values(checks=[check], replicas=1), "preflight-mnnvl": mnnvl}
        )
        until(made.published, "the CA bundle")
        found = Place(fabric, made)
        until(lambda: called(found), "the webhook of PodCliques is called")
        found.grove.apply(example(1))
        found.turns_until(lambda: "distributed-training-0-cd" in found.domains(), "the domain")
        found.turns_until(lambda: found.grove.refused, "a refusal")
        apps: Any = client.AppsV1Api()
        apps.patch_namespaced_deployment_scale(
            "fake-compute-domains", FAKES, {"spec": {"replicas": 1}}
        )
        found.turns_until(lambda: len(found.running()) == 4, "four pods run")
        yield found
    finally:
        for name in made.namespaces:
            with suppress(client.ApiException):
                made.api.delete_collection_namespaced_pod(name, grace_period_seconds=0)
        made.remove()


def called(place: Place) -> bool:
    """Whether a scope that nobody knows is refused."""
    wrong = example(1)
    wrong["metadata"]["annotations"]["grove.io/mnnvl-scope"] = "pod"
    at = ("grove.io", "v1alpha1", place.namespace, "podcliquesets")
    try:
        place.custom.create_namespaced_custom_object(*at, wrong, dry_run="All")
    except client.ApiException as error:
        return "write one of replica, clique, scalingGroupReplica" in (error.body or "")
    return False


def said(place: Place, pod: str, container: str) -> str:
    return str(place.lab.log(place.namespace, pod, container)).strip()


def test_four_pods_of_one_domain_run_on_four_nodes_and_all_their_containers_hold_the_same_channel(
    place: Place,
) -> None:
    pods = place.running()
    assert {one.spec.node_name for one in pods} == set(place.lab.nodes[:4])
    domain = place.domains()[f"{NAME}-0-cd"]["metadata"]["uid"]
    for pod in pods:
        assert [one.name for one in pod.spec.init_containers] == [CHECK]
        for container in (CHECK, pod.spec.containers[0].name):
            assert said(place, pod.metadata.name, container) == f"channel=0 domain={domain}", (
                pod.metadata.name
            )
    until(
        lambda: len(place.domains()[f"{NAME}-0-cd"]["status"]["nodes"]) == 4,
        "the domain tells its nodes",
    )


def test_a_fifth_pod_waits_and_the_scheduler_says_why(place: Place) -> None:
    def waiting() -> list[Any]:
        return [one for one in place.pods() if one.status.phase == "Pending"]

    def reason(pod: Any) -> str:
        [found] = [one for one in pod.status.conditions or [] if one.type == "PodScheduled"] or [
            None
        ]
        return str(found.message) if found else ""

    until(
        lambda: all("cannot allocate all claims" in reason(one) for one in waiting()),
        "the scheduler's reason",
    )
    assert len(waiting()) == 2
    assert len(place.running()) == 4


def test_pods_that_preflight_refused_for_want_of_their_template_come_up_all_the_same(
    place: Place,
) -> None:
    assert any("what mnnvl asks for is not known" in said for said in place.grove.refused), (
        place.grove.refused
    )
    assert len(place.pods()) == 6


def test_the_names_of_the_webhooks_do_not_matter(place: Place) -> None:
    hooks: Any = client.AdmissionregistrationV1Api()
    own = f"{place.installed.name}-mnnvl"
    plain: Any = client.ApiClient()
    there = plain.sanitize_for_serialization(hooks.read_mutating_webhook_configuration(own))
    cliques: Any = ("grove.io", "v1alpha1", place.namespace, "podcliques")
    [clique, *_] = [
        one for name, one in place.grove.all("podcliques").items() if name.endswith("-worker")
    ]
    body = {key: clique[key] for key in ("apiVersion", "kind", "spec")}
    body["spec"]["podSpec"].pop("resourceClaims")
    for container in body["spec"]["podSpec"]["containers"]:
        container["resources"].pop("claims")
    body["metadata"] = {"name": f"{NAME}-0-another", "labels": clique["metadata"]["labels"]}
    results = []
    for name in ("a-first", "z-last"):
        placed = f"{name}-{own}"
        renamed = [{**one, "name": f"{name}-{one['name']}"} for one in there["webhooks"]]
        entry = renamed[0]["name"]
        hooks.create_mutating_webhook_configuration(
            {**there, "metadata": {"name": placed}, "webhooks": renamed}
        )
        try:
            if name == "a-first":
                hooks.delete_mutating_webhook_configuration(own)
            until(partial(refused_by, place, entry), f"{placed} is called, and no other")
            made = place.custom.create_namespaced_custom_object(*cliques, body, dry_run="All")
            pod = {
                "metadata": {"name": "probe", "labels": clique["metadata"]["labels"]},
                "spec": made["spec"]["podSpec"],
            }
            found = place.api.create_namespaced_pod(place.namespace, pod, dry_run="All")
            spec = plain.sanitize_for_serialization(found.spec)
            results.append(
                {key: spec[key] for key in ("containers", "initContainers", "resourceClaims")}
            )
        finally:
            hooks.delete_mutating_webhook_configuration(placed)
    hooks.create_mutating_webhook_configuration({**there, "metadata": {"name": own}})
    first = there["webhooks"][0]["name"]
    until(partial(refused_by, place, first), "the webhook is called as before")
    for result in results:
        for container in (*result["containers"], *result["initContainers"]):
            container["volumeMounts"] = [
                m for m in container.get("volumeMounts", []) if "kube-api-access" not in m["name"]
            ]
    assert results[0] == results[1]
    assert [one["resources"]["claims"] for one in results[0]["initContainers"]] == [
        [{"name": "mnnvl"}]
    ]


def refused_by(place: Place, webhook: str) -> bool:
    """Whether it is this entry that refuses a PodClique of a wrong scope."""
    notes = {"grove.io/mnnvl-enabled": "true", "grove.io/mnnvl-scope": "pod"}
    container = {"name": "a", "image": IMAGE, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    wrong = {
        "apiVersion": "grove.io/v1alpha1",
        "kind": "PodClique",
        "metadata": {"name": "probe", "annotations": notes},
        "spec": {"roleName": "w", "replicas": 1, "podSpec": {"containers": [container]}},
    }
    at = ("grove.io", "v1alpha1", place.namespace, "podcliques")
    try:
        place.custom.create_namespaced_custom_object(*at, wrong, dry_run="All")
    except client.ApiException as error:
        return f'webhook \\"{webhook}\\"' in (error.body or "")
    return False


def test_what_is_scaled_has_exactly_its_domains_and_a_set_that_is_deleted_leaves_nothing(
    place: Place,
) -> None:
    for replicas in (4, 2):
        place.grove.scale(NAME, replicas)
        wanted = {f"{NAME}-{i}-cd" for i in range(replicas)}
        place.turns_until(
            lambda wanted=wanted: set(place.domains()) == wanted, f"{replicas} domains"
        )
    place.turns_until(
        lambda: set(owners(place)) == {("PodGang", f"{NAME}-{i}") for i in (0, 1)},
        "PodGangs own them",
    )
    began = time.monotonic()
    place.grove.delete(NAME)
    until(lambda: not place.domains(), "no domain is left")
    templates = place.claims.list_namespaced_resource_claim_template
    until(lambda: not templates(place.namespace).items, "no template is left")
    print(f"gone after {time.monotonic() - began:.1f} s")
    until(
        lambda: not place.claims.list_namespaced_resource_claim(place.namespace).items,
        "no claim is left",
    )


def owners(place: Place) -> list[tuple[str, str]]:
    every = [
        owner
        for one in place.domains().values()
        for owner in one["metadata"].get("ownerReferences", [])
    ]
    return [(one["kind"], one["name"]) for one in every]
