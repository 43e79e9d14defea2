"""RBAC is exactly what is used: the audit log of all scenarios and tests on this cluster so far,
against the charts.

Needs KUBECONFIG, the images of webhook and controller on the nodes, and the API server's audit log
(PREFLIGHT_AUDIT_LOG). It runs after the others by its name, and does first what none of them does:
gangs by every source, claims, a lease that somebody deletes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.gang_pods import Story
from preflight_e2e.impersonation import LEASE, error_of
from preflight_e2e.installed_release import Installed, until
from preflight_testing.helm import UMBRELLA, Object, Values, render
from preflight_testing.rights import AUDIT_LOG, Rights, compared, granted, lines, read, together

pytestmark = pytest.mark.timeout(400)

AGENTS = {"gang": "preflight-gang", "webhook": "preflight-webhook", "certs": "preflight-webhook"}
NATIVE = {"", "batch", "scheduling.k8s.io", "coordination.k8s.io"}
OWN = "preflight.nvsentinel.nvidia.com"
"""The group of PreflightConfig, whose definition the chart brings."""


@pytest.fixture
def log() -> Path:
    if not (path := os.environ.get(AUDIT_LOG)):
        pytest.skip(f"{AUDIT_LOG} is not set: no audit log")
    return Path(path)


def role(user: str) -> str:
    """Who of ours an account is, whatever its release is called."""
    name = user.rpartition(":")[2]
    return "certs" if name.endswith("-certs") else "gang" if name.endswith("-gang") else "webhook"


def used(log: Path) -> dict[str, Rights]:
    found = {}
    for who, agent in AGENTS.items():
        every = read(lines(log), agent)
        found[who] = together(
            rights
            for user, rights in every.items()
            if "serviceaccount" in user and role(user) == who
        )
    return found


def values(made: Installed) -> Values:
    gang = made.gang_values(
        replicas=1,
        image={"repository": "preflight-gang", "tag": "dev"},
        crd={"keep": False},
        auditInterval="10s",
    )
    return {**made.with_values(gpuDetection={"deviceClasses": ["gpu.example.com"]}), **gang}


def sources() -> list[tuple[str, str]]:
    """(group, resource) of everything that knows sizes, as the chart has it."""
    roles = [
        o
        for o in render(UMBRELLA, {"preflight-gang": {"enabled": True}})
        if o["kind"] == "ClusterRole"
    ]
    rules = [
        rule
        for one in roles
        for rule in one["rules"]
        if rule["verbs"] == ["list", "watch"] and rule["apiGroups"] != [""]
    ]
    return [
        (group, resource)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    ]


@pytest.fixture
def kinds() -> Iterator[None]:
    """Every kind that knows sizes is served, if only by name."""
    api: Any = client.ApiextensionsV1Api()
    made = []
    for group, resource in sources():
        if group not in {*NATIVE, OWN}:
            with suppress(client.ApiException):  # the cluster has it
                api.create_custom_resource_definition(definition(group, resource))
                made.append(f"{resource}.{group}")
    yield
    for name in made:
        api.delete_custom_resource_definition(name)


def definition(group: str, plural: str) -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    kind = plural[:-1].capitalize()
    return {
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def test_each_account_uses_exactly_the_rights_that_it_has(
    fresh: Installed, log: Path, kinds: None
) -> None:
    fresh.release.install(values(fresh))
    until(fresh.published, "the CA bundle")
    story = Story(fresh)
    until(lambda: configured(story.namespace), "a PreflightConfig is stored")
    for name in ("one", "two"):
        story.pod(name, "first")
        story.address(name)
    story.sealed(1, "one", "two")
    fresh.api.delete_namespaced_pod("two", story.namespace, grace_period_seconds=0)
    story.pod("three", "first")
    story.address("three")
    story.sealed(2, "one", "three")
    # Somebody else's ConfigMap is in the way of a gang.
    fresh.api.create_namespaced_config_map(
        story.namespace, {"metadata": {"name": "preflight-second.labels"}}
    )
    ended = {"exitCode": 0, "reason": "Completed", "containerID": f"containerd://{story.namespace}"}
    for name in ("four", "five"):
        story.pod(name, "second")
    for number, (source, about) in enumerate(stamps()):
        story.pod(f"by-{number}", f"by-{number}", source=source, about=about)
    # Results count in opted-in namespaces only; from now on the webhook would take such stamps
    # away.
    opted_in = {"metadata": {"labels": {"nvsentinel.nvidia.com/preflight": "enabled"}}}
    fresh.api.patch_namespace(story.namespace, opted_in)
    for name in ("four", "five"):
        story.address(name, state={"terminated": ended})
    # The lease that somebody deletes is made anew.
    leases: Any = client.CoordinationV1Api()
    leases.delete_namespaced_lease(LEASE, fresh.name)
    claim(fresh)

    allowed: dict[str, set[tuple[str, str, str]]] = {}
    for user, rights in granted(render(UMBRELLA, values(fresh), namespace=fresh.name)).items():
        allowed.setdefault(role(user), set()).update(rights)
    end = time.monotonic() + 120
    while (
        any("never did" in said for said in compared(used(log), allowed)) and time.monotonic() < end
    ):
        time.sleep(1)
    assert compared(used(log), allowed) == []


def configured(namespace: str) -> bool:
    body = {
        "apiVersion": f"{OWN}/v1alpha1",
        "kind": "PreflightConfig",
        "metadata": {"name": "ours"},
    }
    try:
        client.CustomObjectsApi().create_namespaced_custom_object(
            OWN,
            "v1alpha1",
            namespace,
            "preflightconfigs",
            {**body, "spec": {"enforcement": "observe"}},
        )
    except client.ApiException as error:
        if error.status == 404:  # its definition is not served yet
            return False
        raise
    return True


def stamps() -> list[tuple[str, str]]:
    """(source, object's name) by which the controller looks at every kind."""
    known = (
        *("schedulingGroup", "workloadRef", "volcano", "coscheduling", "kai", "kueue"),
        *("jobset", "lws", "job", "kubeflow", "grove"),
    )
    return [(source, "train") for source in known]


def claim(made: Installed) -> None:
    """A pod by whose claims the webhook has to find out whether it gets GPUs; it gets none, and the
    audit looks at them, too.
    """
    namespace = made.opted_in()
    resources: Any = client.ResourceV1Api()
    wanted = {
        "devices": {
            "requests": [{"name": "one", "exactly": {"deviceClassName": "other.example.com"}}]
        }
    }
    resources.create_namespaced_resource_claim(
        namespace, {"metadata": {"name": "one"}, "spec": wanted}
    )
    template = {"metadata": {"name": "one"}, "spec": {"spec": wanted}}
    resources.create_namespaced_resource_claim_template(namespace, template)
    names = [
        {"name": "named", "resourceClaimName": "one"},
        {"name": "made", "resourceClaimTemplateName": "one"},
    ]
    container = {
        "name": "train",
        "image": "train",
        "resources": {"claims": [{"name": one["name"]} for one in names]},
    }
    pod = {
        "metadata": {"name": "dra"},
        "spec": {"schedulerName": "nobody", "containers": [container], "resourceClaims": names},
    }
    until(
        lambda: error_of(lambda: made.api.create_namespaced_pod(namespace, pod)) == "",
        "the pod with claims is admitted",
    )
