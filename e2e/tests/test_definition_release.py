"""The definition of PreflightConfig through installs and uninstalls: Helm itself, and a real API
server.
"""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preflight_testing.apiserver import ASSETS, ApiServer, assets
from preflight_testing.helm import GANG, Release

pytestmark = pytest.mark.timeout(240)

NAME = "preflightconfigs.preflight.nvsentinel.nvidia.com"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CONFIGS = "/apis/preflight.nvsentinel.nvidia.com/v1alpha1/namespaces/default/preflightconfigs"
MINE = {
    "apiVersion": "preflight.nvsentinel.nvidia.com/v1alpha1",
    "kind": "PreflightConfig",
    "metadata": {"name": "mine"},
    "spec": {"enforcement": "observe"},
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    if (folder := assets()) is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    with ApiServer(tmp_path, folder) as made:
        yield made


def install(server: ApiServer, name: str, **values: Any) -> Release:
    """A release without a replica, as nothing here would start one."""
    made = Release(name, server.kubeconfig(server.home / name), name=name, chart=GANG)
    made.install(
        {"fullnameOverride": name, "replicas": 0, "allowSecondRelease": True, **values}, wait=False
    )
    return made


def definition(server: ApiServer) -> dict[str, Any] | None:
    try:
        made: dict[str, Any] = server.call("GET", f"{CRDS}/{NAME}")
    except urllib.error.HTTPError as error:
        error.close()
        assert error.code == 404
        return None
    return made


def owner(server: ApiServer) -> str | None:
    made = definition(server)
    return made["metadata"]["annotations"].get("meta.helm.sh/release-name") if made else None


def test_it_outlives_its_release_with_what_people_wrote_and_is_taken_up_again(
    server: ApiServer,
) -> None:
    first = install(server, "first")
    assert owner(server) == "first"
    server.served(CONFIGS)
    server.call("POST", CONFIGS, MINE)
    first.uninstall()
    assert server.call("GET", f"{CONFIGS}/mine")["spec"] == MINE["spec"]
    install(server, "first").upgrade({"fullnameOverride": "first", "replicas": 0}, wait=False)
    assert owner(server) == "first"


def test_another_release_leaves_it_alone(server: ApiServer) -> None:
    first = install(server, "first")
    second = install(server, "second")
    assert owner(server) == "first"
    second.uninstall()
    first.uninstall()
    assert owner(server) == "first"
    install(server, "second")
    assert owner(server) == "first"


def test_it_goes_with_its_release_where_that_is_wanted(server: ApiServer) -> None:
    install(server, "first", crd={"keep": False}).uninstall()
    assert definition(server) is None
