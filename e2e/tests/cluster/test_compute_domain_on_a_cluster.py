"""ComputeDomains on real kubelets: the device node in containers, one claim a node, and hands off
the rest.

Needs KUBECONFIG and the images of the driver and of the fake node on the nodes. Fake is the
hardware alone: NVML, /proc/devices, and what stands behind the device's major. With the API
server's audit log (PREFLIGHT_AUDIT_LOG) what the release has written is held against what it may,
that of the faults (``test_compute_domain_faults_on_a_cluster.py``, same release) included.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from preflight_e2e.imex_channels import CLASS, DRIVER, RESOURCE, SEEN, ChannelNamespace, Channels
from preflight_e2e.imex_channels import config as parameters
from preflight_e2e.installed_release import until
from preflight_e2e.second_dra_driver import OTHER, OTHER_VARIABLE, beside
from preflight_e2e.watch_times import Moment, Watched
from preflight_testing import rights
from preflight_testing.rights import AUDIT_LOG

pytestmark = [pytest.mark.timeout(300), pytest.mark.policies]

ABSENT = "No such file or directory"
MARGIN = 10
"""What is printed has a bound; a machine that is busy with other things keeps
that many times it.
"""
LABEL = "resource.nvidia.com/computeDomain"
SLICES = "resourceslices"
CLIQUES = ("resource.nvidia.com", "v1beta1", "computedomaincliques")


@pytest.fixture
def place(channel_place: ChannelNamespace) -> ChannelNamespace:
    return channel_place


# --- what users get


def test_each_node_has_one_slice_with_exactly_channel_0_and_no_class_is_for_daemons(
    channels: Channels,
) -> None:
    classes = channels.custom.list_cluster_custom_object(*RESOURCE, "deviceclasses")["items"]
    assert {one["metadata"]["name"] for one in classes} >= {CLASS}
    assert "compute-domain-daemon.nvidia.com" not in {one["metadata"]["name"] for one in classes}
    assert channels.published() == sorted(channels.nodes)
    assert len(channels.slices()) == len(channels.nodes)
    for one in channels.slices():
        assert one["spec"]["pool"]["name"] == one["spec"]["nodeName"]
        [owner] = one["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == ("Node", one["spec"]["nodeName"])


def test_pods_on_all_nodes_have_the_device_also_in_a_check_and_a_pod_without_the_claim_has_none(
    place: ChannelNamespace,
) -> None:
    nodes = place.channels.nodes
    place.ready()
    [template] = place.listed("resourceclaimtemplates")
    assert template["metadata"]["name"] == "train-channel"
    for node in nodes:
        place.pod(node, node, "train-channel")
    place.pod("without", nodes[0])
    place.runs(*nodes, "without")
    for node in nodes:
        assert place.read(node).spec.node_name == node
        assert [place.sees(node, one) for one in ("preflight-look", "train")] == [SEEN, SEEN]
    assert [place.sees("without", one) for one in ("preflight-look", "train")] == [ABSENT, ABSENT]


def test_beside_a_driver_of_gpus_one_pod_has_what_both_have_prepared(
    place: ChannelNamespace, node: str
) -> None:
    place.ready()
    with beside(place, node) as gpu:
        claims = {"channel": "train-channel", "gpu": gpu}
        pod = place.pod("both", node, "train-channel", claims=claims)
        place.runs("both")
        assert place.sees("both") == SEEN
        assert place.run_in("both", "printenv", OTHER_VARIABLE).strip() == "GPU-beside"
        held = {
            result["driver"]
            for one in place.listed("resourceclaims")
            if one["metadata"]["ownerReferences"][0]["uid"] == pod.metadata.uid
            for result in one["status"]["allocation"]["devices"]["results"]
        }
        assert held == {DRIVER, OTHER}
        place.delete("both")
        until(lambda: not place.channels.cdi_files(node), "the CDI file is gone")


def test_a_domain_is_ready_whatever_number_of_nodes_it_names(place: ChannelNamespace) -> None:
    domains = ("resource.nvidia.com", "v1beta1", place.namespace, "computedomains")
    custom = place.channels.custom
    with Watched(custom.list_namespaced_custom_object, domains) as seen:
        began = time.monotonic()
        place.domain("none", nodes=0)
        ready = seen.first(
            lambda one: one.item.get("status", {}).get("status") == "Ready", "none is Ready"
        )
    print(f"ComputeDomain: Ready {ready.at - began:.3f} s after it was asked for")
    assert ready.at - began < 1 * MARGIN
    assert len(place.listed("resourceclaimtemplates")) == 1
    place.ready("eight", nodes=8)
    assert "nodes" not in custom.get_namespaced_custom_object(*domains, "eight")["status"]


def test_a_second_pod_on_a_node_stays_pending_until_the_first_is_gone(
    used: ChannelNamespace, node: str
) -> None:
    used.pod("second", node, "train-channel")
    until(
        lambda: "cannot allocate all claims" in unscheduled(used, "second"),
        "the scheduler's word on pod second",
    )
    used.delete("first")
    used.runs("second")
    assert used.sees("second") == SEEN


def unscheduled(place: ChannelNamespace, name: str) -> str:
    conditions = place.read(name).status.conditions or []
    return " ".join(
        str(one.message)
        for one in conditions
        if one.type == "PodScheduled" and one.status == "False"
    )


def test_a_second_claim_that_was_bound_past_the_scheduler_is_refused_by_the_first_ones_name(
    used: ChannelNamespace, node: str
) -> None:
    forced(used, node)
    [first] = [
        one["metadata"]["name"]
        for one in used.listed("resourceclaims")
        if one["metadata"]["name"] != "forced"
    ]
    used.await_event("second", f"prepared for claim {used.namespace}/{first}")
    assert used.phase("second") == "Pending"


def test_a_second_claim_that_waits_gets_the_channel_as_soon_as_the_first_pod_is_gone(
    used: ChannelNamespace, node: str
) -> None:
    forced(used, node)
    waiting = (
        'nvidia_dra_requests_inflight{driver="compute-domain.nvidia.com",operation="prepare"} 1.0'
    )
    until(lambda: waiting in used.channels.metrics(node), "the kubelet's call waits")
    with Watched(used.channels.api.list_namespaced_pod, (used.namespace,)) as pods:
        used.delete("first")
        gone = pods.first(lambda one: (one.name, one.kind) == ("first", "DELETED"), "first is gone")
        runs = pods.first(lambda one: one.name == "second" and running(one), "second runs")
    print(f"second claim: {runs.at - gone.at:.2f} s from the first pod's end until its pod runs")
    assert runs.at - gone.at < 5 * MARGIN
    assert used.sees("second") == SEEN
    assert [
        one for one in used.events("second") if one.reason == "FailedPrepareDynamicResources"
    ] == []


def running(pod: Moment) -> bool:
    statuses = pod.item["status"].get("containerStatuses", [])
    return any("running" in one["state"] for one in statuses)


def forced(place: ChannelNamespace, node: str) -> None:
    """Pod `second` on `node`, with a claim to the channel there that is another one's, past the
    scheduler.
    """
    place.allocated("forced", domain_of(place), node)
    place.reserve("forced", place.pod("second", node, claim="forced", unbound=True))
    place.bind("second", node)


def domain_of(place: ChannelNamespace) -> str:
    [template] = [
        one
        for one in place.listed("resourceclaimtemplates")
        if one["metadata"]["name"] == "train-channel"
    ]
    return str(template["metadata"]["labels"][LABEL])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"allocationMode": "All"}, 'supports only allocationMode "Single" (channel 0); got "All"'),
        ({"allocationMode": "single"}, 'got "single"'),
        ({"colour": "red"}, "colour"),
        ({"apiVersion": "resource.nvidia.com/v1"}, "resource.nvidia.com/v1"),
        ({"domainID": ""}, "domainID"),
        (
            {"domainID": "00000000-0000-4000-8000-000000000000"},
            "has been deleted or belongs to another namespace",
        ),
        ({"kind": "ComputeDomainDaemonConfig"}, "ComputeDomain daemon claims are not supported"),
    ],
    ids=[
        "All",
        "single",
        "unknown-field",
        "api-version",
        "empty-domain",
        "foreign-domain",
        "daemon",
    ],
)
def test_a_claim_that_cannot_be_had_is_one_sentence_in_the_pods_events(
    place: ChannelNamespace, node: str, changed: dict[str, str], words: str
) -> None:
    made = place.ready()
    place.template("own", parameters(made["metadata"]["uid"], **changed))
    place.pod("first", node, "own")
    place.await_event("first", words)
    place.await_event("first", f"{DRIVER}: {place.namespace}/first-channel-")
    assert place.phase("first") == "Pending"


def test_kubectl_apply_of_mode_all_is_warned_of_at_once_and_an_event_names_the_remedy(
    place: ChannelNamespace,
) -> None:
    custom: Any = client.CustomObjectsApi()
    body = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "ComputeDomain",
        "metadata": {"name": "every"},
        "spec": {
            "numNodes": 0,
            "channel": {"resourceClaimTemplate": {"name": "every"}, "allocationMode": "All"},
        },
    }
    answer = custom.create_namespaced_custom_object_with_http_info(
        "resource.nvidia.com", "v1beta1", place.namespace, "computedomains", body
    )
    assert "set Single" in answer[2].get("Warning", "")
    until(
        lambda: any(one.reason == "UnsupportedAllocationMode" for one in place.events("every")),
        "the Event",
    )
    assert place.status("every") == "Ready"


# --- ComputeDomains come and go


def test_a_domain_that_is_deleted_while_a_pod_uses_it_is_gone_and_the_pod_runs_on(
    used: ChannelNamespace, node: str
) -> None:
    before = used.container("first")
    domains = ("resource.nvidia.com", "v1beta1", used.namespace, "computedomains")
    with Watched(used.channels.custom.list_namespaced_custom_object, domains) as seen:
        began = time.monotonic()
        used.end_domain()
        gone = seen.first(lambda one: one.kind == "DELETED", "the end of ComputeDomain train")
    print(f"ComputeDomain in use: gone {gone.at - began:.3f} s after it was deleted")
    assert gone.at - began < 5 * MARGIN
    assert used.listed("resourceclaimtemplates") == []
    assert used.container("first") == before
    assert "crw-rw-rw-" in used.run_in(
        "first", "ls", "-l", "/dev/nvidia-caps-imex-channels/channel0"
    )
    used.delete("first")
    until(lambda: not used.channels.cdi_files(node), "the CDI file is gone")


def test_a_template_that_is_deleted_by_hand_is_made_again(place: ChannelNamespace) -> None:
    place.ready()
    [before] = place.listed("resourceclaimtemplates")
    place.channels.custom.delete_namespaced_custom_object(
        *RESOURCE, place.namespace, "resourceclaimtemplates", "train-channel"
    )

    def another() -> bool:
        uids = [one["metadata"]["uid"] for one in place.listed("resourceclaimtemplates")]
        return bool(uids) and uids != [before["metadata"]["uid"]]

    until(another, "another template")
    until(lambda: place.status() == "Ready", "ComputeDomain train is Ready")


def test_a_foreign_template_under_the_name_is_named_and_left_alone(place: ChannelNamespace) -> None:
    place.template("wanted", parameters("somebody"))
    [foreign] = place.listed("resourceclaimtemplates")
    place.domain(wants="wanted")
    until(
        lambda: any(one.reason == "ResourceClaimTemplateConflict" for one in place.events("train")),
        "the Event",
    )
    assert place.status() == "NotReady"
    assert place.listed("resourceclaimtemplates") == [foreign]
    place.channels.custom.delete_namespaced_custom_object(
        *RESOURCE, place.namespace, "resourceclaimtemplates", "wanted"
    )
    until(lambda: place.status() == "Ready", "ComputeDomain train is Ready")


# --- hands off


def test_what_the_other_mode_has_left_and_what_is_foreign_stays_as_it_is(
    used: ChannelNamespace, node: str
) -> None:
    channels, uid = used.channels, domain_of(used)
    selected = {"matchLabels": {"left": "over"}}
    spec = {"nodeSelector": {"left": "over"}, "containers": [{"name": "daemon", "image": "daemon"}]}
    template = {"metadata": {"labels": {"left": "over"}}, "spec": spec}
    labels = {LABEL: uid}
    body = {
        "metadata": {"name": "left-over", "labels": labels},
        "spec": {"selector": selected, "template": template},
    }
    channels.apps.create_namespaced_daemon_set(used.namespace, body)
    until(lambda: daemons(used).status.observed_generation == 1, "the DaemonSet is seen")
    used.template("left-over", parameters(uid, kind="ComputeDomainDaemonConfig"))
    with cliques(used, labels):
        hands_off(used, node, uid)


def hands_off(used: ChannelNamespace, node: str, uid: str) -> None:
    channels, labels, before = used.channels, {LABEL: uid}, left_over(used)
    channels.api.patch_node(node, {"metadata": {"labels": labels}})
    try:
        used.delete("first")
        used.end_domain()
        until(lambda: used.status() == "", "the end of ComputeDomain train")
        assert left_over(used) == before
        assert channels.api.read_node(node).metadata.labels[LABEL] == uid
    finally:
        channels.api.patch_node(node, {"metadata": {"labels": {LABEL: None}}})


@contextmanager
def cliques(place: ChannelNamespace, labels: dict[str, str]) -> Iterator[None]:
    """The kind ComputeDomainClique, and one of it."""
    group, plural = CLIQUES[0], CLIQUES[2]
    api: Any = client.ApiextensionsV1Api()
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": CLIQUES[1], "served": True, "storage": True}
    kind = "ComputeDomainClique"
    spec = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": plural, "kind": kind},
        "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
    }
    about = {"apiVersion": "/".join(CLIQUES[:2]), "kind": kind}
    body = {**about, "metadata": {"name": "left-over", "labels": labels}, "spec": {}}
    api.create_custom_resource_definition({"metadata": {"name": f"{plural}.{group}"}, "spec": spec})
    made = []

    def one_is_made() -> bool:
        with suppress(client.ApiException):  # not served yet
            create = place.channels.custom.create_namespaced_custom_object
            made.append(create(*CLIQUES[:2], place.namespace, plural, body))
        return bool(made)

    try:
        until(one_is_made, f"a {kind}")
        yield
    finally:
        api.delete_custom_resource_definition(f"{plural}.{group}")


def daemons(place: ChannelNamespace) -> Any:
    return place.channels.apps.read_namespaced_daemon_set("left-over", place.namespace)


def left_over(place: ChannelNamespace) -> list[str]:
    templates = [
        one
        for one in place.listed("resourceclaimtemplates")
        if one["metadata"]["name"] == "left-over"
    ]
    clique = place.channels.custom.get_namespaced_custom_object(
        *CLIQUES[:2], place.namespace, CLIQUES[2], "left-over"
    )
    return [
        daemons(place).metadata.resource_version,
        *(one["metadata"]["resourceVersion"] for one in (*templates, clique)),
    ]


def test_no_claim_of_any_pod_was_left_without_an_answer(used: ChannelNamespace) -> None:
    """The kubelet says "skipped N ResourceClaims" of an answer that lacks one, in its log and in an
    Event.
    """
    every = used.channels.api.list_event_for_all_namespaces().items
    assert [
        one.message
        for one in every
        if "skipped" in (one.message or "") and "ResourceClaim" in one.message
    ] == []
    log = os.environ.get(AUDIT_LOG)
    for path in Path(log).parent.glob("kubelet-*.log") if log else ():
        with path.open(errors="replace") as lines:
            assert [line for line in lines if "skipped" in line and "ResourceClaims" in line] == []


def test_nothing_was_written_but_what_is_the_drivers(used: ChannelNamespace) -> None:
    if not (path := os.environ.get(AUDIT_LOG)):
        pytest.skip(f"{AUDIT_LOG} is not set: no audit log")
    prefix = f"system:serviceaccount:{used.channels.name}:"
    written = set()
    for line in rights.lines(Path(path)):
        if prefix not in line:
            continue
        with suppress(ValueError):
            event = json.loads(line)
            about = event.get("objectRef", {})
            if event["verb"] in {"create", "update", "patch", "delete", "deletecollection"}:
                written.add(
                    (
                        event["user"]["username"].removeprefix(prefix),
                        about["resource"],
                        about.get("subresource", ""),
                    )
                )
    controller, plugin = f"{used.channels.name}-controller", f"{used.channels.name}-kubelet-plugin"
    assert (plugin, SLICES, "") in written
    assert written <= {
        (plugin, SLICES, ""),
        (controller, "computedomains", ""),
        (controller, "computedomains", "status"),
        (controller, "resourceclaimtemplates", ""),
        (controller, "events", ""),
        (controller, "leases", ""),
    }
