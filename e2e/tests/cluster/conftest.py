from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import config
from preflight_e2e.installed import Installed, until


@pytest.fixture
def fresh() -> Iterator[Installed]:
    """Names for a release that is not there yet; whatever a test leaves is removed."""
    kubeconfig = os.environ.get("KUBECONFIG")
    if not kubeconfig:
        pytest.skip("KUBECONFIG is not set: no cluster")
    config.load_kube_config(kubeconfig)  # type: ignore[no-untyped-call]
    made = Installed(Path(kubeconfig))
    yield made
    made.remove()


@pytest.fixture
def installed(fresh: Installed) -> Installed:
    fresh.release.install(fresh.with_values())
    until(fresh.published, "the CA bundle")
    return fresh
