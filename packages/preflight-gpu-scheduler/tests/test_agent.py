"""What the agent does about NVML that answers and that does not."""

from __future__ import annotations

import ssl
from typing import Any, cast

import anyio
import pytest
from preflight_gpu_scheduler.config import Config
from preflight_gpu_scheduler.metrics import AgentMetrics
from preflight_gpu_scheduler.node.agent import Agent
from preflight_gpu_scheduler.node.nvml import NvmlFailed
from preflight_gpu_scheduler.node.status import Facts
from preflight_kube.auth.connection import Connection
from preflight_kube.client.client import Client
from prometheus_client import CollectorRegistry

GPU = Facts(uuid="GPU-a", pci_bus_id="00000000:01:00.0")


class Driver:
    """Answers in turn; a sentence is a failure."""

    def __init__(self, *answers: str | Facts) -> None:
        self._answers = iter(answers)

    def facts(self) -> list[Facts]:
        answer = next(self._answers)
        if isinstance(answer, str):
            raise NvmlFailed(answer)
        return [answer]

    def kept(self) -> None:
        pass


def test_each_change_of_what_nvml_does_is_one_line_and_the_metric_follows(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        registry = CollectorRegistry()
        driver = Driver("it crashed.", "it crashed.", GPU, GPU, "it is silent.")
        async with Client(
            Connection("http://127.0.0.1:9", ssl.create_default_context()), agent="test"
        ) as client:
            agent = Agent(client, Config(), "a", cast(Any, driver), AgentMetrics(registry))
            for up in (0.0, 0.0, 1.0, 1.0, 0.0):
                facts = await agent._facts()
                assert registry.get_sample_value("gpu_agent_nvml_up") == up
                assert (facts is None) == (not up)

    caplog.set_level("INFO")
    anyio.run(body)
    assert [record.getMessage() for record in caplog.records] == [
        "nothing is known of the GPUs",
        "NVML answers again",
        "nothing is known of the GPUs",
    ]
