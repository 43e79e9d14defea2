"""The injector's admission policies as rendered; what an API server makes of them is in
test_policies_*.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from preflight_e2e import umbrella
from preflight_testing.helm import INJECTOR, Object, only

CERTS = ["certs-mutatingwebhookconfigurations", "certs-secrets"]
OF_PODS = ["connector-folder", "exec", "reserved", "sidecars", "stamps"]

made = partial(umbrella.rendered, INJECTOR)


def specs(kind: str, *args: Any, **values: Any) -> dict[str, Object]:
    return umbrella.specs(kind, made(*args, **values))


def policies(*args: Any, **values: Any) -> dict[str, Object]:
    return specs("ValidatingAdmissionPolicy", *args, **values)


def test_what_the_certs_account_is_denied_is_in_the_audit_log_too() -> None:
    bindings = specs("ValidatingAdmissionPolicyBinding")
    assert {name: binding["validationActions"] for name, binding in bindings.items()} == {
        **{name: ["Deny"] for name in OF_PODS},
        **{name: ["Deny", "Audit"] for name in CERTS},
    }


def test_what_is_matched_of_pods_is_neither_eviction_nor_deletion() -> None:
    rules = [
        (name, r) for name in OF_PODS for r in policies()[name]["matchConstraints"]["resourceRules"]
    ]
    assert {(name, *rule["resources"], *rule["operations"]) for name, rule in rules} == {
        ("connector-folder", "pods", "CREATE"),
        ("exec", "pods/exec", "pods/attach", "CONNECT"),
        ("reserved", "pods", "pods/status", "pods/ephemeralcontainers", "pods/resize", "UPDATE"),
        ("sidecars", "pods", "CREATE"),
        ("stamps", "pods", "pods/binding", "bindings", "CREATE"),
    }


def not_exempt(policy: str, **values: Any) -> str:
    found = {c["name"]: c["expression"] for c in policies(**values)[policy]["matchConditions"]}
    return str(found["not-exempt"])


@pytest.mark.parametrize("policy", OF_PODS)
def test_nobody_is_exempt_but_the_gang_controller(policy: str) -> None:
    only_it = '!(request.userInfo.username in ["system:serviceaccount:preflight:preflight-gang"])'
    assert not_exempt(policy) == only_it
    other = "system:serviceaccount:elsewhere:gangs"
    assert f'["{other}"]' in not_exempt(policy, protection={"controller": other})


@pytest.mark.parametrize("policy", OF_PODS)
def test_users_and_groups_can_be_exempt(policy: str) -> None:
    both = not_exempt(
        policy, protection={"exemptUsers": ["anna"], "exemptGroups": ['say "friend"']}
    )
    assert '["system:serviceaccount:preflight:preflight-gang","anna"]' in both
    assert r'exists(g, g in ["say \"friend\""])' in both


@pytest.mark.parametrize("policy", CERTS)
def test_the_account_that_keeps_the_certificate_is_confined_everywhere(policy: str) -> None:
    selector = {"matchLabels": {"a": "b"}}
    bindings = specs(
        "ValidatingAdmissionPolicyBinding", "elsewhere", protection={"namespaceSelector": selector}
    )
    assert "matchResources" not in bindings[policy]
    assert bindings["reserved"]["matchResources"] == {"namespaceSelector": selector}
    conditions = policies("elsewhere")[policy]["matchConditions"]
    account = "'system:serviceaccount:elsewhere:preflight-injector-certs'"
    assert [c["expression"] for c in conditions] == [f"request.userInfo.username == {account}"]


def test_a_folder_of_its_own_is_kept_too() -> None:
    def leading(**values: Any) -> str:
        variables = policies(**values)["connector-folder"]["variables"]
        return str(next(v["expression"] for v in variables if v["name"] == "leading"))

    assert "/srv/our+connector" in leading(platformConnector={"socketDir": "/srv/our+connector"})
    assert r"our\\+connector" in leading(platformConnector={"socketDir": "/srv/our+connector"})


def test_no_pod_of_a_user_is_kept_from_the_webhook() -> None:
    """Of all pods only the image of a static pod is left out, and only a node can make one."""
    for entry in only(made(), "MutatingWebhookConfiguration")["webhooks"]:
        assert entry["matchConditions"] == [
            {
                "name": "not-a-mirror-pod",
                "expression": "!('system:nodes' in request.userInfo.?groups.orValue([]) && "
                "'kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}))",
            }
        ]
