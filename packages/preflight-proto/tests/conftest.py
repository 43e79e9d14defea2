from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from types import ModuleType

import pytest
from preflight_proto.check.testing import FakeConnector

PROTO = Path(__file__).parent.parent / "proto"

sys.path.insert(0, str(Path(__file__).parent))  # `strangers`, which several tests share


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[FakeConnector]:
    with FakeConnector(tmp_path / "connector.sock") as running:
        yield running


@pytest.fixture(scope="session")
def google(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, ModuleType]:
    """(messages, services) made by Google's own compiler from the same .proto: the independent
    peer.
    """
    out = tmp_path_factory.mktemp("google")
    includes = [f"-I{PROTO}", f"-I{files('grpc_tools') / '_proto'}"]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            *includes,
            f"--python_out={out}",
            f"--grpc_python_out={out}",
            "health_event.proto",
        ],
        check=True,
    )
    sys.path.insert(0, str(out))
    return importlib.import_module("health_event_pb2"), importlib.import_module(
        "health_event_pb2_grpc"
    )
