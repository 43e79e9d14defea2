"""A watcher that fails is tried again and said so; the state of a replica shows it."""

from __future__ import annotations

import asyncio

import pytest
from preflight_webhook.configuration.config import parse
from preflight_webhook.serving import watchers
from preflight_webhook.serving.app import State
from preflight_webhook.serving.watchers import watch


def test_a_look_that_fails_is_tried_again_and_after_a_minute_the_replica_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watchers, "FAILING", 0.05)
    state, works = State(parse(""), started=True), False

    async def look() -> None:
        if not works:
            raise OSError("stale file handle")

    async def until(ready: bool) -> None:
        async with asyncio.timeout(20):
            while (state.unready() == "") != ready:
                await asyncio.sleep(0.01)

    async def story() -> None:
        nonlocal works
        task = asyncio.create_task(watch(state, "configuration", look, 0.01))
        await until(ready=False)
        assert (
            state.unready() == "configuration is not watched any more: OSError: stale file handle"
        )
        assert b'preflight_webhook_watching{watcher="configuration"} 0.0' in state.metrics.text()
        works = True
        await until(ready=True)
        assert b'preflight_webhook_watching{watcher="configuration"} 1.0' in state.metrics.text()
        task.cancel()

    asyncio.run(story())
