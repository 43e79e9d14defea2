"""What the account writes, by the API server's OpenAPI: the fields of the table, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from preflight_gang.api.rights import RIGHTS
from preflight_gang.api.types import GANG_ID_ANNOTATION
from preflight_kube.api import node_health
from preflight_proto import names, policy
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import Answer, Impersonator, RightCase, example, rows
from preflight_testing.helm import GANG, Object, render

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-gang"
USER = f"system:serviceaccount:{HOME}:{NAME}"
ROSTER = names.PREFIX + "roster"
RECORD = {names.MANAGED_BY_LABEL: names.MANAGED_BY}
ACCEPTED = {
    "type": "Accepted",
    "status": "True",
    "reason": "InForce",
    "message": "m",
    "observedGeneration": 1,
    "lastTransitionTime": "2026-11-21T08:00:00Z",
}
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impersonator]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("table"), folder, authorization="RBAC") as server:
        found = Impersonator(server, NAME, "admin")
        found.create("/api/v1/namespaces", {"metadata": {"name": HOME}})
        found.install(render(GANG, {"protection": {"exemptUsers": ["admin"]}}, namespace=HOME))
        for path in (node_health.path(), policy.path()):
            server.served(path)
        yield found


def of(row: RightCase) -> tuple[str, Object]:
    """Where an object is that the row is for, and the object."""
    match row.right.resource.partition("/")[0]:
        case "pods":
            keys = (names.GANG_ANNOTATION, ROSTER, "theirs")
            about = {
                "name": "member",
                "labels": {names.GANG_LABEL: "g", "app": "train"},
                "annotations": dict.fromkeys(keys, "x"),
            }
            spec = {"containers": [{"name": "c", "image": "x"}], "activeDeadlineSeconds": 1000}
            return "/api/v1/namespaces/default/pods", {
                **{"apiVersion": "v1", "kind": "Pod", "metadata": about},
                "spec": spec,
            }
        case "configmaps":
            about = {
                "name": f"preflight-{row.verb}",
                "labels": RECORD,
                "annotations": {GANG_ID_ANNOTATION: "g"},
            }
            return CONFIG_MAPS, {
                **{"apiVersion": "v1", "kind": "ConfigMap", "metadata": about},
                "data": {"peers": "a:10.0.0.1"},
            }
        case policy.PLURAL:
            return policy.path("default"), {
                **{"apiVersion": f"{policy.GROUP}/{policy.VERSION}", "kind": policy.KIND},
                **{"metadata": {"name": "one"}, "spec": {"enforcement": "observe"}},
                "status": {"conditions": [ACCEPTED]},
            }
        case node_health.PLURAL:
            owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}
            return node_health.path(), {
                "apiVersion": f"{node_health.GROUP}/{node_health.VERSION}",
                "kind": node_health.KIND,
                "metadata": {"name": "n1", "ownerReferences": [owner]},
                "spec": {"nodeUID": "u"},
            }
    return example(row, NAME)


METADATA = {"metadata.annotations.*", "metadata.labels.*"}
OWNED = {"metadata.finalizers longer", "metadata.ownerReferences longer"}
MANAGED = f"metadata.labels.{names.MANAGED_BY_LABEL}"
WRITTEN: dict[str, tuple[set[str], set[str]]] = {
    "controller-pods-update": (
        {f"metadata.annotations.{ROSTER}", f"metadata.annotations.{ROSTER} left out"},
        METADATA
        | OWNED
        | {f"metadata.annotations.{names.GANG_ANNOTATION}", "metadata.annotations.theirs"}
        | {f"metadata.labels.{names.GANG_LABEL}", "spec.activeDeadlineSeconds"}
        | {"spec.containers[0].image", "spec.tolerations longer"},
    ),
    "controller-configmaps-create": (
        {"data.peers", f"metadata.annotations.{GANG_ID_ANNOTATION}"},
        METADATA | {MANAGED, "immutable", "metadata.name", "metadata.finalizers longer"},
    ),
    "controller-configmaps-update": (
        {"data.peers", "metadata.ownerReferences longer", *METADATA},
        {MANAGED, f"{MANAGED} left out", "immutable", "metadata.finalizers longer"},
    ),
    "controller-preflightconfigs-status-update": ({"status.conditions[0].message"}, set()),
    "controller-nodehealths-create": (
        {"spec.nodeUID"},
        METADATA | {"metadata.name", "metadata.ownerReferences[0].kind"},
    ),
    "controller-nodehealths-status-update": ({"status.state"}, set()),
    "controller-events-create": ({"message"}, METADATA | OWNED | {"source.component"}),
    "controller-leases-create": ({"spec.holderIdentity"}, METADATA | OWNED | {"metadata.name"}),
    "controller-leases-update": ({"spec.holderIdentity"}, METADATA | OWNED),
}
"""By row: some fields of which it must be known that they are accepted, or refused."""
WORDS = {"name": NAME, "namespace": HOME}


@pytest.mark.parametrize("row", [*rows(RIGHTS, WORDS)], ids=str)
def test_what_the_account_writes_is_what_the_table_says(
    cluster: Impersonator, row: RightCase
) -> None:
    path, body = of(row)
    tried = cluster.tries(row, path, body, USER)
    accepted, refused = WRITTEN[str(row)]
    assert tried.accepted >= accepted
    assert tried.refused >= refused


def test_the_account_writes_to_no_pod_that_is_not_stamped_and_takes_no_configmap_over(
    cluster: Impersonator,
) -> None:
    pods = "/api/v1/namespaces/default/pods"
    spec = {"containers": [{"name": "c", "image": "x"}]}
    cluster.create(pods, {"metadata": {"name": "theirs"}, "spec": spec})
    theirs = cluster.create(CONFIG_MAPS, {"metadata": {"name": "preflight-theirs"}})
    patch = {"metadata": {"annotations": {ROSTER: "x"}}}
    cluster.until_refused(
        "controller-pods", lambda: cluster.ask("PATCH", f"{pods}/theirs", patch, user=USER)
    )

    def asked(method: str, name: str, **labels: str) -> Answer:
        body = {**theirs, "metadata": {**theirs["metadata"], "name": name, "labels": labels}}
        return cluster.ask(method, f"{CONFIG_MAPS}/{name}?dryRun=All", body, user=USER)

    at = f"{CONFIG_MAPS}/preflight-theirs"
    cluster.until_refused("controller-configmaps", lambda: cluster.ask("DELETE", at, user=USER))
    assert asked("PUT", "preflight-theirs", **RECORD).policy == "controller-configmaps"
    made = {"metadata": {"generateName": "train-", "labels": RECORD}}
    assert cluster.ask("POST", CONFIG_MAPS, made, user=USER).policy == "controller-configmaps"
    ours = cluster.create(CONFIG_MAPS, {"metadata": {"name": "preflight-o", "labels": RECORD}})
    assert (
        cluster.ask("DELETE", f"{CONFIG_MAPS}/{ours['metadata']['name']}", user=USER).status == 200
    )
