"""Objects that a real API server stores and nobody should have to read: the real controller lives,
and another tenant's gang is answered.

Needs KUBECONFIG and the gang controller's image (PREFLIGHT_GANG_IMAGE, `preflight-gang:dev` unless
set) on the nodes.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.gang_pods import Story
from preflight_e2e.impersonation import CHECKED, GANG, OURS, RECORD, ROSTER, error_of
from preflight_e2e.installed_release import Installed, until
from preflight_testing.helm import Object

pytestmark = pytest.mark.timeout(400)

DEEP = '{"v":1,"x":' + "[" * 1_100 + "]" * 1_100 + "}"
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


def plain(name: str, labels: Object, annotations: Object | None = None, **spec: Any) -> Object:
    """A pod that no scheduler looks at."""
    return {
        "metadata": {"name": name, "labels": labels, "annotations": annotations or {}},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "train", "image": "x"}],
            **spec,
        },
    }


def poison(story: Story, suffix: str) -> None:
    """Every object that ended a controller or stopped its mirror once, in a namespace where nothing
    is at the door.
    """
    api, namespace = story.api, story.namespace
    checked, gang = {CHECKED: "true"}, {CHECKED: "true", GANG: "0123456789abcdef"}
    story.pod(f"roster-{suffix}", f"poisoned-{suffix}")
    api.patch_namespaced_pod(
        f"roster-{suffix}", namespace, {"metadata": {"annotations": {ROSTER: DEEP}}}
    )
    for body in (
        plain(f"stamp-{suffix}", gang, {GANG: DEEP}),
        plain(f"sources-{suffix}", gang, volumes=[{"name": "v", "projected": {}}]),
        plain(
            f"message-{suffix}",
            checked,
            initContainers=[{"name": "preflight-nccl-allreduce", "image": "x"}],
        ),
    ):
        api.create_namespaced_pod(namespace, body)
    ended = {"exitCode": 1, "message": DEEP, "containerID": f"containerd://{suffix}"}
    one = {
        "name": "preflight-nccl-allreduce",
        "image": "x",
        "imageID": "x",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    api.patch_namespaced_pod_status(
        f"message-{suffix}", namespace, {"status": {"initContainerStatuses": [one]}}
    )
    record = {"name": f"x-{suffix}", "labels": RECORD, "annotations": {OURS + "gang-id": "job"}}
    api.create_namespaced_config_map(
        namespace, {"metadata": record, "data": {"generation": "1", "members": DEEP}}
    )
    managed(namespace, f"managed-{suffix}")


def managed(namespace: str, name: str) -> None:
    """A pod whose managed fields nest 1,500 levels deep, which the client's own encoder cannot
    write. A server may refuse it.
    """
    fields = {
        "manager": "x",
        "operation": "Update",
        "apiVersion": "v1",
        "fieldsType": "FieldsV1",
        "fieldsV1": "DEEP",
    }
    body = plain(name, {CHECKED: "true"})
    body["metadata"]["managedFields"] = [fields]
    text = json.dumps(body).replace('"DEEP"', '{"f:a":' * 1_500 + "{}" + "}" * 1_500)
    one: Any = client.ApiClient()
    headers = {"Content-Type": "application/json"}
    headers |= {
        known["key"]: known["value"] for known in one.configuration.auth_settings().values()
    }
    url = f"{one.configuration.host}/api/v1/namespaces/{namespace}/pods"
    answer = one.rest_client.pool_manager.request("POST", url, body=text, headers=headers)
    assert answer.status in {201, 400, 422}, answer.data


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


def test_objects_that_cannot_be_read_end_no_controller_and_delay_no_other_gang(
    fresh: Installed,
) -> None:
    attacker = Story(fresh)
    poison(attacker, "before")
    installed(fresh)
    victim = Story(fresh)
    answered(victim)
    poison(attacker, "after")
    for _ in range(3):
        answered(victim)
    assert restarts(fresh) == [0]
    seen = fresh.metrics()
    assert not [
        line
        for line in seen.splitlines()
        if line.startswith("preflight_gang_behind{") and line.endswith(" 1.0")
    ]
    unreadable = [
        line for line in seen.splitlines() if line.startswith("preflight_gang_unreadable_total{")
    ]
    assert sum(float(line.rpartition(" ")[2]) for line in unreadable) > 0


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
QUOTA = "no-more-records"


def test_gangs_whose_record_is_refused_are_told_why_and_delay_no_other(fresh: Installed) -> None:
    installed(fresh)
    story, victim = Story(fresh), Story(fresh)
    quota = {"metadata": {"name": QUOTA}, "spec": {"hard": {"count/configmaps": "1"}}}
    fresh.api.create_namespaced_resource_quota(story.namespace, quota)

    def counted() -> bool:
        return bool(fresh.api.read_namespaced_resource_quota(QUOTA, story.namespace).status.hard)

    until(counted, "the quota is in force")
    names = [f"refused-{number}" for number in range(60)]
    for name in names:
        for member in "ab":
            story.pod(f"{name}-{member}", name)
            story.ask(f"{name}-{member}")
    for _ in range(3):
        answered(victim)

    def why() -> bool:
        return QUOTA in json.dumps(story.roster(f"{names[-1]}-a"))

    until(why, "the members are told the cause")
    assert restarts(fresh) == [0]


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
