"""Objects that a real API server stores and nobody should have to read: the real controller lives,
and another tenant's gang is answered. Those that nest deeply, and records that are refused:
packages/preflight-gang's own tests and the fuzzer.

Needs KUBECONFIG and the gang controller's image (PREFLIGHT_GANG_IMAGE, `preflight-gang:dev` unless
set) on the nodes.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.gang_pods import Story
from preflight_e2e.impersonation import error_of
from preflight_e2e.installed_release import Installed, until
from preflight_testing.helm import Object

pytestmark = pytest.mark.timeout(400)

KINDS = {
    "coscheduling": ("scheduling.x-k8s.io", "podgroups", "PodGroup"),
    "volcano": ("scheduling.volcano.sh", "podgroups", "PodGroup"),
    "kai": ("scheduling.run.ai", "podgroups", "PodGroup"),
    "kueue": ("kueue.x-k8s.io", "workloads", "Workload"),
    "jobset": ("jobset.x-k8s.io", "jobsets", "JobSet"),
    "lws": ("leaderworkerset.x-k8s.io", "leaderworkersets", "LeaderWorkerSet"),
    "grove": ("scheduler.grove.io", "podgangs", "PodGang"),
}
"""By source: what of it knows sizes, here by a definition that takes whatever it is given."""


def installed(made: Installed) -> None:
    """The gang controller alone; its policies are for namespaces of its own, which a test may leave
    out.
    """
    repository, _, tag = os.environ.get("PREFLIGHT_GANG_IMAGE", "preflight-gang:dev").rpartition(
        ":"
    )
    image = {"repository": repository, "tag": tag}
    made.release.install(made.gang_values(replicas=1, image=image, crd={"keep": False}))


def restarts(made: Installed) -> list[int]:
    """Of every controller's container."""
    pods = made.api.list_namespaced_pod(
        made.name, label_selector="app.kubernetes.io/component=controller"
    ).items
    return [status.restart_count for one in pods for status in one.status.container_statuses or []]


_numbers = itertools.count(1)


def answered(story: Story) -> None:
    """Both members of a new gang are answered."""
    number = next(_numbers)
    names = [f"victim-{number}-{member}" for member in (1, 2)]
    for name in names:
        story.pod(name, f"victim-{number}")
    story.address(names[0])
    story.address(names[1])
    story.sealed(1, *names)


@pytest.fixture
def kinds() -> Iterator[None]:
    """Kinds that know sizes and take whatever they are given."""
    api: Any = client.ApiextensionsV1Api()
    made: list[str] = []
    for group, plural, kind in KINDS.values():
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {
            "name": "v1",
            "served": True,
            "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }
        notes = {"api-approved.kubernetes.io": "unapproved, a test"}
        spec = {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [version],
        }
        name = f"{plural}.{group}"
        with suppress(client.ApiException):  # the cluster has it
            api.create_custom_resource_definition(
                {"metadata": {"name": name, "annotations": notes}, "spec": spec}
            )
            made.append(name)
    yield
    for name in made:
        api.delete_custom_resource_definition(name)


SHAPES: dict[str, Any] = {
    "no-spec": {},
    "no-object": {"spec": "a word"},
    "no-size": {"spec": {"minMember": "many"}},
}


def test_a_workload_that_cannot_be_read_keeps_its_own_gang_waiting_and_no_other(
    fresh: Installed, kinds: None
) -> None:
    installed(fresh)
    story, victim = Story(fresh), Story(fresh)
    custom: Any = client.CustomObjectsApi()

    def stored(group: str, plural: str, body: Object) -> Callable[[], bool]:
        create = custom.create_namespaced_custom_object
        return lambda: (
            error_of(lambda: create(group, "v1", story.namespace, plural, body))
            in ("", EXISTS.format(plural, group, body["metadata"]["name"]))
        )

    for (source, (group, plural, kind)), (shape, content) in itertools.product(
        KINDS.items(), SHAPES.items()
    ):
        name = f"{source}-{shape}"
        body = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": {"name": name}, **content}
        until(stored(group, plural, body), f"{name} is stored")
        story.pod(f"{name}-member", name, source=source, about=name)
        story.ask(f"{name}-member")
    for _ in range(3):
        answered(victim)
    for source, shape in itertools.product(KINDS, SHAPES):
        member = f"{source}-{shape}-member"
        until(
            lambda member=member: story.roster(member).get("answer") in {"wait", "skip", "fail"},  # type: ignore[misc]
            member,
        )
    assert restarts(fresh) == [0]


EXISTS = '{0}.{1} "{2}" already exists'


def test_under_ignore_what_is_too_large_is_refused_and_what_nobody_judged_is_counted(
    fresh: Installed,
) -> None:
    """What `failurePolicy: Ignore` means, as charts/README.md says it."""
    repository, _, tag = os.environ.get("PREFLIGHT_GANG_IMAGE", "preflight-gang:dev").rpartition(
        ":"
    )
    image = {"repository": repository, "tag": tag}
    gang = fresh.gang_values(replicas=1, image=image, crd={"keep": False}, auditInterval="10s")
    fresh.release.install({**fresh.with_values(webhook={"failurePolicy": "Ignore"}), **gang})
    until(fresh.published, "the CA bundle")
    namespace = fresh.opted_in()
    # The API server writes six bytes for each of these into a review.
    large = {"name": "LARGE", "value": "<" * 600_000}
    container = {
        "name": "train",
        "image": "x",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "env": [large],
    }
    body = {
        "metadata": {"name": "large"},
        "spec": {"schedulerName": "nobody", "containers": [container]},
    }
    create = fresh.api.create_namespaced_pod
    until(
        lambda: "too large" in error_of(lambda: create(namespace, body)),
        "a review that is too large is refused",
    )

    apps: Any = client.AppsV1Api()
    apps.patch_namespaced_deployment_scale(fresh.name, fresh.name, {"spec": {"replicas": 0}})
    container["env"] = []
    until(lambda: not fresh.created(namespace), "nobody answers any more")
    until(lambda: error_of(lambda: create(namespace, body)) == "", "the pod is admitted")
    assert not fresh.api.read_namespaced_pod("large", namespace).spec.init_containers

    def counted() -> bool:
        lines = [
            line
            for line in fresh.metrics().splitlines()
            if line.startswith("preflight_unchecked_pods{")
        ]
        return any(namespace in line and float(line.rpartition(" ")[2]) > 0 for line in lines)

    until(counted, "it is counted as unchecked")
