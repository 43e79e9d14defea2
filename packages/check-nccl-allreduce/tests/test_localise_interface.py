"""Localisation can be driven from outside: a simulator that knows its public names alone, hairpins
and latencies included.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from check_nccl_allreduce.localise import (
    Endpoint,
    Kind,
    Layout,
    Local,
    Phase,
    Probe,
    Result,
    Role,
    Round,
    State,
    Status,
    Verdict,
    Zone,
    next,
)

NODES, LEAF = 24, 6
NORMAL = 380.0
"""GB/s that two healthy nodes reach."""

Answer = Callable[[Probe], Result]


def network(slow_nodes: dict[int, float], slow_paths: dict[int, float], seed: int = 1) -> Answer:
    """Nodes that are slow to everybody and to themselves, and nodes whose way to the switch is;
    with the latency of one hop or of three.
    """
    random = Random(seed)

    def answer(probe: Probe) -> Result:
        share = min(slow_nodes.get(one, 1.0) for one in probe.members)
        if probe.role is not Role.HAIRPIN:
            share = min(share, *(slow_paths.get(one, 1.0) for one in probe.members))
        latency = 0.0
        if len(probe.members) == 2:
            near = len({one // LEAF for one in probe.members}) == 1
            latency = (18e-6 if near else 19e-6) * random.uniform(1, 1.05)
        return Result(Status.OK, NORMAL * share * random.gauss(1, 0.02), latency=latency)

    return answer


def driven(answer: Answer, labeled: bool) -> tuple[Verdict, list[Round]]:
    """Play a slow gang to its end, as docs/localisation.md says how."""
    endpoints = tuple(
        Endpoint(
            f"n{i}",
            "H100/8",
            domain=f"leaf-{i // LEAF}" if labeled else None,
            local=Local(silence=60.0),
        )
        for i in range(NODES)
    )
    state, now, played = (
        State(endpoints, seed=3, layout=Layout.LEAF).after_gang(Zone.BELOW, 0.4 * NORMAL),
        0.0,
        [],
    )
    while isinstance(step := next(state, now), Round):
        members = [one for probe in step.probes for one in probe.members]
        assert len(members) == len(set(members)), "an endpoint is in one probe of a round"
        now += step.wait + 4
        state = state.after(step, [answer(probe) for probe in step.probes], now)
        played.append(step)
    return step, played


def test_a_simulator_that_knows_public_names_alone_gets_a_slow_node_blamed_where_labels_are() -> (
    None
):
    for labeled in (True, False):
        verdict, rounds = driven(network({7: 0.6}, {}), labeled)
        blamed = (7,) if labeled else ()
        assert (verdict.kind is Kind.NODE, verdict.blamed, verdict.named) == (labeled, blamed, (7,))
        assert Phase.HAIRPIN in {one.phase for one in rounds}
        assert verdict.rounds <= 8


def test_a_simulator_that_knows_public_names_alone_gets_nobody_blamed_for_a_slow_path() -> None:
    for labeled in (True, False):
        verdict, _ = driven(network({}, {7: 0.5}), labeled)
        assert (verdict.blamed, verdict.named) == ((), (7,))
