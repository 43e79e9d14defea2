"""Who leads when the leader is lost, and what can be said then. Pure.

The members know from the roster who may lead, and in which order: rank 0, then members on other
nodes. A member never goes back to an earlier one, and follows one at a time; which of them a frame
belongs to is part of its MAC. So no member hears two verdicts.

The gang's own all-reduce cannot be done without the ranks that went with the leader, and what
others had reported is known to it alone: a successor that finds the run begun ends it, with one
verdict for all. Before, it takes the leader's part whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from preflight_proto.roster import Roster

from .messages import Hello, VerdictMessage, few

TRIES: Final = 1.5
"""Times what a loss takes to be noticed, in which a successor, which may be later, answers."""
GATHERS: Final = 2.0
"""The same, for it to hear the others and to be there for those who come late."""


@dataclass(frozen=True)
class SuccessorAddress:
    """Somebody who may lead."""

    rank: int
    address: str


def leaders(roster: Roster) -> tuple[SuccessorAddress, ...]:
    """Who may lead, in order: rank 0 first."""
    assert roster.master_addr is not None
    return SuccessorAddress(0, roster.master_addr), *(
        SuccessorAddress(rank, address) for rank, address in roster.successors
    )


def concluded(lost: str, members: int, by: int, hellos: Mapping[int, Hello]) -> VerdictMessage:
    """The verdict of a successor on a run that it cannot go on with. ``lost``: the leader, in
    words; ``by``: the successor's rank.
    """
    began = [(hello.who, hello.standing) for _, hello in sorted(hellos.items()) if hello.standing]
    last = max((standing.round for _, standing in began), default=0)
    latest = [(who, standing) for who, standing in began if standing.round == last]
    probing = any(standing.probing for _, standing in latest)
    what = "pairs were measured" if probing else "the gang's all-reduce ran"
    missing = [str(rank) for rank in range(members) if rank not in hellos and rank != 0]
    troubles = [f"{who}: {each.trouble.text}" for who, each in latest if each.trouble is not None]
    here = hellos[by].who if by in hellos else f"rank {by}"
    parts = [
        f"{lost}, was lost during the run, while {what} (round {last}): its pod is gone, or cut off; look at that pod and its node first",
        f"{here} took its place and ended the run for the {len(hellos)} members that are there",
    ]
    if missing:
        parts.append(f"rank {few(missing)} did not come either")
    if troubles:
        parts.append(f"said after it: {few(troubles, '; ')}")
    return VerdictMessage("inconclusive", "LEADER_LOST", f"{'; '.join(parts)}.")
