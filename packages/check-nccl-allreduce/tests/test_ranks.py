"""What a member makes of its workers' failures before it tells the leader."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from check_nccl_allreduce import failures, launch, ranks, sysfs
from check_nccl_allreduce.control.messages import Failure, RankReport
from needs import needs_torch
from preflight_proto.check import Gpu
from test_control import Gang

GPUS = tuple(Gpu(i, f"GPU-{i}", "H100", f"0000:0{i}:00.0") for i in range(2))
SAID = RankReport(1, trouble=Failure("peer", "NCCL_REMOTE_ERROR", "a peer ended"))


def explained(
    result: RankReport, lost: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> RankReport:
    async def nvml(gpus: Sequence[Gpu]) -> dict[str, str]:
        return lost

    async def explain() -> RankReport:
        one = ranks.Ranks({}, "127.0.0.1", print)
        one.join(Gang().roster(0), 2, {}, GPUS, sysfs.Counters(()))
        return await one._explained(result)

    monkeypatch.setattr("preflight_proto.check.gpus.lost", nvml)
    return anyio.run(explain)


def test_a_gpu_that_the_driver_has_lost_explains_whatever_its_ranks_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trouble = explained(SAID, {"GPU-1": "GPU is lost"}, monkeypatch).trouble
    assert trouble == Failure("device", "GPU_LOST", "the driver has lost GPU-1: GPU is lost")


def test_where_no_gpu_is_lost_the_ranks_words_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    assert explained(SAID, {}, monkeypatch) == SAID


def test_a_result_is_a_result_whatever_the_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    good = RankReport(1, (0.1,), 1)
    assert explained(good, {"GPU-1": "GPU is lost"}, monkeypatch) == good


def stuck(
    silent: dict[str, str], monkeypatch: pytest.MonkeyPatch, *, asleep: bool = True
) -> Failure | None:
    """What a member says of killed workers that are not gone."""

    async def nvml(gpus: Sequence[Gpu], within: float) -> dict[str, str]:
        return silent

    async def tell() -> Failure | None:
        one = ranks.Ranks({}, "127.0.0.1", print)
        one.join(Gang().roster(0), 2, {}, GPUS, sysfs.Counters(()))
        one._agent = SimpleNamespace(asleep=asleep)  # type: ignore[assignment]
        return await one._diagnosed(failures.stuck(asleep=asleep))

    monkeypatch.setattr("preflight_proto.check.alive.silent", nvml)
    return anyio.run(tell)


def test_a_worker_that_is_not_gone_is_a_device_fact_where_the_driver_is_silent_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = stuck({"GPU-1": "no answer within 5 s"}, monkeypatch)
    assert said is not None
    assert (said.kind, said.code) == ("device", "GPU_UNRESPONSIVE")
    assert "GPU-1: no answer within 5 s" in said.text


def test_a_worker_that_is_not_gone_is_inconclusive_where_the_driver_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = stuck({}, monkeypatch)
    assert said is not None
    assert (said.kind, said.code) == ("environment", "RANK_STUCK")


def test_a_worker_that_is_not_gone_is_inconclusive_where_it_does_not_sleep_in_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = stuck({"GPU-1": "GPU is lost"}, monkeypatch, asleep=False)
    assert said is not None
    assert (said.kind, said.code) == ("environment", "RANK_STUCK")


class Forked:
    """Takes the place of an agent, and remembers what fresh workers are given."""

    ended = False

    def __init__(self) -> None:
        self.given: list[dict[str, str | None]] = []

    async def fork(
        self,
        count: int,
        first: int,
        own: int,
        variables: Mapping[str, str | None],
        within: float = 0.0,
    ) -> None:
        self.given.append(dict(variables))
        self.within = within


@pytest.mark.parametrize("looped", [0, 2])
def test_fresh_workers_hear_of_a_dead_path_before_their_probe_is_over(looped: int) -> None:
    agent = Forked()

    async def renew() -> None:
        one = ranks.Ranks({"NCCL_IB_TIMEOUT": "22"}, "127.0.0.1", print)
        one.join(Gang().roster(0), 2, {}, GPUS, sysfs.Counters(()))
        one._agent = agent  # type: ignore[assignment]
        await one._probers(3, fresh=True, looped=looped)
        await one._probers(3, fresh=True, looped=looped)  # of one round they are renewed once

    anyio.run(renew)
    [given] = agent.given
    timeout, retries = int(given["NCCL_IB_TIMEOUT"] or 0), int(given["NCCL_IB_RETRY_CNT"] or 0)
    assert 4.096e-6 * 2**timeout * (retries + 1) < 5


@pytest.mark.parametrize(("time", "within"), [(18.0, 12.0), (78.0, 72.0), (3.0, 1.5)])
def test_killed_workers_have_what_time_the_round_has(time: float, within: float) -> None:
    agent = Forked()

    async def renew() -> None:
        one = ranks.Ranks({}, "127.0.0.1", print)
        one.join(Gang().roster(0), 2, {}, GPUS, sysfs.Counters(()))
        one._agent = agent  # type: ignore[assignment]
        await one._probers(3, fresh=True, looped=0, time=time)

    anyio.run(renew)
    assert agent.within == within


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        (
            "sys/fs/cgroup/memory.events",
            "low 0\nhigh 0\nmax 31\noom 2\noom_kill 1\noom_group_kill 0\n",
            "low 0\nhigh 0\nmax 42\noom 3\noom_kill 2\noom_group_kill 0\n",
        ),
        (
            "sys/fs/cgroup/memory/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
    ],
)
def test_a_worker_that_the_kernel_kills_for_memory_is_told_by_the_control_group(
    path: str, before: str, after: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = sysfs.oom_kills
    assert count(tmp_path) == 0
    monkeypatch.setattr(sysfs, "oom_kills", lambda: count(tmp_path))
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(before)
    opened: list[Failure | None] = []

    async def lose() -> None:
        async with anyio.create_task_group() as group:
            agent: Any = launch.LaunchAgent({}, group)
            agent._stuck, agent._process = True, SimpleNamespace(returncode=None, stdin=None)
            agent._send_to_agent = sent
            await agent.fork(1, 0, 1, {})  # nobody comes
            agent._stuck = False
            opened.append((await agent.open(1, "127.0.0.1")).trouble)
            (tmp_path / path).write_text(after)
            opened.append((await agent.open(1, "127.0.0.1")).trouble)

    async def sent(_: object) -> None: ...

    anyio.run(lose)
    assert [trouble and trouble.code for trouble in opened] == ["RANK_DIED", "HOST_LIMIT"]


def test_what_earlier_workers_said_explains_nothing_of_new_ones() -> None:
    opened: list[Failure | None] = []

    async def lose() -> None:
        async with anyio.create_task_group() as group:
            agent: Any = launch.LaunchAgent({}, group)
            agent._send_to_agent = sent
            agent._output.feed(b"NCCL WARN socketPollConnect: exceeded timeouts (9) attempts\n")
            opened.append((await agent.open(1, "127.0.0.1")).trouble)
            await agent.fork(1, 0, 1, {})  # there is no process that could
            opened.append((await agent.open(2, "127.0.0.1")).trouble)

    async def sent(_: object) -> None: ...

    anyio.run(lose)
    assert [trouble and trouble.code for trouble in opened] == ["BOOTSTRAP", "RANK_DIED"]


def test_new_workers_have_the_ranks_that_torchrun_gave_where_members_differ_in_gpus() -> None:
    first: list[str] = []

    async def renew() -> None:
        async with anyio.create_task_group() as group:
            agent: Any = launch.LaunchAgent({}, group)
            agent._send_to_agent = sent
            agent._workers = {i: launch.Worker(8 + i, i, agent, 0.0) for i in (1, 0)}
            await agent.fork(2, 2, 2, {})
            agent._workers = {1: launch.Worker(9, 1, agent, 0.0)}  # the other one has died
            await agent.fork(4, 2, 2, {})
            agent._workers = {3: launch.Worker(9, 3, agent, 0.0)}
            await agent.fork(2, 2, 2, {})

    async def sent(order: dict[str, Any]) -> None:
        first.append(order["env"]["FIRST_RANK"])

    anyio.run(renew)
    assert first == ["8", "8", "8"]


@needs_torch
def test_workers_leave_no_core_behind() -> None:
    limits = ""

    async def load() -> None:
        nonlocal limits
        async with anyio.create_task_group() as group:
            agent: Any = launch.LaunchAgent(dict(os.environ), group)
            await agent.load()
            await agent.loaded.wait()
            limits = Path(f"/proc/{agent._process.pid}/limits").read_text()
            await agent.end()
            group.cancel_scope.cancel()

    anyio.run(load)
    [row] = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert row.split()[-3:-1] == ["0", "0"]
