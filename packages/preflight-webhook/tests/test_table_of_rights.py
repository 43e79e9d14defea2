"""What each account writes, by the API server's OpenAPI: the fields of the table, and no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.fields import Impersonator, RightCase, example, rows
from preflight_testing.helm import INJECTOR, render
from preflight_webhook.api.rights import RIGHTS

pytestmark = pytest.mark.timeout(400)
HOME, NAME = "preflight", "preflight-injector"
METADATA = {"metadata.annotations.*", "metadata.finalizers longer"}
WRITTEN: dict[str, tuple[set[str], set[str]]] = {
    "certs-mutatingwebhookconfigurations-update": (
        {"webhooks[0].clientConfig.caBundle"},
        METADATA | {"metadata.labels.*", "webhooks[0].failurePolicy", "webhooks shorter"},
    ),
    "certs-secrets-create": ({"data.tls.crt"}, METADATA | {"metadata.name", "type", "immutable"}),
    "certs-secrets-update": ({"data.tls.crt"}, METADATA | {"immutable"}),
}
"""By row: some fields of which it must be known that they are accepted, or refused."""
WORDS = {"name": NAME, "namespace": HOME, "secret": f"{NAME}-tls"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Impersonator]:
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path_factory.mktemp("table"), folder, authorization="RBAC") as server:
        found = Impersonator(server, NAME)
        found.create("/api/v1/namespaces", {"metadata": {"name": HOME}})
        found.install(render(INJECTOR, namespace=HOME))
        yield found


@pytest.mark.parametrize("row", [*rows(RIGHTS, WORDS)], ids=str)
def test_what_an_account_writes_is_what_the_table_says(
    cluster: Impersonator, row: RightCase
) -> None:
    path, body = example(row)
    user = f"system:serviceaccount:{HOME}:{NAME}-{row.component}"
    tried = cluster.tries(row, path, body, user)
    accepted, refused = WRITTEN[str(row)]
    assert tried.accepted >= accepted
    assert tried.refused >= refused
