"""Gangs behind leaf switches for the tests of localisation, and what their probes bring."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from allreduce_testing.worlds.simulation import play
from check_nccl_allreduce.localise import (
    Endpoint,
    Layout,
    Local,
    PortFault,
    Probe,
    Result,
    State,
    Status,
    Verdict,
    Zone,
)

Answer = Callable[[Probe, int], Result]
"""Probe, number of its round → what it brings."""
NORMAL = 100.0
"""GB/s of two healthy nodes."""
SILENT = Local(silence=60.0)
DOWN = PortFault("mlx5_3:1", "state", "is DOWN (Polling)", "not ACTIVE")


def gang(
    size: int,
    domain: Callable[[int], str | None] = lambda i: f"leaf-{i // 32}",
    *,
    zone: Zone = Zone.BELOW,
    down: Sequence[int] = (),
    seed: int = 7,
) -> State:
    """A leaf layout whose adapters nobody else uses; ports of those that are ``down`` are."""
    endpoints = tuple(
        Endpoint(
            f"node-{i}",
            "H100/8",
            domain(i),
            local=Local((DOWN,), silence=60.0) if i in down else SILENT,
        )
        for i in range(size)
    )
    return State(endpoints, seed, layout=Layout.LEAF).after_gang(zone, 40.0)


def ok(share: float = 1.0, latency: float = 0.0) -> Result:
    return Result(Status.OK, NORMAL * share, latency=latency)


def played(state: State, answer: Answer) -> tuple[Verdict, State]:
    return play(state, lambda one: [answer(probe, one.number) for probe in one.probes])


def localized(state: State, answer: Answer) -> Verdict:
    return played(state, answer)[0]
