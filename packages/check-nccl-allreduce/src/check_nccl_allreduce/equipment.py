"""What a gang's nodes have by way of adapters, put side by side: whom a lost port leaves
comparable, and what each knows of its own ports. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from preflight_proto.printable import printable

from . import nics
from .control.messages import Hello, RankReport
from .ports import AGES, LINK, TEXT, Local, PortErrors, PortFault, bounded

USUAL = 0.5
"""Of the nodes with these GPUs, more than this share must have the same adapters, to be what such a
node has.
"""
FEW = 0.25
"""And at most this share, or one node, may lack some: else there are two sorts of nodes."""
NAMES = 4
GPUS = {"CurrentClocksEventReasons": "throttle", "PcieReplayCounter": "replay"}
"""By NVML's name of what is read, the kinds of what GPUs say of themselves."""


class Comparable(NamedTuple):
    """``nic`` and ``fabric`` (its kind) as they would be with the ports that a member's node has
    lost; ``lost``: which those are.
    """

    nic: str
    fabric: str
    lost: tuple[PortFault, ...] = ()


def of_gang(hellos: Mapping[int, Hello]) -> dict[int, Comparable]:
    """By rank. Members on nodes that have lost ports get what the nodes with as many GPUs of the
    same model have; all others what they say.

    A port is lost where the kernel lists fewer than it does there, or lists all of them and none is
    active. A pod that was merely given fewer adapters has lost none, and neither has a node with
    half of them or less: that is another sort of node.
    """
    comparables = {
        rank: Comparable(hello.nic, nics.kind_of(hello.fabric) if hello.nic else hello.fabric)
        for rank, hello in hellos.items()
    }
    alike: dict[tuple[str, int], list[int]] = defaultdict(list)
    for rank, hello in sorted(hellos.items()):
        alike[hello.model, hello.workers].append(rank)
    for ranks in alike.values():
        if len({hellos[rank].nic for rank in ranks}) > 1:
            comparables |= _restored(hellos, ranks)
    return comparables


def _restored(hellos: Mapping[int, Hello], ranks: Sequence[int]) -> dict[int, Comparable]:
    nodes = {hellos[rank].node: hellos[rank].nic for rank in ranks}
    usual, count = Counter(nodes.values()).most_common(1)[0]
    has = nics.able(usual)
    whole = [rank for rank in ranks if hellos[rank].nic == usual]
    listed = Counter(hellos[rank].listed for rank in whole).most_common(1)[0][0]
    if has is None or not listed or count <= USUAL * len(nodes):
        return {}
    lacking = {
        rank: fault for rank in ranks if (fault := _lost(hellos[rank], has, listed)) is not None
    }
    if len({hellos[rank].node for rank in lacking}) > max(1, FEW * len(nodes)):
        return {}
    many = f"as on {count} of {len(nodes)} nodes"
    kind = nics.kind_of(hellos[whole[0]].fabric)
    return {
        rank: Comparable(
            usual,
            kind,
            tuple(PortFault(f.port, f.kind, f.found, f"{f.expected}, {many}") for f in fault),
        )
        for rank, fault in lacking.items()
    }


def _lost(
    hello: Hello, has: tuple[str, int, float], listed: Sequence[str]
) -> tuple[PortFault, ...] | None:
    """What this member's node lacks of that; None where it lacks nothing, or is of another sort."""
    if (
        not hello.nic
        and len(hello.listed) == len(listed)
        and any(fault.kind == "state" for fault in hello.ports)
    ):
        return ()  # its ports say themselves that they are down
    mine = nics.able(hello.nic)
    if (
        mine is None
        or (mine[0], mine[2]) != (has[0], has[2])
        or not 0 < len(hello.listed) < len(listed)
    ):
        return None
    if not has[1] / 2 < mine[1] < has[1]:
        return None
    names = [name for name in listed if name not in set(hello.listed)]
    ports = f"{', '.join(names[:NAMES])}{' and more' if len(names) > NAMES else ''}"
    state = f"not listed by the kernel, which has {len(hello.listed)} ports there"
    return (
        PortFault(ports or "a port", "missing", f"is {state}", f"where it lists {len(listed)}"),
    )


def of_node(pods: Sequence[Hello], adapters: Mapping[int, Comparable]) -> Local:
    """Facts that these members, of one node, have of its ports before any round."""
    faults: dict[tuple[str, str], PortFault] = {}
    for pod in pods:
        for fault in (*adapters[pod.rank].lost, *pod.ports):
            faults.setdefault((fault.port, fault.kind), fault)
    return Local(bounded(faults.values()))


def local(
    ranks: Sequence[int],
    rounds: Iterable[Mapping[int, RankReport]],
    faults: Iterable[PortFault] = (),
    *,
    ports: bool = True,
) -> Local:
    """Facts that these members' node knows of its own devices: ``faults`` before any round, and by
    the reports of these rounds what grew, with ``ports``, what others moved and took in the
    silences, and what GPUs said, each once, with the round in which it was first so.

    A counter's seconds are those of all rounds: one error in an hour is another rate than one in
    each second that it was looked for. A node was silent where all its members counted what passed;
    of somebody else's the busiest while counts. Hostile figures are left out.
    """
    known = {(fault.port, fault.kind): fault for fault in faults}
    grown: dict[tuple[str, str], list[int]] = defaultdict(list)
    watched = silent = foreign = load = 0.0
    for results in rounds:
        reports = [results[rank] for rank in ranks if rank in results]
        seconds = max([0.0, *(report.watched for report in reports)])
        if ports and 0 < seconds < AGES:
            watched += seconds
            most: Counter[tuple[str, str]] = Counter()
            for error in (error for report in reports for error in report.errors):
                if error.counter in LINK and error.count > 0:
                    key = (printable(error.port, TEXT), error.counter)
                    most[key] = max(most[key], error.count)
            for key, count in most.items():
                grown[key].append(count)
        spans = [report.silence for report in reports if 0 <= report.silence < AGES]
        silent += min(spans) if len(spans) == len(ranks) else 0.0
        for report in reports:
            foreign = max(foreign, _within(report.foreign, AGES))
            load = max(load, _within(report.load, 1.0))
            for fault in bounded(report.devices):
                if fault.kind in GPUS.values():
                    since = f"has said since round {report.round}: {fault.found}"
                    standing = PortFault(fault.port, fault.kind, since, "which few other nodes' do")
                    known.setdefault((fault.port, fault.kind), standing)
    errors = tuple(
        PortErrors(*key, sum(counts), watched, len(counts)) for key, counts in sorted(grown.items())
    )
    return Local(bounded(known.values()), errors, watched > 0, silent, foreign, load)


def _within(figure: float | None, most: float) -> float:
    """A member's figure, 0 where it is none or cannot be."""
    return figure if figure is not None and 0 <= figure <= most else 0.0
