"""What nodes know of their own ports, held against each other: part of the kind of evidence
*local*. Pure.

It chooses no round: who knows it later, or not at all, is asked the same. A port's word alone
blames nobody, and what a good part of the nodes of a kind have is a fleet's habit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from ..ports import LINK, PortErrors, PortFault
from .model import State

__all__ = ["GROWTH", "NOTHING", "SURE", "Own", "owned"]

SURE = 1e3
"""A GPU that is slowed by heat or power, or a port that is missing, not active, or below its own
ability or its siblings', where other nodes' are not so: as much as one kind of evidence may count.
"""
GROWTH = 1e2
"""The most that error counters count: they speak of the link, of which the port is one end."""
HABIT = 0.25
"""Of the nodes of a kind, the share that may have such a fault, or as many errors, or one node:
where more have it, it says nothing.
"""
ALONE = 8.0
"""How much likelier such growth is of a bad node, at least, where no other node's came near it."""
SIMILAR = 0.1
"""A counter that grew by this share of another one's growth grew as much: of nodes all of which
count some errors, one always counts most.
"""


class Own(NamedTuple):
    """``fault`` (1 or :data:`SURE`) and ``growth`` (1 to :data:`GROWTH`): how much likelier that is
    of a bad node. ``told``: port, what was found, what was expected.
    """

    fault: float = 1.0
    growth: float = 1.0
    told: str = ""

    @property
    def factor(self) -> float:
        """The likelihood ratio of both together, for a fault of the node's own."""
        return min(SURE, self.fault * self.growth)


NOTHING = Own()


def owned(state: State) -> dict[int, Own]:
    """Of each endpoint whose ports say something that those of others do not."""
    kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for one, endpoint in enumerate(state.endpoints):
        kinds[endpoint.kind, endpoint.nic].append(one)
    found: dict[int, Own] = {}
    for ones in kinds.values():
        if any(
            state.endpoints[one].local.faults or state.endpoints[one].local.errors for one in ones
        ):
            found |= _of_kind(state, ones)
    return found


def _of_kind(state: State, ones: list[int]) -> dict[int, Own]:
    local = {one: state.endpoints[one].local for one in ones}
    with_fault: dict[str, int] = defaultdict(int)
    for known in local.values():
        for kind in {fault.kind for fault in known.faults}:
            with_fault[kind] += 1
    rates: dict[str, list[float]] = defaultdict(list)
    for known in local.values():
        for counter in {error.counter for error in known.errors}:
            rates[counter].append(
                max(error.rate for error in known.errors if error.counter == counter)
            )
    for each in rates.values():
        each.sort()
    counted = sum(1 for known in local.values() if known.counted)
    found = {}
    for one, known in local.items():
        faults = [fault for fault in known.faults if _unlike(with_fault[fault.kind], len(ones))]
        errors = [(_growth(error, rates[error.counter], counted), error) for error in known.errors]
        most = max((factor for factor, _ in errors), default=1.0)
        told = _told(
            faults, [error for factor, error in errors if factor > 1], with_fault, len(ones)
        )
        own = Own(SURE if faults else 1.0, most, told)
        if own.factor > 1:
            found[one] = own
    return found


def _unlike(those: int, nodes: int) -> bool:
    """Whether so few nodes of a kind have a fault that it is theirs;
    of one alone nothing can be said.
    """
    return nodes > 1 and those <= max(1, HABIT * nodes)


def _growth(error: PortErrors, rates: list[float], counted: int) -> float:
    """From the share of nodes whose counter grew as much, and the rounds in which this one did."""
    if error.counter not in LINK or error.rate <= LINK[error.counter][2] or counted < 1:
        return 1.0
    as_much = len(rates) - bisect_left(rates, SIMILAR * error.rate)
    many = len(rates) - bisect_left(rates, LINK[error.counter][2])
    if max(as_much, many) > max(1, HABIT * counted):
        return 1.0
    unlike = counted / as_much
    return min(
        GROWTH, (max(ALONE, unlike) if as_much == 1 < counted else unlike) ** min(error.rounds, 64)
    )


def _told(
    faults: list[PortFault], errors: list[PortErrors], with_fault: dict[str, int], nodes: int
) -> str:
    told = [f"{fault.told} ({with_fault[fault.kind]} of {nodes} nodes so)" for fault in faults[:4]]
    told += [
        f"{one.port} counted {one.count} {one.counter} in {one.rounds} round(s), more than other nodes"
        for one in errors[:4]
    ]
    return "; ".join(told)
