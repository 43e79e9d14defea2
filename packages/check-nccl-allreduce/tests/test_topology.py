"""The topology file reaches NCCL's workers; a pod that must have one and has none
tells its gang.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from check_nccl_allreduce import check
from check_nccl_allreduce.settings import Settings
from preflight_proto.check import Gpu
from preflight_proto.check.settings import read


def chosen(
    folder: Path, gpus: int | None = 8, **variables: str
) -> tuple[dict[str, str], Any, list[str]]:
    """(what the workers' environment gets, trouble, what the log says)."""
    (folder / "ours.xml").write_text("<system/>")
    given = {
        "PREFLIGHT_TOPOLOGY_DIR": str(folder),
        "PREFLIGHT_TOPOLOGY_MAP": "ours=ours.xml",
        **variables,
    }
    said: list[str] = []
    kit = SimpleNamespace(expected_gpus=gpus)

    async def devices() -> tuple[Gpu, ...]:
        return tuple(
            Gpu(number, f"GPU-{number}", "NVIDIA H100 80GB HBM3", "") for number in range(gpus or 1)
        )

    run: Any = SimpleNamespace(
        settings=read(Settings, given), kit=kit, progress=said.append, gpus=devices
    )
    brought = anyio.run(check._equipment, run)
    return dict(brought.variables), brought.trouble, said


def test_the_file_of_the_instance_type_reaches_the_workers_and_the_log(tmp_path: Path) -> None:
    environ, trouble, said = chosen(tmp_path, NODE_INSTANCE_TYPE="ours")
    assert (environ, trouble) == ({"NCCL_TOPO_FILE": f"{tmp_path}/ours.xml"}, None)
    assert said == [f"topology: {tmp_path}/ours.xml for the instance type ours"]


def test_without_one_nccl_finds_out_for_itself(tmp_path: Path) -> None:
    environ, trouble, said = chosen(tmp_path, NODE_INSTANCE_TYPE="other")
    assert (environ, trouble) == ({}, None)
    assert said == [
        "topology: NCCL's own detection, as the instance type other is not mapped to a file"
    ]


def test_a_pod_that_must_have_one_and_has_none_tells_its_gang(tmp_path: Path) -> None:
    environ, trouble, _ = chosen(
        tmp_path, NODE_INSTANCE_TYPE="other", PREFLIGHT_TOPOLOGY_FALLBACK="false"
    )
    assert (environ, trouble.kind, trouble.code) == ({}, "local", "NO_TOPOLOGY")


@pytest.mark.parametrize("variables", [{"NCCL_ALLREDUCE_BACKEND": "gloo"}, {}])
def test_gloo_needs_none(tmp_path: Path, variables: dict[str, str]) -> None:
    gpus = 8 if variables else 0
    wanted = {"NODE_INSTANCE_TYPE": "other", "PREFLIGHT_TOPOLOGY_FALLBACK": "false", **variables}
    variables, trouble, _ = chosen(tmp_path, gpus, **wanted)
    assert (variables, trouble) == ({}, None)
