from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kubernetes import config
from preflight_e2e import imex_channels as channel
from preflight_e2e.imex_channels import Channels
from preflight_e2e.impersonation import TenantNamespace, prepared
from preflight_e2e.installed_release import Installed, until
from preflight_e2e.lab import FAKES, Lab


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "policies: installs no webhook, and so may run beside tests that do"
    )
    config.addinivalue_line(
        "markers", "fakes: needs the fake GPU nodes, and that no release of the charts is there"
    )


@contextmanager
def release() -> Iterator[Installed]:
    """Names for a release that is not there yet; whatever a test leaves is removed."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        pytest.skip("KUBECONFIG is not set: no cluster")
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call]
    made = Installed(Path(kubeconfig))
    try:
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def fake_nodes() -> Iterator[Lab]:
    """The lab's fake GPU nodes, which are there; they are healthy before and afterwards."""
    if not (kubeconfig := os.environ.get("KUBECONFIG")):
        pytest.skip("KUBECONFIG is not set: no cluster")
    made = Lab(Path(kubeconfig), print)
    facts = [one.metadata.name for one in made.api.list_namespaced_config_map(FAKES).items]
    made.nodes = sorted(name.removeprefix("node-") for name in facts if name.startswith("node-"))
    if not made.nodes:
        pytest.skip(f"namespace {FAKES} is not there: no fake GPU nodes")
    made.become({})
    try:
        yield made
    finally:
        for node in made.nodes:
            made.configure(node, {}, wait=False)


@pytest.fixture
def fresh() -> Iterator[Installed]:
    """A release that a test installs as it likes."""
    with release() as made:
        yield made


@pytest.fixture
def installed(fresh: Installed) -> Installed:
    fresh.release.install(fresh.with_values())
    until(fresh.published, "the CA bundle")
    return fresh


@pytest.fixture(scope="session")
def place() -> Iterator[TenantNamespace]:
    """The gang controller's policies, which no test changes."""
    with release() as made:
        yield prepared(made)


@pytest.fixture(scope="session")
def channels() -> Iterator[Channels]:
    """One release of the chart of ComputeDomains for all tests of it."""
    if not (kubeconfig := os.environ.get("KUBECONFIG")):
        pytest.skip("KUBECONFIG is not set: no cluster")
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call]
    made = Channels(Path(kubeconfig))
    if len(made.nodes) < 2:
        pytest.skip(f"{len(made.nodes)} nodes that take pods: two are needed")
    try:
        made.install()
        yield made
    finally:
        made.remove()


@pytest.fixture
def channel_place(channels: Channels) -> Iterator[channel.ChannelNamespace]:
    made = channels.place()
    yield made
    made.leave()


@pytest.fixture
def node(channels: Channels) -> str:
    return channels.nodes[0]


@pytest.fixture
def used(channel_place: channel.ChannelNamespace, node: str) -> channel.ChannelNamespace:
    """With pod `first` on `node`, which has the channel by ComputeDomain `train`."""
    channel_place.ready()
    channel_place.pod("first", node, "train-channel")
    channel_place.runs("first")
    return channel_place
