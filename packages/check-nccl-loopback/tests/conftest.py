from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from preflight_proto.check.testing import FakeConnector
from preflight_testing.fakes import NVML, build_nvml

sys.path.insert(0, str(Path(__file__).parent))  # `documents` and `nodes`, which tests share


@pytest.fixture
def connector(tmp_path: Path) -> Iterator[FakeConnector]:
    with FakeConnector(tmp_path / "connector.sock") as running:
        yield running


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    build_nvml(NVML, folder / "libnvidia-ml.so.1")
    return folder
