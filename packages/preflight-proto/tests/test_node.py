"""The node's instance type and topology, which somebody else writes into the pod."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from preflight_proto import names
from preflight_proto.check.node import instance_type, topology


def test_it_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "instance-type"
    file.write_text("")

    found: list[str] = []

    async def story() -> None:
        async with anyio.create_task_group() as group:

            async def write() -> None:
                await anyio.Path(file).write_text("p5.48xlarge\n")

            group.start_soon(write)
            found.append(await instance_type(str(file)))

    anyio.run(story)
    assert found == ["p5.48xlarge"]


def test_where_nobody_writes_it_it_is_empty(tmp_path: Path) -> None:
    assert anyio.run(instance_type, str(tmp_path / "none"), "", 0.05) == ""


@pytest.mark.parametrize("text", ["", "{}", "leaf-3", '["leaf-3"]', '{"leaf":3}'])
def test_a_node_without_readable_topology_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / names.TOPOLOGY_FILE).write_text(text)
    assert anyio.run(topology, str(tmp_path)) == {}


def test_a_node_of_which_nobody_told_has_no_topology(tmp_path: Path) -> None:
    assert anyio.run(topology, str(tmp_path)) == {}
