"""The node's instance type, which somebody else writes into the pod."""

from __future__ import annotations

from pathlib import Path

import anyio
from preflight_proto.check.node import instance_type


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
    assert anyio.run(instance_type, str(tmp_path / "none"), 0.05) == ""
