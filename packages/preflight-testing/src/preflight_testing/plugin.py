"""Fixtures that several packages' tests share. A conftest imports those that it wants."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .apidouble import RESOURCES, ApiDouble, write_kubeconfig
from .apiserver import ASSETS, GANG_APIS, ApiServer, assets, version

ABSENT = "absent.example.com/v1"
"""An API group that neither server has."""


@dataclass(frozen=True)
class ApiFixture:
    """An API server, double or real, and a namespace in it that is the test's own."""

    kind: str
    server: str
    kubeconfig: Path
    namespace: str
    forget: Callable[[], None]
    """Make all versions so far too old to watch from."""
    restart: Callable[[], None]
    """Break every connection; what is stored stays."""

    def path(self, plural: str, name: str = "") -> str:
        """Of a core resource in the test's namespace."""
        return f"/api/v1/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")


@pytest.fixture(scope="session")
def real_api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A kube-apiserver that serves the gang API of its version."""
    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    gates, groups = GANG_APIS.get(version(folder / "kube-apiserver"), ([], []))
    with ApiServer(
        tmp_path_factory.mktemp("apiserver"), folder, feature_gates=gates, runtime_config=groups
    ) as server:
        yield server


@pytest.fixture(params=["double", "real"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ApiFixture]:
    """Both servers in turn, the double and a real kube-apiserver. ``SERVED`` of the test's module:
    resources of the double, if not only the usual.
    """
    namespace: dict[str, Any] = {"metadata": {"name": f"t-{uuid.uuid4().hex[:10]}"}}
    name = namespace["metadata"]["name"]
    if request.param == "real":
        real: ApiServer = request.getfixturevalue("real_api_server")
        real.call("POST", "/api/v1/namespaces", namespace)
        kubeconfig = real.kubeconfig(tmp_path / "kubeconfig")
        yield ApiFixture("real", real.server, kubeconfig, name, real.forget, real.restart)
        return
    with ApiDouble(getattr(request.module, "SERVED", RESOURCES), absent=[ABSENT]) as double:
        double.within(lambda: double.create("namespaces", namespace))
        kubeconfig = write_kubeconfig(tmp_path / "kubeconfig", double.url)
        forget = partial(double.within, double.compact)
        yield ApiFixture("double", double.url, kubeconfig, name, forget, double.restart)
