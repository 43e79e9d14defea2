from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from kubernetes import config
from preflight_e2e.actors import Place, prepared
from preflight_e2e.installed import Installed, until


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "policies: installs no webhook, and so may run beside tests that do")


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
def place() -> Iterator[Place]:
    """The gang controller's policies, which no test changes."""
    with release() as made:
        yield prepared(made)
