"""ComputeDomains on real kubelets while things break: slices, files, sockets, checkpoints, plugins,
kubelets, nodes.

Needs what ``test_compute_domain_on_a_cluster.py`` needs, whose release it shares. With
PREFLIGHT_RESTART ("… restart {component}") kubelets are restarted, too, and where PREFLIGHT_ALONE
says that nobody else uses the cluster, its API server.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import urllib3
from kubernetes import client
from preflight_e2e.imex_channels import DRIVER, RESOURCE, SEEN, ChannelNamespace, Channels
from preflight_e2e.installed_release import until
from preflight_e2e.watch_times import Watched

pytestmark = [pytest.mark.timeout(300), pytest.mark.policies]

RESTART, ALONE = "PREFLIGHT_RESTART", "PREFLIGHT_ALONE"
SLICES = "resourceslices"
BOOT = "/var/lib/kubelet/plugins/imex-boot-id"
DRIVER_JSON = "/etc/node-local/imex-driver/lib64/driver.json"
CHECKPOINT = f"/var/lib/kubelet/plugins/{DRIVER}/checkpoint.json"
MARGIN = 10
"""What is printed has a bound; a machine that is busy with other things keeps
that many times it.
"""


@pytest.fixture
def place(channel_place: ChannelNamespace) -> ChannelNamespace:
    return channel_place


def test_a_slice_that_is_deleted_by_hand_is_back(channels: Channels, node: str) -> None:
    [before] = [one for one in channels.slices() if one["spec"]["nodeName"] == node]
    channels.custom.delete_cluster_custom_object(*RESOURCE, SLICES, before["metadata"]["name"])
    until(lambda: back(channels, node, before), f"the slice of {node}")


def test_a_slice_that_is_altered_by_hand_is_put_right(channels: Channels, node: str) -> None:
    [before] = [one for one in channels.slices() if one["spec"]["nodeName"] == node]
    altered = json.loads(json.dumps(before))
    altered["spec"]["devices"].append({"name": "channel-1"})
    channels.custom.replace_cluster_custom_object(
        *RESOURCE, SLICES, before["metadata"]["name"], altered
    )
    until(lambda: back(channels, node, before), f"the slice of {node}")


def back(channels: Channels, node: str, unlike: dict[str, Any]) -> bool:
    """Whether the node has its slice, and another version than that."""
    found = [one for one in channels.slices() if one["spec"]["nodeName"] == node]
    versions = [one["metadata"]["resourceVersion"] for one in found]
    return node in channels.published() and versions != [unlike["metadata"]["resourceVersion"]]


def test_a_cdi_file_that_is_deleted_is_back_and_the_container_restarts(
    used: ChannelNamespace, node: str
) -> None:
    [path] = used.channels.cdi_files(node)
    used.channels.on(node, "rm", path)
    used.run_in("first", "sh", "-c", "kill 1")
    until(lambda: used.restarts("first") >= 1, "the container runs again")
    assert used.channels.cdi_files(node) == [path]
    assert used.sees("first") == SEEN


def test_a_plugin_that_is_replaced_leaves_the_pod_alone_and_frees_its_channel_later(
    used: ChannelNamespace, node: str
) -> None:
    replaced(
        used,
        node,
        lambda pod: used.channels.api.delete_namespaced_pod(pod.metadata.name, used.channels.name),
    )


def test_a_plugin_that_is_killed_leaves_the_pod_alone_and_frees_its_channel_later(
    used: ChannelNamespace, node: str
) -> None:
    replaced(
        used,
        node,
        lambda pod: used.channels.api.delete_namespaced_pod(
            pod.metadata.name, used.channels.name, grace_period_seconds=0
        ),
    )


def replaced(used: ChannelNamespace, node: str, end: Callable[[Any], Any]) -> None:
    before, plugin = (
        used.container("first"),
        used.channels.plugin(node),
    )
    [path] = used.channels.cdi_files(node)
    end(plugin)
    until(lambda: ready_again(used.channels, node, plugin), f"another plugin on {node}")
    assert used.container("first") == before
    assert used.channels.cdi_files(node) == [path]
    used.delete("first")
    until(lambda: not used.channels.cdi_files(node), "the CDI file is gone")
    used.pod("next", node, "train-channel")
    used.runs("next")


def ready_again(channels: Channels, node: str, before: Any) -> bool:
    with suppress(StopIteration):
        found = channels.plugin(node)
        ready = [one.status for one in found.status.conditions or [] if one.type == "Ready"]
        return found.metadata.uid != before.metadata.uid and ready == ["True"]
    return False


def test_sockets_that_are_removed_are_back(used: ChannelNamespace, node: str) -> None:
    folder = "/var/lib/kubelet/plugins"
    paths = [f"{folder}_registry/{DRIVER}-reg.sock", f"{folder}/{DRIVER}/dra.sock"]
    used.channels.on(node, "rm", *paths)
    began = time.monotonic()
    wait = f"while [ ! -S {paths[0]} ] || [ ! -S {paths[1]} ]; do sleep 0.1; done"
    used.channels.on(node, "sh", "-c", wait)
    print(f"sockets: back {time.monotonic() - began:.1f} s after they were removed")
    assert time.monotonic() - began < 10 * MARGIN
    used.delete("first")  # the kubelet tries until it reaches the plugin
    used.pod("next", node, "train-channel")
    used.runs("next")
    assert used.channels.on(node, "ls", *paths).split() == sorted(paths)


def test_a_new_version_of_the_daemonset_overlaps_with_the_old_one_and_pods_run_on(
    used: ChannelNamespace, node: str
) -> None:
    before, plugin = (
        used.container("first"),
        used.channels.plugin(node),
    )
    plugins = {"privileged": False, "affinity": None, "podAnnotations": {"version": "two"}}
    used.channels.release.upgrade(used.channels.values(kubeletPlugin=plugins))
    until(lambda: ready_again(used.channels, node, plugin), f"another plugin on {node}")
    until(
        lambda: len(used.channels.of("kubelet-plugin")) == len(used.channels.nodes),
        "the end of the old plugins",
    )
    assert used.channels.published() == sorted(used.channels.nodes)
    assert used.container("first") == before
    used.delete("first")
    used.pod("next", node, "train-channel")
    used.runs("next")


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_kubelet_that_starts_anew_finds_slice_and_claim_and_the_pod_is_undisturbed(
    used: ChannelNamespace, node: str, kill: bool
) -> None:
    channels = used.channels
    before, files = (
        used.container("first"),
        channels.cdi_files(node),
    )
    [slice_] = [one for one in channels.slices() if one["spec"]["nodeName"] == node]
    name = slice_["metadata"]["name"]
    with Watched(channels.custom.list_cluster_custom_object, (*RESOURCE, SLICES)) as slices:
        restart("kubelet", node, *(["--kill"] if kill else []))
        gone, made = (
            slices.first(lambda one: (one.name, one.kind) == (name, kind), f"{name} is {kind}")  # noqa: B023
            for kind in ("DELETED", "ADDED")
        )
    print(f"slice: back {made.at - gone.at:.3f} s after the starting kubelet deleted it")
    assert made.at - gone.at < 2 * MARGIN
    assert back(channels, node, slice_)
    assert used.container("first") == before
    assert channels.cdi_files(node) == files
    used.delete("first")
    used.pod("next", node, "train-channel")
    used.runs("next")
    assert used.sees("next") == SEEN


def test_plugin_and_kubelet_that_start_anew_together_leave_the_pod_its_channel(
    used: ChannelNamespace, node: str
) -> None:
    channels = used.channels
    before, files, plugin = used.container("first"), channels.cdi_files(node), channels.plugin(node)
    [slice_] = [one for one in channels.slices() if one["spec"]["nodeName"] == node]
    channels.api.delete_namespaced_pod(plugin.metadata.name, channels.name, grace_period_seconds=0)
    restart("kubelet", node, "--kill")
    until(lambda: ready_again(channels, node, plugin), f"another plugin on {node}")
    until(lambda: back(channels, node, slice_), f"the slice of {node}")
    assert used.container("first") == before
    assert channels.cdi_files(node) == files
    used.run_in("first", "sh", "-c", "kill 1")
    until(lambda: used.restarts("first") >= 1, "the container runs again")
    assert used.sees("first") == SEEN
    used.delete("first")
    until(lambda: not channels.cdi_files(node), "the CDI file is gone")
    used.pod("next", node, "train-channel")
    used.runs("next")
    assert used.sees("next") == SEEN


def test_a_containerd_that_starts_anew_under_its_kubelet_leaves_the_pod_and_its_channel_alone(
    used: ChannelNamespace, node: str
) -> None:
    before, files = (
        used.container("first"),
        used.channels.cdi_files(node),
    )
    restart("containerd", node)
    used.pod("without", node)
    used.runs("without")
    assert used.container("first") == before
    assert used.channels.cdi_files(node) == files
    used.delete("first")
    used.pod("next", node, "train-channel")
    used.runs("next")


def test_an_api_server_that_is_killed_and_starts_anew_leaves_pods_and_slices_alone(
    used: ChannelNamespace, node: str
) -> None:
    if not os.environ.get(ALONE):
        pytest.skip(f"{ALONE} is not set: others may need the API server")
    channels = used.channels
    before, files = used.container("first"), channels.cdi_files(node)
    uids = {one["metadata"]["uid"] for one in channels.slices()}
    restart("kube-apiserver", "", "--kill")
    with suppress(AssertionError):
        until(lambda: answers(channels), "the API server answers", seconds=20)
    if not answers(channels):  # begun while the one before it still had the port
        restart("kube-apiserver", "")
        until(lambda: answers(channels), "the API server answers")
    used.ready("later")
    assert used.container("first") == before
    assert channels.cdi_files(node) == files
    assert {one["metadata"]["uid"] for one in channels.slices()} == uids
    used.delete("first")
    used.pod("next", node, "later-channel")
    used.runs("next")
    assert used.sees("next") == SEEN


def answers(channels: Channels) -> bool:
    """Whether it does, also for ComputeDomains, whose definition it reads after it has started."""
    listed = channels.custom.list_cluster_custom_object
    with suppress(client.ApiException, urllib3.exceptions.HTTPError):
        return bool(listed("resource.nvidia.com", "v1beta1", "computedomains"))
    return False


def restart(component: str, node: str, *more: str) -> None:
    """Have a component, of ``node`` where that is named, restarted by who can."""
    if not (command := os.environ.get(RESTART)):
        pytest.skip(f"{RESTART} is not set: nobody here can restart a {component}")
    name = f"{component}-{node.rpartition('-')[2]}" if node else component
    words = [word.replace("{component}", name) for word in shlex.split(command)]
    subprocess.run([*words, *more], check=True, capture_output=True, timeout=120)


def test_a_broken_checkpoint_leaves_the_pod_its_channel_and_frees_it_with_the_pod(
    used: ChannelNamespace, node: str
) -> None:
    channels = used.channels
    plugin, files = channels.plugin(node), channels.cdi_files(node)
    channels.on(node, "truncate", "-s", "100", CHECKPOINT)
    channels.api.delete_namespaced_pod(plugin.metadata.name, channels.name, grace_period_seconds=0)
    until(lambda: ready_again(channels, node, plugin), f"another plugin on {node}")
    assert channels.cdi_files(node) == files
    used.run_in("first", "sh", "-c", "kill 1")
    until(lambda: used.restarts("first") >= 1, "the container runs again")
    assert used.sees("first") == SEEN
    used.delete("first")
    until(lambda: not channels.cdi_files(node), "the CDI file is gone")
    used.pod("next", node, "train-channel")
    used.runs("next")
    channels.on(node, "sh", "-c", f"rm {CHECKPOINT}.corrupt-*")


def test_a_node_that_was_rebooted_has_its_channel_free_whatever_the_last_boot_had_prepared(
    used: ChannelNamespace, node: str
) -> None:
    channels = used.channels
    channels.on(node, "sh", "-c", f"echo {uuid.uuid4()} > {BOOT}")
    with other_boot_ids(channels):
        plugin = channels.plugin(node)
        channels.on(node, "rm", *channels.cdi_files(node))
        channels.api.delete_namespaced_pod(
            plugin.metadata.name, channels.name, grace_period_seconds=0
        )
        until(lambda: ready_again(channels, node, plugin), f"another plugin on {node}")
        assert channels.cdi_files(node) == []
        prepared = f'nvidia_dra_prepared_devices{{device_type="channel",driver="{DRIVER}",node="{node}"}} 0.0'
        until(lambda: prepared in channels.metrics(node), "no channel is prepared")
        used.delete("first")
        used.pod("next", node, "train-channel")
        used.runs("next")
        assert used.sees("next") == SEEN
        used.delete("next")


@contextmanager
def other_boot_ids(channels: Channels) -> Iterator[None]:
    """Plugins that start read the boot's id from a file; those that run stay as they are."""
    name, read = f"{channels.name}-kubelet-plugin", {"name": "ALT_BOOT_ID_PATH", "value": BOOT}
    plugin = channels.plugin(channels.nodes[0])

    def become(strategy: dict[str, Any], env: dict[str, str]) -> None:
        spec = {"containers": [{"name": "kubelet-plugin", "env": [env]}]}
        body = {"spec": {"updateStrategy": strategy, "template": {"spec": spec}}}
        channels.apps.patch_namespaced_daemon_set(name, channels.name, body)

    become({"type": "OnDelete", "rollingUpdate": None}, read)
    try:
        yield
    finally:
        plugin = channels.plugin(channels.nodes[0])
        rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
        become(rolling, {"name": read["name"], "$patch": "delete"})
        until(
            lambda: ready_again(channels, channels.nodes[0], plugin),
            "a plugin with the boot's own id",
        )


