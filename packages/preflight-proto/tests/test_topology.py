"""Which topology file a pod gets, from its environment and the image."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from preflight_proto.check import Inconclusive, topology

PAIRS = (("p5.48xlarge", "p5.xml"), ("a3", "a3.xml"))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "p5.xml").write_text("<system/>")
    return str(tmp_path)


def found(folder: str, *, kind: str = "", path: str = "", users: str = "", fallback: bool = True) -> str | None:
    async def find() -> str | None:
        environ = {"NCCL_TOPO_FILE": users}
        chosen = await topology.find(environ, PAIRS, folder, kind=kind, kind_path=path, fallback=fallback)
        return chosen.path

    return anyio.run(find)


def test_the_instance_type_is_read_from_its_file_where_no_variable_tells_it(folder: str, tmp_path: Path) -> None:
    (tmp_path / "kind").write_text("p5.48xlarge\n")
    assert found(folder, path=str(tmp_path / "kind")) == f"{folder}/p5.xml"


def test_the_workloads_own_file_comes_first(folder: str) -> None:
    assert found(folder, kind="p5.48xlarge", users="/mine.xml") == "/mine.xml"


@pytest.mark.parametrize("kind", ["a3", "unknown", ""])
def test_without_a_file_in_the_image_nccl_finds_out_for_itself_or_there_is_no_verdict(folder: str, kind: str) -> None:
    assert found(folder, kind=kind) is None
    with pytest.raises(Inconclusive, match="no topology file for instance type"):
        found(folder, kind=kind, fallback=False)


def test_a_folder_that_is_not_there_has_no_files() -> None:
    assert topology.files("/nowhere/at/all") == frozenset()
