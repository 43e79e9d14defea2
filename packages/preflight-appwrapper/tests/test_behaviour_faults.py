"""Watches that lag, that end, and conflicts: what is decided is what a current view would have
said.

APPWRAPPER_LAG is by how many seconds a watch lags (5).
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import anyio
import pytest
from lab import Lab
from leading import OneNamespace, leads
from player import bare_pod, job, service
from preflight_kube.client.client import Client, KubeError

pytestmark = pytest.mark.anyio

FAST: dict[str, Any] = {"failureGracePeriodDuration": "0s", "retryPausePeriodDuration": "0s"}


class LaggingClient(OneNamespace):
    """Each event of the watches of ``plural`` comes ``seconds`` late."""

    plural = ""
    seconds = float(os.environ.get("APPWRAPPER_LAG", "5"))

    @asynccontextmanager
    async def watch(self, path: str, *args: Any, **more: Any) -> AsyncIterator[Any]:
        async with super().watch(path, *args, **more) as events:
            if not path.endswith(f"/{self.plural}"):
                yield events
                return
            send, receive = anyio.create_memory_object_stream[Any](math.inf)
            async with send, receive, anyio.create_task_group() as group:
                group.start_soon(self._read_on, events, send)
                yield self._late(receive)
                group.cancel_scope.cancel()

    async def _read_on(self, events: Any, send: Any) -> None:
        end: Any = None
        try:
            async for event in events:
                send.send_nowait((anyio.current_time() + self.seconds, event))
        except KubeError as error:
            end = error
        send.send_nowait((anyio.current_time() + self.seconds, end))

    async def _late(self, receive: Any) -> AsyncIterator[Any]:
        async for due, event in receive:
            await anyio.sleep_until(due)
            if isinstance(event, KubeError):
                raise event
            if event is None:
                return
            yield event


def lagging(lab: Lab, plural: str) -> Client:
    made = LaggingClient(lab.target, lab.namespace)
    made.plural = plural
    return made


@pytest.mark.parametrize("plural", ["pods", "jobs", "services", "appwrappers"])
async def test_a_watch_that_lags_makes_nothing_missing_nothing_succeed_early_and_no_reset(
    lab: Lab, plural: str
) -> None:
    async with leads(lab.target, client=lagging(lab, plural)) as leading:
        await lab.wrap(service(), job(completions=4), bare_pod(), successTTLDuration="300s", **FAST)
        await lab.phase("Running")
        first = await lab.running(3)
        await lab.ends(lab.probe(), code=3)

        await lab.anew(first, 3)
        for _ in range(2):

            async def two() -> Any:
                found = [
                    pod
                    for pod in lab.pods()
                    if pod["metadata"]["name"].startswith("train-")
                    and pod["status"].get("phase") == "Running"
                ]
                return found if len(found) == 2 else None

            for pod in await lab.until(two, "a wave of two"):
                assert (await lab.wrapper())["status"]["phase"] == "Running"
                await lab.ends(pod, code=0)
        await lab.ends(lab.probe(), code=0)
        found = await lab.phase("Succeeded")
        assert found["status"]["resettingCount"] == 1
        assert {one.labels["reason"] for one in leading.samples("appwrapper_resets_total")} == {
            "FoundFailedPods"
        }
        made = await lab.get(lab.path("batch/v1", "jobs", "train"))
        assert made is not None
        assert made["status"]["succeeded"] == 4


async def test_a_create_that_a_busy_api_server_turns_away_is_tried_again_and_nothing_is_reset(
    lab: Lab,
) -> None:
    class BusyClient(OneNamespace):
        refused: ClassVar[list[str]] = []

        async def create(self, path: str, body: object) -> bytes:
            if path.endswith("/jobs") and len(self.refused) < 2:
                self.refused.append(path)
                raise KubeError("too many requests", 429, "TooManyRequests")
            return await super().create(path, body)

    client = BusyClient(lab.target, lab.namespace)
    async with leads(lab.target, client=client):
        await lab.wrap(job(), **FAST)
        assert "resettingCount" not in (await lab.phase("Running"))["status"]
        assert len(client.refused) == 2
