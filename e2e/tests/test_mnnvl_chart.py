"""What is particular to the chart of multi-node NVLink. What an API server makes of its rights and
policies: the package's own tests.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from preflight_e2e import umbrella
from preflight_e2e.umbrella import MNNVL, configs, mnnvl, named, verbs
from preflight_testing.helm import Values, only

made = partial(umbrella.rendered, MNNVL)


def roles(**values: Any) -> dict[str, dict[tuple[str, str], set[str]]]:
    found = named("ClusterRole", made(**values))
    return {name.removeprefix(f"{MNNVL.name}-"): verbs(role) for name, role in found.items()}


def config(**values: Any) -> Values:
    return dict(configs(mnnvl(**values))[MNNVL.name])


@pytest.mark.parametrize("mode", ["driver", "literal"])
def test_nobody_may_delete_and_neither_service_reads_pods_or_secrets(mode: str) -> None:
    for name, rights in roles(mode=mode).items():
        assert not [what for what, v in rights.items() if "delete" in v or "*" in v], name
        assert not {"pods", "secrets"} & {resource for _, resource in rights}, name


@pytest.mark.parametrize("mode", ["driver", "literal"])
def test_the_webhook_writes_nothing_and_the_api_server_knows(mode: str) -> None:
    rights = roles(mode=mode)["webhook"]
    assert not [what for what, verbs in rights.items() if verbs - {"get", "list", "watch"}]
    for kind in ("Mutating", "Validating"):
        hooks = only(made(mode=mode), f"{kind}WebhookConfiguration")["webhooks"]
        assert {hook["sideEffects"] for hook in hooks} == {"None"}


def test_where_owner_references_are_guarded_the_controller_gets_what_the_guard_asks_for() -> None:
    rights = roles(mode="literal", rbac={"ownerReferencesPermissionEnforcement": True})[
        "controller"
    ]
    assert "delete" in rights["resource.nvidia.com", "computedomains"]
    assert "delete" in rights["resource.k8s.io", "resourceclaims"]
    assert rights["scheduler.grove.io", "podgangs/finalizers"] == {"update"}


def test_the_configuration_is_what_the_values_say_and_names_the_release() -> None:
    assert config()["instance"] == "preflight"
    said = config(
        instance="mine", requireFabricNodes=True, gpuResources=["amd.com/gpu"], placement="fabric"
    )
    assert said["instance"] == "mine"
    assert (said["requireFabricNodes"], said["gpuResources"], said["placement"]) == (
        True,
        ["amd.com/gpu"],
        "fabric",
    )


def test_namespaces_of_a_selector_are_the_only_ones_and_our_own_is_never_among_them() -> None:
    chosen = {"matchLabels": {"nvlink": "yes"}}
    for hook in only(made(webhook={"namespaceSelector": chosen}), "MutatingWebhookConfiguration")[
        "webhooks"
    ]:
        assert hook["namespaceSelector"]["matchLabels"] == {"nvlink": "yes"}
        (own,) = hook["namespaceSelector"]["matchExpressions"]
        assert (own["operator"], own["values"]) == ("NotIn", ["kube-system", "preflight"])


def test_what_was_never_marked_is_never_stopped_by_an_outage() -> None:
    hooks = only(made(), "MutatingWebhookConfiguration")["webhooks"]
    assert [(one["failurePolicy"], one["timeoutSeconds"]) for one in hooks] == [
        ("Fail", 10),
        ("Ignore", 2),
    ]
    assert hooks[1]["rules"][0]["operations"] == ["UPDATE"]
