"""What is remembered from gang to gang: what this one says of its nodes in its members' results,
and what their past says of it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from preflight_proto.history import Past, Sighting, said

from . import localise
from .control.messages import Hello, LaunchOrder, VerdictMessage
from .localise import past
from .settings import show_size

__all__ = ["details", "kind", "known", "seen", "slower"]

MOST_GOOD: Final = 256
"""Nodes of a gang, beyond which only those that were bad in a pair are listed: everybody gets the
one message that has them all.
"""


def kind(hello: Hello, size: int) -> str:
    """What a node's figures are of: its hardware, and what was measured. Empty where its workload's
    own variables may bend them.
    """
    if hello.unusual or hello.trouble is not None:
        return ""
    moved = "" if hello.backend == "nccl" else f"{hello.backend}/"
    return f"{moved}{hello.model}/{hello.workers}/{hello.nic or hello.fabric}/{show_size(size)}"


def known(hello: Hello, size: int) -> Past | None:
    """What is remembered of the member's node, without figures of other hardware or of another
    measurement.
    """
    if hello.past is None or hello.past.kind == kind(hello, size):
        return hello.past
    return Past(spells=hello.past.spells) if hello.past.spells else None


def slower(hellos: Mapping[int, Hello], start: LaunchOrder, gbps: float) -> bool:
    """Whether more than half of the members are on nodes that usually reach more in gangs like this
    one.
    """
    nodes = len({hello.node for hello in hellos.values()})
    pasts = [known(hello, start.size) for hello in hellos.values()]
    less = sum(1 for one in pasts if one is not None and past.below(gbps, one.of(nodes)))
    return less > len(hellos) / 2


def seen(ranks: Sequence[Sequence[int]], state: localise.State) -> dict[int, Sighting]:
    """By rank, what localisation has seen of each node. ``ranks``: the members on each of its
    endpoints.
    """
    found = list(enumerate(localise.sightings(state)))
    if len(found) > MOST_GOOD:
        found = [(node, one) for node, one in found if one.bad][:MOST_GOOD]
    return {rank: one for node, one in found if one != Sighting() for rank in ranks[node]}


def details(hello: Hello, members: int, message: VerdictMessage, size: int) -> dict[str, str]:
    """For the result of one member of so many: what the gang has seen of its node."""
    if message.outcome not in {"passed", "failed"} or not (of := kind(hello, size)):
        return {}
    one = message.seen.get(hello.rank, Sighting())
    return said(msgspec.structs.replace(one, kind=of, nodes=members))
