"""The injector's admission policies as rendered; what an API server makes of them is in
test_policies_*.
"""

from __future__ import annotations

from typing import Any

import pytest
from preflight_testing.helm import UMBRELLA, ChartError, Object, Values, render

INJECTOR: Values = {"enabled": True}
GANG: Values = {"preflight-gang": {"enabled": True}}
CERTS = ["certs-mutatingwebhookconfigurations", "certs-secrets"]
OF_PODS = ["connector-folder", "exec", "reserved", "sidecars", "stamps"]


def made(namespace: str = "preflight", **values: Any) -> list[Object]:
    return render(UMBRELLA, {"preflight-injector": {**INJECTOR, **values}}, namespace=namespace)


def specs(kind: str, *args: Any, **values: Any) -> dict[str, Object]:
    """By the last part of their names."""
    return {
        o["metadata"]["name"].removeprefix("preflight-injector-"): o["spec"]
        for o in made(*args, **values)
        if o["kind"] == kind
    }


def policies(*args: Any, **values: Any) -> dict[str, Object]:
    return specs("ValidatingAdmissionPolicy", *args, **values)


def test_every_policy_is_bound_and_denies() -> None:
    bindings = specs("ValidatingAdmissionPolicyBinding")
    assert sorted(bindings) == sorted(policies()) == sorted([*OF_PODS, *CERTS])
    for name, binding in bindings.items():
        assert binding["policyName"] == f"preflight-injector-{name}"
        assert binding["validationActions"] == ["Deny", *(["Audit"] if name in CERTS else [])]


def test_every_policy_fails_closed_and_gives_reasons() -> None:
    for policy in policies().values():
        assert policy["failurePolicy"] == "Fail"
        for validation in policy["validations"]:
            assert validation["message"].endswith(".")
            assert "request." in validation["messageExpression"]


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


def test_certificates_of_somebody_else_need_no_policy() -> None:
    assert not {*CERTS} & {*policies(certificates={"selfManaged": False, "secretName": "theirs"})}


def test_a_folder_of_its_own_is_kept_too() -> None:
    def leading(**values: Any) -> str:
        variables = policies(**values)["connector-folder"]["variables"]
        return str(next(v["expression"] for v in variables if v["name"] == "leading"))

    assert "/srv/our+connector" in leading(platformConnector={"socketDir": "/srv/our+connector"})
    assert r"our\\+connector" in leading(platformConnector={"socketDir": "/srv/our+connector"})


def test_a_controller_under_another_name_is_told_to_the_injector() -> None:
    gang = {"preflight-gang": {"enabled": True, "fullnameOverride": "gangs"}}
    account = "system:serviceaccount:preflight:gangs"
    with pytest.raises(
        ChartError, match=rf"set preflight-injector\.protection\.controller to {account}"
    ):
        render(UMBRELLA, {"preflight-injector": INJECTOR, **gang})
    told = {**INJECTOR, "protection": {"controller": account}}
    assert render(UMBRELLA, {"preflight-injector": told, **gang})


def test_no_pod_of_a_user_is_kept_from_the_webhook() -> None:
    """Of all pods only the image of a static pod is left out, and only a node can make one."""
    for entry in next(o for o in made() if o["kind"] == "MutatingWebhookConfiguration")["webhooks"]:
        assert entry["matchConditions"] == [
            {
                "name": "not-a-mirror-pod",
                "expression": "!('system:nodes' in request.userInfo.?groups.orValue([]) && "
                "'kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}))",
            }
        ]
