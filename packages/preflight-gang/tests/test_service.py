"""Leadership, as a replica's metrics show it."""

from __future__ import annotations

import math
from typing import Any

import anyio
import pytest
from preflight_gang import service
from preflight_gang.config import Config
from preflight_gang.controller.controller import Controller
from preflight_kube.runtime.lease import Leadership


def test_the_gauge_of_who_leads_is_one_while_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    shown: list[float | None] = []

    def run(build: Any, _: object, **more: Any) -> int:
        given.update(build=build, **more)
        return 0

    def note() -> None:
        shown.append(given["registry"].get_sample_value("preflight_gang_leader"))

    async def leads(*_: object) -> None:
        note()

    async def play() -> None:
        parts = await given["build"](None)
        note()
        await parts.lead(Leadership(1, math.inf))
        note()

    monkeypatch.setattr("preflight_gang.service.manager.run", run)
    monkeypatch.setattr("preflight_gang.metrics.Metrics.follow", lambda *_: None)
    monkeypatch.setattr(Controller, "__init__", lambda *_: None)
    monkeypatch.setattr(Controller, "mirror", None)
    monkeypatch.setattr(Controller, "lead", leads)
    service.run(None, Config(), namespace="preflight", host="", port=0)  # type: ignore[arg-type]
    anyio.run(play)
    assert shown == [0, 1, 0]
