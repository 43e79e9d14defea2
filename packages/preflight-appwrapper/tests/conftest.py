from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from preflight_testing.apiserver import ASSETS, ApiServer, assets

sys.path.insert(0, str(Path(__file__).parent))  # what several tests share

if TYPE_CHECKING:
    from lab import Lab


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "asyncio", {}


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real kube-apiserver that knows AppWrappers, with the real controllers of Jobs, Deployments
    and garbage.
    """
    from control_plane import control_plane

    folder = assets()
    if folder is None:
        pytest.skip(f"{ASSETS} is not set: no real kube-apiserver")
    if not (folder / "kube-controller-manager").exists():
        pytest.skip(f"{ASSETS} has no kube-controller-manager")
    with control_plane(tmp_path_factory.mktemp("control-plane"), folder) as server:
        yield server


@pytest.fixture
async def lab(control_plane: ApiServer, tmp_path: Path) -> AsyncIterator[Lab]:
    """A namespace of the test's own, with a small stand-in for kubelets."""
    from lab import lab

    async with lab(control_plane, tmp_path) as made:
        yield made
