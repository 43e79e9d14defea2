"""The log of the plugin as a process."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
from driven import User
from preflight_testing.apiserver import ApiServer
from test_hands_off import machine, served, user

__all__ = ["user"]
pytestmark = pytest.mark.anyio


async def test_each_claim_and_result_is_one_line_of_json_with_its_cause(
    short: Path, real_api_server: ApiServer, user: User, google: dict[str, ModuleType]
) -> None:
    node = machine(short, real_api_server)
    await user.client.create("/api/v1/nodes", {"metadata": {"name": node.name}})
    with node.running():
        await served(node, user, google, "told")
    lines = [json.loads(line) for line in (short / "plugin.log").read_text().splitlines()]
    assert all({"time", "level", "msg", "component"} <= one.keys() for one in lines)
    about = [one for one in lines if "uid" in one and "cause" in one]
    assert [one["msg"] for one in about] == [
        "NodePrepareResources: done",
        "NodeUnprepareResources: done",
    ]
    for one in about:
        assert (one["namespace"], one["name"]) == (user.namespace, "told-claim")
        assert (one["cause"], one["milliseconds"] > 0) == ("", True)
