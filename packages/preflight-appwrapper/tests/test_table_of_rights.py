"""What each account writes, by the API server's OpenAPI: the fields of the table, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from player import bare_pod, service
from preflight_appwrapper.api import names
from preflight_appwrapper.api.rights import RIGHTS
from preflight_appwrapper.config import NodeHealthConfig
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import Impersonator, RightCase, example, rows
from preflight_testing.helm import PARTS, Object, render

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-appwrapper"
KEY = NodeHealthConfig().key
OWNER = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "name": "w",
    "uid": "u",
    "controller": True,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impersonator]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("table"), folder, authorization="RBAC") as server:
        found = Impersonator(server, NAME)
        found.create("/api/v1/namespaces", {"metadata": {"name": HOME}})
        found.install(render(PARTS / NAME, {"labeler": {"enabled": True}}, namespace=HOME))
        server.served(names.WRAPPERS)
        yield found


def of(row: RightCase) -> tuple[str, Object]:
    """Where an object is that the row is for, and the object."""
    about = {"name": f"made-{row.verb}", "labels": {names.LABEL: "w"}, "ownerReferences": [OWNER]}
    match row.right.resource.partition("/")[0]:
        case "appwrappers":
            component = {"template": {"apiVersion": "v1", "kind": "Service", **service()}}
            return f"/apis/{names.API_VERSION}/namespaces/default/appwrappers", {
                **{"apiVersion": names.API_VERSION, "kind": names.KIND},
                "metadata": {"name": "w", "labels": {"a": "b"}, "annotations": {"a": "b"}},
                "spec": {"suspend": True, "components": [component]},
            }
        case "nodes":
            about = {"name": "n1", "labels": {KEY: "EVICT", "a": "b"}, "annotations": {"a": "b"}}
            return "/api/v1/nodes", {
                **{"apiVersion": "v1", "kind": "Node", "metadata": about},
                "spec": {"unschedulable": True},
            }
        case "pods":
            return "/api/v1/namespaces/default/pods", {
                **{**bare_pod(), "apiVersion": "v1", "kind": "Pod"},
                "metadata": about,
            }
        case "services":
            body = {**service(), "apiVersion": "v1", "kind": "Service", "metadata": about}
            return "/api/v1/namespaces/default/services", body
    return example(row, names.COMPONENT)


METADATA = {"metadata.annotations.*", "metadata.labels.*"}
OWNED = {"metadata.finalizers longer", "metadata.ownerReferences longer"}
UNOWNED = {
    "metadata.ownerReferences[0].controller",
    "metadata.ownerReferences[0].kind",
    "metadata.ownerReferences[0].name",
    "metadata.ownerReferences shorter",
    f"metadata.labels.{names.LABEL}",
    f"metadata.labels.{names.LABEL} left out",
}
CERTIFICATE = {"metadata.annotations.*", "metadata.finalizers longer"}
WRITTEN: dict[str, tuple[set[str], set[str]]] = {
    "controller-appwrappers-update": (
        set(),
        METADATA | OWNED | {"spec.suspend", "metadata.labels.a", "metadata.annotations.a"},
    ),
    "controller-appwrappers-status-update": ({"status.phase"}, set()),
    "controller-pods-create": ({"metadata.annotations.*", "spec.hostname"}, UNOWNED),
    "controller-services-create": ({"metadata.annotations.*", "spec.ports longer"}, UNOWNED),
    "labeler-nodes-update": (
        {f"metadata.labels.{KEY}", f"metadata.labels.{KEY} left out"},
        METADATA | OWNED | {"spec.unschedulable", "spec.taints longer", "metadata.labels.a"},
    ),
    **{
        f"{part}-{row}": known
        for part in ("controller", "labeler")
        for row, known in {
            "events-create": ({"message"}, METADATA | OWNED | {"source.component"}),
            "leases-create": ({"spec.holderIdentity"}, METADATA | OWNED | {"metadata.name"}),
            "leases-update": ({"spec.holderIdentity"}, METADATA | OWNED),
        }.items()
    },
    **{
        f"certs-{kind}webhookconfigurations-update": (
            {"webhooks[0].clientConfig.caBundle"},
            METADATA | OWNED | {"webhooks[0].failurePolicy", "webhooks shorter"},
        )
        for kind in ("mutating", "validating")
    },
    "certs-secrets-create": ({"data.tls.crt"}, CERTIFICATE | {"metadata.name", "type"}),
    "certs-secrets-update": ({"data.tls.crt"}, CERTIFICATE | {"immutable"}),
}
"""By row: some fields of which it must be known that they are accepted, or refused."""
WORDS = {
    "name": NAME,
    "namespace": HOME,
    "secret": f"{NAME}-tls",
    "configuration": "appwrapper-preflight",
    "labelKey": KEY,
    "wrappedKinds": "services",
}
# Nobody writes `finalizers`: who may, may say that an object waits for another.
ROWS = [row for row in rows(RIGHTS, WORDS) if not row.right.resource.endswith("/finalizers")]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_what_an_account_writes_is_what_the_table_says(
    cluster: Impersonator, row: RightCase
) -> None:
    path, body = of(row)
    user = f"system:serviceaccount:{HOME}:{NAME}-{row.component}"
    tried = cluster.tries(row, path, body, user)
    accepted, refused = WRITTEN[str(row)]
    assert tried.accepted >= accepted
    assert tried.refused >= refused
