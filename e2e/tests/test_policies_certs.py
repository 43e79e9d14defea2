"""What a real API server lets the account do that keeps the certificate."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pytest
from preflight_e2e.admission_policies import CERTS, INJECTOR, PolicyServer
from preflight_e2e.impersonation import add, remove
from preflight_testing.apiserver import ApiServer
from preflight_testing.helm import UMBRELLA, Object, only, render

pytest_plugins = ["preflight_e2e.admission_policy_fixtures"]
pytestmark = pytest.mark.timeout(180)
POLICY = "ValidatingAdmissionPolicy"


# --- the account that keeps the certificate

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@pytest.fixture
def configuration(policies: PolicyServer) -> Iterator[str]:
    """The webhook's configuration as the chart makes it; it is called for no pod
    while it is here.
    """
    made = only(render(UMBRELLA, policies.values), "MutatingWebhookConfiguration")
    for entry in made["webhooks"]:
        entry["failurePolicy"], entry["timeoutSeconds"] = "Ignore", 1
    assert policies.ask("POST", CONFIGURATIONS, made, user="") == ""
    yield f"{CONFIGURATIONS}/{INJECTOR}"
    policies.ask("DELETE", f"{CONFIGURATIONS}/{INJECTOR}", user="")


def test_the_certs_account_sets_the_ca_bundle(policies: PolicyServer, configuration: str) -> None:
    entries = len(
        only(render(UMBRELLA, policies.values), "MutatingWebhookConfiguration")["webhooks"]
    )
    bundle = base64.b64encode(policies.server.ca.read_bytes()).decode()
    patch = [
        op for n in range(entries) for op in add(f"/webhooks/{n}/clientConfig/caBundle", bundle)
    ]
    assert policies.patch(configuration, patch, user=CERTS) == ""
    assert (
        policies.patch(configuration, remove("/webhooks/0/clientConfig/caBundle"), user=CERTS) == ""
    )


EVERYTHING = [{"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"], "operations": ["*"]}]
OF_THE_CONFIGURATION = {
    "rules": add("/webhooks/0/rules", EVERYTHING),
    "the list of webhooks": remove("/webhooks/0"),
    "clientConfig.url": [
        *remove("/webhooks/0/clientConfig/service"),
        *add("/webhooks/0/clientConfig/url", "https://evil:1/x"),
    ],
    "clientConfig.service": add("/webhooks/0/clientConfig/service/namespace", "evil"),
    "namespaceSelector": add("/webhooks/0/namespaceSelector", {}),
    "objectSelector": add("/webhooks/0/objectSelector", {"matchLabels": {"a": "b"}}),
    "matchConditions": remove("/webhooks/0/matchConditions"),
    "failurePolicy": add("/webhooks/0/failurePolicy", "Fail"),
    "matchPolicy": add("/webhooks/0/matchPolicy", "Exact"),
    "sideEffects": add("/webhooks/0/sideEffects", "NoneOnDryRun"),
    "timeoutSeconds": add("/webhooks/0/timeoutSeconds", 30),
    "reinvocationPolicy": add("/webhooks/0/reinvocationPolicy", "Never"),
    "admissionReviewVersions": add("/webhooks/0/admissionReviewVersions", ["v1", "v1beta1"]),
    "metadata.labels": add("/metadata/labels", {}),
    "metadata.annotations": add("/metadata/annotations", {"cert-manager.io/inject-ca-from": "a/b"}),
    "metadata.finalizers": add("/metadata/finalizers", ["example.com/hold"]),
    "metadata.ownerReferences": add(
        "/metadata/ownerReferences", [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]
    ),
}


@pytest.mark.parametrize("part", OF_THE_CONFIGURATION)
def test_the_certs_account_changes_nothing_else_of_the_webhook(
    policies: PolicyServer, configuration: str, part: str
) -> None:
    said = policies.patch(configuration, OF_THE_CONFIGURATION[part], user=CERTS)
    assert part in said.partition("but this request changes ")[2].partition(";")[0].split(", ")
    assert policies.patch(configuration, OF_THE_CONFIGURATION[part], user="", dry_run=True) == ""


def test_every_field_that_a_webhook_has_is_held(api_server: Callable[[str], ApiServer]) -> None:
    """A field that Kubernetes adds one day fails here first."""
    schema = api_server("1.36").call("GET", "/openapi/v3/apis/admissionregistration.k8s.io/v1")[
        "components"
    ]["schemas"]
    fields = {*schema["io.k8s.api.admissionregistration.v1.MutatingWebhook"]["properties"]}
    fields |= {
        f"clientConfig.{f}"
        for f in schema["io.k8s.api.admissionregistration.v1.WebhookClientConfig"]["properties"]
    }
    assert fields - {"name", "clientConfig", "clientConfig.caBundle"} <= OF_THE_CONFIGURATION.keys()


SECRETS = "/api/v1/namespaces/preflight/secrets"
PAIR = {"tls.crt": "", "tls.key": ""}


def test_the_certs_account_makes_its_one_secret(policies: PolicyServer) -> None:
    body = {"metadata": {"name": f"{INJECTOR}-tls"}, "type": "kubernetes.io/tls", "data": PAIR}
    assert policies.ask("POST", SECRETS, body, user=CERTS, dry_run=True) == ""


@pytest.mark.parametrize(
    "body",
    [
        {"metadata": {"name": "other"}, "type": "kubernetes.io/tls", "data": PAIR},
        {"metadata": {"name": f"{INJECTOR}-tls"}},
        {
            "metadata": {
                "name": f"{INJECTOR}-tls",
                "annotations": {"kubernetes.io/service-account.name": "default"},
            },
            "type": "kubernetes.io/service-account-token",
        },
    ],
    ids=["another name", "opaque", "a token"],
)
def test_the_certs_account_makes_no_other_secret(policies: PolicyServer, body: Object) -> None:
    said = policies.ask("POST", SECRETS, body, user=CERTS, dry_run=True)
    assert f"{INJECTOR}-certs writes " in said
    assert "of secrets, and nothing else" in said or "secrets only where its" in said
