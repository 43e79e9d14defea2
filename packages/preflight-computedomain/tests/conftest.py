from __future__ import annotations

import importlib
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from preflight_computedomain.api.crd import crd
from preflight_kube.auth.connection import Connection, connection
from preflight_kube.client.client import Client
from preflight_testing.apiserver import ApiServer
from preflight_testing.plugin import real_api_server

if TYPE_CHECKING:
    from driven import User

__all__ = ["real_api_server"]

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short name: a unix socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="cd-") as made:
        yield Path(made)


@pytest.fixture
def target(real_api_server: ApiServer, tmp_path: Path) -> Connection:
    """A real API server that serves ComputeDomains."""
    real_api_server.define(crd())
    return connection({"KUBECONFIG": str(real_api_server.kubeconfig(tmp_path / "kubeconfig"))})


@pytest.fixture
async def user(target: Connection) -> AsyncIterator[User]:
    """Somebody there with a namespace of his own."""
    from driven import User

    async with Client(target, agent="user") as client:
        made = User(client)
        await made.begin()
        yield made


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    """Messages and services made by Google's own compiler, by version and ``registration``: the
    independent peer.
    """
    out = tmp_path_factory.mktemp("google")
    files = {"v1": "dra_v1", "v1beta1": "dra_v1beta1", "registration": "kubelet_registration"}
    words = [sys.executable, "-m", "grpc_tools.protoc", f"-I{HERE / 'protos'}"]
    words += [f"--python_out={out}", f"--grpc_python_out={out}"]
    subprocess.run([*words, *(f"{file}.proto" for file in files.values())], check=True)
    sys.path.insert(0, str(out))
    found = {}
    for name, file in files.items():
        found[name] = importlib.import_module(f"{file}_pb2")
        found[f"{name}_grpc"] = importlib.import_module(f"{file}_pb2_grpc")
    return found
