"""Fixtures: the charts' admission policies on real API servers. A test module names this one in
``pytest_plugins``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from preflight_testing.apiserver import ASSETS, ApiServer, assets

from .admission_policies import BOTH, GANG_CHART, INJECTOR, PolicyServer

ASSETS_135 = "PREFLIGHT_KUBEBUILDER_ASSETS_135"
"""Names a folder with another kube-apiserver, of 1.35."""


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ApiServer]]:
    """An API server that lets everybody do everything, by its minor version."""
    with ExitStack() as running:
        servers: dict[str, ApiServer] = {}

        def of(version: str) -> ApiServer:
            folder, older = assets(), os.environ.get(ASSETS_135)
            if folder is None or (version == "1.35" and older is None):
                pytest.skip(
                    f"{ASSETS if folder is None else ASSETS_135} is not set: no real kube-apiserver {version}"
                )
            if version not in servers:
                binary = Path(older) / "kube-apiserver" if version == "1.35" and older else None
                home = tmp_path_factory.mktemp(f"policies-{version}")
                servers[version] = running.enter_context(
                    ApiServer(home, folder, kube_apiserver=binary)
                )
            return servers[version]

        yield of


def _installed(
    asked: str, alone: str, api_server: Callable[[str], ApiServer], homes: pytest.TempPathFactory
) -> Iterator[PolicyServer]:
    """``asked``: a minor version, and ``both`` charts or ``alone``."""
    version, _, charts = asked.partition(" ")
    policies = PolicyServer(
        api_server(version), homes.mktemp("home"), *(BOTH if charts == "both" else (alone,))
    )
    try:
        policies.open()
        yield policies
    finally:
        policies.close()


@pytest.fixture(scope="module", params=["1.36 both", "1.36 injector", "1.35 both"])
def policies(
    request: pytest.FixtureRequest,
    api_server: Callable[[str], ApiServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PolicyServer]:
    """The injector's policies, with those of the gang controller's chart and without."""
    yield from _installed(request.param, INJECTOR, api_server, tmp_path_factory)


@pytest.fixture(scope="module", params=["1.36 both", "1.36 gang", "1.35 both"])
def records(
    request: pytest.FixtureRequest,
    api_server: Callable[[str], ApiServer],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PolicyServer]:
    """The gang chart's policies, with those of the injector and without. Not in one module with
    ``policies``: a cluster has one release.
    """
    yield from _installed(request.param, GANG_CHART, api_server, tmp_path_factory)
