"""What each account writes, by the API server's OpenAPI: the fields of the table, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cliques import LITERAL, makes, podclique
from preflight_mnnvl.api.rights import RIGHTS
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import Impersonator, RightCase, example, rows
from preflight_testing.grove_kinds import GROVE, compute_domains
from preflight_testing.helm import UMBRELLA, Object, render

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-mnnvl"
DOMAIN, CLAIM = (
    makes(podclique("t-0-w", "t", annotations={"grove.io/mnnvl-enabled": "true"}), LITERAL)
    if assets()
    else ({}, {})
)
GANG: Object = {
    "apiVersion": "scheduler.grove.io/v1alpha1",
    "kind": "PodGang",
    "metadata": {"name": "t-0", "labels": {"a": "b"}, "annotations": {"a": "b"}},
    "spec": {"podgroups": [{"name": "w", "minReplicas": 1, "podReferences": []}]},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impersonator]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("table"), folder, authorization="RBAC") as server:
        found = Impersonator(server, NAME)
        for kind in (*GROVE, compute_domains()):
            server.define(kind)
        found.create("/api/v1/namespaces", {"metadata": {"name": HOME}})
        found.install(
            render(UMBRELLA, {NAME: {"enabled": True, "mode": "literal"}}, namespace=HOME)
        )
        yield found


def of(row: RightCase) -> tuple[str, Object]:
    """Where an object is that the row is for, and the object."""
    places = {
        "podgangs": ("/apis/scheduler.grove.io/v1alpha1/namespaces/default/podgangs", GANG),
        "computedomains": (
            "/apis/resource.nvidia.com/v1beta1/namespaces/default/computedomains",
            DOMAIN,
        ),
        "resourceclaims": ("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", CLAIM),
    }
    return places.get(str(row.right.resource)) or example(row, NAME)


METADATA = {"metadata.annotations.*", "metadata.labels.*"}
OWNED = {"metadata.finalizers longer", "metadata.ownerReferences longer"}
SPEC: dict[str, set[str]] = {"computedomains": {"spec.numNodes"}, "resourceclaims": set()}
MINE = {"metadata.labels.grove.io/mnnvl-managed"}
WRITTEN: dict[str, tuple[set[str], set[str]]] = {
    "controller-podgangs-update": (
        set(),
        METADATA | OWNED | {"metadata.annotations.a", "spec.podgroups shorter"},
    ),
    **{
        f"controller-{kind}-update": (
            {"metadata.ownerReferences shorter", "metadata.labels.grove.io/podgang"},
            METADATA | MINE | {"metadata.finalizers longer", "metadata.ownerReferences[0].kind"},
        )
        for kind in SPEC
    },
    **{
        f"controller-{kind}-create": (
            {"metadata.ownerReferences shorter", "metadata.labels.grove.io/podgang"},
            METADATA | MINE | {"metadata.finalizers longer", "metadata.name"} | fields,
        )
        for kind, fields in SPEC.items()
    },
    "controller-events-create": ({"message"}, METADATA | OWNED | {"source.component"}),
    "controller-leases-create": ({"spec.holderIdentity"}, METADATA | OWNED | {"metadata.name"}),
    "controller-leases-update": ({"spec.holderIdentity"}, METADATA | OWNED),
    "certs-secrets-create": ({"metadata.labels.*"}, {"metadata.name"}),
    "certs-secrets-update": ({"metadata.labels.*"}, {"metadata.finalizers longer"}),
    **{
        f"certs-{kind}webhookconfigurations-update": (
            {"webhooks[0].clientConfig.caBundle"},
            METADATA | OWNED | {"webhooks[0].name"},
        )
        for kind in ("mutating", "validating")
    },
}
"""By row: some fields of which it must be known that they are accepted, or refused."""
WORDS = {"name": NAME, "namespace": HOME, "webhookSecret": f"{NAME}-webhook-tls"}
ROWS = [row for row in rows(RIGHTS, WORDS) if row.right.when != "guarded"]


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
