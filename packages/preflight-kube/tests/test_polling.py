"""A look that fails is tried again and said so; the readiness of a replica shows it."""

from __future__ import annotations

from functools import partial

import anyio
import pytest
from kube_world import going
from preflight_kube.files import polling as looks
from preflight_kube.files.polling import Polling
from preflight_testing import waiting
from prometheus_client import CollectorRegistry, Gauge

pytestmark = pytest.mark.anyio
until = partial(waiting.until, seconds=90)


async def test_a_look_that_fails_is_tried_again_and_after_a_minute_the_replica_is_not_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(looks, "FAILING", 0.05)
    registry = CollectorRegistry()
    kept, works = Polling(Gauge("watching", "", ["watcher"], registry=registry)), False

    async def look() -> None:
        if not works:
            raise OSError("stale file handle")

    def up() -> float | None:
        return registry.get_sample_value("watching", {"watcher": "configuration"})

    async with going(partial(kept.keep, "configuration", look, 0.01)):
        await until(lambda: bool(kept.unready()), "it is not ready")
        assert kept.unready() == "configuration is not watched any more: OSError: stale file handle"
        assert up() == 0
        works = True
        await until(lambda: not kept.unready(), "it is ready again")
        await until(lambda: up() == 1, "the gauge says so")


async def test_a_poll_that_does_not_end_works() -> None:
    registry = CollectorRegistry()
    kept = Polling(Gauge("watching", "", ["watcher"], registry=registry))
    async with going(partial(kept.keep, "preflightconfigs", anyio.sleep_forever, 1.0)):
        await anyio.wait_all_tasks_blocked()
        assert registry.get_sample_value("watching", {"watcher": "preflightconfigs"}) == 1


async def test_looks_that_fail_do_not_keep_others_from_theirs() -> None:
    kept, seen = Polling(), 0

    def broken() -> None:
        raise LookupError("gone")

    def fine() -> None:
        nonlocal seen
        seen += 1

    async with going(
        partial(kept.keep, "broken", broken, 0.01), partial(kept.keep, "fine", fine, 0.01)
    ):
        await until(lambda: seen > 3, "the other goes on")
        assert kept.unready() == "", "a minute has not passed"