def test_a_node_without_a_clique_offers_nothing_and_its_pod_starts_once_there_is_one(
    place: ChannelNamespace, node: str
) -> None:
    channels, plugin = place.channels, place.channels.plugin(node)
    place.ready()
    fabric(channels, node, "3", "0")  # 0: of no kind that joins nodes
    try:
        channels.api.delete_namespaced_pod(plugin.metadata.name, channels.name)
        until(lambda: ready_again(channels, node, plugin), f"another plugin on {node}")
        until(lambda: node not in channels.published(), f"{node} offers no channel")
        place.pod("first", node, "train-channel")
        place.await_event("first", "cannot allocate all claims")  # the scheduler's words
        assert place.phase("first") == "Pending"
    finally:
        fabric(channels, node, "0", "3")
    place.runs("first")
    assert place.sees("first") == SEEN


def fabric(channels: Channels, node: str, before: str, after: str) -> None:
    """What the GPU of ``node`` says of its registration with the fabric."""
    says = '"fabric_state": "%s"'
    channels.on(node, "sed", "-i", f"s/{says % before}/{says % after}/", DRIVER_JSON)


def test_a_leader_of_the_controller_that_is_killed_is_followed_by_the_other(
    place: ChannelNamespace,
) -> None:
    channels = place.channels
    coordination: Any = client.CoordinationV1Api()

    def leases() -> set[str]:
        return {
            one.spec.holder_identity
            for one in coordination.list_namespaced_lease(channels.name).items
        }

    [holder] = leases()
    [leader] = [
        one.metadata.name for one in channels.of("controller") if one.metadata.name in holder
    ]
    channels.api.delete_namespaced_pod(leader, channels.name, grace_period_seconds=0)
    place.ready()
    assert leases() != {holder}
