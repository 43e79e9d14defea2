"""What a member brings: its GPUs and its topology file, or the trouble that ends
the gang together.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from check_nccl_allreduce import check
from check_nccl_allreduce.settings import Settings
from preflight_proto.check import Failed, Gpu, presence

GPUS = tuple(Gpu(i, f"GPU-{i}", "NVIDIA H100 80GB HBM3", f"0000:{i:02x}:00.0") for i in range(8))


def brought(settings: Settings, expected: int = 8) -> tuple[check.Equipment, list[str]]:
    said: list[str] = []

    async def gpus() -> tuple[Gpu, ...]:
        return GPUS

    run: Any = SimpleNamespace(
        settings=settings,
        kit=SimpleNamespace(expected_gpus=expected),
        gpus=gpus,
        progress=said.append,
    )
    return anyio.run(check._equipment, run), said


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "p5.xml").write_text("<system/>")
    return str(tmp_path)


def test_the_instance_types_topology_file_goes_to_the_workers(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NCCL_TOPO_FILE", raising=False)
    mapped = (("p5.48xlarge", "p5.xml"),)
    brings, said = brought(
        Settings(topology_folder=folder, topology_mapping=mapped, instance_type="p5.48xlarge")
    )
    assert brings.gpus == GPUS
    assert (brings.workers, brings.variables) == (8, {"NCCL_TOPO_FILE": f"{folder}/p5.xml"})
    assert brings.topology_file == f"{folder}/p5.xml for the instance type p5.48xlarge"
    assert said == [f"topology: {folder}/p5.xml for the instance type p5.48xlarge"]


def test_a_missing_gpu_is_this_members_own_verdict_and_ends_the_gang() -> None:
    verdict = presence.verdict([presence.MissingDevice("GPU-7", conclusive=True)], 8, ["GPU-0"])

    async def gpus() -> tuple[Gpu, ...]:
        raise Failed(verdict)

    run: Any = SimpleNamespace(
        settings=Settings(), kit=SimpleNamespace(expected_gpus=8), gpus=gpus, progress=print
    )
    brings = anyio.run(check._equipment, run)
    assert (brings.own, brings.trouble and brings.trouble.code) == (verdict, "GPU_MISSING")


def test_where_it_may_not_the_gang_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NCCL_TOPO_FILE", raising=False)
    brings, _ = brought(Settings(topology_fallback="false"))
    assert brings.trouble is not None
    assert (brings.trouble.kind, brings.trouble.code) == ("local", "NO_TOPOLOGY")


@pytest.mark.parametrize(("backend", "gpus"), [("gloo", 8), ("auto", 0)])
def test_gloo_needs_none(backend: str, gpus: int) -> None:
    brings, _ = brought(Settings(backend=backend, topology_fallback="false"), gpus)
    assert (brings.backend, brings.variables, brings.trouble) == ("gloo", {}, None)
